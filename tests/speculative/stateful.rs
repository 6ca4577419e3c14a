//! Rows that depend on more than the tokens' counts: on what samplers learned, on random numbers of their own, on runs of the text, and on
//! a mask for each row. They are verified from jobs, as the engine does, and compared with the texts that plain rows give, which other
//! tests compare with references.

use crate::chi_square::{DEVIATE, FALSE_ALARM, deviate};
use crate::speculative::lossless::{CELLS, TREE, VIEWS, cell, seen_by};
use crate::speculative::reference;
use crate::speculative::world::{Model, PROMPT, VOCAB};
use croupier::params::SamplingParams;
use croupier::params::chain::SamplerParams;
use croupier::params::history::HistoryParams;
use croupier::params::steering::NoRepeatNgram;
use croupier::sampling::distribution::Distribution;
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::mask::TokenMask;
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, RowJob, RowSpec};
use croupier::sequence::Sequence;
use croupier::sequence::rules::Rules;
use croupier::speculative::job::{DraftSource, DraftToken, VerifyJob, verify};
use croupier::speculative::numbers::unit;
use croupier::speculative::rule::AcceptanceRule::{self, Block, Rejection};
use croupier::speculative::tree::Tree;
use croupier::speculative::verified::Verified;
use croupier::speculative::weights::Weights;
use std::sync::Arc;

const TEXTS: u64 = 8_000;
const ALL: [u32; VOCAB as usize] = [0, 1, 2, 3, 4, 5];

/// A sequence's parameters.
struct Case {
    name: &'static str,
    params: SamplingParams,
    /// Each row has a mask that depends on the text.
    masked: bool,
    /// Distributions depend on the seed.
    by_seed: bool,
}

fn cases() -> Vec<Case> {
    let case = |name, params| Case { name, params, masked: false, by_seed: false };
    let plain = SamplingParams::default;
    let sampled = |samplers: SamplerParams| SamplingParams { samplers: samplers.into(), ..plain() };
    let looking_back = |history: HistoryParams| SamplingParams { history: history.into(), ..plain() };
    let samplers = SamplerParams::default;
    let no_repeat = NoRepeatNgram { size: 2, window: 0, whitelist: Vec::new(), prompt_size: 0 };
    let decaying = SamplerParams { top_p_decay: 0.6, top_p_min: 0.2, ..samplers() };
    vec![
        case("top-p decay", SamplingParams { top_p: 0.95, ..sampled(decaying) }),
        case("mirostat 2", sampled(SamplerParams { mirostat: 2, mirostat_tau: 1.0, mirostat_eta: 0.9, ..samplers() })),
        case("adaptive-p", sampled(SamplerParams { adaptive_target: 0.2, adaptive_decay: 0.5, ..samplers() })),
        case("dynamic temperature", sampled(SamplerParams { dynatemp_low: 0.3, dynatemp_high: 1.8, ..samplers() })),
        Case {
            by_seed: true,
            ..case("XTC", sampled(SamplerParams { xtc_probability: 0.5, xtc_threshold: 0.15, ..samplers() }))
        },
        case(
            "DRY",
            looking_back(HistoryParams { dry_multiplier: 1.5, dry_allowed_length: 1, ..HistoryParams::default() }),
        ),
        case(
            "no_repeat_ngram",
            looking_back(HistoryParams { no_repeat_ngram: Some(Box::new(no_repeat)), ..HistoryParams::default() }),
        ),
        Case { masked: true, ..case("masks", plain()) },
    ]
}

impl Case {
    fn open(&self, seed: u64) -> Sequence {
        Sequence::open(Arc::new(Rules::new(self.params.clone(), &[])), seed, &PROMPT, &[])
    }

    /// The words of the mask after a text: all but one or two tokens.
    fn mask(text: &[u32]) -> [u8; 4] {
        let last = text.last().copied().unwrap_or(0);
        let banned = 1 << ((last + 1) % VOCAB) | 1 << ((last * 2 + text.len() as u32) % VOCAB);
        u32::to_le_bytes(!banned)
    }

