//! Configuration: flags, environment, file, defaults, in that order of precedence. clap is used here and nowhere else.
//!
//! [`settings::SETTINGS`] declares each setting once: name, help, default, how it is read and how it is shown. Flags,
//! environment variables, keys of the file, `--help` and `docs/configuration.md` all follow from that list. Everything
//! is checked before anything is opened, and all mistakes are told at once.

mod access;
mod bench;
mod check;
mod cli;
mod compare;
mod composed;
mod defaults;
mod detect;
mod explain;
mod file;
mod flags;
mod given;
mod inject;
mod marks;
mod named;
mod parts;
mod presets;
mod reference;
mod resolve;
mod secrets;
#[macro_use]
mod setting;
mod settings;
mod top;
mod values;

pub use bench::writer_flags;
pub use cli::{Command, HealthcheckArgs, Stop, Target, command_line, parse, parse_process};
pub use defaults::default_parameters_table;
pub use presets::presets_table;
pub use reference::reference_table;
pub use resolve::unknown_variables;

use crate::backend::cpu::Level;
use crate::backend::cuda::HostRows;
use crate::limits::Limits;
use crate::otlp;
use crate::params::SamplingParams;
use crate::params::presets::Presets;
use crate::region;
use crate::tls;
use crate::vocabulary::Vocabulary;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Exit code for mistakes in the configuration.
pub const EXIT_CONFIG: u8 = 2;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChoice {
    /// A GPU if there is one that can be used, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, or the server does not start.
    Cuda,
}

/// Where shared memory is handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegionSocket {
    /// Beside the Unix socket of gRPC, if there is one and the system has such memory.
    Auto,
    /// Nowhere.
    Off,
    /// Here.
    At(PathBuf),
}

/// HTTP/2 sizes, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2 {
    /// What a client may send on one stream before it must wait.
    pub stream_window: u32,
    /// What a client may send on one connection before it must wait.
    pub connection_window: u32,
    /// Largest frame on TCP.
    pub frame_size_tcp: u32,
    /// Largest frame on a Unix socket.
    pub frame_size_uds: u32,
}

/// The checked configuration of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// gRPC over TCP.
    pub listen: Option<SocketAddr>,
    /// gRPC over a Unix socket.
    pub uds: Option<PathBuf>,
    /// The side socket for shared memory. See [`Config::region_socket`].
    pub region_socket: RegionSocket,
    /// Metrics and probes over HTTP.
    pub admin: Option<SocketAddr>,
    /// TLS on `listen`.
    pub tls: tls::Files,
    /// A TLS handshake must be over by then.
    pub tls_handshake_timeout: Duration,
    /// The file of bearer tokens, one of which calls on `listen` must show.
    pub auth_token_file: Option<PathBuf>,
    /// What samples.
    pub backend: BackendChoice,
    /// Which GPU: its index or UUID.
    pub device: String,
    /// Who samples rows that are not in the GPU's memory, beside a GPU.
    pub host_rows: HostRows,
    /// Threads that sample; `None`: as many as this process may use. See [`Config::threads`].
    pub threads: Option<usize>,
    /// Threads that read and write messages; `None`: as many as may run, within reason. See [`Config::io_threads`].
    pub io_threads: Option<usize>,
    /// Instructions the CPU backend uses; `None`: the fastest that this CPU has.
    pub simd: Option<Level>,
    /// A connection must have sent its HTTP/2 preface by then.
    pub first_byte_timeout: Duration,
    /// Time between HTTP/2 pings to a silent client; zero: none.
    pub keepalive_interval: Duration,
    /// A ping must be answered by then.
    pub keepalive_timeout: Duration,
    /// A connection older than this takes no new calls; zero: any age.
    pub max_connection_age: Duration,
    /// An engine that is longer at one batch is told to the liveness probe; zero: never.
    pub engine_stall_timeout: Duration,
    /// Between telling clients that the server goes away and refusing them.
    pub lame_duck: Duration,
    /// After this much draining, streams still open are cut.
    pub drain_timeout: Duration,
    /// Whether workers may lend GPU buffers by legacy IPC handles.
    pub device_ipc: bool,
    /// Whether gRPC server reflection is served.
    pub reflection: bool,
    /// HTTP/2 sizes.
    pub http2: Http2,
    /// Where traces go.
    pub traces: otlp::Settings,
    /// Share of traces that begin here and are recorded.
    pub trace_ratio: f64,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which log lines are written: a filter such as "info,h2=warn".
    pub log_level: String,
    /// Bounds.
    pub limits: Limits,
    /// Parameters for fields that neither a sequence nor its stream gives.
    pub defaults: SamplingParams,
    /// The same as clients are told of them.
    pub defaults_written: String,
    /// The file that takes the place of the shipped presets.
    pub presets_file: Option<PathBuf>,
    /// Named parameter sets.
    pub presets: Presets,
    /// The file with texts of tokens.
    pub vocabulary_file: Option<PathBuf>,
    /// What is in it; read for a server only.
    pub vocabulary: Option<Arc<Vocabulary>>,
    /// Whether grammars are compiled.
    pub grammars: bool,
}

/// A size as settings say it, in bytes; `None` if it is none.
#[must_use]
pub fn bytes(text: &str) -> Option<u64> {
    values::size(text, 0..=u64::MAX).ok()
}

impl Default for Config {
    fn default() -> Self {
        let local = |port| Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        Self {
            listen: local(50051),
            uds: None,
            region_socket: RegionSocket::Auto,
            admin: local(9464),
            tls: tls::Files::default(),
            tls_handshake_timeout: Duration::from_secs(5),
            auth_token_file: None,
            backend: BackendChoice::Cpu,
            device: "0".to_owned(),
            host_rows: HostRows::Cpu,
            threads: None,
            io_threads: None,
            simd: None,
            first_byte_timeout: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(20),
            max_connection_age: Duration::ZERO,
            engine_stall_timeout: Duration::from_secs(60),
            lame_duck: Duration::ZERO,
            drain_timeout: Duration::from_secs(25),
            device_ipc: false,
            reflection: false,
            http2: Http2 {
                stream_window: 16 << 20,
                connection_window: 32 << 20,
                frame_size_tcp: 256 << 10,
                frame_size_uds: 1 << 20,
            },
            traces: otlp::Settings::default(),
            trace_ratio: 0.01,
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
            limits: Limits::default(),
            defaults: SamplingParams::default(),
            defaults_written: String::new(),
            presets_file: None,
            presets: presets::shipped(),
            vocabulary_file: None,
            vocabulary: None,
            grammars: false,
        }
    }
}

impl Config {
    /// The side socket for shared memory, if there is to be one. Unless set, its name is that of the Unix socket with
    /// ".region" after it.
    #[must_use]
    pub fn region_socket(&self) -> Option<PathBuf> {
        match (&self.region_socket, &self.uds) {
            (RegionSocket::At(path), _) => Some(path.clone()),
            (RegionSocket::Auto, Some(uds)) if region::IS_SUPPORTED => Some(region::side_socket(uds)),
            (RegionSocket::Auto | RegionSocket::Off, _) => None,
        }
    }

    /// Threads that sample. Unless set, what the CPU quota and affinity of this process leave it.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(allowed_threads)
    }

    /// Threads that read and write messages. Unless set, few of them where there are many cores: eight copy messages about as
    /// fast as memory takes them.
    #[must_use]
    pub fn io_threads(&self) -> usize {
        self.io_threads.unwrap_or_else(|| allowed_threads().min(8))
    }
}

/// What the CPU quota and affinity of this process leave it.
fn allowed_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests;
