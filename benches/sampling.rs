//! What sampling costs, as a multiple of one read of the logits.
//!
//! Every figure is a ratio: microseconds per row of a job, divided by microseconds per row of one SIMD max pass over
//! the same rows. Both are measured alternately in the same run on one core, and each is the least of many rounds,
//! because absolute times on a shared machine say little. "hot" repeats one row, "b64" goes through 64 different rows.
//!
//!   cargo bench --bench sampling                          the whole table
//!   cargo bench --bench sampling -- --quick               V = 128,256 f32 only, fewer rounds
//!   cargo bench --bench sampling -- --vocab 32000 --job top-p
//!   cargo bench --bench sampling -- --level avx2          with a lower instruction set than the machine has

#![allow(clippy::print_stdout)] // it prints a table

use clap::Parser;
use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob};
use croupier::params::watermark::{KgwParams, SeedingScheme};
use croupier::params::{MirostatVersion, TfsRule, TypicalRule, XtcRule};
use croupier::sampling::adjust::{Adjusts, Penalties, TokenAdjust};
use croupier::sampling::chain::{Chain, ChainStep};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::mask::TokenMask;
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};
use croupier::sampling::sample_row;
use croupier::sampling::watermark::RowWatermark;
use croupier::sampling::watermark::greenlist::{Greenlist, Seeds};
use croupier::sampling::watermark::race::Race;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

#[path = "support/chains.rs"]
mod chains;
#[path = "support/options.rs"]
mod options;
#[path = "support/rows.rs"]
mod rows;
#[path = "support/timing.rs"]
mod timing;
use chains::{infill, state, tournament};
use rows::{Shape, reference_max};
use timing::{Placed, measure};

/// What is measured. With `--quick`, only the first of each.
const VOCABS: [usize; 3] = [128_256, 32_000, 200_019];
const DTYPES: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];
/// Shares of tokens that masks leave: inside a string, and between tokens of a grammar.
const MASKS: [f32; 2] = [0.95, 0.001];

/// A parameter mix.
struct Job {
    name: &'static str,
    filters: Filters,
    /// A chain of samplers, if not empty.
    steps: &'static [ChainStep],
    /// The watermark of the row. If one of the steps is a tournament, that is played in any case.
    mark: Option<RowWatermark>,
    /// The share of the tokens that a mask leaves, if there is a mask.
    left: Option<f32>,
    /// Number of tokens in the history, to which penalties apply.
    penalised: usize,
    logprobs: Option<LogprobsSpec<'static>>,
    /// The goal and the best peer, as ratios, hot / b64, on peaked rows. "" if none is stated.
    goal: &'static str,
    peer: &'static str,
    /// The goal on flat rows, if it differs.
    flat_goal: &'static str,
}

const OFF: Filters = Filters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };
const TOP_20: LogprobsSpec<'static> = LogprobsSpec { top_n: 20, mode: LogprobsMode::Raw, tokens: &[] };
const PLAIN: Job = Job {
    name: "",
    filters: OFF,
    steps: &[],
    mark: None,
    left: None,
    penalised: 0,
    logprobs: None,
    goal: "",
    peer: "",
    flat_goal: "",
};

fn jobs() -> Vec<Job> {
    let top_k_p = Filters { top_k: 50, top_p: 0.9, ..OFF };
    vec![
        Job {
            name: "greedy",
            filters: Filters { temperature: 0.0, ..OFF },
            goal: "1.3/1.1",
            peer: "29/8 llama.cpp",
            ..PLAIN
        },
        Job {
            name: "top-k 50",
            filters: Filters { top_k: 50, ..OFF },
            goal: "1.8/1.7",
            peer: "25/8 llama.cpp",
            ..PLAIN
        },
        Job {
            name: "top-k 50, top-p .9, min-p .02",
            filters: Filters { min_p: 0.02, ..top_k_p },
            goal: "1.8/1.7",
            peer: "25/7 llama.cpp",
            ..PLAIN
        },
        Job {
            name: "min-p .05",
            filters: Filters { min_p: 0.05, ..OFF },
            goal: "1.4/1.1",
            peer: "45/13 llama.cpp",
            ..PLAIN
        },
        Job { name: "temperature only", goal: "6.5/3", peer: "232/68 llama.cpp", ..PLAIN },
        Job {
            name: "top-p .9",
            filters: Filters { top_p: 0.9, ..OFF },
            goal: "7/6",
            flat_goal: "17/13",
            peer: "265/150 llama.cpp",
            ..PLAIN
        },
        Job {
            name: "penalties, raw top-20, k, p",
            filters: top_k_p,
            penalised: 64,
            logprobs: Some(TOP_20),
            goal: "6/3",
            peer: "100/35 llama.cpp, no logprobs",
            ..PLAIN
        },
        Job { name: "penalties of 1000, k, p", filters: top_k_p, penalised: 1000, ..PLAIN },
        Job { name: "top-k 5000", filters: Filters { top_k: 5000, ..OFF }, ..PLAIN },
        Job { name: "score, raw top-20", logprobs: Some(TOP_20), ..PLAIN },
    ]
}

