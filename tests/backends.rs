//! Every backend equals the specification bit for bit: every dtype, instruction set, thread count and
//! batch arrangement, on rows that aim at the boundaries.

mod nucleus;
mod teams;
mod touched;

use crate::cases::{Case, Chained, SHAPES, bits, case, chained, filters, mark, row, summary};
use crate::gpu::Gpu;
use crate::rows::played;
use crate::rows::{ascending, eos, infill, masking};
use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob};
use croupier::params::state::{Average, SamplerState};
use croupier::params::{MirostatVersion, TfsRule, TypicalRule, XtcRule};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::chain::ChainStep;
use croupier::sampling::distribution::Distribution;
use croupier::sampling::logits::Dtype;
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, Filters, LogprobsMode, RowResult, RowSpec};
use croupier::sampling::sample_row;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::BTreeMap;

fn backends() -> Vec<(String, Box<dyn Backend>)> {
    let mut all: Vec<(String, Box<dyn Backend>)> = vec![];
    if Gpu::opened().is_some() {
        all.push(("cuda".to_owned(), Box::new(Gpu)));
    }
    for level in Level::ALL {
        if level.is_available() {
            all.push((level.name().to_owned(), Box::new(CpuBackend::with_level(1, level))));
        } else {
            println!("SKIPPED level {}: this CPU does not have it", level.name());
        }
    }
    all
}