    fn masked<'a>(&self, spec: RowSpec<'a>, mask: &'a [u8; 4]) -> RowSpec<'a> {
        RowSpec { mask: self.masked.then(|| TokenMask::new(mask, VOCAB as usize)), ..spec }
    }

    /// Adds to `cells` the probability of each text of three tokens that begins with this one, according to plain rows.
    fn extend(&self, model: &Model, sequence: &Sequence, text: &mut Vec<u32>, probability: f64, cells: &mut [f64]) {
        if text.len() == 3 {
            cells[cell([text[0], text[1], text[2]])] += probability;
            return;
        }
        let (bytes, mask) = (Dtype::F32.encode(model.logits(text)), Self::mask(text));
        let spec = self.masked(sequence.spec(Action::Score { token: 0 }), &mask);
        let row = Distribution::of(&Logits::new(Dtype::F32, &bytes), &spec).unwrap();
        let target = Weights::from(&row);
        for &(token, _) in target.entries() {
            let mut next = sequence.clone();
            if let Some(state) = next.learned(None, Some(row.observed(token))) {
                next.remember(state);
            }
            next.commit(token);
            text.push(token);
            self.extend(model, &next, text, probability * target.share(token), cells);
            text.pop();
        }
    }

    /// The probability of each text, over as many seeds as it depends on. The remaining variation is then less than that of independent
    /// texts.
    fn expected(&self, model: &Model) -> Vec<f64> {
        let seeds = if self.by_seed { TEXTS } else { 1 };
        let mut cells = vec![0.0; CELLS.pow(3)];
        for seed in 0..seeds {
            self.extend(model, &self.open(seed), &mut Vec::new(), 1.0 / seeds as f64, &mut cells);
        }
        cells
    }
}

/// A worker whose draft model does not know the parameters.
struct Worker<'a> {
    case: &'a Case,
    target: &'a Model,
    draft: &'a Model,
    rule: AcceptanceRule,
    parents: &'a [i32],
    /// Wrong if set: the state of samplers is dropped after each round.
    forgetful: bool,
}

