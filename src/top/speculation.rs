//! What happened to draft tokens, and what was expected.

use super::difference::{Difference, Histogram, Increase};
use super::figures::Count;
use crate::metrics::catalog as cat;
use crate::speculative::verified::TokenOrigin;
use serde::Serialize;
use std::collections::BTreeMap;

/// Drafts and their acceptance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speculation {
    /// The time over which speculation was counted, in seconds.
    pub seconds: f64,
    /// By model label and proposer. Those that verified no draft are left out.
    pub proposers: Vec<Proposer>,
}

/// Figures on one model label and proposer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proposer {
    /// Label `model`.
    pub model: String,
    /// Label `proposer`.
    pub proposer: String,
    /// Number of verifications of at least one draft token.
    pub drafts: Count,
    /// Number of draft tokens in these.
    pub draft_tokens: Count,
    /// Number of draft tokens that were accepted.
    pub accepted_tokens: Count,
    /// Number of tokens emitted, including the last one of each verification.
    pub emitted_tokens: Count,
    /// Expected and observed acceptance, over all positions.
    pub measured: Measured,
    /// Whether draft tokens were drawn from the distributions that the worker claims.
    pub drawn: Drawn,
    /// Whether later siblings in trees were drawn from the distributions that the worker claims.
    pub siblings: Siblings,
    /// Whether rows are one place off, by label `shift`.
    pub shifts: Vec<Shift>,
    /// Mean total variation between draft and target distribution. `None` if none was measured.
    pub total_variation: Option<f64>,
    /// Why measured draft tokens were rejected. Reasons that did not occur are left out.
    pub rejected: Vec<Rejected>,
    /// Acceptance of first draft tokens, by the origin of the token before them. Origins that did not occur are left
    /// out.
    pub firsts: Vec<First>,
    /// By position: the number of draft tokens before.
    pub positions: Vec<Position>,
}

/// Draft tokens whose expected acceptance is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Number of such tokens.
    pub tests: u64,
    /// The share that was accepted. `None` without tests.
    pub accepted: Option<f64>,
    /// The share that is expected.
    pub expected: Option<f64>,
    /// The difference in standard errors, as defined in docs/speculative.md. Beyond 4 it is not chance.
    pub standard_errors: f64,
}

/// The probabilities that measured draft tokens have in the draft distributions they are claimed to be drawn from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Drawn {
    /// Number of draft tokens. Only those count in whose place others could have been drawn.
    pub tokens: u64,
    /// Their mean probability. `None` without tokens.
    pub probability: Option<f64>,
    /// The expected mean probability of tokens drawn from these distributions.
    pub expected: Option<f64>,
    /// The difference in standard errors. Beyond 4 it is not chance.
    pub standard_errors: f64,
}

/// Later siblings in trees that are the same token as an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Siblings {
    /// Number of later siblings that were looked at.
    pub compared: u64,
    /// How many of them repeat an earlier one.
    pub repeated: u64,
    /// How many are expected to, by the distributions that they are claimed to be drawn from.
    pub expected: f64,
    /// The difference in standard errors, as in the alert CroupierSiblingsNotAsClaimed. Beyond 4 it is not chance.
    pub standard_errors: f64,
}

/// The overlap of first draft distributions with the rows that they are compared with, and the overlap if rows were one
/// place off.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shift {
    /// Label `shift`: the direction of the shift.
    pub shift: String,
    /// Number of verifications.
    pub tests: u64,
    /// The mean overlap with the rows as they are.
    pub own: f64,
    /// The mean overlap if rows were shifted.
    pub shifted: f64,
    /// How much larger that is, in standard errors, at least.
    pub standard_errors: f64,
    /// Whether rows are shifted: the difference is not chance, is large, and was seen often enough.
    pub is_shifted: bool,
}

/// Measured draft tokens that were rejected for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rejected {
    /// Label `reason`.
    pub reason: String,
    /// Number of such tokens.
    pub tokens: u64,
    /// Their median rank in the target distribution, as precisely as buckets tell.
    pub median_rank: Option<f64>,
}

/// First draft tokens that follow tokens of one origin. If one origin differs much from the others, the draft model has
/// not seen these tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct First {
    /// Label `after`.
    pub after: String,
    /// Number of such drafts.
    pub drafts: u64,
    /// The share of their first tokens that was accepted.
    pub accepted: Option<f64>,
}

