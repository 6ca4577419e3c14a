//! The arguments of `croupier bench`.

use super::{Address, BenchError, Distribution, Mix};
use crate::dial::Access;
use crate::sampling::logits::Dtype;
use std::time::Duration;

/// The smallest [`BenchArgs::rate`] above 0, in steps per second.
pub const MIN_RATE: f64 = 1e-3;
/// The largest [`BenchArgs::rate`], in steps per second.
pub const MAX_RATE: f64 = 1e6;

/// Whether a bench can send so many steps per second.
#[must_use]
pub fn is_rate(rate: f64) -> bool {
    rate == 0.0 || (MIN_RATE..=MAX_RATE).contains(&rate)
}

/// What `croupier bench` should measure, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchArgs {
    /// The server to measure. `None`: [`Address::default`], unless `spawn` is given.
    pub addr: Option<Address>,
    /// TLS and token for that server.
    pub access: Access,
    /// Start a server as a child process that listens on this kind of socket.
    pub spawn: Option<Transport>,
    /// Concurrent streams, each on its own connection.
    pub streams: usize,
    /// Sequences per stream.
    pub batch: usize,
    /// Logits per row.
    pub vocab: u32,
    /// Number format of the logits.
    pub dtype: Dtype,
    /// The sampling parameters of the sequences.
    pub mix: Mix,
    /// The distribution of the logits in a row.
    pub distribution: Distribution,
    /// How long each round measures.
    pub duration: Duration,
    /// How long each round runs before it measures.
    pub warmup: Duration,
    /// Rows are put into one message up to this many bytes, but at least one row. With shared memory all rows of a
    /// stream form one step.
    pub message_bytes: usize,
    /// How logits travel to the server.
    pub path: LogitsPath,
    /// Also run the same rows on a backend in this process. The two are measured alternately.
    pub in_process: bool,
    /// Also measure rows whose columns come from this many ranks, beside whole rows. Each rank is a process of its own.
    pub shards: Vec<u32>,
    /// Steps per second of each group of sequences. 0: a step follows as soon as the reply is there.
    pub rate: f64,
    /// Number of rounds. 0: three with `baseline`, else one.
    pub rounds: usize,
    /// Also measure a bare tonic stream. The two are measured alternately.
    pub baseline: bool,
    /// Seed of rows and sequences.
    pub seed: u64,
    /// Print one JSON object instead of a table.
    pub json: bool,
}

impl Default for BenchArgs {
    fn default() -> Self {
        Self {
            addr: None,
            access: Access::default(),
            spawn: None,
            streams: 1,
            batch: 64,
            vocab: 128_256,
            dtype: Dtype::F32,
            mix: Mix::TopK,
            distribution: Distribution::Peaked,
            duration: Duration::from_secs(5),
            warmup: Duration::from_secs(1),
            message_bytes: 1 << 20,
            path: LogitsPath::Inline,
            in_process: false,
            shards: Vec::new(),
            rate: 0.0,
            rounds: 0,
            baseline: false,
            seed: 1,
            json: false,
        }
    }
}

impl BenchArgs {
    pub(super) fn row_bytes(&self) -> usize {
        self.vocab as usize * self.dtype.size()
    }

    pub(super) fn rows_per_message(&self) -> usize {
        match self.path {
            LogitsPath::Inline => (self.message_bytes / self.row_bytes()).clamp(1, self.batch),
            LogitsPath::SharedMemory | LogitsPath::Slots => self.batch,
        }
    }

    pub(super) fn round_count(&self) -> usize {
        match (self.rounds, self.baseline || self.in_process || !self.shards.is_empty()) {
            (0, true) => 3,
            (0, false) => 1,
            (rounds, _) => rounds,
        }
    }

    /// Checks that the arguments can be combined.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let wrong = |text: &str| Err(BenchError::Args(text.to_owned()));
        match self {
            BenchArgs { addr: Some(_), spawn: Some(_), .. } => wrong("give --addr or --spawn, not both"),
            BenchArgs { spawn: Some(_), access, .. } if *access != Access::default() => {
                wrong("TLS and tokens need --addr; a server started by --spawn has neither")
            }
            BenchArgs { streams: 0, .. } => wrong("--streams must be at least 1"),
            BenchArgs { batch: 0, .. } => wrong("--batch must be at least 1"),
            BenchArgs { vocab: 0, .. } => wrong("--vocab must be at least 1"),
            BenchArgs { duration: Duration::ZERO, .. } => wrong("--duration must be positive"),
            BenchArgs { in_process: true, mix, .. } if mix.filters().is_none() => wrong(
                "--in-process samples rows without sequences; give a --mix of greedy, top-k, temperature, top-p or min-p",
            ),
            BenchArgs { shards, streams, baseline, in_process, rate, .. }
                if !shards.is_empty() && (*streams != 1 || *baseline || *in_process || *rate != 0.0) =>
            {
                wrong(
                    "--shards is measured beside whole rows only; use --streams 1, without --rate, --baseline and --in-process",
                )
            }
            BenchArgs { shards, access, .. } if !shards.is_empty() && *access != Access::default() => {
                wrong("--shards starts processes that support neither TLS nor tokens; leave these out")
            }
            BenchArgs { path: LogitsPath::Slots, shards, rate, .. } if !shards.is_empty() || *rate != 0.0 => {
                wrong("--transport shm-slots cannot be combined with --shards or --rate; use --transport shm")
            }
            BenchArgs { path: LogitsPath::SharedMemory | LogitsPath::Slots, baseline: true, .. } => wrong(
                "--baseline is a bare stream of messages, so it needs --transport inline; with shared memory use --in-process",
            ),
            BenchArgs { shards, vocab, .. } if shards.iter().any(|ranks| ranks > vocab) => {
                wrong("--shards must be at most --vocab, since each rank needs a column")
            }
            BenchArgs { rate, .. } if !is_rate(*rate) => {
                wrong(&format!("--rate must be 0, or in {MIN_RATE} ..= {MAX_RATE}"))
            }
            _ => Ok(()),
        }
    }
}

/// How logits travel to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsPath {
    /// In the message.
    Inline,
    /// In a region of shared memory. The rows are written there before the first step, as if a device had put them
    /// there.
    SharedMemory,
    /// In a region, through which tokens come back too. A step ends when its tokens are there.
    Slots,
}

impl LogitsPath {
    /// Names and values, for the command line.
    pub const NAMES: [(&str, LogitsPath); 3] =
        [("inline", LogitsPath::Inline), ("shm", LogitsPath::SharedMemory), ("shm-slots", LogitsPath::Slots)];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, path)| path == self).map_or("", |&(name, _)| name)
    }
}

/// Kinds of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP on the loopback interface.
    Tcp,
    /// A Unix socket.
    Uds,
}

impl Transport {
    /// Names and values, for the command line.
    pub const NAMES: [(&str, Transport); 2] = [("tcp", Transport::Tcp), ("uds", Transport::Uds)];
}
