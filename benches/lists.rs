//! What a row costs if only its largest logits are sent, compared with the whole row.
//!
//! Microseconds of one core, measured alternately in the same run, the least of many rounds for each of 64 different
//! rows. The time of a list begins with the pairs as they arrived: they are sorted, checked and sampled. Copying to the
//! host and sending are not included, neither for lists nor for whole rows. Unless a job says otherwise, no token
//! outside the list can be emitted.
//!
//!   cargo bench --bench lists                 lists of 20 to 4,096 tokens
//!   cargo bench --bench lists -- --quick      fewer lengths and rounds

#![allow(clippy::print_stdout)] // it prints a table

use clap::Parser;
use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::chain::{Chain, ChainStep};
use croupier::sampling::listed::{BeyondTopN, Listed};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::order::Candidate;
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};
use std::cell::Cell;
use std::hint::black_box;

#[path = "support/options.rs"]
mod options;
#[path = "support/rows.rs"]
mod rows;
#[path = "support/timing.rs"]
mod timing;
use rows::{Shape, reference_max};
use timing::{Placed, measure};

const VOCAB: usize = 128_256;
const ROWS: usize = 64;
/// What is measured. With `--quick`, only the first ones of each.
const SHAPES: [Shape; 2] = [Shape::Peaked, Shape::Flat];
const LENGTHS: [u32; 6] = [64, 256, 20, 1024, 2048, 4096];

/// A parameter mix.
struct Job {
    name: &'static str,
    filters: Filters,
    steps: &'static [ChainStep],
    logprobs: Option<LogprobsSpec<'static>>,
    /// Whether tokens outside the list may be emitted, so that their log-sum-exp counts.
    has_rest: bool,
    /// Whether some tokens were in the text, so that penalties apply.
    is_penalised: bool,
}

const OFF: Filters = Filters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };
const FEW: Filters = Filters { top_k: 20, top_p: 0.9, ..OFF };
const LLAMA: &[ChainStep] = &[ChainStep::TopK, ChainStep::TopP, ChainStep::MinP, ChainStep::Temperature];
const PLAIN: Job = Job { name: "", filters: FEW, steps: &[], logprobs: None, has_rest: false, is_penalised: false };
const TOP_20: LogprobsSpec<'static> = LogprobsSpec { top_n: 20, mode: LogprobsMode::Raw, tokens: &[] };
const JOBS: [Job; 6] = [
    Job { name: "top-k 20, top-p .9", ..PLAIN },
    Job { name: "the same, others behind it", has_rest: true, ..PLAIN },
    Job { name: "the same, penalties on 64", is_penalised: true, ..PLAIN },
    Job { name: "the same, raw top-20", logprobs: Some(TOP_20), ..PLAIN },
    Job { name: "llama.cpp k 20 p .9 min .05", filters: Filters { min_p: 0.05, ..FEW }, steps: LLAMA, ..PLAIN },
    Job { name: "temperature only", filters: OFF, ..PLAIN },
];
/// Number of tokens in the text. Half of them, the most likely ones, are in each row's list.
const PENALISED: usize = 64;

#[derive(Parser)]
#[command(about = "What a row costs that lists only its largest logits")]
struct Options {
    #[command(flatten)]
    common: options::Common,
    /// Only lists of so many tokens [default: 20 to 4,096; with --quick 64 and 256].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(20..=4096))]
    tokens: Option<u32>,
    /// Only jobs whose name holds this.
    #[arg(long, value_name = "TEXT")]
    job: Option<String>,
}

/// A row, and its tokens in the order in which a worker's top-k returns them.
struct Row {
    whole: Placed,
    order: Vec<Candidate>,
    /// Tokens whose logits penalties change.
    known: Vec<TokenAdjust>,
}

impl Row {
    fn new(shape: Shape, seed: u64) -> Self {
        let row = rows::row(shape, VOCAB, seed);
        let whole = Placed::new(&Dtype::F32.encode(&row));
        let mut order: Vec<_> = (0..).zip(row).map(|(token, logit)| Candidate { token, logit }).collect();
        order.sort_unstable_by_key(Candidate::place);
        let listed = order.iter().step_by(2).take(PENALISED / 2);
        let known = listed.chain(order.iter().rev().take(PENALISED / 2)).map(|candidate| candidate.token);
        let adjust = |token| TokenAdjust { token, flags: TokenAdjust::SEEN, bias: 0.0, output_count: 1 };
        let mut known: Vec<_> = known.map(adjust).collect();
        known.sort_unstable_by_key(|adjust| adjust.token);
        Self { whole, order, known }
    }

