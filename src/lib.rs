//! Croupier deals tokens: a gRPC sampling sidecar for LLM inference.

pub mod admin;
pub mod admin_client;
pub mod app;
pub mod automaton;
pub mod backend;
pub mod bench;
mod blocking_semaphore;
pub mod compare;
mod complaints;
pub mod config;
pub mod dial;
pub mod engine;
pub mod error;
pub mod explain;
pub mod files;
pub mod grammar;
mod growth;
pub mod healthcheck;
pub mod inject;
pub mod limits;
mod locks;
pub mod memory;
mod message;
pub mod metrics;
pub mod otlp;
mod output;
pub mod params;
pub mod permits;
pub mod region;
pub mod reload;
pub mod row_files;
pub mod rpc;
pub mod sampling;
pub mod secrets;
pub mod sequence;
pub mod shutdown;
pub mod speculative;
pub mod telemetry;
pub mod tls;
pub mod tokens;
pub mod top;
pub mod trace;
pub mod vocabulary;
pub mod watermark;

/// The wire types, generated from `proto/croupier/v1/sampler.proto`.
pub mod proto {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("croupier.v1");
    include!(concat!(env!("OUT_DIR"), "/server/croupier.v1.rs"));

    /// The file descriptor set, for reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/croupier.v1.bin"));
}