fn check(case: &Case) {
    let expected = bits(&case.expected());
    for (name, backend) in &mut backends() {
        let got = bits(&backend.run(&[case.job()])[0]);
        assert_eq!(got, expected, "{name} on {}", summary(case));
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn fast_equals_specification(case in case()) {
        check(&case);
    }

    #[test]
    fn batches_and_threads_change_nothing(cases in prop::collection::vec(case(), 1..12), threads in 1..5usize) {
        let expected: Vec<String> = cases.iter().map(|case| bits(&case.expected())).collect();
        let mut backend = CpuBackend::new(threads).sharing_above(0);
        let jobs: Vec<RowJob<'_>> = cases.iter().map(Case::job).collect();
        let got: Vec<String> = backend.run(&jobs).iter().map(bits).collect();
        prop_assert_eq!(got, expected);
    }
}

proptest! {
    #![proptest_config(config(40))]

    /// Vocabularies of real models, where cuts are too long to sort.
    #[test]
    fn long_rows_equal_the_specification(
        vocab in prop::sample::select(&[32_000usize, 50_257, 128_256][..]),
        shape in 0..SHAPES,
        seed in any::<u64>(),
        dtype in prop::sample::select(&Dtype::ALL[..]),
        filters in filters(),
        chain in prop::option::weighted(0.5, chained()),
        uniform in any::<u64>(),
        penalised in any::<bool>(),
        (masking, mark) in (prop::option::of(masking()), prop::option::weighted(0.2, mark())),
    ) {
        let mut case = Case::new(dtype, &row(shape, vocab, seed));
        (case.filters, case.chain, case.mark) = (filters, chain, mark);
        case.mask = masking.map(|masking| masking.words(vocab));
        case.action = Action::Draw { uniform };
        if penalised {
            case.penalties = Penalties { repetition: 1.2, frequency: 0.2, presence: 0.1, ..Penalties::OFF };
            case.adjusts = (0..64)
                .map(|i| TokenAdjust { token: i * 499 + (seed % 100) as u32, flags: 2, bias: 0.0, output_count: i % 3 })
                .collect();
        }
        check(&case);
    }
}

/// One step for which the backend may have a fast path if only a token is asked for, with steps that may accompany it.
fn short_chain() -> impl Strategy<Value = Chained> {
    let share = || prop_oneof![2 => 0.0f32..1.0, 1 => 1e-4f32..0.05];
    let step = prop_oneof![
        3 => (share(), share()).prop_map(|(p, threshold)| ChainStep::Xtc { rule: XtcRule::default(), probability: p.max(0.5), threshold }),
        2 => (share(), share()).prop_map(|(p, threshold)| ChainStep::Xtc { rule: XtcRule { expected: false, unless_ignored: true }, probability: p, threshold }),
        3 => (share(), share()).prop_map(|(probability, threshold)| ChainStep::Xtc { rule: XtcRule::EXPECTED, probability, threshold }),
        2 => (share(), share())
            .prop_map(|(probability, threshold)| ChainStep::Xtc { rule: XtcRule { expected: true, unless_ignored: true }, probability, threshold }),
        4 => (1e-3f32..3.0, prop_oneof![Just(1.0f32), 1.0f32..4.0])
            .prop_map(|(factor, curve)| ChainStep::Smoothing { factor, curve }),
        4 => (-3.0f32..3.0).prop_map(ChainStep::Skew),
        3 => prop_oneof![share(), 1e-6f32..1e-3].prop_map(ChainStep::MinEosP),
        1 => share().prop_map(ChainStep::TopA),
        1 => share().prop_map(ChainStep::EtaCutoff),
        1 => (0.0f32..3.0).prop_map(ChainStep::TopNSigma),
        2 => prop_oneof![Just(3.0f32), 0.0f32..3e3].prop_map(ChainStep::MinK),
        2 => share().prop_map(|p| ChainStep::TypicalP(TypicalRule::Reached, p)),
        1 => share().prop_map(|p| ChainStep::TypicalP(TypicalRule::Above, p)),
        1 => share().prop_map(|p| ChainStep::TypicalP(TypicalRule::Ties, p)),
        1 => share().prop_map(|z| ChainStep::Tfs(TfsRule::Left, z)),
        1 => share().prop_map(|z| ChainStep::Tfs(TfsRule::WithRemoved, z)),
        1 => share().prop_map(|z| ChainStep::Tfs(TfsRule::OneFewer, z)),
        4 => prop_oneof![Just(0.0f32), Just(1.0), 1e-6f32..1e-3, 0.0f32..1.0]
            .prop_map(|target| ChainStep::AdaptiveP { target, decay: 0.9 }),
        1 => Just(ChainStep::PLess { norm: false }),
        1 => Just(ChainStep::PLess { norm: true }),
        2 => Just(ChainStep::Infill),
        1 => Just(ChainStep::TopP),
        1 => Just(ChainStep::MinPAbove),
        1 => (1u32..4000).prop_map(ChainStep::AtMost),
        1 => Just(ChainStep::TopK),
        1 => Just(ChainStep::TopKTies),
        1 => Just(ChainStep::Mirostat { version: MirostatVersion::One, tau: 5.0, eta: 0.1 }),
        1 => Just(ChainStep::Mirostat { version: MirostatVersion::Two, tau: 5.0, eta: 0.1 }),
        1 => Just(ChainStep::DynamicTemperature { low: 0.5, high: 1.5, exponent: 1.0 }),
    ];
    let beside = || {
        let cuts = [ChainStep::MinP, ChainStep::TopP, ChainStep::TopK, ChainStep::TopKTies, ChainStep::AtMost(100)];
        let some = [&cuts[..], &[ChainStep::MinPAbove, ChainStep::TopNSigma(1.0), ChainStep::Skew(0.4)]].concat();
        let others = prop::sample::select(some).prop_map(Some);
        prop_oneof![4 => Just(None), 4 => Just(Some(ChainStep::Temperature)), 3 => others]
    };
    let min_keep = prop_oneof![4 => Just(1u32), 1 => 2..50u32, 1 => 1000..3000u32];
    let average = prop_oneof![
        Just(Average { sum: 0.0, weight: 0.0 }),
        (0.0f64..10.0).prop_map(|sum| Average { sum, weight: 10.0 })
    ];
    let state = prop_oneof![2 => Just(None), 1 => (0.0f64..15.0, average).prop_map(Some)];
    let chain = (
        beside(),
        step,
        beside(),
        min_keep,
        prop::collection::vec(0..300u32, 0..3),
        any::<u64>(),
        (state, infill(), eos()),
    );
    chain.prop_map(|(before, step, behind, min_keep, protected, xtc, (state, infill, eos))| Chained {
        steps: before.into_iter().chain([step]).chain(behind).collect(),
        min_keep,
        protected: ascending(protected, 300),
        eos,
        xtc,
        state: SamplerState {
            mirostat_mu: state.map(|state| state.0),
            adaptive: state.map(|state| state.1).filter(|_| matches!(step, ChainStep::AdaptiveP { .. })),
        },
        infill,
        tournament: None,
    })
}

proptest! {
    #![proptest_config(config(300))]

    /// Short chains on rows of many blocks, where only a token is asked for.
    #[test]
    fn tokens_of_short_chains_are_those_of_the_specification(
        vocab in 150..9000usize,
        shape in prop_oneof![4 => 0..3u8, 1 => 0..SHAPES],
        seed in any::<u64>(),
        dtype in prop::sample::select(&Dtype::ALL[..]),
        filters in filters(),
        chain in short_chain(),
        uniform in any::<u64>(),
        mark in prop::option::weighted(0.2, mark()),
        adjusted in any::<bool>(),
    ) {
        let mut case = Case::new(dtype, &row(shape, vocab, seed));
        case.filters = Filters { temperature: filters.temperature.max(0.05), ..filters };
        (case.chain, case.mark, case.logprobs) = (Some(chain), mark, None);
        if adjusted {
            case.penalties = Penalties { repetition: 1.2, ..Penalties::OFF };
            case.adjusts = (0..3).map(|i| TokenAdjust { token: i * 49, flags: 2, bias: 0.5, output_count: 1 }).collect();
            case.banned = vec![1, 140];
        }
        for uniform in uniforms(&case, uniform) {
            case.action = Action::Draw { uniform };
            check(&case);
        }
    }
}

proptest! {
    #![proptest_config(config(100))]

    /// Tournament watermarks (`mark`) over all tokens or most of them.
    #[test]
    fn tokens_of_tournaments_are_those_of_the_specification(
        vocab in prop_oneof![3 => 100..9000usize, 1 => 1..300usize],
        shape in prop_oneof![4 => 0..3u8, 1 => 0..SHAPES],
        (seed, uniform) in any::<(u64, u64)>(),
        dtype in prop::sample::select(&Dtype::ALL[..]),
        temperature in 0.05f32..3.0,
        min_p in prop_oneof![3 => Just(0.0f32), 1 => 1e-6f32..1e-2],
        played in played(),
        shown in prop::option::weighted(0.2, Just((3, LogprobsMode::Processed, vec![0]))),
        adjusted in any::<bool>(),
    ) {
        let mut case = Case::new(dtype, &row(shape, vocab, seed));
        case.filters = Filters { temperature, min_p, top_k: 0, top_p: 1.0 };
        let cut = (min_p > 0.0).then_some(ChainStep::MinP);
        let steps = [ChainStep::Temperature].into_iter().chain(cut).chain([ChainStep::Tournament]).collect();
        case.chain = Some(Chained { steps, min_keep: 1, tournament: Some(played), ..Chained::default() });
        case.logprobs = shown;
        if adjusted && vocab > 3 {
            case.adjusts = vec![TokenAdjust { token: 1, flags: 2, bias: 0.5, output_count: 1 }];
            case.banned = vec![2];
        }
        for uniform in uniforms(&case, uniform) {
            case.action = Action::Draw { uniform };
            check(&case);
        }
    }
}

proptest! {
    #![proptest_config(config(200))]

    /// Rows that need only their first tokens, watermarked or not, after short texts and long ones. Tokens are raised
    /// and adjusted where that may matter. The largest tokens may be banned or adjusted in other ways, or be masked and
    /// lie far above all others.
    #[test]
    fn first_tokens_of_touched_rows_are_those_of_the_specification(
        vocab in 150..9000usize,
        shape in prop_oneof![4 => 0..3u8, 1 => 0..SHAPES],
        (seed, uniform) in any::<(u64, u64)>(),
        dtype in prop::sample::select(&Dtype::ALL[..]),
        filters in filters(),
        top_k in prop_oneof![3 => 1..20u32, 1 => 20..70u32],
        mark in prop::option::weighted(0.5, mark()),
        hidden in prop::option::weighted(0.4, (1..300usize, 0.0f32..40.0, masking())),
        touched in prop::collection::vec((0..30usize, any::<bool>(), -9.0f32..9.0), 0..8),
        seen in prop_oneof![prop::collection::vec(any::<u32>(), 0..20), prop::collection::vec(any::<u32>(), 100..1500)],
        (repetition, frequency) in (0.5f32..2.0, -1.0f32..2.0),
        shown in prop::option::weighted(0.3, Just((3, LogprobsMode::Raw, vec![0]))),
    ) {
        let mut logits = row(shape, vocab, seed);
        let mut order: Vec<usize> = (0..vocab).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let mask = hidden.map(|(largest, above, masking)| {
            let mut words = masking.words(vocab);
            for &token in order.iter().take(largest) {
                logits[token] += above;
                words[token / 8] &= !(1 << (token % 8));
            }
            words
        });
        let mut case = Case::new(dtype, &logits);
        (case.filters, case.mark, case.logprobs) = (Filters { top_k, ..filters }, mark, shown);
        case.mask = mask;
        case.penalties = Penalties { repetition, frequency, ..Penalties::OFF };
        let touched: BTreeMap<u32, _> =
            touched.into_iter().map(|(at, ban, bias)| (order[at] as u32, (ban, bias))).collect();
        case.banned = touched.iter().filter(|(_, (ban, _))| *ban).map(|(&token, _)| token).collect();
        let adjust = |token, bias, i: u32| (token, TokenAdjust { token, flags: 2, bias, output_count: i % 3 });
        let mut adjusts: BTreeMap<u32, _> = (0..).zip(seen).map(|(i, at)| adjust(at % vocab as u32, 0.0, i)).collect();
        adjusts.extend(touched.iter().filter(|(_, (ban, _))| !ban).map(|(&token, &(_, bias))| adjust(token, bias, 1)));
        case.adjusts = adjusts.into_values().collect();
        for uniform in uniforms(&case, uniform) {
            case.action = Action::Draw { uniform };
            check(&case);
        }
    }
}

/// Uniform numbers that draw the last point of a token and the first of the next, in the order of token ids: an error
/// of one unit of mass in any earlier token draws another token. Also some other numbers.
fn uniforms(case: &Case, random: u64) -> Vec<u64> {
    let (job, mut all) = (case.job(), vec![random, 0, u64::MAX]);
    let Ok(distribution) = Distribution::of(&job.logits, &job.spec) else { return all };
    let mut tokens: Vec<(u32, u64)> = distribution.kept().iter().map(|w| (w.candidate.token, w.mass)).collect();
    tokens.sort_unstable();
    for place in [random % tokens.len() as u64, tokens.len() as u64 / 2, tokens.len() as u64 - 1] {
        let before: u64 = tokens[..place as usize].iter().map(|token| token.1).sum();
        let first = (u128::from(before) << 64).div_ceil(u128::from(distribution.total()));
        all.extend([first, first.saturating_sub(1)].map(|uniform| uniform.min(u128::from(u64::MAX)) as u64));
    }
    all
}

/// 10^6 draws by each available instruction set, thread count and batch arrangement: all are equal. (The specification
/// draws them too, on rows short enough for it. Some draws are from rows that several blocks of a GPU work on.)
#[test]
fn a_million_draws_are_the_same_everywhere() {
    const ROWS: usize = 64;
    const LONG: [usize; 4] = [8200, 12_000, 20_000, 40_000];
    const LONG_EVERY: u64 = 64;
    let rows: Vec<Case> = (0..(ROWS + LONG.len()) as u64)
        .map(|i| {
            let vocab = (i as usize).checked_sub(ROWS).map_or(40 + 3 * i as usize, |at| LONG[at]);
            let mut case = Case::new(Dtype::ALL[i as usize % 3], &row((i % 12) as u8, vocab, i));
            case.filters = Filters {
                temperature: 0.6 + 0.1 * (i % 8) as f32,
                top_k: [0, 0, 5, 30][i as usize % 4],
                top_p: [1.0, 0.9, 0.6][i as usize % 3],
                min_p: [0.0, 0.02][i as usize % 2],
            };
            case.logprobs = None;
            case
        })
        .collect();
    let mut arrangements = backends();
    arrangements.push(("two threads".to_owned(), Box::new(CpuBackend::new(2).sharing_above(0))));
    let draws = 1_000_000 / (arrangements.len() * ROWS) + 1;
    let mut compared = 0usize;
    for position in 0..draws as u64 {
        let uniform = uniform(42, position, Purpose::Sample);
        let count = if position.is_multiple_of(LONG_EVERY) { rows.len() } else { ROWS };
        let jobs: Vec<RowJob<'_>> = rows[..count]
            .iter()
            .map(|case| RowJob { spec: RowSpec { action: Action::Draw { uniform }, ..case.job().spec }, ..case.job() })
            .collect();
        let expected: Vec<RowResult> = jobs.iter().map(|job| sample_row(&job.logits, &job.spec)).collect();
        for (turn, (name, backend)) in arrangements.iter_mut().enumerate() {
            // Each arrangement takes the rows in another order and in batches of another size.
            let batch = [1, 3, 17, 64][(turn + position as usize) % 4];
            let from = (position as usize * 7 + turn * 13) % count;
            let order: Vec<usize> = (0..count).map(|i| (i * 5 + from) % count).collect();
            for chunk in order.chunks(batch) {
                let together: Vec<RowJob<'_>> = chunk.iter().map(|&i| jobs[i]).collect();
                for (&i, got) in chunk.iter().zip(backend.run(&together)) {
                    assert_eq!(got, expected[i], "{name}, row {i}, draw {position}");
                    compared += 1;
                }
            }
        }
    }
    println!("{compared} draws compared, 0 differ");
    assert!(compared >= 1_000_000);
}

/// Cases in which the property tests once found faults, by name, and edges that they could miss.
#[test]
fn named_edges() {
    for (name, case) in crate::cases::named_edges() {
        println!("{name}");
        check(&case);
    }
}

/// Runs more cases if PROPTEST_CASES says so. Failing cases are kept in `tests/regressions` and tried first.
fn config(cases: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    ProptestConfig {
        cases: wanted.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/regressions/backends.txt"))),
        ..ProptestConfig::default()
    }
}
