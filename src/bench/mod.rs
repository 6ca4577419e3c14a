//! The load generator behind `croupier bench`: real gRPC clients that send logits and wait for tokens.
//!
//! What is measured: each stream is one connection that carries several groups of sequences, as many to a message as
//! fit [`BenchArgs::message_bytes`]. A group's next row is sent when its last token is back, as a model would; the
//! groups of a stream are in flight together. The time of a step runs from handing the message to the transport to
//! reading its reply, so waiting for flow control counts. With [`BenchArgs::rate`] the steps have a timetable and the
//! time runs from when a step was due, which corrects for coordinated omission; without it there is no timetable to
//! fall behind: the load is closed, as decoding is.

mod address;
mod baseline;
mod child;
mod client;
mod group;
mod in_process;
mod load;
mod mix;
mod pool;
mod progress;
pub mod region;
mod report;
mod shard_report;
mod shards;
mod slots;
mod writer;

pub use address::Address;
pub use baseline::{BaselineArgs, serve_baseline};
pub use mix::Mix;
pub use pool::Distribution;
pub use report::{Report, SideReport, StepTimes};
pub use shard_report::{RanksReport, ShardReport};
pub use writer::{WriterArgs, write_shards};

use crate::config::EXIT_CONFIG;
use crate::dial::Access;
use crate::output;
use crate::sampling::logits::Dtype;
use std::future::poll_fn;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The most steps a second that [`BenchArgs::rate`] may ask for.
pub const MAX_RATE: f64 = 1e6;

/// What `croupier bench` is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchArgs {
    /// The server. `None`: [`Address::default`], unless `spawn`.
    pub addr: Option<Address>,
    /// How to get in there.
    pub access: Access,
    /// Start a server as a child process, listening on this kind of socket.
    pub spawn: Option<Transport>,
    /// Concurrent streams, each on its own connection.
    pub streams: usize,
    /// Sequences per stream.
    pub batch: usize,
    /// Logits per row.
    pub vocab: u32,
    /// Number format of the logits.
    pub dtype: Dtype,
    /// What the sequences ask for.
    pub mix: Mix,
    /// What the rows look like.
    pub distribution: Distribution,
    /// How long each round measures.
    pub duration: Duration,
    /// How long each round runs before it measures.
    pub warmup: Duration,
    /// Rows are put into one message up to this many bytes; at least one. With shared memory all rows of a stream
    /// make one step.
    pub message_bytes: usize,
    /// How logits get to the server.
    pub path: LogitsPath,
    /// Also run the same rows on a backend in this process, alternately.
    pub in_process: bool,
    /// Measure rows whose columns so many ranks bring, each a process of its own, beside whole rows.
    pub shards: Vec<u32>,
    /// Steps per second of each group of sequences. 0: as fast as the replies come.
    pub rate: f64,
    /// Rounds. 0: three with `baseline`, else one.
    pub rounds: usize,
    /// Also measure a bare tonic stream, alternately.
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
    fn row_bytes(&self) -> usize {
        self.vocab as usize * self.dtype.size()
    }

    fn rows_per_message(&self) -> usize {
        match self.path {
            LogitsPath::Inline => (self.message_bytes / self.row_bytes()).clamp(1, self.batch),
            LogitsPath::SharedMemory | LogitsPath::Slots => self.batch,
        }
    }

    fn round_count(&self) -> usize {
        match (self.rounds, self.baseline || self.in_process || !self.shards.is_empty()) {
            (0, true) => 3,
            (0, false) => 1,
            (rounds, _) => rounds,
        }
    }
}

/// Ways for logits to get to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsPath {
    /// In the message.
    Inline,
    /// In a region. The rows lie there before the first step, as if a device had put them there.
    SharedMemory,
    /// In a region, and tokens come back through it: a step ends when they are there.
    Slots,
}

impl LogitsPath {
    /// Names and values, for the command line.
    pub const NAMES: [(&str, LogitsPath); 3] =
        [("inline", LogitsPath::Inline), ("shm", LogitsPath::SharedMemory), ("shm-slots", LogitsPath::Slots)];

