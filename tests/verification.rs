//! Verification on every backend equals the specification bit for bit: every rule, instruction set and dtype, chains
//! and trees, distributions kept, sent or none, on rows that aim at the boundaries.

use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob, VerifyJob, VerifyResult};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::kept::{Form, Kept};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, RowSpec};
use croupier::sampling::sample_row;
use croupier::speculative::draft::DraftError;
use croupier::speculative::job::{DraftSource, DraftToken, VerifyFailure};
use croupier::speculative::numbers::Numbers;
use croupier::speculative::relaxed::Relaxed;
use croupier::speculative::rule::AcceptanceRule;
use croupier::speculative::synthetic::Synthetic;
use croupier::speculative::tree::Tree;
use croupier::speculative::typical::Typical;
use croupier::speculative::verify;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

#[path = "support/rows.rs"]
mod rows;
use rows::{Chained, Lcg, SHAPES, ascending, chained, filters, row};

const OFF: Filters = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

/// A target or draft row with everything it borrows.
#[derive(Debug, Clone)]
struct Row {
    dtype: Dtype,
    bytes: Vec<u8>,
    filters: Filters,
    chain: Option<Chained>,
    penalties: Penalties,
    adjusts: Vec<TokenAdjust>,
    banned: Vec<u32>,
    allowed: Option<Vec<u32>>,
}

impl Row {
    fn new(dtype: Dtype, logits: &[f32], filters: Filters) -> Self {
        let (chain, penalties, adjusts, banned, allowed) = (None, Penalties::OFF, vec![], vec![], None);
        Self { dtype, bytes: dtype.encode(logits), filters, chain, penalties, adjusts, banned, allowed }
    }

    fn job(&self, action: Action) -> RowJob<'_> {
        let spec = RowSpec {
            filters: self.filters,
            chain: self.chain.as_ref().filter(|_| self.filters.temperature != 0.0).map(Chained::chain),
            penalties: self.penalties,
            adjusts: self.adjusts.as_slice().into(),
            banned: &self.banned,
            allowed: self.allowed.as_deref(),
            action,
            logprobs: None,
        };
        RowJob { logits: Logits::new(self.dtype, &self.bytes), spec }
    }
}

/// Where a draft token's distribution is, with everything it borrows.
#[derive(Debug, Clone)]
enum Source {
    None,
    Kept(Row),
    Dense(Dtype, Vec<u8>),
    Sparse(Vec<u32>, Vec<f32>),
}

/// A draft and its rows.
#[derive(Debug, Clone)]
struct Case {
    rows: Vec<Row>,
    ends: Vec<bool>,
    drafts: Vec<(u32, Source)>,
    parents: Vec<i32>,
    rule: AcceptanceRule,
    numbers: Numbers,
    measure: bool,
}

impl Case {
    /// Draft token 1 before rows of five tokens.
    fn new(sources: Vec<(u32, Source)>) -> Self {
        let logits = [1.0, 2.0, 0.5, -1.0, 0.0];
        let rows = vec![Row::new(Dtype::F32, &logits, OFF); sources.len() + 1];
        let parents = (-1..sources.len() as i32 - 1).collect();
        let (rule, numbers) = (AcceptanceRule::Rejection, Numbers { seed: 3, start: 0 });
        Self { rows, ends: vec![false; sources.len()], drafts: sources, parents, rule, numbers, measure: true }
    }

    /// The result of `verify` with the distributions that `keep` keeps.
    fn with<T>(&self, keep: impl Fn(&RowJob<'_>) -> Box<Kept>, verify: impl FnOnce(&VerifyJob<'_>) -> T) -> T {
        let propose = |row: &Row| keep(&row.job(Action::Propose { uniform: 0 }));
        let kept = self.drafts.iter().map(|(_, source)| match source {
            Source::Kept(row) => Some(propose(row)),
            _ => None,
        });
        let kept: Vec<Option<Box<Kept>>> = kept.collect();
        let mut drafts = Vec::new();
        for ((token, source), kept) in self.drafts.iter().zip(&kept) {
            let source = match source {
                Source::None => DraftSource::Deterministic,
                Source::Kept(_) => DraftSource::Kept(kept.as_ref().expect("it was kept")),
                Source::Dense(dtype, bytes) => DraftSource::Dense(Logits::new(*dtype, bytes)),
                Source::Sparse(tokens, probs) => DraftSource::Sparse { tokens, probs },
            };
            drafts.push(DraftToken { token: *token, source });
        }
        let rows: Vec<_> = self.rows.iter().map(|row| row.job(Action::Score { token: 0 })).collect();
        let tree = Tree::new(&self.parents, drafts.len()).expect("the parents are a tree");
        let (rule, numbers, measure) = (self.rule, self.numbers, self.measure);
        verify(&VerifyJob { rows: &rows, ends: &self.ends, drafts: &drafts, tree: &tree, rule, numbers, measure })
    }

