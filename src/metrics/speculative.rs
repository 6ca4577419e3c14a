//! Metrics of speculative decoding, by model label and proposer. Series are registered at first sight. A server that
//! never verifies a draft has none; any other has only those of the proposers and positions that it has seen.

use super::catalog as cat;
use super::labelled::labelled;
use super::lengths::Lengths;
use super::repeats::Repeats;
use crate::speculative::siblings::Repeat;
use crate::speculative::verified::{Chances, Held, Shifts, TokenOrigin, Trial};
use metrics::{Counter, Histogram, Recorder};
use std::sync::OnceLock;

labelled! {
    /// Where draft tokens come from, the label `proposer`.
    pub enum Proposer {
        /// Draft work.
        Kept = "kept",
        /// The worker, with their distribution.
        Sent = "sent",
        /// The worker, without their distribution.
        Deterministic = "deterministic",
        /// Prompt lookup inside the sidecar, in the text.
        Ngram = "ngram",
        /// Suffix matching inside the sidecar, in the text.
        Suffix = "suffix",
        /// Either of the two, in what the worker predicted of the text.
        Prediction = "prediction",
        /// The text's grammar, which forces what comes next.
        Grammar = "grammar",
        /// The text's thinking budget, which is used up.
        Thinking = "thinking",
    }
}

/// Positions in a draft that have a label of their own; deeper ones share "16+".
const POSITIONS: usize = 16;

labelled! {
    /// How the last token of a verification came about, the label `kind`.
    pub enum Last {
        /// The last token is an accepted draft token: the sequence ended with it, or the block ended there, before a
        /// row without a distribution.
        Accepted = "accepted",
        /// The last token replaces a rejected draft token.
        Recovered = "recovered",
        /// The last token comes on top of the accepted ones.
        Bonus = "bonus",
    }
}

/// Values of the label `first`: whether a first draft token was accepted.
pub(super) const FIRST: [&str; 2] = ["rejected", "accepted"];
/// Values of the label `shift`, in the order in which [`overlaps`] returns them.
const SHIFTS: [&str; 2] = ["late", "early"];
/// A verification is clearly shifted if its shifted overlap exceeds the overlap it is compared with by more than this.
const SHIFTED_BY: f64 = 0.3;

/// A verification, as far as metrics need it.
#[derive(Debug, Clone, Copy)]
pub struct Round<'a> {
    /// Where the draft tokens came from.
    pub proposer: Proposer,
    /// How many draft tokens there were.
    pub drafted: usize,
    /// How many were accepted.
    pub accepted: usize,
    /// How many tokens were emitted.
    pub emitted: usize,
    /// Whether the emitted tokens have the target's distribution.
    pub lossless: bool,
    /// How the last emitted token came about.
    pub last: Last,
    /// How the token before the draft came about.
    pub after: TokenOrigin,
    /// Tokens of the text before the draft.
    pub text_tokens: u64,
    /// Whether draft tokens were judged one by one, not together as a block.
    pub one_by_one: bool,
    /// Whether acceptance depends on the ratio of target and draft probability.
    pub by_ratio: bool,
    /// The tests that were made.
    pub trials: &'a [Trial],
}

/// Handles of one model label.
#[derive(Debug)]
pub(super) struct Speculation {
    model: String,
    proposers: [OnceLock<Handles>; Proposer::ALL.len()],
}

#[derive(Debug)]
struct Handles {
    drafts: Counter,
    draft_tokens: Counter,
    accepted: Counter,
    /// Not lossless, then lossless.
    emitted: [Counter; 2],
    lasts: Vec<Counter>,
    /// By [`TokenOrigin`], then by [`FIRST`].
    firsts: Vec<[Counter; 2]>,
    lengths: Lengths,
    total_variation: Histogram,
    /// By [`REASONS`]: how many rejections, and the ranks of the rejected tokens.
    rejected: Vec<(Counter, Histogram)>,
    /// For draft tokens that were drawn by chance: others could have been proposed instead.
    drawn: OnceLock<Drawn>,
    /// For siblings in trees.
    siblings: OnceLock<Siblings>,
    /// By [`SHIFTS`].
    shifts: [OnceLock<Shift>; SHIFTS.len()],
    positions: Vec<OnceLock<Position>>,
    repeats: Repeats,
}

/// Compares draft tokens with the distributions that they are said to be drawn from.
#[derive(Debug)]
struct Drawn {
    probability: Histogram,
    on_average: Histogram,
    variance: Histogram,
}

/// Later siblings that repeat an earlier one.
#[derive(Debug)]
struct Siblings {
    expected: Histogram,
    repeated: Counter,
}