/// Jobs with samplers beyond the usual filters. The goal is at most 6 at batch 64.
fn samplers() -> impl Iterator<Item = Job> {
    const JOBS: &[(&str, &[ChainStep])] = &[
        ("dynamic temperature", &[ChainStep::DynamicTemperature { low: 0.5, high: 1.5, exponent: 1.0 }]),
        ("smoothing .3", &[ChainStep::Smoothing { factor: 0.3, curve: 1.0 }]),
        ("min_eos_p .2", &[ChainStep::MinEosP(0.2), ChainStep::Temperature]),
        ("typical .9", &[ChainStep::Temperature, ChainStep::TypicalP(TypicalRule::Reached, 0.9)]),
        ("tail-free .95", &[ChainStep::Temperature, ChainStep::Tfs(TfsRule::Left, 0.95)]),
        ("top-a .2", &[ChainStep::Temperature, ChainStep::TopA(0.2)]),
        ("top-n-sigma 1", &[ChainStep::TopNSigma(1.0), ChainStep::Temperature]),
        ("min-k 3", &[ChainStep::MinK(3.0), ChainStep::Temperature]),
        ("epsilon 3e-4", &[ChainStep::Temperature, ChainStep::EpsilonCutoff(3e-4)]),
        ("eta 3e-4", &[ChainStep::Temperature, ChainStep::EtaCutoff(3e-4)]),
        ("top-h .4", &[ChainStep::Temperature, ChainStep::TopH(0.4)]),
        ("infill behind top-k 40", &[ChainStep::TopK, ChainStep::Infill]),
        ("infill, nothing before", &[ChainStep::Infill]),
        ("p-less", &[ChainStep::Temperature, ChainStep::PLess { norm: false }]),
        ("p-less-norm", &[ChainStep::Temperature, ChainStep::PLess { norm: true }]),
        (
            "mirostat 1, tau 5",
            &[ChainStep::Temperature, ChainStep::Mirostat { version: MirostatVersion::One, tau: 5.0, eta: 0.1 }],
        ),
        (
            "mirostat 2, tau 5",
            &[ChainStep::Temperature, ChainStep::Mirostat { version: MirostatVersion::Two, tau: 5.0, eta: 0.1 }],
        ),
        ("adaptive-p .5 behind min-p .05", &[ChainStep::MinP, ChainStep::AdaptiveP { target: 0.5, decay: 0.9 }]),
        ("adaptive-p .5, nothing before", &[ChainStep::AdaptiveP { target: 0.5, decay: 0.9 }]),
        (
            "xtc always",
            &[
                ChainStep::Temperature,
                ChainStep::Xtc {
                    rule: XtcRule { expected: false, unless_ignored: false },
                    probability: 1.0,
                    threshold: 0.1,
                },
            ],
        ),
        (
            "xtc on average",
            &[ChainStep::Temperature, ChainStep::Xtc { rule: XtcRule::EXPECTED, probability: 0.5, threshold: 0.1 }],
        ),
        ("skew .3", &[ChainStep::Temperature, ChainStep::Skew(0.3)]),
        ("skew .3 behind top-p .95", &[ChainStep::Temperature, ChainStep::TopP, ChainStep::Skew(0.3)]),
        ("llama.cpp k 40 p .95 min .05", &[ChainStep::TopK, ChainStep::TopP, ChainStep::MinP, ChainStep::Temperature]),
        ("llama.cpp p .95 min .05", &[ChainStep::TopP, ChainStep::MinP, ChainStep::Temperature]),
        ("SGLang p .95 with k 40", &[ChainStep::Temperature, ChainStep::TopP, ChainStep::TopK]),
        ("vLLM min .05 k 40 p .95", &[ChainStep::Temperature, ChainStep::MinP, ChainStep::TopK, ChainStep::TopP]),
        (
            "KoboldCpp p .95 min .05",
            &[ChainStep::AtMost(3000), ChainStep::TopP, ChainStep::MinP, ChainStep::Temperature],
        ),
        (
            "KoboldCpp tail-free .95",
            &[ChainStep::AtMost(3000), ChainStep::Tfs(TfsRule::OneFewer, 0.95), ChainStep::Temperature],
        ),
        (
            "mistral.rs k 40 p .95 min .05",
            &[ChainStep::Temperature, ChainStep::TopK, ChainStep::TopP, ChainStep::MinPAbove],
        ),
        ("min-p .05, min_keep 3", &[ChainStep::Temperature, ChainStep::MinP]),
        ("top-p .95, temperature last", &[ChainStep::TopP, ChainStep::Temperature]),
        ("min-p .05, temperature last", &[ChainStep::MinP, ChainStep::Temperature]),
        ("min-p .05, skew .3", &[ChainStep::MinP, ChainStep::Temperature, ChainStep::Skew(0.3)]),
    ];
    // Measured on another machine before this project began, on peaked rows.
    const PEERS: &[(&str, &str)] = &[
        ("typical .9", "1950/560 llama.cpp, 2140/1030 Transformers"),
        ("top-n-sigma 1", "330/100 llama.cpp"),
        ("mirostat 2, tau 5", "1740/500 llama.cpp"),
        ("xtc always", "100/36 llama.cpp, its chain with penalties"),
        ("llama.cpp k 40 p .95 min .05", "25/8 llama.cpp"),
        ("min-p .05, min_keep 3", "45/13 llama.cpp, 96/52 Transformers"),
        ("top-p .95, temperature last", "265/150 llama.cpp, 1990/870 Transformers"),
    ];
    let filters = Filters { top_k: 40, top_p: 0.95, min_p: 0.05, ..OFF };
    let peer = |name| PEERS.iter().find(|peer| peer.0 == name).map_or("", |peer| peer.1);
    JOBS.iter().map(move |&(name, steps)| Job { name, filters, steps, goal: "-/6", peer: peer(name), ..PLAIN })
}

