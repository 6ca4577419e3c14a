//! What became of draft tokens, and what was to be expected.

use super::difference::{Difference, Histogram, Increase};
use super::figures::Count;
use crate::metrics::catalog as cat;
use crate::speculative::verified::TokenOrigin;
use serde::Serialize;
use std::collections::BTreeMap;

/// Drafts and what became of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speculation {
    /// Over how long.
    pub seconds: f64,
    /// By model label and proposer, those that verified a draft.
    pub proposers: Vec<Proposer>,
}

/// One model label and proposer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proposer {
    /// Label `model`.
    pub model: String,
    /// Label `proposer`.
    pub proposer: String,
    /// Verifications of at least one draft token.
    pub drafts: Count,
    /// Draft tokens in them.
    pub draft_tokens: Count,
    /// Those that were accepted.
    pub accepted_tokens: Count,
    /// Tokens emitted, the last ones included.
    pub emitted_tokens: Count,
    /// Expected and observed acceptance, over all positions.
    pub measured: Measured,
    /// Whether draft tokens were drawn from what is claimed.
    pub drawn: Drawn,
    /// Whether rows are one place off, by label `shift`.
    pub shifts: Vec<Shift>,
    /// Mean total variation between draft and target distribution; `None` if none was measured.
    pub total_variation: Option<f64>,
    /// Why measured draft tokens were rejected; reasons that there were.
    pub rejected: Vec<Rejected>,
    /// Whether first draft tokens are accepted, by how the token before them came about; ways that there were.
    pub firsts: Vec<First>,
    /// By how many draft tokens stand before.
    pub positions: Vec<Position>,
}

/// Draft tokens whose acceptance is known to be expected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Measured {
    /// How many.
    pub tests: u64,
    /// Their share that was accepted; `None` without tests.
    pub accepted: Option<f64>,
    /// The share to be expected.
    pub expected: Option<f64>,
    /// The difference in standard errors, as docs/speculative.md has it; beyond 4 it is not chance.
    pub standard_errors: f64,
}

/// The probabilities of measured draft tokens in the draft distributions that they are said to be drawn from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Drawn {
    /// How many draft tokens, of those that others could have been drawn in place of.
    pub tokens: u64,
    /// Their mean probability; `None` without tokens.
    pub probability: Option<f64>,
    /// What it is for tokens drawn from these distributions.
    pub expected: Option<f64>,
    /// The difference in standard errors; beyond 4 it is not chance.
    pub standard_errors: f64,
}

/// What first draft distributions have in common with the rows that they are held against, and what it would be if rows were one
/// place off.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shift {
    /// Label `shift`: which place that is.
    pub shift: String,
    /// How many verifications.
    pub tests: u64,
    /// What is in common as rows are, on average.
    pub own: f64,
    /// What would be, if they were shifted.
    pub shifted: f64,
    /// How much more that is, in standard errors, at least.
    pub standard_errors: f64,
    /// Whether rows are shifted: the difference is no chance, large, and seen often enough.
    pub is_shifted: bool,
}

/// Measured draft tokens that were rejected for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rejected {
    /// Label `reason`.
    pub reason: String,
    /// How many.
    pub tokens: u64,
    /// Their median rank in the target, as far as buckets tell.
    pub median_rank: Option<f64>,
}

/// First draft tokens that stand behind tokens of one kind. Where one kind differs much from the others, a model has not seen it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct First {
    /// Label `after`.
    pub after: String,
    /// How many.
    pub drafts: u64,
    /// Their share that was accepted.
    pub accepted: Option<f64>,
}

/// One position in a draft.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Position {
    /// Draft tokens before it, `0` to `15`, then `16+`.
    pub position: String,
    /// Draft tokens that acceptance came to.
    pub tested: u64,
    /// Their share that was accepted; `None` without tests.
    pub accepted: Option<f64>,
    /// The same of those that were measured, and what was to be expected.
    pub measured: Measured,
}

/// Model and proposer.
type Who<'a> = [&'a str; 2];
/// And position.
type Where<'a> = [&'a str; 3];