impl Worker<'_> {
    fn text(&self, seed: u64) -> Vec<u32> {
        let mut sequence = self.case.open(seed);
        let mut text = Vec::new();
        while text.len() < 3 {
            self.round(&mut sequence, &mut text);
        }
        text
    }

    /// The draft tokens, each with its path and its distribution.
    fn drafted(&self, seed: u64, text: &[u32]) -> Vec<(Vec<u32>, Vec<f32>)> {
        let mut paths: Vec<(Vec<u32>, Vec<f32>)> = Vec::new();
        for (index, &parent) in self.parents.iter().enumerate() {
            let mut path = usize::try_from(parent).map_or(text.to_vec(), |parent| paths[parent].0.clone());
            let own = reference::probabilities(self.draft.logits(&path), &SamplingParams::default(), &PROMPT, &path);
            let number = uniform(seed ^ 0x5EED, (text.len() * 1000 + index) as u64, Purpose::Sample);
            path.push(reference::draw(&own, unit(number)));
            paths.push((path, own.iter().map(|&p| p as f32).collect()));
        }
        paths
    }

    fn verified(&self, sequence: &Sequence, text: &[u32]) -> Verified {
        let drafted = self.drafted(sequence.seed(), text);
        let token = |path: &[u32]| *path.last().expect("a draft token");
        let mut aheads = Vec::new();
        for (path, _) in &drafted {
            let mut ahead = sequence.ahead();
            for &token in &path[text.len()..] {
                sequence.grow(&mut ahead, token);
            }
            aheads.push(ahead);
        }
        let paths: Vec<&[u32]> = [text].into_iter().chain(drafted.iter().map(|(path, _)| &path[..])).collect();
        let bytes: Vec<_> = paths.iter().map(|path| Dtype::F32.encode(self.target.logits(path))).collect();
        let masks: Vec<_> = paths.iter().map(|path| Case::mask(path)).collect();
        let action = Action::Draw { uniform: 0 };
        let row = |row: usize| {
            let spec = row.checked_sub(1).map_or(sequence.spec(action), |at| sequence.spec_ahead(&aheads[at], action));
            RowJob { logits: Logits::new(Dtype::F32, &bytes[row]), spec: self.case.masked(spec, &masks[row]) }
        };
        let rows: Vec<_> = (0..paths.len()).map(row).collect();
        let source = |probs| DraftSource::Sparse { tokens: &ALL, probs };
        let drafts = drafted.iter().map(|(path, probs)| DraftToken { token: token(path), source: source(probs) });
        let drafts: Vec<_> = drafts.collect();
        let job = VerifyJob {
            rows: &rows,
            ends: &vec![false; drafts.len()],
            drafts: &drafts,
            tree: &Tree::new(self.parents, self.parents.len()).unwrap(),
            rule: self.rule,
            strict: &[],
            numbers: sequence.numbers(),
            measure: false,
        };
        verify(&job).expect("the rows are fine")
    }

    fn round(&self, sequence: &mut Sequence, text: &mut Vec<u32>) {
        let verified = self.verified(sequence, text);
        assert!(verified.lossless);
        if let Some(&state) = verified.states.last().filter(|_| !self.forgetful) {
            sequence.remember(state);
        }
        for token in verified.emitted {
            sequence.commit(token);
            text.push(token);
        }
    }

    /// The largest deviate of single tokens and of pairs of neighbours.
    fn deviate(&self, expected: &[f64]) -> f64 {
        let mut counts = vec![0u64; CELLS.pow(3)];
        (0..TEXTS).map(|seed| self.text(seed)).for_each(|text| counts[cell([text[0], text[1], text[2]])] += 1);
        VIEWS.iter().map(|view| deviate(&seen_by(view, &counts), &seen_by(view, expected))).fold(0.0, f64::max)
    }
}

#[test]
fn drafts_unlike_the_target_are_exact() {
    let (target, draft) = (&Model::random(1, 5.0), &Model::random(2, 4.0));
    for case in &cases() {
        let expected = case.expected(target);
        for (rule, parents) in [(Rejection, &[-1, 0, 1][..]), (Block, &[-1, 0, 1]), (Rejection, &TREE)] {
            let worker = Worker { case, target, draft, rule, parents, forgetful: false };
            let (name, seen) = (case.name, worker.deviate(&expected));
            println!("{name} {rule:?} {parents:?}: {seen:.1} deviations (false alarms {FALSE_ALARM})");
            assert!(
                seen < DEVIATE,
                "{name} {rule:?} {parents:?}: not the target's distribution ({seen:.1} deviations)"
            );
        }
    }
}

/// The test has power: each of the cases matters, and so does the state of samplers from one round to the next.
#[test]
fn what_is_left_out_is_seen() {
    let (target, draft) = (&Model::random(1, 5.0), &Model::random(2, 4.0));
    let plain = Case { name: "plain", params: SamplingParams::default(), masked: false, by_seed: false };
    let plain = plain.expected(target);
    for case in &cases() {
        let worker = Worker { case, target, draft, rule: Block, parents: &[-1, 0, 1], forgetful: false };
        let seen = worker.deviate(&plain);
        println!("{} for nothing: {seen:.1} deviations", case.name);
        assert!(seen > DEVIATE, "{} makes no difference", case.name);
        if ["mirostat 2", "adaptive-p"].contains(&case.name) {
            let seen = Worker { forgetful: true, ..worker }.deviate(&case.expected(target));
            println!("{}, forgotten: {seen:.1} deviations", case.name);
            assert!(seen > DEVIATE, "{}, forgotten, is not noticed", case.name);
        }
    }
}
