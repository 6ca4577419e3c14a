//! Speculative decoding side by side. Lanes with the same target model, prompts and seeds decode without drafts, with a
//! draft model, with the proposer inside the sidecar, with drafts that the worker draws, and with drafts that are not
//! what they claim to be.
//!
//! ```text
//! cargo run --release --example speculative
//! cargo run --release --example speculative -- --draft-length 8 --temperature 0.7 --corpus my.txt --keep-serving
//! ```

#[path = "../support/mod.rs"]
mod support;

mod board;
mod lanes;
mod report;
mod sent;
mod shift;
mod tally;
mod view;
mod worker;

use board::Board;
use clap::Parser;
use lanes::{Drafts, Lane, Prompts, Proposer};
use sent::Drafter;
use shift::Shift;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use support::corpus::{self, Learned};
use support::ngram::{MAX_ORDER, NgramModel};
use support::rows::RowMaker;
use support::screen::{self, Style};
use support::server::{self, Server};
use support::{Result, client, say, scrape, stop_on_ctrl_c};
use tokio::task::JoinSet;
use worker::{DTYPE, Models, Worker, World};

/// On a terminal, how long it is slow enough to read along at first.
const TIME_READING: Duration = Duration::from_secs(8);
const TOKENS: u64 = 600;
const TOKENS_QUICK: u64 = 200;

/// Speculative decoding side by side, through a Croupier server in this process
///
/// The target is an n-gram model over the 200,019 tokens of o200k_base. Five
/// lanes send its rows of logits, for the same prompts and seeds. A draft
/// proposes tokens; the target's rows for all of them are made in one step, and
/// the server says how many stand. So a step emits one token or more, and each
/// has the target's distribution, if the draft is what it claims to be:
///
///   plain        no drafts, a step for each token
///   draft model  the server draws drafts from rows of a smaller model
///   proposer     the server finds drafts in the text; not one token changes
///   sent         the worker draws drafts, and sends their distribution
///   broken       the worker draws at another temperature than it says,
///                and its acceptance gives it away
///
/// "accepted/expected" are shares of the draft tokens that were tested, by
/// position in the draft. What is expected follows from the two distributions:
/// the sum of min(target, draft). "se" is the difference in standard errors.
#[derive(Debug, Parser)]
#[command(name = "speculative", verbatim_doc_comment)]
struct Args {
    /// Stop after N tokens of each lane. Default: 600
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    tokens: Option<u64>,
    /// Draft at most N tokens at once; with advice it may be fewer
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    draft_length: u32,
    /// Seed of the first text; the texts after it count on
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Temperature of every lane, above 0
    #[arg(long, value_name = "T", default_value_t = 0.6, value_parser = temperature)]
    temperature: f64,
    /// Temperature that the broken lane draws at. Default: 2.5 times --temperature; equal to it, it is not broken
    #[arg(long, value_name = "T", value_parser = temperature)]
    broken_temperature: Option<f64>,
    /// Send the target's rows one place late or early: a fault that the metrics name
    #[arg(long, value_enum)]
    shift_rows: Option<Shift>,
    /// Tokens that the target looks at, the next one included
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=MAX_ORDER as i64))]
    order: u8,
    /// Tokens that the draft model looks at: fewer than the target
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=MAX_ORDER as i64))]
    draft_order: u8,
    /// How the sidecar finds drafts
    #[arg(long, value_enum, default_value = "suffix")]
    proposer: Proposer,
    /// Time of a draft row, in target steps (for the advice, and for the column "speed")
    #[arg(long, value_name = "COST", default_value_t = 0.1)]
    draft_cost: f32,
    /// Time of a further target row, in target steps
    #[arg(long, value_name = "COST", default_value_t = 0.02)]
    verify_cost: f32,
    /// Learn from this text and quote it (repeatable); a line *** stands between documents. Default: fables, tales and
    /// this repository's prose
    #[arg(long, value_name = "FILE")]
    corpus: Vec<PathBuf>,
    /// Keep the server up at the end, until Ctrl-C
    #[arg(long)]
    keep_serving: bool,
    /// A few seconds: 200 tokens of each lane at full speed, or 600 with --shift-rows
    #[arg(long)]
    quick: bool,
}

impl Args {
    fn broken_temperature(&self) -> f64 {
        self.broken_temperature.unwrap_or(2.5 * self.temperature)
    }
}

