//! Verification on every backend equals the specification bit for bit: every rule, instruction set and dtype; chains
//! and trees; draft distributions that are kept, sent or absent; rows that aim at the boundaries.

use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob, VerifyResult};
use croupier::params::watermark::KgwParams;
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::kept::{Form, Kept};
use croupier::sampling::logits::Dtype;
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, Filters, RowSpec};
use croupier::sampling::sample_row;
use croupier::sampling::watermark::RowWatermark;
use croupier::sampling::watermark::greenlist::{Greenlist, Seeds};
use croupier::sampling::watermark::race::Race;
use croupier::speculative::draft::DraftError;
use croupier::speculative::job::VerifyFailure;
use croupier::speculative::numbers::Numbers;
use croupier::speculative::relaxed::Relaxed;
use croupier::speculative::rule::AcceptanceRule;
use croupier::speculative::synthetic::Synthetic;
use croupier::speculative::typical::Typical;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::draft_jobs::{Case, OFF, Recipe, Row, Source, bits, plainly, recipe, summary, together};
use crate::gpu::Gpu;
use crate::rows::{Lcg, ascending, row};

fn fast(backend: &mut CpuBackend, job: &RowJob<'_>) -> Box<Kept> {
    backend.run(&[*job]).remove(0).expect("the draft row is fine").kept.expect("it was asked for")
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_available())
}

fn check(name: &str, case: &Case) -> VerifyResult {
    let expected = case.expected();
    if Gpu::opened().is_some() {
        let got = case.with(|job| fast(&mut CpuBackend::new(1), job), |job| Gpu.verify(&[*job]).remove(0));
        assert_eq!(bits(&got), bits(&expected), "{name}, cuda: {}", summary(case));
    }
    for level in levels() {
        let mut backend = CpuBackend::with_level(1, level);
        let keep = |job: &RowJob<'_>| fast(&mut CpuBackend::with_level(1, level), job);
        let got = case.with(keep, |job| backend.verify(&[*job]).remove(0));
        assert_eq!(bits(&got), bits(&expected), "{name}, {}: {}", level.name(), summary(case));
    }
    expected
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn fast_equals_specification(recipe in recipe(vec![127, 128, 129, 2047, 2049, 5000], 9)) {
        if let Some(case) = recipe.case() {
            let _ = check("a case", &case);
        }
    }

    /// The row that a backend keeps is the specification's distribution, in no more than four bytes for each token, or
    /// a list.
    #[test]
    fn what_is_kept_is_the_distribution(recipe in recipe(vec![128, 129, 2049, 5000], 0)) {
        let draft = recipe.rows(0).1;
        let job = draft.job(Action::Propose { uniform: 7 });
        for level in levels() {
            let got = CpuBackend::with_level(1, level).run(&[job]).remove(0);
            match (got, sample_row(&job.logits, &job.spec)) {
                (Ok(got), Ok(expected)) => {
                    prop_assert_eq!(got.token, expected.token);
                    let (got, expected) = (got.kept.expect("kept"), expected.kept.expect("kept"));
                    prop_assert_eq!((got.entries(), got.total()), (expected.entries(), expected.total()));
                    (0..recipe.vocab as u32 + 1).for_each(|token| assert_eq!(got.mass(token), expected.mass(token)));
                    let most = match got.form() {
                        Form::List(entries) => 16 * entries.len(),
                        Form::Row(_) => 4 * recipe.vocab,
                    };
                    prop_assert!(got.bytes() <= size_of::<Kept>() + most, "{} bytes", got.bytes());
                }
                (got, expected) => prop_assert_eq!(got, expected),
            }
        }
    }

    #[test]
    fn batches_and_threads_change_nothing(
        recipes in prop::collection::vec(recipe(vec![128, 2049], 5), 1..8),
        threads in 1..4usize,
    ) {
        let cases: Vec<Case> = recipes.iter().filter_map(Recipe::case).collect();
        let expected: Vec<String> = cases.iter().map(|case| bits(&case.expected())).collect();
        let mut backend = CpuBackend::new(threads).sharing_above(0);
        let mut got = Vec::new();
        let keep = |job: &RowJob<'_>| fast(&mut CpuBackend::new(1), job);
        together(&cases, &keep, &mut Vec::new(), &mut |jobs| got = backend.verify(jobs).iter().map(bits).collect());
        prop_assert_eq!(got, expected);
    }
}