/// The overlap of the distributions if rows are as they should be, and if they are shifted.
#[derive(Debug)]
struct Shift {
    own: Histogram,
    shifted: Histogram,
    /// How many verifications are clearly shifted.
    count: Counter,
}

#[derive(Debug)]
struct Position {
    tested: Counter,
    accepted: Counter,
    expected: Histogram,
    measured_accepted: Counter,
}

impl Speculation {
    pub(super) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), proposers: Default::default() }
    }

    /// Counts a verification.
    pub(super) fn record(&self, r: &dyn Recorder, round: &Round<'_>) {
        if round.drafted == 0 {
            return; // a plain row by another name
        }
        let labels = [("model", self.model.as_str()), ("proposer", round.proposer.name())];
        let handles = self.proposers[round.proposer as usize].get_or_init(|| Handles::register(r, labels));
        handles.drafts.increment(1);
        handles.draft_tokens.increment(round.drafted as u64);
        handles.accepted.increment(round.accepted as u64);
        handles.emitted[usize::from(round.lossless)].increment(round.emitted as u64);
        handles.lasts[round.last as usize].increment(1);
        handles.firsts[round.after as usize][usize::from(round.accepted > 0)].increment(1);
        handles.lengths.record(r, labels, round.text_tokens, round.accepted > 0);
        for trial in round.trials {
            let is_new = trial.chances.is_some() && handles.repeats.is_new(trial.number);
            // Trials after the token at which a block stopped count too, because where it stops depends on what they
            // are.
            if let Some(chances) = trial.chances.filter(|_| is_new) {
                handles.drawn(r, labels, chances);
            }
            if let Some(repeat) = trial.repeat.filter(|_| is_new) {
                handles.siblings(r, labels, repeat);
            }
            handles.shifts(r, labels, trial);
            // Acceptance did not get as far as the other trials.
            if trial.depth <= round.accepted {
                handles.trial(r, labels, trial, round, is_new);
            }
        }
        // One for each depth of the accepted path. In a tree, tests may have accepted other tokens beside it.
        for depth in 0..round.accepted {
            handles.position(r, labels, depth).accepted.increment(1);
        }
    }
}

pub(super) type Labels<'a> = [(&'static str, &'a str); 2];

impl Handles {
    fn register(r: &dyn Recorder, labels: Labels<'_>) -> Self {
        let [model, proposer] = labels;
        let first_of =
            |after, first| cat::SPEC_ROUNDS.as_counter(r, &[model, proposer, ("after", after), ("first", first)]);
        let rejected = |reason| {
            let labels = [model, proposer, ("reason", reason)];
            (cat::SPEC_REJECTED.as_counter(r, &labels), cat::SPEC_REJECTED_RANK.as_histogram(r, &labels))
        };
        let emitted = |lossless| cat::SPEC_EMITTED.as_counter(r, &[model, proposer, ("lossless", lossless)]);
        Self {
            drafts: cat::SPEC_DRAFTS.as_counter(r, &labels),
            draft_tokens: cat::SPEC_DRAFT_TOKENS.as_counter(r, &labels),
            accepted: cat::SPEC_ACCEPTED.as_counter(r, &labels),
            emitted: [emitted("false"), emitted("true")],
            lasts: Last::ALL.map(|last| cat::SPEC_LAST.as_counter(r, &[model, proposer, ("kind", last.name())])).into(),
            firsts: TokenOrigin::ALL.map(|origin| FIRST.map(|first| first_of(origin.name(), first))).into(),
            lengths: Lengths::default(),
            rejected: REASONS.iter().map(|reason| rejected(reason)).collect(),
            total_variation: cat::SPEC_TOTAL_VARIATION.as_histogram(r, &labels),
            drawn: OnceLock::new(),
            siblings: OnceLock::new(),
            shifts: Default::default(),
            positions: (0..=POSITIONS).map(|_| OnceLock::new()).collect(),
            repeats: Repeats::default(),
        }
    }

    fn drawn(&self, r: &dyn Recorder, labels: Labels<'_>, chances: Chances) {
        // A certain token cannot differ from what it is said to be drawn from.
        if chances.own.mean < 1.0 {
            let drawn = self.drawn.get_or_init(|| Drawn {
                probability: cat::SPEC_DRAFT_PROBABILITY.as_histogram(r, &labels),
                on_average: cat::SPEC_EXPECTED_DRAFT_PROBABILITY.as_histogram(r, &labels),
                variance: cat::SPEC_DRAFT_PROBABILITY_VARIANCE.as_histogram(r, &labels),
            });
            drawn.probability.record(chances.draft);
            drawn.on_average.record(chances.own.mean);
            drawn.variance.record(chances.own.variance);
        }
    }

