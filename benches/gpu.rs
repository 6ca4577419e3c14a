//! What the kernels cost on a GPU, as a multiple of one read of the logits at the rate of a device copy that was
//! measured before them.
//!
//! Times are medians of many launches between CUDA events. "Cold" launches run after a launch that reads 128 MiB of
//! other rows, "hot" launches after launches on the same rows. For few rows there is also the time of one launch among
//! many in a CUDA graph, hot. The most important measurements come first, so that a run that is cut short has them.
//!
//! A device whose kernels compute wrong results is measured too, and a line that fails is reported; in both cases the
//! bench ends with 1. scripts/gpu-bench runs this on a machine with a GPU, next to PyTorch and FlashInfer. Without a
//! GPU it says SKIPPED and ends with 0. `--quick` measures a few small shapes, to see that it runs.

#![allow(clippy::print_stdout)] // it prints a table

use clap::Parser;
use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::costs::Costs;
use croupier::backend::cuda::timing::Timing;
use croupier::backend::cuda::{CudaBackend, OpenError};
use croupier::backend::{Backend, RowJob, VerifyJob};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::kept::Kept;
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};
use croupier::speculative::job::{DraftSource, DraftToken};
use croupier::speculative::numbers::{Numbers, Spot};
use croupier::speculative::rule::AcceptanceRule;
use croupier::speculative::tree::Tree;
use std::process::ExitCode;
use std::time::Instant;

#[path = "support/by_team.rs"]
mod by_team;
#[path = "support/from_host.rs"]
mod from_host;
#[path = "support/options.rs"]
mod options;
#[path = "support/rows.rs"]
#[allow(dead_code)] // For the reference of the CPU's benches.
mod rows;
use rows::Shape;

/// Room for 256 rows of 151,936 f32 logits. 288 rows of 128,256 take less.
const ROOM: usize = 192 << 20;
const OFF: Filters = Filters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };
/// Most rows in a graph. With more rows, kernels take far longer than a launch costs.
const MAX_IN_GRAPH: usize = 8;
const TOP_20: LogprobsSpec<'static> = LogprobsSpec { top_n: 20, mode: LogprobsMode::Raw, tokens: &[] };

/// Name, filters, whether there are penalties on 64 tokens, logprobs.
type Mix = (&'static str, Filters, bool, Option<LogprobsSpec<'static>>);

const MIXES: [Mix; 6] = [
    ("greedy", Filters { temperature: 0.0, ..OFF }, false, None),
    ("top-k 50, top-p .9", Filters { top_k: 50, top_p: 0.9, ..OFF }, false, None),
    ("min-p .05", Filters { min_p: 0.05, ..OFF }, false, None),
    ("temperature only", OFF, false, None),
    ("top-p .9", Filters { top_p: 0.9, ..OFF }, false, None),
    ("penalties, raw top-20, k, p", Filters { top_k: 50, top_p: 0.9, ..OFF }, true, Some(TOP_20)),
];

/// What is measured.
struct Extent {
    rounds: usize,
    /// The vocabulary sizes measured before the verification, and those measured after it.
    vocab_sizes: (&'static [usize], &'static [usize]),
    batches: &'static [usize],
    drafted_vocab_size: usize,
    drafts: &'static [usize],
    /// Numbers of drafts for measuring how one row of each is weighed, by teams of each size.
    weighed: &'static [usize],
    room: usize,
}

const WHOLE: Extent = Extent {
    rounds: 200,
    vocab_sizes: (&[128_256], &[151_936, 32_000]),
    batches: &[1, 8, 64, 256],
    drafted_vocab_size: 128_256,
    drafts: &[1, 8, 32],
    weighed: &[4, 8, 16, 32],
    room: ROOM,
};
const QUICK: Extent = Extent {
    rounds: 2,
    vocab_sizes: (&[1000], &[9001]),
    batches: &[1, 8],
    drafted_vocab_size: 1000,
    drafts: &[1],
    weighed: &[1],
    room: 4 << 20,
};

