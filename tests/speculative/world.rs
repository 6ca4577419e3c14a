//! Small models with real sequences, and a worker that drafts and lets the server verify its drafts, round after round.

use crate::speculative::planted::Planted;
use crate::speculative::reference;
use croupier::params::SamplingParams;
use croupier::params::chain::SamplerParams;
use croupier::params::history::HistoryParams;
use croupier::params::watermark::{KgwParams, SynthidParams, Watermark};
use croupier::sampling::distribution::Distribution;
use croupier::sampling::kept::Kept;
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, RowError, RowSpec};
use croupier::sequence::Sequence;
use croupier::sequence::rules::Rules;
use croupier::speculative::draft::{Draft, DraftDistribution, DraftError};
use croupier::speculative::numbers::{Numbers, unit};
use croupier::speculative::plain::{self, Target};
use croupier::speculative::plan::Plan;
use croupier::speculative::relaxed::Relaxed;
use croupier::speculative::rule::AcceptanceRule;
use croupier::speculative::tree::Tree;
use croupier::speculative::verified::{Shifts, Verified};
use croupier::speculative::weights::Weights;
use std::sync::Arc;

pub const VOCAB: u32 = 6;
pub const PROMPT: [u32; 3] = [1, 4, 1];

/// A model whose next logits depend on the last token.
#[derive(Debug, Clone)]
pub struct Model(Vec<Vec<f32>>);

impl Model {
    /// Pseudo-random rows with this spread.
    pub fn random(seed: u64, spread: f64) -> Self {
        let logit = |row: u32, token: u32| {
            let at = u64::from(row * VOCAB + token);
            (spread * (unit(uniform(seed, at, Purpose::Sample)) - 0.5)) as f32
        };
        Self((0..VOCAB).map(|row| (0..VOCAB).map(|token| logit(row, token)).collect()).collect())
    }

    /// This model, with every logit changed.
    pub fn map(&self, change: impl Fn(u32, f32) -> f32) -> Self {
        let row = |row: &Vec<f32>| row.iter().zip(0..).map(|(&logit, token)| change(token, logit)).collect();
        Self(self.0.iter().map(row).collect())
    }

    pub fn logits(&self, output: &[u32]) -> &[f32] {
        &self.0[*output.last().unwrap_or(&PROMPT[2]) as usize]
    }
}

/// The source of draft distributions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Draft work of the same sequence.
    Kept,
    /// The worker's own draws, all probabilities sent.
    Dense,
    /// The worker's own draws among its three most likely tokens.
    Sparse,
    /// Like `Sparse`, but each sibling differs from those before it.
    Distinct,
    /// The most likely tokens of the draft model, in order.
    Deterministic,
}

/// A worker, its models and a sequence's parameters.
#[derive(Debug, Clone)]
pub struct World {
    pub target: Model,
    pub draft: Model,
    pub params: SamplingParams,
    pub source: Source,
    pub rule: AcceptanceRule,
    /// For each row, whether relaxed acceptance is strict there.
    pub strict: Vec<bool>,
    /// Parents of the draft tokens.
    pub parents: Vec<i32>,
    /// The real temperature of draft tokens, if it differs from the claimed one.
    pub drawn_at: Option<f32>,
    /// Wrong if set: draft work draws the positions of each round with the same numbers.
    pub stale_numbers: bool,
    /// An error. If set, drafts are verified by a rule of the reference with this error, not by the code under test.
    pub planted: Option<Planted>,
}

impl World {
    /// A chain of three draft tokens.
    pub fn new(rule: AcceptanceRule, source: Source) -> Self {
        Self {
            target: Model::random(1, 5.0),
            draft: Model::random(2, 4.0),
            params: SamplingParams::default(),
            source,
            rule,
            strict: Vec::new(),
            parents: vec![-1, 0, 1],
            drawn_at: None,
            stale_numbers: false,
            planted: None,
        }
    }

    pub fn open(&self, seed: u64, output: &[u32]) -> Sequence {
        Sequence::open(Arc::new(Rules::new(self.params.clone(), &[])), seed, &PROMPT, output)
    }

    /// The text of a seed: `rounds` of drafting and verifying until it has `len` tokens or ends.
    pub fn text(&self, seed: u64, len: usize, mut each: impl FnMut(&Verified)) -> Vec<u32> {
        let mut sequence = self.open(seed, &[]);
        let mut output = Vec::new();
        while output.len() < len && sequence.finished().is_none() {
            let verified = self.round(&sequence, &output);
            each(&verified);
            for &token in &verified.emitted {
                sequence.commit(token);
                output.push(token);
            }
        }
        output
    }

