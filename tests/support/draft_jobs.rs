//! Drafts and the rows that verify them, for the tests of several backends.
#![allow(dead_code)] // Each test file uses a part.

use croupier::backend::{RowJob, VerifyJob, VerifyResult};
use croupier::sampling::adjust::{Adjusts, Nudge, Penalties, TokenAdjust};
use croupier::sampling::kept::Kept;
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::mask::TokenMask;
use croupier::sampling::row::{Action, Filters, RowSpec};
use croupier::sampling::sample_row;
use croupier::sampling::watermark::RowWatermark;
use croupier::sampling::watermark::race::Race;
use croupier::speculative::job::{DraftSource, DraftToken};
use croupier::speculative::numbers::{Numbers, Spot};
use croupier::speculative::relaxed::Relaxed;
use croupier::speculative::rule::AcceptanceRule;
use croupier::speculative::synthetic::Synthetic;
use croupier::speculative::tree::Tree;
use croupier::speculative::typical::Typical;
use croupier::speculative::verify;
use proptest::prelude::*;

use crate::rows::{Chained, Lcg, Masking, SHAPES, ascending, chained, filters, mark, masking, row};

pub(crate) const OFF: Filters = Filters::OFF;

/// A target or draft row with everything it borrows.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) dtype: Dtype,
    pub(crate) bytes: Vec<u8>,
    pub(crate) filters: Filters,
    pub(crate) chain: Option<Chained>,
    pub(crate) penalties: Penalties,
    pub(crate) adjusts: Vec<TokenAdjust>,
    pub(crate) nudges: Vec<Nudge>,
    pub(crate) banned: Vec<u32>,
    pub(crate) allowed: Option<Vec<u32>>,
    pub(crate) mask: Option<Vec<u8>>,
    pub(crate) mark: Option<RowWatermark>,
}

impl Row {
    pub(crate) fn new(dtype: Dtype, logits: &[f32], filters: Filters) -> Self {
        let (chain, penalties, adjusts, banned, allowed, mark) = (None, Penalties::OFF, vec![], vec![], None, None);
        let (bytes, nudges, mask) = (dtype.encode(logits), vec![], None);
        Self { dtype, bytes, filters, chain, penalties, adjusts, nudges, banned, allowed, mask, mark }
    }

    pub(crate) fn job(&self, action: Action) -> RowJob<'_> {
        let logits = Logits::new(self.dtype, &self.bytes);
        let spec = RowSpec {
            filters: self.filters,
            chain: self.chain.as_ref().filter(|_| self.filters.temperature != 0.0).map(Chained::chain),
            penalties: self.penalties,
            adjusts: Adjusts::from(self.adjusts.as_slice()).nudged(&self.nudges),
            banned: &self.banned,
            allowed: self.allowed.as_deref(),
            mask: self.mask.as_deref().map(|words| TokenMask::new(words, logits.vocab_size())),
            mark: self.mark,
            action,
            logprobs: None,
            report: None,
        };
        RowJob { logits, spec }
    }
}

/// The source of a draft token's distribution, with everything it borrows.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // A draft has a few of them.
pub(crate) enum Source {
    None,
    Kept(Row),
    Dense(Dtype, Vec<u8>),
    Sparse(Vec<u32>, Vec<f32>),
}

/// A draft and its rows.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) rows: Vec<Row>,
    pub(crate) ends: Vec<bool>,
    pub(crate) drafts: Vec<(u32, Source)>,
    pub(crate) parents: Vec<i32>,
    pub(crate) rule: AcceptanceRule,
    /// For each row, whether relaxed acceptance is strict there.
    pub(crate) strict: Vec<bool>,
    pub(crate) numbers: Numbers,
    pub(crate) measure: bool,
}

impl Case {
    /// A chain of draft tokens, with equal rows of five tokens.
    pub(crate) fn new(sources: Vec<(u32, Source)>) -> Self {
        let logits = [1.0, 2.0, 0.5, -1.0, 0.0];
        let rows = vec![Row::new(Dtype::F32, &logits, OFF); sources.len() + 1];
        let parents = (-1..sources.len() as i32 - 1).collect();
        let (rule, numbers) = (AcceptanceRule::Rejection, Numbers { seed: 3, start: 0 });
        let (ends, strict) = (vec![false; sources.len()], Vec::new());
        Self { rows, ends, drafts: sources, parents, rule, strict, numbers, measure: true }
    }