    fn expected(&self) -> VerifyResult {
        self.with(plainly, verify)
    }
}

fn plainly(job: &RowJob<'_>) -> Box<Kept> {
    sample_row(&job.logits, &job.spec).expect("the draft row is fine").kept.expect("it was asked for")
}

fn fast(backend: &mut CpuBackend, job: &RowJob<'_>) -> Box<Kept> {
    backend.run(&[*job]).remove(0).expect("the draft row is fine").kept.expect("it was asked for")
}

/// Bits instead of values, so that −0 and 0 differ and NaN would show.
fn bits(result: &VerifyResult) -> String {
    match result {
        Ok(verified) => {
            let trial = |t: &croupier::speculative::verified::Trial| {
                let (expected, variation) = (t.expected.map(f64::to_bits), t.total_variation.map(f64::to_bits));
                format!("{} {} {} {expected:?} {variation:?} {:?}", t.index, t.depth, t.accepted, t.rejected_rank)
            };
            let trials: Vec<_> = verified.trials.iter().map(trial).collect();
            format!("{:?} {:?} {} {trials:?}", verified.accepted_path, verified.emitted, verified.lossless)
        }
        Err(error) => format!("{error:?}"),
    }
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_available())
}

fn check(name: &str, case: &Case) -> VerifyResult {
    let expected = case.expected();
    for level in levels() {
        let mut backend = CpuBackend::with_level(1, level);
        let keep = |job: &RowJob<'_>| fast(&mut CpuBackend::with_level(1, level), job);
        let got = case.with(keep, |job| backend.verify(&[*job]).remove(0));
        assert_eq!(bits(&got), bits(&expected), "{name}, {}: {}", level.name(), summary(case));
    }
    expected
}

fn summary(case: &Case) -> String {
    let mut short = case.clone();
    let cut = |row: &mut Row| row.bytes.truncate(16);
    short.rows.iter_mut().for_each(cut);
    for (_, source) in &mut short.drafts {
        match source {
            Source::Kept(row) => cut(row),
            Source::Dense(_, bytes) => bytes.truncate(16),
            _ => {}
        }
    }
    format!("{} tokens, {short:?}", case.rows[0].bytes.len() / case.rows[0].dtype.size())
}

fn rules() -> impl Strategy<Value = AcceptanceRule> {
    prop_oneof![
        4 => Just(AcceptanceRule::Rejection),
        3 => Just(AcceptanceRule::Block),
        1 => Just(AcceptanceRule::Greedy),
        1 => (0.0f32..=1.0, 0.01f32..2.0).prop_map(|(epsilon, alpha)| AcceptanceRule::Typical(Typical { epsilon, alpha })),
        1 => (0..60u32, 0.0f32..=1.0).prop_map(|(top_n, delta)| AcceptanceRule::Relaxed(Relaxed { top_n, delta })),
        1 => (0.0f32..=1.0).prop_map(|rate| AcceptanceRule::Synthetic(Synthetic { rate })),
    ]
}

/// What a case is made from besides its filters.
#[derive(Debug, Clone)]
struct Recipe {
    vocab: usize,
    shape: u8,
    seed: u64,
    /// How far the draft's logits are from the target's, 0 for the same.
    noise: f32,
    dtypes: [Dtype; 2],
    filters: [Filters; 2],
    chains: [Option<Chained>; 2],
    penalised: bool,
    banned: Vec<u32>,
    allowed: Option<Vec<u32>>,
    /// Parents as fractions of the nodes before; `None` is a chain.
    tree: Option<Vec<u8>>,
    /// A kind of source for each draft token.
    sources: Vec<u8>,
    bad_row: Option<(u8, bool)>,
    rule: AcceptanceRule,
    start: u64,
    measure: bool,
}

impl Recipe {
    fn parents(&self) -> Vec<i32> {
        let parent = |(i, part): (usize, &u8)| i32::from(*part) * (i as i32 + 1) / 256 - 1;
        match &self.tree {
            Some(parts) => parts.iter().cycle().take(self.sources.len()).enumerate().map(parent).collect(),
            None => (-1..self.sources.len() as i32 - 1).collect(),
        }
    }

