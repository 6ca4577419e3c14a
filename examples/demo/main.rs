//! A model worker and a Croupier server in one process. Eight sequences with different parameters stream as text, while
//! every token is drawn over gRPC from a full row of 200,019 logits.
//!
//! ```text
//! cargo run --release --example demo
//! cargo run --release --example demo -- --steps 200 --dtype bf16 --corpus my.txt --keep-serving
//! ```

#[path = "../support/mod.rs"]
mod support;

mod board;
mod lanes;
mod report;
mod view;
mod worker;

use board::Board;
use clap::Parser;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use support::corpus::{self, Learned};
use support::rows::{Dtype, RowMaker};
use support::screen::{self, Style};
use support::server::{self, Server};
use support::{Result, client, ngram, say, stop_on_ctrl_c};
use worker::{Budget, Worker};

/// How long it runs by default. On a terminal the first half is slow enough to read along.
const TIME: Duration = Duration::from_secs(15);
const TIME_READING: Duration = Duration::from_secs(7);
const TIME_QUICK: Duration = Duration::from_secs(3);

/// Eight sequences with different parameters, decoded live through a Croupier server in this process.
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Args {
    /// Stop after N tokens of each sequence. Default: after 15 seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    steps: Option<u64>,
    /// Learn from this text (repeatable). Default: fables, tales and this repository's prose
    #[arg(long, value_name = "FILE")]
    corpus: Vec<PathBuf>,
    /// Number format of the logits
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Dtype,
    /// Tokens that the model looks at, the next one included
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=ngram::MAX_ORDER as i64))]
    order: u8,
    /// Keep the server up at the end, until Ctrl-C
    #[arg(long)]
    keep_serving: bool,
    /// Stop after 3 seconds
    #[arg(long)]
    quick: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the whole demo. Returns true if every check at the end holds.
async fn run(args: Args) -> Result<bool> {
    let style = Style::detect();
    say(&style.dim(" Reading the vocabulary, training the model, starting the server ..."))?;
    let Learned { tokenizer, tokens: seen, model, .. } =
        corpus::learn(args.corpus.clone(), usize::from(args.order)).await?;
    let server = server::start_server().await?;

    let rows = RowMaker::new(model, args.dtype);
    let lanes = lanes::lanes(&tokenizer, &seen);
    let board = Board::new(lanes.iter().map(|lane| lane.label), rows.row_bytes())?;
    let budget = budget(&args, style);
    let on_ctrl_c = stop_on_ctrl_c(&budget.stop);
    let mut worker = Worker { tokenizer: &tokenizer, dtype: args.dtype, rows, lanes, board: board.clone(), budget };
    decode(&mut worker, &server, style).await?;
    on_ctrl_c.abort();

    say(&report::lanes(&worker.lanes, &tokenizer, style))?;
    say(&report::speed(&board.lock(), args.dtype))?;
    let all_well = say_checks(&worker, style)?;
    say_metrics(&server, style).await?;
    if args.keep_serving {
        say(&format!("\n Serving on {} until Ctrl-C.", server.socket.display()))?;
        tokio::signal::ctrl_c().await?;
    }
    server.stop().await?;
    Ok(all_well)
}

fn budget(args: &Args, style: Style) -> Budget {
    let reading = if style.terminal && args.steps.is_none() && !args.quick { TIME_READING } else { Duration::ZERO };
    let time = if args.quick { TIME_QUICK } else { TIME - reading };
    Budget {
        reading,
        tokens: args.steps.unwrap_or(u64::MAX),
        time: if args.steps.is_some() { Duration::MAX } else { time },
        stop: Arc::new(AtomicBool::new(false)),
        ending: false,
    }
}

/// Runs the worker and the screen at the same time.
async fn decode(worker: &mut Worker<'_>, server: &Server, style: Style) -> Result<()> {
    let mut client = client::connect(&server.socket).await?;
    let info = client.get_server_info(croupier::proto::GetServerInfoRequest {}).await?.into_inner();
    let vocab = screen::grouped(corpus::VOCAB_SIZE as u64);
    let title = format!(
        "croupier {} on {} ({}, {} threads) · rows of {vocab} {} logits",
        info.version,
        info.backend,
        info.device,
        info.parallelism,
        worker.dtype.name(),
    );
    say(&format!(" {title}\n"))?;
    let board = worker.board.clone();
    tokio::select! {
        done = worker.run(&mut client) => done,
        () = screen::live(style, || view::frame(&board.lock(), style), || view::figures(&board.lock())) => Ok(()),
    }
}

fn say_checks(worker: &Worker<'_>, style: Style) -> Result<bool> {
    let checks = report::checks(&worker.lanes, worker.tokenizer);
    for (claim, holds) in &checks {
        say(&format!(" {claim}: {}", style.bold(if *holds { "yes" } else { "NO" })))?;
    }
    Ok(checks.iter().all(|(_, holds)| *holds))
}

async fn say_metrics(server: &Server, style: Style) -> Result<()> {
    say(&format!("\n http://{}/metrics", server.admin))?;
    for line in report::metrics(server.admin).await? {
        say(&style.dim(&format!("   {line}")))?;
    }
    Ok(())
}
