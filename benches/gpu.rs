//! What the kernels cost on a GPU, over one read of the logits at the rate of a device copy measured beside them.
//!
//! Times are medians of many launches between CUDA events, from cold caches. scripts/gpu-bench runs this on a machine with
//! a GPU, next to PyTorch and FlashInfer. Without a GPU it says so and ends.

#![allow(clippy::print_stdout)] // it prints a table

use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;
use croupier::backend::{Backend, RowJob, VerifyJob};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::kept::Kept;
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};
use croupier::speculative::job::{DraftSource, DraftToken};
use croupier::speculative::numbers::Numbers;
use croupier::speculative::rule::AcceptanceRule;
use croupier::speculative::tree::Tree;
use std::time::Instant;

#[path = "support/rows.rs"]
#[allow(dead_code)] // The reference of the CPU's benches.
mod rows;
use rows::Shape;

const ROUNDS: usize = 200;
/// For 256 rows of 151,936 f32 logits.
const ROOM: usize = 192 << 20;
const OFF: Filters = Filters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };
const TOP_20: LogprobsSpec<'static> = LogprobsSpec { top_n: 20, mode: LogprobsMode::Raw, tokens: &[] };

/// Parameter mixes: name, filters, penalties on 64 tokens, logprobs.
const MIXES: [(&str, Filters, bool, Option<LogprobsSpec<'static>>); 6] = [
    ("greedy", Filters { temperature: 0.0, ..OFF }, false, None),
    ("top-k 50, top-p .9", Filters { top_k: 50, top_p: 0.9, ..OFF }, false, None),
    ("min-p .05", Filters { min_p: 0.05, ..OFF }, false, None),
    ("temperature only", OFF, false, None),
    ("top-p .9", Filters { top_p: 0.9, ..OFF }, false, None),
    ("penalties, raw top-20, k, p", Filters { top_k: 50, top_p: 0.9, ..OFF }, true, Some(TOP_20)),
];

fn main() {
    let mut backend = match CudaBackend::open_with("0", Box::new(CpuBackend::new(1)), ROOM) {
        Ok(backend) => backend,
        Err(reason) => return println!("SKIPPED: nothing was measured: {reason}"),
    };
    println!("{}\n", backend.info().device);
    println!(
        "| vocabulary | format | rows | shape | mix | us | GB/s of one read | x one read |\n|---|---|---|---|---|---|---|---|"
    );
    for vocab in [32_000, 128_256, 151_936] {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            for shape in [Shape::Peaked, Shape::Flat] {
                let encoded: Vec<Vec<u8>> = (0..8).map(|seed| dtype.encode(&rows::row(shape, vocab, seed))).collect();
                for batch in [1, 8, 64, 256] {
                    MIXES.iter().for_each(|mix| line(&mut backend, vocab, dtype, shape, &encoded, batch, mix));
                }
            }
        }
    }
    verification(&mut backend);
}

/// Draft tokens of a verification.
const DRAFTED: usize = 4;
/// How a draft is verified: name, rule, whether it has chance.
const RULES: [(&str, AcceptanceRule, bool); 4] = [
    ("certain", AcceptanceRule::Rejection, false),
    ("rejection, kept", AcceptanceRule::Rejection, true),
    ("block, kept", AcceptanceRule::Block, true),
    ("greedy", AcceptanceRule::Greedy, false),
];

/// What each launch of a verification takes on the device, and the whole of it from the host, uploads included.
fn verification(backend: &mut CudaBackend) {
    println!("\n| format | drafts | rule | us of each launch | us in all, from the host |\n|---|---|---|---|---|");
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let drafts = Drafts::new(dtype);
        for rule in &RULES {
            [1, 8, 32].into_iter().for_each(|batch| drafts.line(backend, batch, rule));
        }
    }
}

/// Rows, and a draft token from each. They are verified with rows unlike their own, so that many are rejected.
struct Drafts {
    dtype: Dtype,
    rows: Vec<Vec<u8>>,
    proposed: Vec<(u32, Box<Kept>)>,
}