proptest! {
    #![proptest_config(config(12))]

    /// Vocabularies of real models.
    #[test]
    fn long_rows_equal_the_specification(
        recipe in recipe(vec![32_000, 50_257, 128_256], 3), vocab in prop::sample::select(vec![32_000, 50_257, 128_256]),
    ) {
        if let Some(case) = (Recipe { vocab, ..recipe }).case() {
            let _ = check("a long case", &case);
        }
    }
}

/// All outcomes of many draws with up to four siblings: each sibling is accepted in some, and residuals are drawn from
/// many blocks.
#[test]
fn residuals_are_drawn_alike_everywhere() {
    let vocab = 700;
    let (target, draft) = (row(0, vocab, 1), row(0, vocab, 2));
    let kept = || Source::Kept(Row::new(Dtype::F32, &draft, OFF));
    let mut drawn = std::collections::BTreeMap::<(usize, usize), usize>::new();
    for seed in 0..300 {
        for siblings in 1..=4usize {
            let token = |i: u64| sample_of(&draft, seed * 7 + i);
            let drafts = (0..siblings as u64).map(|i| (token(i), kept())).collect();
            let mut case = Case::new(drafts);
            case.rows = vec![Row::new(Dtype::F32, &target, OFF); siblings + 1];
            case.parents = vec![-1; siblings];
            case.numbers = Numbers { seed, start: 5 };
            case.measure = seed % 2 == 0;
            let verified = check("siblings", &case).expect("the rows are fine");
            if verified.accepted_path.is_empty() {
                *drawn.entry((siblings, verified.emitted[0] as usize / 128)).or_default() += 1;
            }
        }
    }
    assert!(drawn.len() > 16, "residuals were drawn from too few blocks: {drawn:?}");
}

/// A residual of a few units for each token, so that every draw is at a boundary between tokens or next to one.
#[test]
fn residuals_of_a_few_units_are_drawn_alike() {
    let unlikely = -39.0 * std::f32::consts::LN_2;
    let draft: Vec<f32> = (0..160).map(|token| if token == 150 { unlikely } else { 0.0 }).collect();
    let target: Vec<f32> = draft.iter().map(|&x| if x < 0.0 { f32::NEG_INFINITY } else { x }).collect();
    // Few tokens, so that the difference of two shares is more than a unit.
    let (few, allowed) = (OFF, Some((120..151).collect::<Vec<u32>>()));
    let only = |logits: &[f32]| Row { allowed: allowed.clone(), ..Row::new(Dtype::F32, logits, few) };
    let mut drawn = std::collections::BTreeSet::new();
    for seed in 0..400 {
        let rows = vec![only(&target); 2];
        let drafts = vec![(150, Source::Kept(only(&draft)))];
        let case = Case { rows, numbers: Numbers { seed, start: 0 }, ..Case::new(drafts) };
        drawn.extend(check("a few units", &case).expect("the rows are fine").emitted);
    }
    assert!(drawn.len() == 30 && !drawn.contains(&150), "{drawn:?}");
}

/// A key may draw another token than the one that alone is left. What is left then stays, and is what the next sibling
/// is held against.
#[test]
fn what_is_left_stays_if_nothing_would_remain() {
    let [a, b, c, other] = [10, 200, 400, 600];
    let target: Vec<f32> = (0..700).map(|token| if [a, b, c].contains(&token) { 0.0 } else { -1e3 }).collect();
    let mut reached = 0;
    for key in 0..30 {
        let mark = Some(RowWatermark::Race(Some(Race { key, context: 1 })));
        let row = Row { mark, ..Row::new(Dtype::F32, &target, OFF) };
        // The first takes a, and the second, which the target does not have, b.
        let half = Source::Sparse(vec![b, other], vec![0.5; 2]);
        let drafts = vec![(a, Source::None), (other, half), (c, Source::None), (c, Source::None)];
        let case = Case { rows: vec![row; 5], parents: vec![-1; 4], ..Case::new(drafts) };
        let expected = case.expected();
        for level in levels() {
            let mut backend = CpuBackend::with_level(1, level);
            let got = case.with(plainly, |job| backend.verify(&[*job]).remove(0));
            assert_eq!(bits(&got), bits(&expected), "{key}, {}", level.name());
        }
        if let Some(last) = expected.expect("the rows are fine").trials.get(3) {
            assert_eq!(last.chances.expect("it is measured").target, 1.0, "c alone is left");
            reached += 1;
        }
    }
    assert!(reached > 3, "{reached}");
}