    /// The result of `verify` with the distributions that `keep` keeps.
    pub(crate) fn with<T>(
        &self,
        keep: impl Fn(&RowJob<'_>) -> Box<Kept>,
        verify: impl FnOnce(&VerifyJob<'_>) -> T,
    ) -> T {
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
        // The rows are as the engine asks for them.
        let rows: Vec<_> = self.rows.iter().map(|row| row.job(Action::Draw { uniform: 0 })).collect();
        let tree = Tree::new(&self.parents, drafts.len()).expect("the parents are a tree");
        let (rule, numbers, measure) = (self.rule, self.numbers, self.measure);
        let (ends, strict) = (&self.ends, &self.strict);
        verify(&VerifyJob { rows: &rows, ends, drafts: &drafts, tree: &tree, rule, strict, numbers, measure })
    }

    pub(crate) fn expected(&self) -> VerifyResult {
        self.with(plainly, verify)
    }
}

pub(crate) fn plainly(job: &RowJob<'_>) -> Box<Kept> {
    sample_row(&job.logits, &job.spec).expect("the draft row is fine").kept.expect("it was asked for")
}

/// The whole result, with the measured values, by which metrics recognise faults. Floats are printed so that different
/// values look different.
pub(crate) fn bits(result: &VerifyResult) -> String {
    format!("{result:?}")
}

pub(crate) fn summary(case: &Case) -> String {
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

pub(crate) fn rules() -> impl Strategy<Value = AcceptanceRule> {
    prop_oneof![
        4 => Just(AcceptanceRule::Rejection),
        3 => Just(AcceptanceRule::Block),
        1 => Just(AcceptanceRule::Greedy),
        1 => (0.0f32..=1.0, 0.01f32..2.0).prop_map(|(epsilon, alpha)| AcceptanceRule::Typical(Typical { epsilon, alpha })),
        1 => (0..60u32, 0.0f32..=1.0).prop_map(|(top_n, delta)| AcceptanceRule::Relaxed(Relaxed { top_n, delta, ..Relaxed::default() })),
        1 => (0.0f32..=1.0).prop_map(|rate| AcceptanceRule::Synthetic(Synthetic { rate })),
    ]
}

/// All that a case is made from, with its filters.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub(crate) vocab: usize,
    pub(crate) shape: u8,
    pub(crate) seed: u64,
    /// How far the draft's logits are from the target's; 0 if they are equal.
    pub(crate) noise: f32,
    pub(crate) dtypes: [Dtype; 2],
    pub(crate) filters: [Filters; 2],
    /// The filters of those rows in which the text thinks.
    pub(crate) thoughts: Option<Filters>,
    pub(crate) chains: [Option<Chained>; 2],
    pub(crate) penalised: bool,
    /// An amount that is added to some logits after penalties.
    pub(crate) late: Option<f32>,
    pub(crate) banned: Vec<u32>,
    pub(crate) allowed: Option<Vec<u32>>,
    pub(crate) masking: Option<Masking>,
    pub(crate) mark: Option<RowWatermark>,
    /// Parents as fractions of the number of earlier nodes; `None` for a chain.
    pub(crate) tree: Option<Vec<u8>>,
    /// A kind of source for each draft token.
    pub(crate) sources: Vec<u8>,
    pub(crate) bad_row: Option<(u8, bool)>,
    pub(crate) rule: AcceptanceRule,
    pub(crate) start: u64,
    pub(crate) measure: bool,
}

impl Recipe {
    pub(crate) fn parents(&self) -> Vec<i32> {
        let parent = |(i, part): (usize, &u8)| i32::from(*part) * (i as i32 + 1) / 256 - 1;
        match &self.tree {
            Some(parts) => parts.iter().cycle().take(self.sources.len()).enumerate().map(parent).collect(),
            None => (-1..self.sources.len() as i32 - 1).collect(),
        }
    }

    pub(crate) fn adjusted(&self, mut made: Row, history: u32) -> Row {
        if self.penalised {
            made.penalties = Penalties { repetition: 1.3, frequency: 0.2, presence: 0.1, ..Penalties::OFF };
            let tokens = (0..40).map(|i| i * 37 + history).collect();
            let adjust = |token| TokenAdjust { token, flags: token % 3, bias: 0.25, output_count: token % 4 };
            made.adjusts = ascending(tokens, self.vocab).into_iter().map(adjust).collect();
            made.adjusts.iter_mut().for_each(|adjust| adjust.flags &= if adjust.token % 7 == 0 { 3 } else { 2 });
        }
        if let Some(late) = self.late {
            let tokens = (0..30).map(|i| i * 74 + history).collect();
            let nudge = |token: u32| Nudge { token, bias: if token.is_multiple_of(2) { 0.0 } else { 0.5 }, late };
            made.nudges = ascending(tokens, self.vocab).into_iter().map(nudge).collect();
        }
        made.banned = ascending(self.banned.clone(), self.vocab);
        made.allowed = self.allowed.clone().map(|allowed| ascending(allowed, self.vocab));
        made.mask = self.masking.map(|masking| masking.at(history.into()).words(self.vocab));
        made.mark = self.mark.map(|mark| elsewhere(mark, history));
        made
    }

    /// Filters of a target row and a draft row. Samplers that learn from tokens do so in all rows or in none.
    fn filters(&self, at: usize) -> [Filters; 2] {
        let is_greedy = |filters: &Filters| filters.temperature == 0.0;
        let is_alike = |own: &Filters| self.chains[0].is_none() || is_greedy(own) == is_greedy(&self.filters[0]);
        let own = self.thoughts.filter(|own| is_alike(own) && self.seed >> (at % 32) & 1 == 1);
        own.map_or(self.filters, |own| [own; 2])
    }

    /// A target row and a draft row for the same position.
    pub(crate) fn rows(&self, at: usize) -> (Row, Row) {
        let logits = row(self.shape, self.vocab, self.seed + at as u64);
        let mut rng = Lcg(self.seed ^ at as u64);
        let near = |x: &f32| if x.abs() < 1e30 { x + self.noise * (rng.unit() - 0.5) } else { *x };
        let proposed: Vec<f32> = logits.iter().map(near).collect();
        let [of_target, of_draft] = self.chains.clone();
        let [target, draft] = self.filters(at);
        let target = Row { chain: of_target, ..Row::new(self.dtypes[0], &logits, target) };
        let draft = Row { chain: of_draft, ..Row::new(self.dtypes[1], &proposed, draft) };
        (self.adjusted(target, at as u32), self.adjusted(draft, at as u32))
    }

    /// A draft token, drawn from its distribution, and its source.
    pub(crate) fn proposal(&self, kind: u8, draft: Row, at: usize) -> Option<(u32, Source)> {
        let uniform = Numbers { seed: self.seed, start: self.start }.draft(Spot::in_chain(at));
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

    /// `None` if a draft row has no distribution.
    pub(crate) fn case(&self) -> Option<Case> {
        let parents = self.parents();
        let (mut rows, mut drafts) = (vec![self.rows(0).0], vec![]);
        let depth = |node: usize| std::iter::successors(Some(node), |&n| usize::try_from(parents[n]).ok()).count() - 1;
        for (node, &kind) in self.sources.iter().enumerate() {
            // Siblings are drawn from the same row, and so are often the same token.
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
        // A third of the drafts have no strict row.
        let mut rng = Lcg(self.seed);
        let strict = rows.iter().map(|_| !self.seed.is_multiple_of(3) && rng.unit() < 0.5).collect();
        Some(Case { rows, ends, drafts, parents, rule: self.rule, strict, numbers, measure: self.measure })
    }
}

/// The watermark at another position of the text, where there may be no race.
fn elsewhere(mark: RowWatermark, position: u32) -> RowWatermark {
    match mark {
        RowWatermark::Race(Some(race)) if position % 3 != 2 => {
            RowWatermark::Race(Some(Race { context: race.context.wrapping_add(position.into()), ..race }))
        }
        RowWatermark::Race(_) => RowWatermark::Race(None),
        green => green,
    }
}

prop_compose! {
    pub(crate) fn recipe(vocabs: Vec<usize>, most: usize)(
        vocab in prop_oneof![1..300usize, prop::sample::select(vocabs)],
        (shape, seed, start) in (0..SHAPES, 0..u64::MAX / 2, 0..1000u64),
        noise in prop_oneof![Just(0.0f32), Just(0.5), 0.0f32..4.0],
        dtypes in prop::array::uniform2(prop::sample::select(&Dtype::ALL[..])),
        (target, draft, same) in (filters(), filters(), any::<bool>()),
        thoughts in prop::option::weighted(0.3, filters()),
        chains in prop::array::uniform2(prop::option::weighted(0.3, chained())),
        (penalised, late, mark) in (any::<bool>(), prop::option::weighted(0.2, -9.0f32..0.0), prop::option::weighted(0.3, mark())),
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
        (rule, measure, masking) in (rules(), any::<bool>(), prop::option::weighted(0.3, masking())),
    ) -> Recipe {
        let filters = [target, if same { target } else { draft }];
        let chains = if same { [chains[0].clone(), chains[0].clone()] } else { chains };
        Recipe { vocab, shape, seed, noise, dtypes, filters, thoughts, chains, penalised, late, banned, allowed, masking, mark, tree, sources, bad_row, rule, start, measure }
    }
}

/// Keeps the distribution of a draft row.
pub(crate) type Keep<'k> = &'k dyn Fn(&RowJob<'_>) -> Box<Kept>;

/// Passes the jobs of all cases on together.
pub(crate) fn together(
    cases: &[Case],
    keep: Keep<'_>,
    jobs: &mut Vec<VerifyJob<'_>>,
    then: &mut dyn FnMut(&[VerifyJob<'_>]),
) {
    match cases {
        [] => then(jobs),
        [first, rest @ ..] => {
            first.with(keep, |job| together(rest, keep, &mut [&jobs[..], &[*job]].concat(), then));
        }
    }
}