/// Jobs with watermarks. The other parameters are those that are usual with them.
fn marks() -> impl Iterator<Item = Job> {
    let green =
        |params: KgwParams| Some(RowWatermark::Green(Greenlist::new(&params, Seeds::new(&params, [1, 2, 3, 4]))));
    let (left, own) = (green(KgwParams::default()), green(KgwParams::with_scheme(SeedingScheme::Selfhash)));
    let race = Some(RowWatermark::Race(Some(Race { key: 7, context: 9 })));
    let few = Filters { top_k: 50, top_p: 0.9, ..OFF };
    const PLAYED: &[ChainStep] = &[ChainStep::Temperature, ChainStep::TopK, ChainStep::TopP, ChainStep::Tournament];
    const ALL_PLAYED: &[ChainStep] = &[ChainStep::Temperature, ChainStep::Tournament];
    let jobs = [
        Job { name: "kgw lefthash, k 50 p .9", filters: few, mark: left, goal: "-/6", ..PLAIN },
        Job { name: "kgw lefthash, temperature only", mark: left, goal: "-/6", ..PLAIN },
        Job { name: "kgw selfhash 4, k 50 p .9", filters: few, mark: own, ..PLAIN },
        Job { name: "synthid 30, k 50 p .9", filters: few, steps: PLAYED, goal: "-/6", ..PLAIN },
        Job { name: "synthid 30, temperature only", steps: ALL_PLAYED, goal: "-/6", ..PLAIN },
        Job { name: "gumbel, k 50 p .9", filters: few, mark: race, goal: "-/6", ..PLAIN },
        Job { name: "gumbel, temperature only", mark: race, goal: "-/6", ..PLAIN },
    ];
    jobs.into_iter()
}