fn sample_of(logits: &[f32], seed: u64) -> u32 {
    let draft = Row::new(Dtype::F32, logits, OFF);
    let job = draft.job(Action::Draw { uniform: Lcg(seed).next().wrapping_mul(0x9E37_79B9_7F4A_7C15) });
    sample_row(&job.logits, &job.spec).expect("the row is fine").token
}

/// Bad drafts, each with the specification's error, whichever row or token is at fault.
#[test]
fn bad_drafts() {
    use DraftError::*;
    let dense = |probs: &[f32]| Source::Dense(Dtype::F32, Dtype::F32.encode(probs));
    let fine = || (1, dense(&[0.25, 0.25, 0.25, 0.25, 0.0]));
    let of = croupier::speculative::draft::sent_mass;
    let cases: [(&str, (u32, Source), _); 13] = [
        ("short", (1, dense(&[0.5, 0.5])), Some(Length { found: 2, expected: 5 })),
        ("NaN", (1, dense(&[0.5, 0.5, f32::NAN, 0.0, 0.0])), Some(NotAProbability { token: 2 })),
        ("infinite", (1, dense(&[0.5, 0.5, 0.0, 0.0, f32::INFINITY])), Some(NotAProbability { token: 4 })),
        ("negative", (1, dense(&[-0.5, 1.5, 0.0, 0.0, 0.0])), Some(NotAProbability { token: 0 })),
        ("a little negative", (1, dense(&[-1e-45, 1.0, 0.0, 0.0, 0.0])), Some(NotAProbability { token: 0 })),
        ("minus zero", (1, dense(&[-0.0, 1.0, 0.0, 0.0, 0.0])), None),
        (
            "too large",
            (1, dense(&[f32::MAX, 0.0, 0.0, 0.0, 0.0])),
            Some(TooLarge { token: 0, bits: f32::MAX.to_bits() }),
        ),
        ("too much", (1, dense(&[0.5, 0.5, 0.25, 0.0, 0.0])), Some(Sum { total: 5 << 38 })),
        ("a little too much", (1, dense(&[0.5, 0.502, 0.0, 0.0, 0.0])), Some(Sum { total: of(0.5) + of(0.502) })),
        ("within tolerance", (1, dense(&[0.5, 0.5009, 0.0, 0.0, 0.0])), None),
        ("impossible", (4, dense(&[0.5, 0.5, 0.0, 0.0, 0.0])), Some(Impossible { token: 4 })),
        ("denormal", (4, dense(&[0.5, 0.5, 0.0, 0.0, 1e-45])), None),
        ("sparse twice", (1, Source::Sparse(vec![1, 1], vec![0.5, 0.5])), Some(Twice { token: 1 })),
    ];
    for (name, draft, error) in cases {
        for (index, drafts) in [(0, vec![draft.clone(), fine()]), (1, vec![fine(), draft])] {
            let result = check(name, &Case::new(drafts));
            match error {
                Some(error) => assert_eq!(result, Err(VerifyFailure::Draft { index, error }), "{name}"),
                None => assert!(result.is_ok(), "{name}: {result:?}"),
            }
        }
    }
    let kept = Source::Kept(Row::new(Dtype::F32, &[0.0, 1.0, f32::NEG_INFINITY, 0.0, 0.0], OFF));
    let result = check("impossible of kept", &Case::new(vec![(2, kept)]));
    assert_eq!(result, Err(VerifyFailure::Draft { index: 0, error: Impossible { token: 2 } }));
}