#[derive(Parser)]
#[command(about = "What the kernels cost on a GPU, over one read of the logits")]
struct Options {
    #[command(flatten)]
    common: options::Common,
    /// Launches of each kind that a line is the median of.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Measure nothing: launch each mix once, on so many rows, for a profiler to look at.
    #[arg(long, value_name = "ROWS")]
    profile: Option<usize>,
    /// ... by teams of so many blocks; those of the predicted costs otherwise.
    #[arg(long, value_name = "BLOCKS", requires = "profile")]
    team: Option<u32>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let extent = if options.common.quick() { QUICK } else { WHOLE };
    let rounds = options.rounds.map_or(extent.rounds, usize::from);
    let extent = Extent { rounds, ..extent };
    let mut backend = match CudaBackend::open_unproved("0", Box::new(CpuBackend::new(1)), extent.room) {
        Ok(backend) => backend,
        Err(reason) => {
            let (what, code) =
                if reason.is_absence() { ("SKIPPED", ExitCode::SUCCESS) } else { ("FAILED", ExitCode::FAILURE) };
            println!("{what}: nothing was measured: {reason}");
            return code;
        }
    };
    println!("{}\nkernels: {}", backend.info().device, backend.image());
    let proof = if options.profile.is_none() { backend.prove() } else { Ok(()) };
    let mut bench = Bench { backend, extent, copy_rate: f32::NAN, failures: 0 };
    if let Err(error) = proof {
        bench.fail("proof", &error);
    }
    match options.profile {
        Some(batch) => bench.launch_each_once(batch, options.team),
        None => bench.run(),
    }
    println!("\n{} failed", bench.failures);
    if bench.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A device, what is measured on it, and the number of failures.
struct Bench {
    backend: CudaBackend,
    extent: Extent,
    /// Rate of a device copy, in bytes per microsecond.
    copy_rate: f32,
    failures: usize,
}

impl Bench {
    fn run(&mut self) {
        match self.backend.copy_rate() {
            Ok(rate) => self.copy_rate = rate,
            Err(error) => self.fail("copy rate", &error),
        }
        println!("device copy: {:.0} GB/s, reading and writing counted", self.copy_rate / 1e3);
        if let Err(error) = self.backend.tune() {
            self.fail("what teams cost", &error);
        }
        println!("teams of 1 to 8 blocks, us for a row and for each chunk of a slice: {}", self.backend.costs());
        let (before, behind) = self.extent.vocab_sizes;
        self.rows(before);
        self.verification();
        self.whole_steps();
        by_team::rows(self);
        by_team::weighing(self);
        self.rows(behind);
    }

    fn launch_each_once(&mut self, batch: usize, team: Option<u32>) {
        if let Some(blocks) = team {
            self.backend.set_costs(Costs::only(blocks));
        }
        for (dtype, shape) in [(Dtype::F32, Shape::Peaked), (Dtype::F32, Shape::Flat), (Dtype::Bf16, Shape::Peaked)] {
            let rows = Rows::new(self.extent.drafted_vocab_size, dtype, shape);
            for mix in &MIXES {
                println!("{batch} rows of {}, {}, {}", dtype.name(), shape.name(), mix.0);
                if let Err(error) = rows.timed(self, batch, mix, 0) {
                    self.fail(mix.0, &error);
                }
            }
        }
    }

    /// Reports a failure. The other lines are measured all the same.
    fn fail(&mut self, what: &str, error: &OpenError) {
        self.failures += 1;
        println!("FAILED: {what}: {error}");
    }

    fn rows(&mut self, vocab_sizes: &[usize]) {
        println!(
            "\n| vocabulary | format | rows | shape | mix | cold us | hot us | in a graph us | GB/s of one read, cold | x one read |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|");
        for &vocab in vocab_sizes {
            for dtype in [Dtype::F32, Dtype::Bf16] {
                for shape in [Shape::Peaked, Shape::Flat] {
                    let rows = Rows::new(vocab, dtype, shape);
                    for &batch in self.extent.batches {
                        MIXES.iter().for_each(|mix| rows.line(self, batch, mix));
                    }
                }
            }
        }
    }

    fn whole_steps(&mut self) {
        let Extent { drafted_vocab_size: vocab, batches, rounds, .. } = self.extent;
        if let Err(what) = from_host::table(&mut self.backend, vocab, batches, rounds) {
            self.failures += 1;
            println!("FAILED: from the host: {what}");
        }
    }

    /// Measures the time of each launch of a verification on the device, and the time of the whole verification from
    /// the host, uploads included.
    fn verification(&mut self) {
        println!(
            "\nverification: {DRAFTED} draft tokens each; the goal is {VERIFICATION_GOAL} times one read of the rows"
        );
        println!(
            "| format | drafts | rule | cold us of each launch | hot us | us in all, from the host | x one read, cold |"
        );
        println!("|---|---|---|---|---|---|---|");
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let drafts = Drafts::new(dtype, self.extent.drafted_vocab_size);
            for rule in &RULES {
                self.extent.drafts.iter().for_each(|&batch| drafts.line(self, batch, rule));
            }
        }
    }
}