    /// The text of a seed without speculation.
    pub fn plain(&self, seed: u64, len: usize) -> Vec<u32> {
        let mut sequence = self.open(seed, &[]);
        let mut output = Vec::new();
        while output.len() < len && sequence.finished().is_none() {
            let Action::Draw { uniform } = sequence.draw(Purpose::Sample) else { unreachable!() };
            let row = distribution(self.target.logits(&output), &sequence.spec(Action::Score { token: 0 }));
            let token = row.expect("the row is fine").draw(uniform);
            sequence.commit(token);
            output.push(token);
        }
        output
    }

    /// One round.
    pub fn round(&self, sequence: &Sequence, output: &[u32]) -> Verified {
        let (drafts, mut rows) = self.propose(sequence, output);
        let tree = self.tree();
        if let Some(planted) = self.planted {
            return planted.verify(sequence, &drafts, &mut rows);
        }
        let numbers = Numbers { seed: sequence.seed(), start: sequence.position() };
        let plan = |measure| Plan { tree: &tree, rule: self.rule, strict: &self.strict, numbers, measure };
        let mut verify = |measure| plain::verify(&drafts, &plan(measure), &mut rows).expect("the rows are fine");
        let measured = verify(true);
        unmeasured(&measured, &verify(false));
        measured
    }

    fn tree(&self) -> Tree {
        Tree::new(&self.parents, self.parents.len()).expect("the parents are fine")
    }

    /// Draft tokens and the target rows of their positions.
    pub fn propose<'a>(&'a self, sequence: &'a Sequence, output: &[u32]) -> (Vec<Draft>, Rows<'a>) {
        let mut paths = vec![output.to_vec()];
        let mut drafts: Vec<Draft> = Vec::new();
        for (index, &parent) in self.parents.iter().enumerate() {
            let path = paths[(parent + 1) as usize].clone();
            let siblings = (0..index).filter(|&i| self.parents[i] == parent).map(|i| drafts[i].token());
            let siblings: Vec<u32> = siblings.collect();
            let draft = self.draft_after(sequence, output.len(), &path, index, &siblings);
            paths.push([path, vec![draft.token()]].concat());
            drafts.push(draft);
        }
        let rows = paths.iter().map(|path| self.target.logits(path)).collect();
        let paths = paths.into_iter().map(|path| path[output.len()..].to_vec()).collect();
        (drafts, Rows { sequence, rows, paths })
    }

    fn draft_after(&self, sequence: &Sequence, start: usize, path: &[u32], index: usize, siblings: &[u32]) -> Draft {
        let logits = self.draft.logits(path);
        let numbers = Numbers { seed: sequence.seed(), start: start as u64 };
        let stale = uniform(sequence.seed(), path.len() as u64, Purpose::Draft);
        let number = if self.stale_numbers { stale } else { numbers.draft(self.tree().spot(index)) };
        let ahead = grown(sequence, &path[start..]);
        let mut spec = ahead.spec(Action::Score { token: 0 });
        let claimed = distribution(logits, &spec).expect("the row is fine");
        if let Some(temperature) = self.drawn_at {
            spec.filters.temperature = temperature;
        }
        let drawn = distribution(logits, &spec).expect("the row is fine").draw(number);
        match self.source {
            Source::Kept => Draft::new(drawn, DraftDistribution::kept(&Kept::from(&claimed))),
            Source::Deterministic => {
                let nth = claimed.kept().get(siblings.len()).unwrap_or(&claimed.kept()[0]);
                Ok(Draft::deterministic(nth.candidate.token))
            }
            _ => self.sent(logits, path, index, sequence.seed(), siblings),
        }
        .expect("the draft is fine")
    }

    /// A draft token of a worker that has its own arithmetic and its own random numbers.
    fn sent(
        &self,
        logits: &[f32],
        path: &[u32],
        index: usize,
        seed: u64,
        siblings: &[u32],
    ) -> Result<Draft, DraftError> {
        let keep = if self.source == Source::Dense { 0 } else { 3 };
        let own = SamplingParams { top_k: keep, temperature: 1.3, ..SamplingParams::default() };
        let mut probs = reference::probabilities(logits, &own, &PROMPT, path);
        if self.source == Source::Distinct {
            siblings.iter().for_each(|&token| probs[token as usize] = 0.0);
            probs = reference::normalised(&probs);
        }
        let probs: Vec<f32> = probs.iter().map(|&p| p as f32).collect();
        let number = uniform(seed ^ 0x5EED, (path.len() * 1000 + index) as u64, Purpose::Sample);
        let token = reference::draw(&probs.iter().map(|&p| f64::from(p)).collect::<Vec<_>>(), unit(number));
        if self.source == Source::Dense {
            let bytes = Dtype::F32.encode(&probs);
            return Draft::new(token, DraftDistribution::dense(&Logits::new(Dtype::F32, &bytes), VOCAB)?);
        }
        let some: Vec<u32> = (0..VOCAB).rev().filter(|&t| probs[t as usize] > 0.0).collect();
        let values: Vec<f32> = some.iter().map(|&t| probs[t as usize]).collect();
        Draft::new(token, DraftDistribution::sparse(&some, &values, VOCAB)?)
    }
}