/// Edges, each with a name.
#[test]
fn named_edges() {
    let flat = |n: usize| vec![1.0; n];
    let kept = |logits: &[f32], filters| Source::Kept(Row::new(Dtype::F32, logits, filters));
    let with = |n: usize, drafts: Vec<(u32, Source)>, filters| {
        let rows = vec![Row::new(Dtype::F32, &flat(n), filters); drafts.len() + 1];
        Case { rows, ..Case::new(drafts) }
    };
    let giant: Vec<f32> = (0..600).map(|i| if i == 300 { 3e38 } else { (i % 5) as f32 }).collect();
    let mut banned = Row::new(Dtype::Bf16, &giant, OFF);
    banned.banned = vec![300];
    let equal = kept(&flat(1500), OFF);
    let cases = [
        ("no draft", with(1500, vec![], OFF)),
        ("equal rows, nothing left", with(1500, vec![(7, equal.clone()), (9, equal.clone())], OFF)),
        ("one token", with(1, vec![(0, kept(&[0.0], OFF))], OFF)),
        (
            "the cut in the middle of a block of ties",
            with(1500, vec![(7, equal.clone())], Filters { top_k: 1300, ..OFF }),
        ),
        (
            "the draft's cut in a block of ties",
            with(1500, vec![(7, kept(&flat(1500), Filters { top_k: 1300, ..OFF }))], OFF),
        ),
        ("min_p 1 among ties", with(1500, vec![(7, equal.clone())], Filters { min_p: 1.0, ..OFF })),
        ("a draft of another length", with(1500, vec![(7, kept(&flat(200), OFF))], OFF)),
        ("a banned giant in the draft", with(600, vec![(7, Source::Kept(banned.clone()))], OFF)),
        (
            "a banned giant in the target",
            Case { rows: vec![banned; 2], ..with(600, vec![(7, kept(&flat(600), OFF))], OFF) },
        ),
        ("greedy", with(1500, vec![(0, Source::None), (0, equal)], Filters { temperature: 0.0, ..OFF })),
    ];
    let rules = [
        AcceptanceRule::Rejection,
        AcceptanceRule::Block,
        AcceptanceRule::Greedy,
        AcceptanceRule::Typical(Typical::default()),
        AcceptanceRule::Relaxed(Relaxed::default()),
        AcceptanceRule::Synthetic(Synthetic { rate: 0.5 }),
    ];
    for (name, case) in cases {
        for rule in rules {
            for seed in 0..12 {
                for tree in [false, true] {
                    let parents = if tree { vec![-1; case.drafts.len()] } else { case.parents.clone() };
                    let numbers = Numbers { seed, start: 2 };
                    let result = check(name, &Case { rule, numbers, parents, measure: seed % 2 == 1, ..case.clone() });
                    assert!(result.is_ok(), "{name}: {result:?}");
                }
            }
        }
    }
}

/// Draws of a greedy row with a greenlist need only the first token. Ranks of rejected tokens and relaxed acceptance
/// need all tokens.
#[test]
fn marked_rows_are_judged_by_all_of_their_tokens() {
    let (vocab, params) = (3000, KgwParams { bias: 2.7, ..KgwParams::default() });
    let (mut ranks, mut accepted) = (0, 0);
    for seed in 0..60u64 {
        let shape = [1, 2, 8, 0][seed as usize % 4];
        let target = Row::new(Dtype::F32, &row(shape, vocab, seed), Filters { temperature: 0.0, ..OFF });
        let greens = Greenlist::new(&params, Seeds::new(&params, vec![seed as u32]));
        let target = Row { mark: Some(RowWatermark::Green(greens)), ..target };
        for rule in [
            AcceptanceRule::Rejection,
            AcceptanceRule::Relaxed(Relaxed { top_n: 9, delta: 0.004, ..Relaxed::default() }),
        ] {
            // Two tokens that are near the top without the watermark, and one that is not.
            let mut near: Vec<u32> = (0..vocab as u32).collect();
            let logits = row(shape, vocab, seed);
            near.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            for token in [near[1], near[7], near[700]] {
                let mut case = Case::new(vec![(token, Source::None)]);
                case.rows = vec![target.clone(); 2];
                (case.rule, case.measure) = (rule, true);
                let verified = check("marked", &case).expect("the rows are fine");
                ranks +=
                    verified.trials.iter().filter_map(|trial| trial.rejected_rank).filter(|&rank| rank > 20).count();
                accepted += verified.accepted_path.len();
            }
        }
    }
    assert!(ranks > 60 && accepted > 9, "{ranks} {accepted}");
}