impl Speculation {
    pub(super) fn of(d: &Difference<'_>) -> Self {
        let by = ["model", "proposer"];
        let [tokens, accepted, emitted] =
            [cat::SPEC_DRAFT_TOKENS, cat::SPEC_ACCEPTED, cat::SPEC_EMITTED].map(|def| d.by(&def, by));
        let (positions, distributions) = (Positions::of(d), Distributions::of(d));
        let rounds = d.by(&cat::SPEC_ROUNDS, ["model", "proposer", "after", "first"]);
        let proposer = |(who, drafts): (Who<'_>, Increase)| {
            let count =
                |of: &BTreeMap<Who<'_>, Increase>| Count::new(of.get(&who).copied().unwrap_or_default(), d.seconds);
            Proposer {
                model: who[0].to_owned(),
                proposer: who[1].to_owned(),
                drafts: Count::new(drafts, d.seconds),
                draft_tokens: count(&tokens),
                accepted_tokens: count(&accepted),
                emitted_tokens: count(&emitted),
                measured: positions.measured(who),
                drawn: distributions.drawn(who),
                shifts: distributions.shifts(who),
                total_variation: distributions.total_variation(who),
                rejected: distributions.rejected(who),
                firsts: firsts(&rounds, who),
                positions: positions.of_proposer(who),
            }
        };
        Self { seconds: d.seconds, proposers: d.by(&cat::SPEC_DRAFTS, by).into_iter().map(proposer).collect() }
    }
}

/// By how the tokens before came about, in the order of [`TokenOrigin`].
fn firsts(rounds: &BTreeMap<[&str; 4], Increase>, who: Who<'_>) -> Vec<First> {
    let of = |after: &str, first: &str| rounds.get(&[who[0], who[1], after, first]).map_or(0.0, |rounds| rounds.new);
    let first = |came: TokenOrigin| {
        let (accepted, rejected) = (of(came.name(), "accepted"), of(came.name(), "rejected"));
        let drafts = accepted + rejected;
        (drafts > 0.0).then(|| First {
            after: came.name().to_owned(),
            drafts: drafts as u64,
            accepted: share(accepted, drafts),
        })
    };
    TokenOrigin::ALL.into_iter().filter_map(first).collect()
}

/// What was measured of distributions.
struct Distributions<'a> {
    probability: BTreeMap<Who<'a>, Histogram>,
    expected: BTreeMap<Who<'a>, Histogram>,
    variance: BTreeMap<Who<'a>, Histogram>,
    total_variation: BTreeMap<Who<'a>, Histogram>,
    /// By shift too.
    own: BTreeMap<Where<'a>, Histogram>,
    shifted: BTreeMap<Where<'a>, Histogram>,
    /// By reason too.
    ranks: BTreeMap<Where<'a>, Histogram>,
}

impl<'a> Distributions<'a> {
    fn of(d: &Difference<'a>) -> Self {
        let by = ["model", "proposer"];
        Self {
            probability: d.histograms(&cat::SPEC_DRAFT_PROBABILITY, by),
            expected: d.histograms(&cat::SPEC_EXPECTED_DRAFT_PROBABILITY, by),
            variance: d.histograms(&cat::SPEC_DRAFT_PROBABILITY_VARIANCE, by),
            total_variation: d.histograms(&cat::SPEC_TOTAL_VARIATION, by),
            own: d.histograms(&cat::SPEC_OWN_OVERLAP, ["model", "proposer", "shift"]),
            shifted: d.histograms(&cat::SPEC_SHIFTED_OVERLAP, ["model", "proposer", "shift"]),
            ranks: d.histograms(&cat::SPEC_REJECTED_RANK, ["model", "proposer", "reason"]),
        }
    }

    fn drawn(&self, who: Who<'_>) -> Drawn {
        let sum = |of: &BTreeMap<Who<'_>, Histogram>| of.get(&who).map_or((0.0, 0.0), |h| (h.sum, h.count.new));
        let ((probability, tokens), (expected, _)) = (sum(&self.probability), sum(&self.expected));
        // A server of before it was counted has a bound alone.
        let variance = self.variance.get(&who).map_or(most_variance(expected, tokens), |h| h.sum);
        Drawn {
            tokens: tokens as u64,
            probability: share(probability, tokens),
            expected: share(expected, tokens),
            standard_errors: (probability - expected) / (variance + FEW).sqrt(),
        }
    }

    fn shifts(&self, who: Who<'_>) -> Vec<Shift> {
        let mine = self.shifted.iter().filter(|([model, proposer, _], _)| [*model, *proposer] == who);
        let shift = |(at, shifted): (&Where<'_>, &Histogram)| {
            let own = self.own.get(at).filter(|own| own.count.new > 0.0)?;
            Some(Shift::new(at[2], own.count.new, own.sum, shifted.sum))
        };
        mine.filter_map(shift).collect()
    }

    fn total_variation(&self, who: Who<'_>) -> Option<f64> {
        self.total_variation.get(&who).and_then(|h| share(h.sum, h.count.new))
    }

    fn rejected(&self, who: Who<'_>) -> Vec<Rejected> {
        let mine = self
            .ranks
            .iter()
            .filter(|([model, proposer, _], ranks)| [*model, *proposer] == who && ranks.count.new > 0.0);
        let rejected = mine.map(|([.., reason], ranks)| Rejected {
            reason: (*reason).to_owned(),
            tokens: ranks.count.new as u64,
            median_rank: ranks.quantile(0.5),
        });
        rejected.collect()
    }
}