    fn adjusted(&self, mut made: Row, history: u32) -> Row {
        if self.penalised {
            made.penalties = Penalties { repetition: 1.3, frequency: 0.2, presence: 0.1, ..Penalties::OFF };
            let tokens = (0..40).map(|i| i * 37 + history).collect();
            let adjust = |token| TokenAdjust { token, flags: token % 3, bias: 0.25, output_count: token % 4 };
            made.adjusts = ascending(tokens, self.vocab).into_iter().map(adjust).collect();
            made.adjusts.iter_mut().for_each(|adjust| adjust.flags &= if adjust.token % 7 == 0 { 3 } else { 2 });
        }
        made.banned = ascending(self.banned.clone(), self.vocab);
        made.allowed = self.allowed.clone().map(|allowed| ascending(allowed, self.vocab));
        made
    }

    /// A target row and a draft row for the same position.
    fn rows(&self, at: usize) -> (Row, Row) {
        let logits = row(self.shape, self.vocab, self.seed + at as u64);
        let mut rng = Lcg(self.seed ^ at as u64);
        let near = |x: &f32| if x.abs() < 1e30 { x + self.noise * (rng.unit() - 0.5) } else { *x };
        let proposed: Vec<f32> = logits.iter().map(near).collect();
        let [of_target, of_draft] = self.chains.clone();
        let target = Row { chain: of_target, ..Row::new(self.dtypes[0], &logits, self.filters[0]) };
        let draft = Row { chain: of_draft, ..Row::new(self.dtypes[1], &proposed, self.filters[1]) };
        (self.adjusted(target, at as u32), self.adjusted(draft, at as u32))
    }

    /// A draft token, drawn from its distribution, and its source.
    fn proposal(&self, kind: u8, draft: Row, at: usize) -> Option<(u32, Source)> {
        let uniform = Numbers { seed: self.seed, start: self.start }.draft(at, at);
        let job = draft.job(Action::Propose { uniform });
        let output = sample_row(&job.logits, &job.spec).ok()?;
        let (token, kept) = (output.token, output.kept.expect("it was asked for"));
        let (entries, total) = (kept.entries(), kept.total() as f64);
        let probs: Vec<f32> = entries.iter().map(|&(_, mass)| (mass as f64 / total) as f32).collect();
        Some(match kind % 4 {
            0 => (token, Source::Kept(draft)),
            1 => {
                let mut all = vec![0.0; self.vocab];
                entries.iter().zip(&probs).for_each(|(entry, &prob)| all[entry.0 as usize] = prob);
                (token, Source::Dense(self.dtypes[1], self.dtypes[1].encode(&all)))
            }
            2 => (token, Source::Sparse(entries.iter().map(|entry| entry.0).collect(), probs)),
            _ => (token, Source::None),
        })
    }

    /// `None` where a draft row has no distribution.
    fn case(&self) -> Option<Case> {
        let parents = self.parents();
        let (mut rows, mut drafts) = (vec![self.rows(0).0], vec![]);
        let depth = |node: usize| std::iter::successors(Some(node), |&n| usize::try_from(parents[n]).ok()).count() - 1;
        for (node, &kind) in self.sources.iter().enumerate() {
            // Siblings share a row of the target, and so often a token.
            let above = parents[node] + 1;
            drafts.push(self.proposal(kind, self.rows(above as usize).1, depth(node))?);
            rows.push(self.rows(node + 1).0);
        }
        if let Some((at, nan)) = self.bad_row {
            let at = at as usize % rows.len();
            let value = if nan { f32::NAN } else { f32::NEG_INFINITY };
            rows[at].bytes = rows[at].dtype.encode(&vec![value; self.vocab]);
        }
        let ends = drafts.iter().map(|(token, _)| token % 11 == 3).collect();
        let numbers = Numbers { seed: self.seed, start: self.start };
        Some(Case { rows, ends, drafts, parents, rule: self.rule, numbers, measure: self.measure })
    }
}