impl Drafts {
    fn new(dtype: Dtype) -> Self {
        let rows = (0..8).map(|seed| dtype.encode(&rows::row(Shape::Peaked, 128_256, seed))).collect();
        let mut drafts = Self { dtype, rows, proposed: vec![] };
        for at in 0..8 {
            let uniform = Numbers { seed: 1, start: at as u64 }.draft(0, 0);
            let drawn = CpuBackend::new(1).run(&[drafts.row(at, Action::Propose { uniform })]).remove(0);
            let drawn = drawn.expect("the row is fine");
            drafts.proposed.push((drawn.token, drawn.kept.expect("it was asked for")));
        }
        drafts
    }

    fn row(&self, at: usize, action: Action) -> RowJob<'_> {
        let spec = RowSpec {
            filters: OFF,
            chain: None,
            penalties: Penalties::OFF,
            adjusts: [].as_slice().into(),
            banned: &[],
            allowed: None,
            mark: None,
            action,
            logprobs: None,
            report: None,
        };
        RowJob { logits: Logits::new(self.dtype, &self.rows[at % 8]), spec }
    }

    fn draft(&self, at: usize, has_chance: bool) -> DraftToken<'_> {
        let (token, kept) = &self.proposed[(at + 3) % 8];
        let source = if has_chance { DraftSource::Kept(kept) } else { DraftSource::Deterministic };
        DraftToken { token: *token, source }
    }

    fn line(&self, backend: &mut CudaBackend, batch: usize, &(name, rule, has_chance): &(&str, AcceptanceRule, bool)) {
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
            numbers: Numbers { seed: i as u64, start: 0 },
            measure: false,
        };
        let jobs: Vec<VerifyJob<'_>> = (0..batch).map(job).collect();
        let timings = backend.time_verification(&jobs, ROUNDS).unwrap_or_else(|error| panic!("{name}: {error}"));
        let launches: Vec<String> =
            timings.into_iter().map(|timing| format!("{:.1}", median(timing.launches))).collect();
        let all = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            backend.verify(&jobs);
            start.elapsed().as_secs_f32() * 1e6
        });
        let all = median(all.collect());
        println!("| {} | {batch} | {name} | {} | {all:.0} |", self.dtype.name(), launches.join(" + "));
    }
}

fn median(mut times: Vec<f32>) -> f32 {
    times.sort_by(f32::total_cmp);
    times[times.len() / 2]
}

fn line(
    backend: &mut CudaBackend,
    vocab: usize,
    dtype: Dtype,
    shape: Shape,
    encoded: &[Vec<u8>],
    batch: usize,
    &(name, filters, penalised, logprobs): &(&str, Filters, bool, Option<LogprobsSpec<'static>>),
) {
    let adjusts: Vec<TokenAdjust> = (0..if penalised { 64 } else { 0 })
        .map(|i| TokenAdjust { token: i * 499, flags: 2, bias: 0.0, output_count: i % 3 })
        .collect();
    let spec = RowSpec {
        filters,
        chain: None,
        penalties: Penalties { repetition: 1.1, frequency: 0.1, presence: 0.1, ..Penalties::OFF },
        adjusts: adjusts.as_slice().into(),
        banned: &[],
        allowed: None,
        mark: None,
        action: Action::Draw { uniform: 0x9E37_79B9_7F4A_7C15 },
        logprobs,
        report: None,
    };
    let jobs: Vec<RowJob<'_>> =
        (0..batch).map(|i| RowJob { logits: Logits::new(dtype, &encoded[i % encoded.len()]), spec }).collect();
    let timing = backend.time(&jobs, ROUNDS).unwrap_or_else(|error| panic!("{name}: {error}"));
    if name == MIXES[0].0 {
        let nothing = median(timing.empty);
        println!(
            "| {vocab} | {} | {batch} | {} | no rows, the same launch | {nothing:.1} | | |",
            dtype.name(),
            shape.name()
        );
    }
    let median = median(timing.launches);
    let bytes = (batch * vocab * dtype.size()) as f32;
    println!(
        "| {vocab} | {} | {batch} | {} | {name} | {median:.1} | {:.0} | {:.2} |",
        dtype.name(),
        shape.name(),
        bytes / median / 1e3,
        median * timing.copy_rate / bytes
    );
}
