//! `croupier top`: shows a running server through its metrics, in a terminal or as one table.
//!
//! Everything shown follows from two pages of `/metrics` and the time between them ([`Figures`]). The program asks the
//! server only for these pages, so it also works while the server is in trouble.

mod difference;
mod figures;
mod load;
mod paths;
mod plain;
mod scrape;
mod screen;
mod speculation;
mod table;
mod units;
mod view;

pub use figures::{Count, Error, Figures, Fill, Latency, Model};
pub use load::{Durations, Load};
pub use paths::{HandedOver, Path, Paths};
pub use scrape::{Scrape, Source};
pub use screen::{Screen, draw};
pub use speculation::{
    Drawn, ENOUGH_TO_SAY_SHIFTED, Measured, NOT_CHANCE, Position, Proposer, Rejected, SHIFTED, Shift, Siblings,
    Speculation,
};
pub use view::{Theme, full};

use crate::output;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// Exit code if the program that answers is not Croupier.
const EXIT_NOT_CROUPIER: u8 = 3;

/// The arguments of `croupier top`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopArgs {
    /// `host:port` of the admin port.
    pub authority: String,
    /// Time between two scrapes.
    pub interval: Duration,
    /// Scrape twice, print a table and end.
    pub once: bool,
    /// Print one JSON object instead of the table.
    pub json: bool,
}

impl Default for TopArgs {
    fn default() -> Self {
        // By default, the admin port where `croupier serve` has it.
        let admin = crate::config::Config::default().admin;
        let authority = admin.map(|address| address.to_string()).unwrap_or_default();
        Self { authority, interval: Duration::from_secs(2), once: false, json: false }
    }
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// No server answers.
    #[error(
        "cannot read http://{authority}/metrics: {reason}\n\
         Is the server running, and is this its admin port? Name another with --admin"
    )]
    Unreachable {
        /// The address that was asked.
        authority: String,
        /// What went wrong, as text.
        reason: String,
    },
    /// Another program answers.
    #[error(
        "http://{authority}/metrics is not Croupier's: {reason}\nName the admin port of `croupier serve` with --admin"
    )]
    NotCroupier {
        /// The address that was asked.
        authority: String,
        /// Why the answer is not Croupier's.
        reason: String,
    },
    /// The output is not a terminal, or the input, from which keys are read.
    #[error("the {0} is not a terminal; use --once for a table, or --once --json for a JSON object")]
    NoTerminal(&'static str),
    /// The table or the JSON object cannot be written.
    #[error("cannot write to standard output: {0}")]
    Unwritten(io::Error),
    /// The terminal cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl TopError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::NotCroupier { .. } => EXIT_NOT_CROUPIER,
            Self::NoTerminal(_) => crate::config::EXIT_CONFIG,
            Self::Unreachable { .. } | Self::Unwritten(_) | Self::Io(_) => 1,
        }
    }
}

/// The subcommand `top`. Exit codes: 1 nobody answers, 2 no terminal, 3 the program that answers is not Croupier.
#[must_use]
pub fn main(args: &TopArgs) -> ExitCode {
    let done = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(TopError::Io)
        .and_then(|runtime| {
            let done = runtime.block_on(run(args));
            // A pending name lookup must not delay the end.
            runtime.shutdown_background();
            done
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("croupier: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

async fn run(args: &TopArgs) -> Result<(), TopError> {
    let source = Source::new(&args.authority);
    if !args.once {
        return screen::live(source, args.interval).await;
    }
    let before = source.scrape().await?;
    tokio::time::sleep(args.interval).await;
    let now = source.scrape().await?;
    let figures = Figures::between(&args.authority, &before, &now, &before);
    let text = if args.json { figures.to_json() + "\n" } else { plain::page(&figures, plain::width()) };
    output::say(&text).map_err(TopError::Unwritten)
}