/// The distribution in the reference's form.
pub fn dense(weights: &Weights) -> Vec<f64> {
    (0..VOCAB).map(|token| weights.share(token)).collect()
}

/// The target rows that a worker sends with a draft.
pub struct Rows<'a> {
    pub sequence: &'a Sequence,
    pub rows: Vec<&'a [f32]>,
    /// The draft tokens before each row.
    pub paths: Vec<Vec<u32>>,
}

impl Target for Rows<'_> {
    fn distribution(&mut self, row: usize) -> Result<Distribution, RowError> {
        distribution(self.rows[row], &grown(self.sequence, &self.paths[row]).spec(Action::Score { token: 0 }))
    }

    fn relaxed(&mut self, row: usize) -> Result<Distribution, RowError> {
        let ahead = grown(self.sequence, &self.paths[row]);
        let mut spec = ahead.spec(Action::Score { token: 0 });
        spec.filters = Relaxed::filters(spec.filters);
        distribution(self.rows[row], &spec)
    }

    fn ends(&self, node: usize) -> bool {
        grown(self.sequence, &self.paths[node + 1]).finished().is_some()
    }
}

/// Fails if measuring changed a decision, or if something was measured that was not asked for.
fn unmeasured(measured: &Verified, plain: &Verified) {
    let mut expected = measured.clone();
    for trial in &mut expected.trials {
        assert!(trial.expected.is_some() && trial.total_variation.is_some() && trial.chances.is_some());
        (trial.expected, trial.total_variation, trial.chances, trial.rejected_rank) = (None, None, None, None);
        (trial.repeat, trial.shifts) = (None, Shifts::default());
    }
    assert_eq!(*plain, expected);
}

/// A copy of the sequence that has emitted `path` too.
fn grown(sequence: &Sequence, path: &[u32]) -> Sequence {
    let mut sequence = sequence.clone();
    for &token in path {
        sequence.commit(token);
    }
    sequence
}

pub fn distribution(logits: &[f32], spec: &RowSpec<'_>) -> Result<Distribution, RowError> {
    let bytes = Dtype::F32.encode(logits);
    Distribution::of(&Logits::new(Dtype::F32, &bytes), spec)
}

/// Parameters for which verification must be exact, each with a name.
pub fn parameters() -> Vec<(&'static str, SamplingParams)> {
    let plain = SamplingParams::default();
    let marked = |mark| {
        let history = HistoryParams { watermark: Some(Arc::new(mark)), ..HistoryParams::default() };
        SamplingParams { history: history.into(), ..SamplingParams::default() }
    };
    vec![
        (
            "a greenlist",
            marked(Watermark::Kgw(KgwParams { greenlist_ratio: 0.5, context_width: 2, ..KgwParams::default() })),
        ),
        (
            "a tournament",
            marked(Watermark::Synthid(SynthidParams { ngram_len: 3, ..SynthidParams::new(vec![1, 7, 9]) })),
        ),
        ("temperature", SamplingParams { temperature: 0.8, ..plain.clone() }),
        ("top_k", SamplingParams { top_k: 3, ..plain.clone() }),
        ("top_p", SamplingParams { top_p: 0.8, ..plain.clone() }),
        ("min_p", SamplingParams { min_p: 0.15, ..plain.clone() }),
        (
            "typical_p, a chain",
            SamplingParams {
                temperature: 0.8,
                samplers: SamplerParams { typical_p: 0.95, ..SamplerParams::default() }.into(),
                ..plain.clone()
            },
        ),
        (
            "penalties",
            SamplingParams { repetition_penalty: 1.5, frequency_penalty: 0.7, presence_penalty: 0.4, ..plain.clone() },
        ),
        (
            "masks",
            SamplingParams {
                banned_token_ids: vec![3],
                bad_words: vec![vec![0, 2], vec![5, 5]],
                logit_bias: vec![(2, 1.0)],
                ..plain.clone()
            },
        ),
        (
            "all",
            SamplingParams {
                temperature: 1.2,
                top_k: 5,
                top_p: 0.95,
                min_p: 0.02,
                presence_penalty: 0.8,
                allowed_token_ids: vec![0, 1, 2, 4, 5],
                ..plain.clone()
            },
        ),
        (
            "top_n_sigma, top_a, xtc on average and a skew",
            SamplingParams {
                samplers: SamplerParams {
                    top_n_sigma: 2.0,
                    top_a: 0.1,
                    xtc_probability: 0.6,
                    xtc_threshold: 0.15,
                    xtc_expected: Some(true),
                    skew: 0.4,
                    ..SamplerParams::default()
                }
                .into(),
                ..plain
            },
        ),
    ]
}