struct Positions<'a> {
    tested: BTreeMap<Where<'a>, Increase>,
    accepted: BTreeMap<Where<'a>, Increase>,
    expected: BTreeMap<Where<'a>, Histogram>,
    measured_accepted: BTreeMap<Where<'a>, Increase>,
}

impl<'a> Positions<'a> {
    fn of(d: &Difference<'a>) -> Self {
        let by = ["model", "proposer", "position"];
        Self {
            tested: d.by(&cat::SPEC_TESTED_PER_POS, by),
            accepted: d.by(&cat::SPEC_ACCEPTED_PER_POS, by),
            expected: d.histograms(&cat::SPEC_EXPECTED, by),
            measured_accepted: d.by(&cat::SPEC_MEASURED_ACCEPTED_PER_POS, by),
        }
    }

    fn measured(&self, who: Who<'_>) -> Measured {
        let mine = |[model, proposer, _]: &Where<'_>| [*model, *proposer] == who;
        let expected = self.expected.iter().filter(|(at, _)| mine(at)).map(|(_, e)| (e.sum, e.count.new));
        let (sum, tests) = expected.fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        let accepted = self.measured_accepted.iter().filter(|(at, _)| mine(at)).map(|(_, n)| n.new).sum();
        Measured::new(tests, accepted, sum)
    }

    fn of_proposer(&self, who: Who<'_>) -> Vec<Position> {
        let mine = self.tested.iter().filter(|([model, proposer, _], _)| [*model, *proposer] == who);
        let new = |of: &BTreeMap<Where<'_>, Increase>, at: &Where<'_>| of.get(at).map_or(0.0, |increase| increase.new);
        let position = |(at, tested): (&Where<'_>, &Increase)| {
            let (tests, sum) = self.expected.get(at).map_or((0.0, 0.0), |e| (e.count.new, e.sum));
            Position {
                position: at[2].to_owned(),
                tested: tested.new as u64,
                accepted: share(new(&self.accepted, at), tested.new),
                measured: Measured::new(tests, new(&self.measured_accepted, at), sum),
            }
        };
        let mut positions: Vec<Position> = mine.map(position).collect();
        // As numbers: 2 before 10, and "16+" last.
        positions.sort_by_key(|p| p.position.trim_end_matches('+').parse().unwrap_or(u32::MAX));
        positions
    }
}

impl Shift {
    /// `own` and `shifted` are sums over `tests` verifications. The variance of a difference of two numbers of 0 to 1 is at most
    /// their sum, as docs/speculative.md has it.
    fn new(shift: &str, tests: f64, own: f64, shifted: f64) -> Self {
        let standard_errors = (shifted - own) / (own + shifted + FEW).sqrt();
        let is_shifted =
            tests > ENOUGH_TO_SAY_SHIFTED && standard_errors > NOT_CHANCE && shifted - own > SHIFTED * tests;
        let (own, shifted) = (own / tests, shifted / tests);
        Self { shift: shift.to_owned(), tests: tests as u64, own, shifted, standard_errors, is_shifted }
    }
}

impl Measured {
    /// `expected` is the sum of the expected acceptances of `tests` draft tokens.
    fn new(tests: f64, accepted: f64, expected: f64) -> Self {
        Self {
            tests: tests as u64,
            accepted: share(accepted, tests),
            expected: share(expected, tests),
            standard_errors: standard_errors(accepted, expected, tests),
        }
    }
}

/// How far the sum of so many numbers of 0 to 1 is from what it is to be expected, in standard errors; a few more for all of them, as in
/// docs/speculative.md.
fn standard_errors(sum: f64, expected: f64, count: f64) -> f64 {
    (sum - expected) / (most_variance(expected, count) + FEW).sqrt()
}

/// The variance of a sum of so many numbers of 0 to 1, at most: with the mean e that of each is e (1 - e).
fn most_variance(expected: f64, count: f64) -> f64 {
    if count > 0.0 { expected * (1.0 - expected / count) } else { 0.0 }
}

/// Beyond so many standard errors it is not chance (docs/speculative.md).
pub const NOT_CHANCE: f64 = 4.0;
/// Rows are shifted where drafts have more than this more in common with those one place further on; as in the alert
/// CroupierRowsShifted.
pub const SHIFTED: f64 = 0.1;
/// Nothing is said of rows before more verifications than these were measured; as in that alert.
pub const ENOUGH_TO_SAY_SHIFTED: f64 = 200.0;

/// So much variance more, so that one or two tests of many that are nearly certain are not taken for a fault.
const FEW: f64 = 4.0;

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}