/// A block of masked rows that together take more than the backend may set aside: it prepares the rest again.
#[test]
fn a_block_of_more_rows_than_are_set_aside() {
    const DRAFTS: u64 = 20;
    let vocab = 128_256;
    let mut rng = Lcg(5);
    let mask = (0..vocab / 8).map(|_| !(u8::from(rng.below(3) == 0) << rng.below(8))).collect();
    let target = Row { mask: Some(mask), ..Row::new(Dtype::Bf16, &row(1, vocab, 5), OFF) };
    let spec = target.job(Action::Draw { uniform: 0 });
    let drawn = |i: u64| {
        let uniform = uniform(5, i, Purpose::Draft);
        let draw = RowJob { spec: RowSpec { action: Action::Draw { uniform }, ..spec.spec }, ..spec };
        sample_row(&draw.logits, &draw.spec).expect("a fine row").token
    };
    let drafts = (0..DRAFTS).map(|i| (drawn(i), Source::Kept(target.clone()))).collect();
    let rows = vec![target.clone(); DRAFTS as usize + 1];
    let case = Case { rows, rule: AcceptanceRule::Block, ..Case::new(drafts) };
    let verified = check("a long block", &case).expect("the rows are fine");
    assert_eq!(verified.accepted_path.len(), DRAFTS as usize);
}

proptest! {
    #![proptest_config(config(300))]

    /// Rows of which a draw needs only the first tokens, after texts that touch many of their tokens. Draft tokens are
    /// of all kinds, also those that were largest, and those of blocks that a draw may leave out.
    #[test]
    fn drafts_behind_long_texts_are_verified_alike(
        recipe in recipe(vec![2047, 2048, 2049, 5000], 6),
        relaxed in prop::option::weighted(0.4, (2..60u32, prop_oneof![Just(1.0f32), 0.0f32..0.05])),
        top_k in prop_oneof![1 => Just(0u32), 2 => 1..16u32],
        greedy in any::<bool>(),
        seen in prop_oneof![1 => Just((0..5000).collect()), 2 => prop::collection::vec(any::<u32>(), 100..1500)],
        (repetition, frequency, presence) in (0.5f32..2.0, -1.0f32..2.0, -2.0f32..2.0),
        places in prop::collection::vec(any::<u16>(), 6),
        before in any::<bool>(),
    ) {
        let Some(mut case) = recipe.case() else { return Ok(()) };
        let vocab = recipe.vocab;
        let tokens = ascending(seen, vocab);
        let adjust = |token: u32| TokenAdjust { token, flags: 2, bias: 0.0, output_count: token % 3 };
        for target in &mut case.rows {
            let temperature = if greedy { 0.0 } else { target.filters.temperature };
            (target.chain, target.allowed) = (None, None);
            target.filters = Filters { top_k, temperature, ..target.filters };
            target.penalties = Penalties { repetition, frequency, presence, ..Penalties::OFF };
            target.adjusts = tokens.iter().copied().map(adjust).collect();
        }
        case.measure &= relaxed.is_none() || recipe.seed.is_multiple_of(4);
        case.rule = relaxed.map_or(case.rule, |(top_n, delta)| AcceptanceRule::Relaxed(Relaxed { top_n, delta, ..Relaxed::default() }));
        for (((token, source), &parent), &place) in case.drafts.iter_mut().zip(&case.parents).zip(&places) {
            if matches!(source, Source::None) || relaxed.is_some() {
                *source = Source::None;
                // Mostly near the top of its row, sometimes anywhere.
                let (place, at) = (usize::from(place), (parent + 1) as u64);
                let logits = row(recipe.shape, vocab, recipe.seed + at);
                let mut order: Vec<u32> = (0..vocab as u32).collect();
                order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
                *token = order[if place.is_multiple_of(5) { place } else { place % 20 } % vocab];
            }
        }
        for level in levels() {
            let mut backend = CpuBackend::with_level(1, level);
            if before {
                // What another row left over must not be seen.
                let _ = backend.run(&[case.rows[0].job(Action::Draw { uniform: 7 })]);
            }
            let got = case.with(plainly, |job| backend.verify(&[*job]).remove(0));
            prop_assert_eq!(bits(&got), bits(&case.expected()), "{}: {}", level.name(), summary(&case));
        }
    }
}

/// Runs more cases if PROPTEST_CASES says so. Failing cases are kept in `tests/regressions` and tried first.
fn config(cases: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    ProptestConfig {
        cases: wanted.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/regressions/verification.txt"))),
        ..ProptestConfig::default()
    }
}