/// Draft tokens of a verification.
const DRAFTED: usize = 8;
/// The goal for all launches of a verification together, cold, as a multiple of one read of its rows.
const VERIFICATION_GOAL: f32 = 1.5;
/// How a draft is verified: name, rule, and whether draft tokens were drawn by chance.
type Rule = (&'static str, AcceptanceRule, bool);

/// The rule for measuring how rows are weighed.
const KEPT: Rule = ("rejection, kept", AcceptanceRule::Rejection, true);
const RULES: [Rule; 4] = [
    ("certain", AcceptanceRule::Rejection, false),
    KEPT,
    ("block, kept", AcceptanceRule::Block, true),
    ("greedy", AcceptanceRule::Greedy, false),
];

/// Rows, and a draft token drawn from each. They are verified with other rows, so that many are rejected.
struct Drafts {
    dtype: Dtype,
    rows: Vec<Vec<u8>>,
    proposed: Vec<(u32, Box<Kept>)>,
}

impl Drafts {
    fn new(dtype: Dtype, vocab: usize) -> Self {
        let rows = (0..8).map(|seed| dtype.encode(&rows::row(Shape::Peaked, vocab, seed))).collect();
        let mut drafts = Self { dtype, rows, proposed: vec![] };
        for at in 0..8 {
            let uniform = Numbers { seed: 1, start: at as u64 }.draft(Spot::in_chain(0));
            let drawn = CpuBackend::new(1).run(&[drafts.row(at, Action::Propose { uniform })]).remove(0);
            let drawn = drawn.expect("the row is fine");
            drafts.proposed.push((drawn.token, drawn.kept.expect("it was asked for")));
        }
        drafts
    }

    fn row(&self, at: usize, action: Action) -> RowJob<'_> {
        let spec = RowSpec::plain(OFF, action);
        RowJob { logits: Logits::new(self.dtype, &self.rows[at % 8]), spec }
    }

    fn draft(&self, at: usize, has_chance: bool) -> DraftToken<'_> {
        let (token, kept) = &self.proposed[(at + 3) % 8];
        let source = if has_chance { DraftSource::Kept(kept) } else { DraftSource::Deterministic };
        DraftToken { token: *token, source }
    }

    /// Calls `f` with `batch` drafts, one after the other in memory.
    fn with_jobs<R>(&self, batch: usize, &(_, rule, has_chance): &Rule, f: impl FnOnce(&[VerifyJob<'_>]) -> R) -> R {
        let rows_of = |i| (i..=i + DRAFTED).map(|at| self.row(at, Action::Score { token: 0 })).collect();
        let rows: Vec<Vec<RowJob<'_>>> = (0..batch).map(rows_of).collect();
        let drafts_of = |i| (i..i + DRAFTED).map(|at| self.draft(at, has_chance)).collect();
        let drafts: Vec<Vec<DraftToken<'_>>> = (0..batch).map(drafts_of).collect();
        let tree = Tree::chain(DRAFTED);
        let job = |i: usize| VerifyJob {
            rows: &rows[i],
            ends: &[false; DRAFTED],
            drafts: &drafts[i],
            tree: &tree,
            rule,
            strict: &[],
            numbers: Numbers { seed: i as u64, start: 0 },
            measure: false,
        };
        f(&(0..batch).map(job).collect::<Vec<_>>())
    }

    /// Times each launch.
    fn timed(&self, bench: &mut Bench, batch: usize, rule: &Rule, rounds: usize) -> Result<Vec<Timing>, OpenError> {
        self.with_jobs(batch, rule, |jobs| bench.backend.time_verification(jobs, rounds))
    }

    fn line(&self, bench: &mut Bench, batch: usize, rule: &Rule) {
        let timings = match self.timed(bench, batch, rule, bench.extent.rounds) {
            Ok(timings) => timings,
            Err(error) => return bench.fail(&format!("{batch} drafts, {}, {}", rule.0, self.dtype.name()), &error),
        };
        let (cold, hot): (Vec<f32>, Vec<f32>) = timings.into_iter().map(|of| (median(of.cold), median(of.hot))).unzip();
        let (bytes, all) = self.with_jobs(batch, rule, |jobs| {
            let all = (0..bench.extent.rounds).map(|_| {
                let start = Instant::now();
                bench.backend.verify(jobs);
                start.elapsed().as_secs_f32() * 1e6
            });
            let rows = jobs.iter().flat_map(|job| job.rows);
            (rows.map(|row| row.logits.byte_len()).sum::<usize>() as f32, median(all.collect()))
        });
        let reads = cold.iter().sum::<f32>() * bench.copy_rate / bytes;
        println!(
            "| {} | {batch} | {} | {} | {} | {all:.0} | {reads:.2} |",
            self.dtype.name(),
            rule.0,
            micros(&cold),
            micros(&hot)
        );
    }
}

/// The time in microseconds, or why there is none. That is not a failure: the server launches kernels without graphs.
fn in_graph(bench: &mut Bench, jobs: &[RowJob<'_>]) -> String {
    let timed = bench.backend.time_in_graph(jobs, bench.extent.rounds);
    timed.map_or_else(|reason| reason.to_string(), |times| format!("{:.1}", median(times)))
}

/// The times of consecutive launches as text.
fn micros(times: &[f32]) -> String {
    times.iter().map(|time| format!("{time:.1}")).collect::<Vec<_>>().join(" + ")
}

fn median(mut times: Vec<f32>) -> f32 {
    times.sort_by(f32::total_cmp);
    times[times.len() / 2]
}

/// Rows of one kind.
struct Rows {
    vocab: usize,
    dtype: Dtype,
    shape: Shape,
    encoded: Vec<Vec<u8>>,
}

impl Rows {
    fn new(vocab: usize, dtype: Dtype, shape: Shape) -> Self {
        let encoded = (0..8).map(|seed| dtype.encode(&rows::row(shape, vocab, seed))).collect();
        Self { vocab, dtype, shape, encoded }
    }

    /// Calls `f` with a batch of these rows.
    fn with_jobs<R>(&self, batch: usize, mix: &Mix, f: impl FnOnce(&[RowJob<'_>]) -> R) -> R {
        let &(_, filters, penalised, logprobs) = mix;
        let adjusts: Vec<TokenAdjust> = (0..if penalised { 64 } else { 0 })
            .map(|i| TokenAdjust {
                token: i * 499.min(self.vocab as u32 / 64),
                flags: 2,
                bias: 0.0,
                output_count: i % 3,
            })
            .collect();
        let penalties = Penalties { repetition: 1.1, frequency: 0.1, presence: 0.1, ..Penalties::OFF };
        let plain = RowSpec::plain(filters, Action::Draw { uniform: 0x9E37_79B9_7F4A_7C15 });
        let spec = RowSpec { penalties, adjusts: adjusts.as_slice().into(), logprobs, ..plain };
        let row = |i: usize| RowJob { logits: Logits::new(self.dtype, &self.encoded[i % self.encoded.len()]), spec };
        f(&(0..batch).map(row).collect::<Vec<_>>())
    }

    fn timed(&self, bench: &mut Bench, batch: usize, mix: &Mix, rounds: usize) -> Result<Timing, OpenError> {
        self.with_jobs(batch, mix, |jobs| bench.backend.time(jobs, rounds))
    }

    fn line(&self, bench: &mut Bench, batch: usize, mix: &Mix) {
        let what = format!("| {} | {} | {batch} | {}", self.vocab, self.dtype.name(), self.shape.name());
        let (name, rounds) = (mix.0, bench.extent.rounds);
        let timing = match self.timed(bench, batch, mix, rounds) {
            Ok(timing) => timing,
            Err(error) => return bench.fail(&format!("{what} | {name} |"), &error),
        };
        if name == MIXES[0].0 {
            println!("{what} | no rows, the same launch | {:.1} | | | | |", median(timing.empty));
        }
        let (cold, hot) = (median(timing.cold), median(timing.hot));
        let bytes = (batch * self.vocab * self.dtype.size()) as f32;
        let (rate, reads) = (bytes / cold / 1e3, cold * bench.copy_rate / bytes);
        let in_graph = match batch <= MAX_IN_GRAPH {
            true => self.with_jobs(batch, mix, |jobs| in_graph(bench, jobs)),
            false => String::new(),
        };
        println!("{what} | {name} | {cold:.1} | {hot:.1} | {in_graph} | {rate:.0} | {reads:.2} |");
    }
}