prop_compose! {
    fn recipe(vocabs: Vec<usize>, most: usize)(
        vocab in prop_oneof![1..300usize, prop::sample::select(vocabs)],
        (shape, seed, start) in (0..SHAPES, 0..u64::MAX / 2, 0..1000u64),
        noise in prop_oneof![Just(0.0f32), Just(0.5), 0.0f32..4.0],
        dtypes in prop::array::uniform2(prop::sample::select(&Dtype::ALL[..])),
        (target, draft, same) in (filters(), filters(), any::<bool>()),
        chains in prop::array::uniform2(prop::option::weighted(0.3, chained())),
        penalised in any::<bool>(),
        banned in prop_oneof![Just(vec![]), prop::collection::vec(any::<u32>(), 1..10)],
        allowed in prop_oneof![
            5 => Just(None),
            1 => prop::collection::vec(any::<u32>(), 1..50).prop_map(Some),
            1 => prop::collection::vec(any::<u32>(), 300..3000).prop_map(Some)
        ],
        tree in prop::option::of(prop::collection::vec(any::<u8>(), 1..12)),
        sources in prop_oneof![
            2 => prop::collection::vec(any::<u8>(), 0..=most),
            1 => (any::<u8>(), 0..=most).prop_map(|(kind, len)| vec![kind; len])
        ],
        bad_row in prop::option::weighted(0.15, (any::<u8>(), any::<bool>())),
        (rule, measure) in (rules(), any::<bool>()),
    ) -> Recipe {
        let filters = [target, if same { target } else { draft }];
        let chains = if same { [chains[0].clone(), chains[0].clone()] } else { chains };
        Recipe { vocab, shape, seed, noise, dtypes, filters, chains, penalised, banned, allowed, tree, sources, bad_row, rule, start, measure }
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn fast_equals_specification(recipe in recipe(vec![127, 128, 129, 2047, 2049, 5000], 9)) {
        if let Some(case) = recipe.case() {
            let _ = check("a case", &case);
        }
    }

    /// What a backend keeps is the specification's distribution, and no more than four bytes for each token or a list.
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
        let mut backend = CpuBackend::new(threads).sharing_from(0);
        let mut got = Vec::new();
        together(&cases, &mut Vec::new(), &mut |jobs| got = backend.verify(jobs).iter().map(bits).collect());
        prop_assert_eq!(got, expected);
    }
}

/// Hands the jobs of all cases on together.
fn together(cases: &[Case], jobs: &mut Vec<VerifyJob<'_>>, then: &mut dyn FnMut(&[VerifyJob<'_>])) {
    match cases {
        [] => then(jobs),
        [first, rest @ ..] => {
            let keep = |job: &RowJob<'_>| fast(&mut CpuBackend::new(1), job);
            first.with(keep, |job| together(rest, &mut [&jobs[..], &[*job]].concat(), then));
        }
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

/// All outcomes of many draws: residuals of blocks drawn at every place, of the first, second and third sibling.
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

/// A residual of a few units for each token, where every draw lies at an edge between tokens or next to one.
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

fn sample_of(logits: &[f32], seed: u64) -> u32 {
    let draft = Row::new(Dtype::F32, logits, OFF);
    let job = draft.job(Action::Draw { uniform: Lcg(seed).next().wrapping_mul(0x9E37_79B9_7F4A_7C15) });
    sample_row(&job.logits, &job.spec).expect("the row is fine").token
}

/// Bad drafts by name: the error of the specification, whichever row or token is at fault.
#[test]
fn bad_drafts() {
    use DraftError::*;
    let dense = |probs: &[f32]| Source::Dense(Dtype::F32, Dtype::F32.encode(probs));
    let fine = || (1, dense(&[0.25, 0.25, 0.25, 0.25, 0.0]));
    let cases: [(&str, (u32, Source), _); 12] = [
        ("short", (1, dense(&[0.5, 0.5])), Some(Length { found: 2, expected: 5 })),
        ("NaN", (1, dense(&[0.5, 0.5, f32::NAN, 0.0, 0.0])), Some(NotAProbability { token: 2 })),
        ("infinite", (1, dense(&[0.5, 0.5, 0.0, 0.0, f32::INFINITY])), Some(NotAProbability { token: 4 })),
        ("negative", (1, dense(&[-0.5, 1.5, 0.0, 0.0, 0.0])), Some(NotAProbability { token: 0 })),
        ("a little negative", (1, dense(&[-1e-45, 1.0, 0.0, 0.0, 0.0])), Some(NotAProbability { token: 0 })),
        ("minus zero", (1, dense(&[-0.0, 1.0, 0.0, 0.0, 0.0])), None),
        ("too large", (1, dense(&[f32::MAX, f32::MAX, 0.0, 0.0, 0.0])), Some(Sum)),
        ("too much", (1, dense(&[0.5, 0.502, 0.0, 0.0, 0.0])), Some(Sum)),
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

/// Edges by name.
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

/// More cases where time allows: PROPTEST_CASES. Failures are kept beside the tests and tried first.
fn config(cases: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    ProptestConfig {
        cases: wanted.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/regressions/verification.txt"))),
        ..ProptestConfig::default()
    }
}