    /// Its name.
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

/// Why a measurement came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Nobody answers.
    #[error(
        "cannot reach {addr}: {reason}\nStart a server with `croupier serve`, name one with --addr, or let this command start one with --spawn uds"
    )]
    Unreachable {
        /// Who was called.
        addr: Address,
        /// What went wrong, in words.
        reason: String,
    },
    /// Somebody answers, but not this client.
    #[error("{addr}: {reason}")]
    Refused {
        /// Who was called.
        addr: Address,
        /// What went wrong, in words, and what to do about it.
        reason: String,
    },
    /// A child process did not start.
    #[error("cannot start {what}: {reason}")]
    Spawn {
        /// Which process.
        what: &'static str,
        /// What went wrong, in words.
        reason: String,
    },
    /// The server ended a stream before anything was measured.
    #[error("the server ended the stream: {0}")]
    Stream(Box<tonic::Status>),
    /// Arguments that make no sense together.
    #[error("{0}")]
    Args(String),
    /// The signal that ended it.
    #[error("stopped by signal {0}")]
    Stopped(i32),
    /// Nothing could be written or listened on.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The baseline server failed.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// The subcommand `bench`: measures and prints. A server that gave no token at all is a failure.
#[must_use]
pub fn main(args: BenchArgs) -> ExitCode {
    let (json, is_sharded) = (args.json, !args.shards.is_empty());
    let measured = if is_sharded {
        block_on(run_sharded(args)).map(|r| (if json { r.to_json() + "\n" } else { r.to_string() }, r.is_complete()))
    } else {
        let is_complete =
            |report: &Report| [&report.croupier].into_iter().chain(&report.baseline).all(SideReport::is_complete);
        block_on(run(args)).map(|r| (if json { r.to_json() + "\n" } else { r.to_string() }, is_complete(&r)))
    };
    match measured {
        Ok((text, is_complete)) => match output::say(&text) {
            Err(error) => failed(&error.into()),
            Ok(()) if is_complete => ExitCode::SUCCESS,
            Ok(()) => ExitCode::FAILURE,
        },
        Err(error) => failed(&error),
    }
}