    fn spec<'a>(&'a self, job: &'a Job, uniform: u64) -> RowSpec<'a> {
        let chain = (!job.steps.is_empty()).then(|| Chain::of_filters(job.steps));
        let plain = RowSpec { chain, logprobs: job.logprobs, ..RowSpec::plain(job.filters, Action::Draw { uniform }) };
        let penalties = Penalties { repetition: 1.1, frequency: 0.1, presence: 0.1, ..Penalties::OFF };
        if job.is_penalised { RowSpec { penalties, adjusts: self.known.as_slice().into(), ..plain } } else { plain }
    }

    /// The log-sum-exp of all logits after the first `length`.
    fn rest(&self, length: usize) -> f32 {
        self.order[length..].iter().map(|other| f64::from(other.logit).exp()).sum::<f64>().ln() as f32
    }

    fn list(&self, length: usize, rest: f32) -> Listed {
        let listed = Listed::new(VOCAB as u32, self.order[..length].to_vec(), rest, true, BeyondTopN::Refuse);
        listed.expect("a row as it should be")
    }
}

fn main() {
    let options = Options::parse();
    let quick = options.common.quick();
    let (rounds, lengths) = if quick { (7, &LENGTHS[..2]) } else { (31, &LENGTHS[..]) };
    let mut lengths = options.tokens.as_ref().map_or(lengths, std::slice::from_ref).to_vec();
    lengths.sort_unstable();
    let jobs = JOBS.iter().filter(|job| options.job.as_deref().is_none_or(|wanted| job.name.contains(wanted)));
    let shapes = if quick { &SHAPES[..1] } else { &SHAPES[..] };
    println!(
        "one core, {}, least of {rounds} rounds, mean of {ROWS} rows of {VOCAB} f32 logits",
        Level::detect().name()
    );
    println!("us for a list of so many tokens; (x) = times one SIMD max pass over the whole rows");
    for &shape in shapes {
        let rows: Vec<_> = (0..ROWS as u64).map(|seed| Row::new(shape, seed)).collect();
        println!("\n  {:28} {:>7} {:>13} {:>16}", format!("{} rows", shape.name()), "tokens", "list", "whole row");
        for job in jobs.clone() {
            lengths.iter().for_each(|&length| line(&rows, job, length as usize, rounds));
        }
    }
}

fn line(rows: &[Row], job: &Job, length: usize, rounds: usize) {
    let level = Level::detect();
    let (of_list, of_whole) = (Cell::new(1u64), Cell::new(1u64));
    let next = |uniform: &Cell<u64>| {
        uniform.set(uniform.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        uniform.get()
    };
    let mut backends = [(); 2].map(|()| CpuBackend::with_level(1, level));
    let [listed, whole] = &mut backends;
    let mut reference = |row: usize| {
        black_box(reference_max(level, Dtype::F32, black_box(rows[row].whole.bytes())));
    };
    let rest = |row: &Row| if job.has_rest { row.rest(length) } else { f32::NEG_INFINITY };
    let rests: Vec<f32> = rows.iter().map(rest).collect();
    let mut list = |row: usize| {
        let list = black_box(&rows[row]).list(length, rests[row]);
        let job = RowJob { logits: Logits::of_list(&list), spec: rows[row].spec(job, next(&of_list)) };
        assert!(black_box(listed.run(&[job]))[0].is_ok());
    };
    let mut whole = |row: usize| {
        let logits = Logits::new(Dtype::F32, black_box(rows[row].whole.bytes()));
        black_box(whole.run(&[RowJob { logits, spec: rows[row].spec(job, next(&of_whole)) }]));
    };
    let [reference, list, whole] = measure(rounds, ROWS, [&mut reference, &mut list, &mut whole]);
    let shown = |seconds: f64| format!("{:.1} ({:.2})", seconds * 1e6, seconds / reference);
    println!("  {:28} {length:7} {:>13} {:>16}", job.name, shown(list), shown(whole));
}