fn masked() -> impl Iterator<Item = Job> {
    let few = Filters { top_k: 50, top_p: 0.9, ..OFF };
    let [most, some] = MASKS.map(Some);
    let jobs = [
        Job { name: "mask of 95 %, k 50 p .9", filters: few, left: most, ..PLAIN },
        Job { name: "mask of 95 %, temperature only", left: most, ..PLAIN },
        Job { name: "mask of 95 %, raw top-20, k, p", filters: few, left: most, logprobs: Some(TOP_20), ..PLAIN },
        Job { name: "mask of .1 %, k 50 p .9", filters: few, left: some, ..PLAIN },
        Job { name: "mask of .1 %, temperature only", left: some, ..PLAIN },
    ];
    jobs.into_iter()
}

#[derive(Parser)]
#[command(about = "What sampling costs over one read of the logits")]
struct Options {
    #[command(flatten)]
    common: options::Common,
    /// Only rows of so many logits [default: 32000, 128256 and 200019; with --quick 128256].
    #[arg(long, value_name = "TOKENS")]
    vocab: Option<usize>,
    /// Only rows of this format [default: f32 and bf16; with --quick f32].
    #[arg(long, value_parser = dtype)]
    dtype: Option<Dtype>,
    /// Only jobs whose name holds this.
    #[arg(long, value_name = "TEXT")]
    job: Option<String>,
    /// Fewer instructions than the machine has.
    #[arg(long, value_parser = level, default_value = Level::detect().name())]
    level: Level,
}

/// The instruction set with this name.
fn level(name: &str) -> Result<Level, String> {
    let here = || Level::ALL.into_iter().filter(|level| level.is_available());
    let names = || here().map(Level::name).collect::<Vec<_>>().join(", ");
    here().find(|level| level.name() == name).ok_or_else(|| format!("this machine has {}", names()))
}

fn dtype(name: &str) -> Result<Dtype, String> {
    let all = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    all.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| "f32, f16 or bf16".to_owned())
}

/// Tokens that were in a text, in ascending order and scattered over the vocabulary.
fn history(vocab: usize, tokens: usize) -> Vec<TokenAdjust> {
    let mut state = 1u64;
    let mut seen = BTreeSet::new();
    while seen.len() < tokens {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seen.insert(((state >> 33) % vocab as u64) as u32);
    }
    let adjust = |(i, token)| TokenAdjust { token, flags: TokenAdjust::SEEN, bias: 0.0, output_count: i % 3 };
    (0u32..).zip(seen).map(adjust).collect()
}

/// Rows of one kind, encoded.
struct Rows {
    placed: Vec<Placed>,
    dtype: Dtype,
    /// Tokens that penalties change, after a short text and after a long one.
    histories: [Vec<TokenAdjust>; 2],
    /// For each share of tokens that are left: a mask for each row.
    masks: [(f32, Vec<Vec<u8>>); 2],
}

impl Rows {
    fn new(vocab: usize, dtype: Dtype, shape: Shape, count: usize) -> Self {
        let placed = (0..count).map(|i| Placed::new(&dtype.encode(&rows::row(shape, vocab, i as u64)))).collect();
        let masks = |left| (left, (0..count).map(|i| rows::mask(vocab, left, i as u64)).collect());
        let histories = [64, 1000].map(|tokens| history(vocab, tokens));
        Self { placed, dtype, histories, masks: MASKS.map(masks) }
    }