fn temperature(text: &str) -> std::result::Result<f64, String> {
    let range = 0.01..=100.0;
    text.parse().ok().filter(|t| range.contains(t)).ok_or_else(|| format!("must be in {range:?}"))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "speculative: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the whole example. Returns true if every check at the end holds.
async fn run(args: Args) -> Result<bool> {
    let style = Style::detect();
    say(&style.dim(" Reading the vocabulary, training the models, starting the server ..."))?;
    let Learned { tokenizer, documents, model, .. } =
        corpus::learn(args.corpus.clone(), usize::from(args.order)).await?;
    let prompts = Prompts::new(documents.iter().map(|document| tokenizer.encode_ordinary(document)));
    if prompts.is_empty() {
        return Err("no document is long enough to be quoted".into());
    }
    let server = server::start_server().await?;
    let lanes = lanes::lanes(&args);
    let reading = if style.terminal && !args.quick { TIME_READING } else { Duration::ZERO };
    let world = Arc::new(World {
        tokenizer,
        prompts,
        board: Board::new(lanes.iter().map(|lane| lane.label), reading),
        seed: args.seed,
        tokens: args.tokens.unwrap_or(if args.quick && args.shift_rows.is_none() { TOKENS_QUICK } else { TOKENS }),
        draft_length: args.draft_length as usize,
        shift: args.shift_rows,
        stop: Arc::new(AtomicBool::new(false)),
    });
    let on_ctrl_c = stop_on_ctrl_c(&world.stop);
    decode(&args, &world, &lanes, &model, &server, style).await?;
    on_ctrl_c.abort();

    let page = scrape::metrics(server.admin).await?;
    let all_well = say_report(&args, &world, &lanes, &page, style)?;
    say(&format!("\n http://{}/metrics", server.admin))?;
    for line in report::metrics(&page) {
        say(&style.dim(&format!("   {line}")))?;
    }
    if args.keep_serving {
        say(&format!("\n Serving on {} until Ctrl-C.", server.socket.display()))?;
        tokio::signal::ctrl_c().await?;
    }
    server.stop().await?;
    Ok(all_well)
}

/// Runs all lanes and the screen at the same time.
async fn decode(
    args: &Args,
    world: &Arc<World>,
    lanes: &[Lane],
    model: &NgramModel,
    server: &Server,
    style: Style,
) -> Result<()> {
    let mut client = client::connect(&server.socket).await?;
    let info = client.get_server_info(croupier::proto::GetServerInfoRequest {}).await?.into_inner();
    let threads = info.parallelism;
    say(&format!(" croupier {} on {} ({}, {threads} threads)", info.version, info.backend, info.device))?;
    say(&format!(" metrics, live: http://{}/metrics\n", server.admin))?;
    let mut workers = JoinSet::new();
    for (index, lane) in lanes.iter().enumerate() {
        let models = models(args, lane, model);
        let worker = Worker::new(world, index, lane.clone(), models, &mut client).await?;
        workers.spawn(worker.run());
    }
    world.board.lock().started = Instant::now();
    let all = async {
        while let Some(done) = workers.join_next().await {
            done??;
        }
        Ok(())
    };
    let board = &world.board;
    tokio::select! {
        done = all => done,
        () = screen::live(style, || view::frame(&board.lock(), style), || view::progress(&board.lock())) => Ok(()),
    }
}

/// The models with which a lane makes rows and drafts.
fn models(args: &Args, lane: &Lane, target: &NgramModel) -> Models {
    let draft = target.with_max_order(usize::from(args.draft_order));
    let drawn = if let Drafts::Sent { drawn } = lane.drafts { drawn } else { args.temperature };
    let random = Lane::drafter_seed(args.seed);
    Models {
        target: RowMaker::new(target.clone(), DTYPE),
        draft: RowMaker::new(draft.clone(), DTYPE),
        drafter: Drafter { model: draft, claimed: args.temperature, drawn, random },
    }
}

fn say_report(args: &Args, world: &World, lanes: &[Lane], page: &str, style: Style) -> Result<bool> {
    let seen = world.board.lock().lanes.clone();
    say(&report::cards(lanes, &seen, world, style))?;
    say(&report::table(&seen, args.draft_cost, args.verify_cost, style))?;
    say(&report::positions(&seen, style))?;
    say(&report::verdicts(lanes, &seen, style))?;
    let checks = match args.shift_rows {
        None => report::checks(lanes, &seen, args.temperature, page),
        Some(shift) => report::shift_checks(lanes, &seen, Some(shift)),
    };
    for check in &checks {
        say(&format!(" {}: {}", check.claim, style.bold(if check.holds { "yes" } else { "NO" })))?;
        for line in screen::wrap(&check.detail, style.width() - 4).iter().filter(|line| !line.is_empty()) {
            say(&style.dim(&format!("   {line}")))?;
        }
    }
    Ok(checks.iter().all(|check| check.holds))
}
