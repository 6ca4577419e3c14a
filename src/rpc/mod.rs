//! The gRPC side of the server.

pub mod health;
pub mod listener;
pub mod probe;
pub mod server;
pub mod uds;

mod service;
pub use service::Service;