/// Figures on one position in a draft.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Position {
    /// Number of draft tokens before it: `0` to `15`, then `16+`.
    pub position: String,
    /// Number of draft tokens that were tested for acceptance.
    pub tested: u64,
    /// The share that was accepted. `None` without tests.
    pub accepted: Option<f64>,
    /// The observed and the expected share of those that were measured.
    pub measured: Measured,
}

/// Model and proposer.
type Who<'a> = [&'a str; 2];
/// Model, proposer and position, or another third label.
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
                siblings: distributions.siblings(who),
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

/// Acceptance by the origin of the token before, in the order of [`TokenOrigin`].
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

/// What was measured about distributions.
struct Distributions<'a> {
    probability: BTreeMap<Who<'a>, Histogram>,
    expected: BTreeMap<Who<'a>, Histogram>,
    variance: BTreeMap<Who<'a>, Histogram>,
    total_variation: BTreeMap<Who<'a>, Histogram>,
    repeated_siblings: BTreeMap<Who<'a>, Increase>,
    expected_repeated_siblings: BTreeMap<Who<'a>, Histogram>,
    /// By shift, too.
    own: BTreeMap<Where<'a>, Histogram>,
    shifted: BTreeMap<Where<'a>, Histogram>,
    /// By reason, too.
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
            repeated_siblings: d.by(&cat::SPEC_REPEATED_SIBLINGS, by),
            expected_repeated_siblings: d.histograms(&cat::SPEC_EXPECTED_REPEATED_SIBLINGS, by),
            own: d.histograms(&cat::SPEC_OWN_OVERLAP, ["model", "proposer", "shift"]),
            shifted: d.histograms(&cat::SPEC_SHIFTED_OVERLAP, ["model", "proposer", "shift"]),
            ranks: d.histograms(&cat::SPEC_REJECTED_RANK, ["model", "proposer", "reason"]),
        }
    }

    fn drawn(&self, who: Who<'_>) -> Drawn {
        let sum = |of: &BTreeMap<Who<'_>, Histogram>| of.get(&who).map_or((0.0, 0.0), |h| (h.sum, h.count.new));
        let ((probability, tokens), (expected, _)) = (sum(&self.probability), sum(&self.expected));
        // A server older than this metric has no variance. Use its upper bound.
        let variance = self.variance.get(&who).map_or(most_variance(expected, tokens), |h| h.sum);
        Drawn {
            tokens: tokens as u64,
            probability: share(probability, tokens),
            expected: share(expected, tokens),
            standard_errors: (probability - expected) / (variance + FEW).sqrt(),
        }
    }

    /// The variance of how many repeat is at most the expected number.
    fn siblings(&self, who: Who<'_>) -> Siblings {
        let (expected, compared) =
            self.expected_repeated_siblings.get(&who).map_or((0.0, 0.0), |h| (h.sum, h.count.new));
        let repeated = self.repeated_siblings.get(&who).map_or(0.0, |repeated| repeated.new);
        Siblings {
            compared: compared as u64,
            repeated: repeated as u64,
            expected,
            standard_errors: (repeated - expected) / (expected + FEW).sqrt(),
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
        // Sort as numbers: 2 before 10, and "16+" last.
        positions.sort_by_key(|p| p.position.trim_end_matches('+').parse().unwrap_or(u32::MAX));
        positions
    }
}

impl Shift {
    /// `own` and `shifted` are sums over `tests` verifications. The variance of a difference of two numbers from 0 to 1
    /// is at most their sum, as docs/speculative.md explains.
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

/// The difference between a sum of `count` numbers from 0 to 1 and its expected value, in standard errors. `FEW` is
/// added to the variance, as in docs/speculative.md.
fn standard_errors(sum: f64, expected: f64, count: f64) -> f64 {
    (sum - expected) / (most_variance(expected, count) + FEW).sqrt()
}

/// An upper bound of the variance of a sum of `count` numbers from 0 to 1. If the mean of each is e, its variance is at
/// most e (1 - e).
fn most_variance(expected: f64, count: f64) -> f64 {
    if count > 0.0 { expected * (1.0 - expected / count) } else { 0.0 }
}

/// A difference of more standard errors than this is not chance (docs/speculative.md).
pub const NOT_CHANCE: f64 = 4.0;
/// Rows are shifted if drafts overlap with the rows one place further on by more than this much more; as in the alert
/// CroupierRowsShifted.
pub const SHIFTED: f64 = 0.1;
/// Rows are reported as shifted only after more verifications than this; as in that alert.
pub const ENOUGH_TO_SAY_SHIFTED: f64 = 200.0;

/// Variance that is added, so that one or two failures among many nearly certain tests are not taken for a fault.
const FEW: f64 = 4.0;

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}
