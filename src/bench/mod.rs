//! The load generator behind `croupier bench`: real gRPC clients that send logits and wait for tokens.
//!
//! Each stream is one connection that carries several groups of sequences. A group has as many sequences as fit into
//! one message of [`BenchArgs::message_bytes`]. A group's next row is sent when its last token is back, as a model
//! would do. The groups of a stream are in flight together.
//!
//! The time of a step runs from handing the message to the transport until its reply is read, so waiting for flow
//! control counts. With [`BenchArgs::rate`] each step has a time at which it is due, and its time runs from then, which
//! corrects for coordinated omission. Without a rate no step can be late, because the load is closed, as decoding is.

mod address;
mod args;
mod baseline;
mod child;
mod client;
mod group;
mod in_process;
mod load;
mod mix;
mod pace;
mod pool;
mod progress;
pub mod region;
mod report;
mod shard_report;
mod shards;
mod slots;
mod writer;

pub use address::Address;
pub use args::{BenchArgs, LogitsPath, MAX_RATE, MIN_RATE, Transport, is_rate};
pub use baseline::{BaselineArgs, serve_baseline};
pub use mix::Mix;
pub use pace::Pace;
pub use pool::Distribution;
pub use report::{Report, SideReport, StepTimes};
pub use shard_report::{RanksReport, ShardReport};
pub use writer::{WriterArgs, write_shards};

use crate::config::EXIT_CONFIG;
use crate::dial::Access;
use crate::output;
use std::future::poll_fn;
use std::process::ExitCode;
use std::task::Poll;
use tokio::signal::unix::{SignalKind, signal};

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No server answers.
    #[error(
        "cannot reach {addr}: {reason}\nStart a server with `croupier serve`, name one with --addr, or let this command start one with --spawn uds"
    )]
    Unreachable {
        /// The address that was called.
        addr: Address,
        /// What went wrong, as text.
        reason: String,
    },
    /// A server answers, but refuses this client.
    #[error("{addr}: {reason}")]
    Refused {
        /// The address that was called.
        addr: Address,
        /// What went wrong and what to do about it, as text.
        reason: String,
    },
    /// A child process did not start.
    #[error("cannot start {what}: {reason}")]
    Spawn {
        /// Which process.
        what: &'static str,
        /// What went wrong, as text.
        reason: String,
    },
    /// The server ended a stream before anything was measured.
    #[error("the server ended the stream: {0}")]
    Stream(Box<tonic::Status>),
    /// The arguments cannot be combined.
    #[error("{0}")]
    Args(String),
    /// A signal ended the measurement.
    #[error("stopped by signal {0}")]
    Stopped(i32),
    /// Writing or listening failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The baseline server failed.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// The subcommand `bench`: measures and prints a report. It fails if the server gave no token at all.
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
        Ok((text, is_complete)) if output::said("croupier bench", &text) && is_complete => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

/// The hidden subcommand `bench-shard-writer`.
#[must_use]
pub fn writer_main(args: WriterArgs) -> ExitCode {
    block_on(write_shards(args)).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

/// Measures rows from several ranks beside whole rows. Progress is shown on stderr.
///
/// # Errors
/// See [`BenchError`].
pub async fn run_sharded(args: BenchArgs) -> Result<ShardReport, BenchError> {
    args.check()?;
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
        // A shell reports a signal as this exit code.
        BenchError::Stopped(signal) => u8::try_from(128 + signal).map_or(ExitCode::FAILURE, ExitCode::from),
        _ => ExitCode::FAILURE,
    }
}

/// Runs `work` until it is done or a signal ends it. Everything that it has started, especially servers, ends with it.
fn block_on<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    // Given explicitly, so that tokio reads no number of threads from the environment.
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
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
    // Tasks that still run on other threads must not delay the end.
    runtime.shutdown_background();
    done
}

/// Measures a server. Progress is shown on stderr.
///
/// # Errors
/// See [`BenchError`]. Refusals and failed rows are not errors: they are part of the report.
pub async fn run(args: BenchArgs) -> Result<Report, BenchError> {
    args.check()?;
    let Target { _spawned, addr, server } = Target::of(&args).await?;
    let mut baseline = args.baseline.then(|| child::Child::baseline(addr.transport())).transpose()?;
    if let Some(child) = &mut baseline {
        child.wait_until_ready().await?;
    }
    let pool = pool::RowPool::new(&args);
    let progress = progress::Progress::start(&args);
    let mut rounds = Vec::new();
    for round in 1..=args.round_count() {
        // The two sides are measured alternately, so that noise from other processes affects both.
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

/// The server to measure.
struct Target {
    /// The server process that was started for this measurement. It ends when this is dropped.
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