/// The hidden subcommand `bench-shard-writer`.
#[must_use]
pub fn writer_main(args: WriterArgs) -> ExitCode {
    block_on(write_shards(args)).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

/// Measures ranks beside whole rows, with progress on stderr.
///
/// # Errors
/// See [`BenchError`].
pub async fn run_sharded(args: BenchArgs) -> Result<ShardReport, BenchError> {
    check(&args)?;
    shards::run(&args).await
}

/// The hidden subcommand `bench-baseline-server`.
#[must_use]
pub fn baseline_main(args: BaselineArgs) -> ExitCode {
    block_on(serve_baseline(args)).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

fn failed(error: &BenchError) -> ExitCode {
    output::complain(&format!("croupier: {error}"));
    match error {
        BenchError::Args(_) => ExitCode::from(EXIT_CONFIG),
        // As a shell reports it.
        BenchError::Stopped(signal) => u8::try_from(128 + signal).map_or(ExitCode::FAILURE, ExitCode::from),
        _ => ExitCode::FAILURE,
    }
}

/// Until it is done, or a signal ends it: what it has started, servers above all, ends with it.
fn block_on<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let runtime = tokio::runtime::Runtime::new()?;
    let done = runtime.block_on(async {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
        let signals = kinds.into_iter().map(|kind| Ok((kind, signal(kind)?)));
        let mut signals = signals.collect::<std::io::Result<Vec<_>>>()?;
        let stopped = poll_fn(|context| {
            let mut all = signals.iter_mut();
            let came = all.find_map(|(kind, signal)| signal.poll_recv(context).is_ready().then_some(*kind));
            came.map_or(Poll::Pending, Poll::Ready)
        });
        tokio::select! {
            done = work => done,
            kind = stopped => Err(BenchError::Stopped(kind.as_raw_value())),
        }
    });
    // What still runs on its threads may not hold up the end.
    runtime.shutdown_background();
    done
}

/// Measures, with progress on stderr.
///
/// # Errors
/// See [`BenchError`]. Refusals and failed rows are not errors but part of the report.
pub async fn run(args: BenchArgs) -> Result<Report, BenchError> {
    check(&args)?;
    let Target { _spawned, addr, server } = Target::of(&args).await?;
    let mut baseline = args.baseline.then(|| child::Child::baseline(addr.transport())).transpose()?;
    if let Some(child) = &mut baseline {
        child.wait_until_ready().await?;
    }
    let pool = pool::RowPool::new(&args);
    let progress = progress::Progress::start(&args);
    let mut rounds = Vec::new();
    for round in 1..=args.round_count() {
        // Alternately, so that a neighbour's noise meets both sides.
        let bare = match &baseline {
            Some(child) => {
                let progress = progress.of("bare tonic", round);
                Some(load::measure(&args, child.addr(), &Access::default(), &pool, &progress).await?)
            }
            None => None,
        };
        let croupier = load::measure(&args, &addr, &args.access, &pool, &progress.of("croupier", round)).await?;
        let in_process = match args.in_process {
            true => Some(in_process::measure(&args, &pool, server.parallelism as usize).await?),
            false => None,
        };
        rounds.push(report::RoundReport { croupier, bare, in_process });
    }
    progress.finish();
    Ok(Report::new(&args, &addr, server, rounds))
}

/// The server that is measured.
struct Target {
    /// The one that was started for it, which ends with this.
    _spawned: Option<child::Child>,
    addr: Address,
    server: crate::proto::GetServerInfoResponse,
}

impl Target {
    async fn of(args: &BenchArgs) -> Result<Self, BenchError> {
        let mut spawned = args.spawn.map(child::Child::server).transpose()?;
        let addr = match (&spawned, &args.addr) {
            (Some(child), _) => child.addr().clone(),
            (None, Some(addr)) => addr.clone(),
            (None, None) => Address::default(),
        };
        let server = match &mut spawned {
            Some(child) => child.wait_until_ready().await?,
            None => client::server_info(&addr, &args.access).await?,
        };
        Ok(Self { _spawned: spawned, addr, server })
    }
}

fn check(args: &BenchArgs) -> Result<(), BenchError> {
    let wrong = |text: &str| Err(BenchError::Args(text.to_owned()));
    match args {
        BenchArgs { addr: Some(_), spawn: Some(_), .. } => wrong("give --addr or --spawn, not both"),
        BenchArgs { spawn: Some(_), access, .. } if *access != Access::default() => {
            wrong("TLS and tokens are for --addr; a server of --spawn has neither")
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
                "--shards is measured with one stream and as fast as replies come, beside whole rows and nothing else",
            )
        }
        BenchArgs { shards, access, .. } if !shards.is_empty() && *access != Access::default() => {
            wrong("--shards starts processes that know neither TLS nor tokens")
        }
        BenchArgs { path: LogitsPath::Slots, shards, rate, .. } if !shards.is_empty() || *rate != 0.0 => {
            wrong("--transport shm-slots goes without --shards and --rate; give --transport shm")
        }
        BenchArgs { path: LogitsPath::SharedMemory | LogitsPath::Slots, baseline: true, .. } => wrong(
            "--baseline is a bare stream of messages, so it stands beside --transport inline; beside shared memory give --in-process",
        ),
        BenchArgs { shards, vocab, .. } if shards.iter().any(|ranks| ranks > vocab) => {
            wrong("--shards must not be more than the columns of --vocab")
        }
        BenchArgs { rate, .. } if !(0.0..=MAX_RATE).contains(rate) => {
            wrong(&format!("--rate must be in 0 ..= {MAX_RATE}"))
        }
        _ => Ok(()),
    }
}
