//! Configuration from flags, environment, file and defaults, in that order of precedence. clap is used here and nowhere
//! else.
//!
//! [`settings::SETTINGS`] declares each setting once: its name, help and default, and how it is read and shown. Flags,
//! environment variables, keys of the file, `--help` and `docs/configuration.md` all follow from that list. Everything
//! is checked before anything is opened, and all mistakes are reported at once.

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
mod meant;
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

/// Exit code if the configuration has mistakes.
pub const EXIT_CONFIG: u8 = 2;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Which backend samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChoice {
    /// A GPU if there is a usable one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU. If there is none, the server does not start.
    Cuda,
}

/// The socket at which shared memory is handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegionSocket {
    /// Beside the Unix socket of gRPC, if there is one and the system supports such memory.
    Auto,
    /// None: shared memory is off.
    Off,
    /// At this path.
    At(PathBuf),
}

/// HTTP/2 sizes, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2 {
    /// How much a client may send on one stream before it must wait.
    pub stream_window: u32,
    /// How much a client may send on one connection before it must wait.
    pub connection_window: u32,
    /// Largest frame on TCP.
    pub frame_size_tcp: u32,
    /// Largest frame on a Unix socket.
    pub frame_size_uds: u32,
}

/// The checked configuration of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Address of gRPC over TCP.
    pub listen: Option<SocketAddr>,
    /// Path of gRPC's Unix socket.
    pub uds: Option<PathBuf>,
    /// The side socket for shared memory. See [`Config::region_socket`].
    pub region_socket: RegionSocket,
    /// Address of the admin HTTP server with metrics and probes.
    pub admin: Option<SocketAddr>,
    /// The files for TLS on `listen`.
    pub tls: tls::Files,
    /// The time within which a TLS handshake must be complete.
    pub tls_handshake_timeout: Duration,
    /// The file of bearer tokens. Calls on `listen` must present one of them.
    pub auth_token_file: Option<PathBuf>,
    /// Which backend samples.
    pub backend: BackendChoice,
    /// The GPU to use: its index or UUID.
    pub device: String,
    /// With a GPU: which backend samples rows that are not in the GPU's memory.
    pub host_rows: HostRows,
    /// Number of threads that sample. `None`: as many as this process may use. See [`Config::threads`].
    pub threads: Option<usize>,
    /// Number of threads that read and write messages. `None`: as many as this process may use, up to a bound. See
    /// [`Config::io_threads`].
    pub io_threads: Option<usize>,
    /// The instruction set that the CPU backend uses. `None`: the fastest that this CPU has.
    pub simd: Option<Level>,
    /// The time within which a connection must send its HTTP/2 preface.
    pub first_byte_timeout: Duration,
    /// Time between HTTP/2 pings to a silent client. Zero: no pings.
    pub keepalive_interval: Duration,
    /// The time within which a ping must be answered.
    pub keepalive_timeout: Duration,
    /// A connection older than this takes no new calls. Zero: no age limit.
    pub max_connection_age: Duration,
    /// If the engine works on one batch for longer than this, the liveness probe fails. Zero: never.
    pub engine_stall_timeout: Duration,
    /// Time between announcing the shutdown to clients and refusing new connections.
    pub lame_duck: Duration,
    /// Streams that are still open after this much draining are cut.
    pub drain_timeout: Duration,
    /// Whether workers may lend GPU buffers by legacy IPC handles.
    pub device_ipc: bool,
    /// Whether gRPC server reflection is served.
    pub reflection: bool,
    /// HTTP/2 sizes.
    pub http2: Http2,
    /// Where traces are sent.
    pub traces: otlp::Settings,
    /// Share of the traces begun here that are recorded.
    pub trace_ratio: f64,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// Which log lines are written: a filter such as "info,h2=warn".
    pub log_level: String,
    /// The server's bounds.
    pub limits: Limits,
    /// Parameters for fields that neither a sequence nor its stream sets.
    pub defaults: SamplingParams,
    /// The same parameters as text for clients.
    pub defaults_written: String,
    /// The file that replaces the shipped presets.
    pub presets_file: Option<PathBuf>,
    /// Named parameter sets.
    pub presets: Presets,
    /// The file with the texts of tokens.
    pub vocabulary_file: Option<PathBuf>,
    /// The content of that file. Only a server reads it.
    pub vocabulary: Option<Arc<Vocabulary>>,
    /// Whether grammars are compiled.
    pub grammars: bool,
}

/// A size in bytes, written as in settings. `None` if the text is not a size.
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
    /// The side socket for shared memory, if there is one. Unless it is set, its path is that of the Unix socket with
    /// ".region" appended.
    #[must_use]
    pub fn region_socket(&self) -> Option<PathBuf> {
        match (&self.region_socket, &self.uds) {
            (RegionSocket::At(path), _) => Some(path.clone()),
            (RegionSocket::Auto, Some(uds)) if region::IS_SUPPORTED => Some(region::side_socket(uds)),
            (RegionSocket::Auto | RegionSocket::Off, _) => None,
        }
    }

    /// Number of threads that sample. Unless it is set, it is what the CPU quota and affinity of this process allow.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(allowed_threads)
    }

    /// Number of threads that read and write messages. Unless it is set, it is at most eight, however many cores there
    /// are: eight threads already copy messages about as fast as the memory allows.
    #[must_use]
    pub fn io_threads(&self) -> usize {
        self.io_threads.unwrap_or_else(|| allowed_threads().min(8))
    }
}

/// Number of CPUs that the quota and affinity of this process allow.
fn allowed_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests;