    fn siblings(&self, r: &dyn Recorder, labels: Labels<'_>, repeat: Repeat) {
        let siblings = self.siblings.get_or_init(|| Siblings {
            expected: cat::SPEC_EXPECTED_REPEATED_SIBLINGS.as_histogram(r, &labels),
            repeated: cat::SPEC_REPEATED_SIBLINGS.as_counter(r, &labels),
        });
        siblings.expected.record(repeat.expected);
        siblings.repeated.increment(u64::from(repeat.found));
    }

    /// Records every measured trial: unlike above, texts that share a seed count too, because no random number is
    /// involved.
    fn shifts(&self, r: &dyn Recorder, labels: Labels<'_>, trial: &Trial) {
        let Some(own) = trial.overlap() else { return };
        let [model, proposer] = labels;
        for ((shift, handles), held) in SHIFTS.iter().zip(&self.shifts).zip(overlaps(trial.shifts, own)) {
            let Some(Held { shifted, own }) = held else { continue };
            let labels = [model, proposer, ("shift", *shift)];
            let handles = handles.get_or_init(|| Shift {
                own: cat::SPEC_OWN_OVERLAP.as_histogram(r, &labels),
                shifted: cat::SPEC_SHIFTED_OVERLAP.as_histogram(r, &labels),
                count: cat::SPEC_SHIFTED_DRAFTS.as_counter(r, &labels),
            });
            handles.own.record(own);
            handles.shifted.record(shifted);
            // A certain token says nothing, even if another row is certain of it too.
            let has_chance = trial.chances.is_some_and(|chances| chances.own.mean < 1.0);
            handles.count.increment(u64::from(has_chance && shifted - own > SHIFTED_BY));
        }
    }

    fn trial(&self, r: &dyn Recorder, labels: Labels<'_>, trial: &Trial, round: &Round<'_>, is_new: bool) {
        let position = self.position(r, labels, trial.depth);
        position.tested.increment(1);
        if let Some(expected) = trial.expected.filter(|_| round.one_by_one && is_new) {
            position.expected.record(expected);
            position.measured_accepted.increment(u64::from(trial.accepted));
        }
        // Later siblings are compared with what the first one left of the target, so only the first one counts here.
        if trial.is_first {
            self.held_against_the_target(trial, round.by_ratio);
        }
    }

    fn position(&self, r: &dyn Recorder, labels: Labels<'_>, depth: usize) -> &Position {
        let at = depth.min(POSITIONS);
        self.positions[at].get_or_init(|| Position::register(r, labels, at))
    }

    fn held_against_the_target(&self, trial: &Trial, by_ratio: bool) {
        if let Some(total_variation) = trial.total_variation {
            self.total_variation.record(total_variation);
        }
        if let (Some(rank), Some(chances)) = (trial.rejected_rank, trial.chances) {
            let (count, ranks) = &self.rejected[reason(chances.ratio(), by_ratio)];
            count.increment(1);
            if rank > 0 {
                ranks.record(rank);
            }
        }
    }
}

impl Position {
    fn register(r: &dyn Recorder, labels: Labels<'_>, at: usize) -> Self {
        let name = if at < POSITIONS { at.to_string() } else { format!("{POSITIONS}+") };
        let [model, proposer] = labels;
        let labels = [model, proposer, ("position", name.as_str())];
        Self {
            tested: cat::SPEC_TESTED_PER_POS.as_counter(r, &labels),
            accepted: cat::SPEC_ACCEPTED_PER_POS.as_counter(r, &labels),
            expected: cat::SPEC_EXPECTED.as_histogram(r, &labels),
            measured_accepted: cat::SPEC_MEASURED_ACCEPTED_PER_POS.as_counter(r, &labels),
        }
    }
}

/// The overlaps in the order of [`SHIFTS`].
fn overlaps(shifts: Shifts, own: f64) -> [Option<Held>; SHIFTS.len()] {
    [shifts.late_held(own), shifts.early_held(own)]
}

/// Values of the label `reason`: what a rejection points to. "ruled_out" covers tokens that a mask or a filter
/// excludes, and also tokens so far behind that their mass is 0; the ratio does not tell these apart. Rules that do not
/// use the ratio have the reason "rule".
const REASONS: [&str; 4] = ["ruled_out", "unlikely", "chance", "rule"];
/// If the target's probability is less than this share of the draft's, the rejection is not bad luck.
const UNLIKELY: f64 = 0.1;

fn reason(ratio: f64, by_ratio: bool) -> usize {
    match ratio {
        0.0 => 0,
        _ if !by_ratio => 3,
        _ if ratio < UNLIKELY => 1,
        _ => 2,
    }
}