    fn job<'a>(&'a self, row: usize, job: &Job, uniform: u64) -> RowJob<'a> {
        let history = self.histories.iter().find(|history| history.len() == job.penalised);
        let masks = self.masks.iter().find(|(left, _)| job.left == Some(*left));
        let penalties = Penalties { repetition: 1.1, frequency: 0.1, presence: 0.1, ..Penalties::OFF };
        let logits = Logits::new(self.dtype, self.placed[row].bytes());
        RowJob {
            logits,
            spec: RowSpec {
                filters: job.filters,
                chain: (!job.steps.is_empty()).then_some(Chain {
                    steps: job.steps,
                    min_keep: if job.name.ends_with("min_keep 3") { 3 } else { 1 },
                    protected: &[],
                    eos: &[2, 7],
                    xtc: 0,
                    state: state(job.steps),
                    infill: job.steps.contains(&ChainStep::Infill).then(infill),
                    tournament: job.steps.contains(&ChainStep::Tournament).then(tournament),
                }),
                penalties: if history.is_some() { penalties } else { Penalties::OFF },
                adjusts: history.map_or(Adjusts::default(), |history| history.as_slice().into()),
                banned: &[],
                allowed: None,
                mask: masks.map(|(_, masks)| TokenMask::new(&masks[row], logits.vocab_size())),
                mark: job.mark,
                action: if job.name.starts_with("score") {
                    Action::Score { token: 17 }
                } else {
                    Action::Draw { uniform }
                },
                logprobs: job.logprobs,
                report: None,
            },
        }
    }
}

fn main() {
    let options = Options::parse();
    let quick = options.common.quick();
    let rounds = if quick { 15 } else { 31 };
    let level = options.level;
    println!(
        "one core, {}, least of {} rounds; x = times one SIMD max pass over the same rows, measured in turn",
        level.name(),
        rounds
    );
    println!("spec = the plain sequential specification, the same result bit for bit\n");
    let (vocabs, dtypes) = if quick { (&VOCABS[..1], &DTYPES[..1]) } else { (&VOCABS[..], &DTYPES[..]) };
    let vocabs = options.vocab.as_ref().map_or(vocabs, std::slice::from_ref);
    let dtypes = options.dtype.as_ref().map_or(dtypes, std::slice::from_ref);
    for &vocab in vocabs {
        for &dtype in dtypes {
            for shape in [Shape::Peaked, Shape::Flat] {
                table(&options, rounds, level, vocab, dtype, shape);
            }
        }
    }
}

fn table(options: &Options, rounds: usize, level: Level, vocab: usize, dtype: Dtype, shape: Shape) {
    let rows = Rows::new(vocab, dtype, shape, 64);
    let mut backend = CpuBackend::with_level(1, level);
    println!("V = {vocab}, {}, {} rows", dtype.name(), shape.name());
    println!(
        "  {:32} {:>8} {:>6} {:>8} {:>6} {:>8}   {:10} best peer",
        "job", "hot us", "x", "b64 us", "x", "spec x", "goal"
    );
    let wanted = |job: &Job| options.job.as_deref().is_none_or(|wanted| job.name.contains(wanted));
    for job in &jobs().into_iter().chain(samplers()).chain(marks()).chain(masked()).filter(wanted).collect::<Vec<_>>() {
        let mut uniform = 1u64;
        let mut columns = vec![];
        for count in [1, 64] {
            let mut reference = |row: usize| {
                black_box(reference_max(level, dtype, black_box(rows.placed[row].bytes())));
            };
            let mut sample = |row: usize| {
                uniform = uniform.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                black_box(backend.run(&[black_box(rows.job(row, job, uniform))]));
            };
            columns.push(measure(rounds, count, [&mut reference, &mut sample]));
        }
        let spec = time_spec(&rows.job(0, job, 1 << 63));
        let goal = if shape == Shape::Flat && !job.flat_goal.is_empty() { job.flat_goal } else { job.goal };
        let [[hot_ref, hot], [b64_ref, b64]] = columns[..] else { unreachable!("two columns") };
        println!(
            "  {:32} {:8.1} {:6.2} {:8.1} {:6.2} {:8.0}   {:10} {}",
            job.name,
            hot * 1e6,
            hot / hot_ref,
            b64 * 1e6,
            b64 / b64_ref,
            spec.as_secs_f64() / hot_ref,
            goal,
            job.peer
        );
    }
    println!();
}

fn time_spec(job: &RowJob<'_>) -> Duration {
    let start = Instant::now();
    let _ = black_box(sample_row(&job.logits, &job.spec));
    start.elapsed()
}
