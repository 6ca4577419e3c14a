//! What became of draft tokens, and what was to be expected.

use super::difference::{Difference, Histogram, Increase};
use super::figures::Count;
use crate::metrics::catalog as cat;
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
        let positions = Positions::of(d);
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
                positions: positions.of_proposer(who),
            }
        };
        Self { seconds: d.seconds, proposers: d.by(&cat::SPEC_DRAFTS, by).into_iter().map(proposer).collect() }
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

impl Measured {
    /// `expected` is the sum of the expected acceptances of `tests` draft tokens.
    fn new(tests: f64, accepted: f64, expected: f64) -> Self {
        let variance = if tests > 0.0 { expected * (1.0 - expected / tests) } else { 0.0 };
        let standard_errors = if variance > 0.0 { (accepted - expected) / variance.sqrt() } else { 0.0 };
        Self {
            tests: tests as u64,
            accepted: share(accepted, tests),
            expected: share(expected, tests),
            standard_errors,
        }
    }
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}
