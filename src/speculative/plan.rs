//! What a verification goes by, and the one place that chooses its rule.

use super::numbers::Numbers;
use super::positions::Positions;
use super::rule::AcceptanceRule;
use super::tree::{self, Tree, row_after};
use super::verified::{Trial, Verified};
use super::weights::common;
use super::{VerifyError, block, come_to, judge, shifts, siblings};
use crate::params::state::SamplerState;

/// What a verification goes by, besides its rows and draft tokens.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The parent and the children of each draft token.
    pub tree: &'a Tree,
    /// The rule by which draft tokens are accepted.
    pub rule: AcceptanceRule,
    /// For each row, whether [relaxed acceptance](super::relaxed) is strict there. If empty, it is strict nowhere.
    pub strict: &'a [bool],
    /// The sequence's random numbers.
    pub numbers: Numbers,
    /// Whether trials report what acceptance was expected. This changes no decision.
    pub measure: bool,
}

impl Plan<'_> {
    /// Whether this row accepts only the token that a plain row would draw.
    pub(super) fn is_strict(&self, row: usize) -> bool {
        matches!(self.rule, AcceptanceRule::Relaxed(_)) && self.strict.get(row) == Some(&true)
    }

    /// Verifies the draft by its rule.
    ///
    /// # Errors
    /// [`VerifyError`] if a row that verification needs has no distribution.
    pub fn verify(&self, positions: &mut impl Positions) -> Result<Verified, VerifyError> {
        // Without chance in the draft, a block gains nothing, and rejection keeps the plain row's text.
        let certain = || (0..self.tree.len()).all(|node| positions.is_certain(node));
        let mut verified = match self.rule {
            // Without draft tokens this is a plain row, whatever the rule.
            _ if self.tree.is_empty() => tree::sampled(self, positions),
            AcceptanceRule::Block if self.tree.is_chain() && !certain() => block::verify(self, positions),
            AcceptanceRule::Block | AcceptanceRule::Rejection => tree::sampled(self, positions),
            _ => judge::longest(self, positions),
        }?;
        let states = states(&verified, positions)?;
        if self.measure {
            shifts::measure(self, positions, &mut verified.trials);
            siblings::measure(self, positions, &mut verified.trials);
        }
        Ok(Verified { states, ..verified })
    }

    /// A trial of the lossless rules. Its expected acceptance is the sum of min(factor * left, draft).
    pub(super) fn trial(
        &self,
        positions: &mut impl Positions,
        node: usize,
        depth: usize,
        factor: f64,
        accepted: bool,
    ) -> Trial {
        let trial = Trial::new(self, node, depth, accepted);
        if !self.measure {
            return trial;
        }
        let whole = overlap(positions, 1.0, node);
        let of_left = if factor == 1.0 { whole } else { overlap(positions, factor, node) };
        trial.measured(positions, of_left.in_common, whole.beyond)
    }
}

/// What is left at a position, compared with a draft distribution.
#[derive(Clone, Copy)]
pub(super) struct Overlap {
    /// The sum over all tokens of the smaller of the two.
    pub(super) in_common: f64,
    /// What is left in excess of the draft distribution, summed over all tokens.
    pub(super) beyond: f64,
}

/// Compares `factor` times what is left here with a token's draft distribution. If that distribution has only one
/// token, the token's probability is enough, and nothing has to be summed.
pub(super) fn overlap(positions: &mut impl Positions, factor: f64, node: usize) -> Overlap {
    if positions.proposed(node) == 1.0 {
        let in_common = (factor * positions.share(positions.token(node))).min(1.0);
        return Overlap { in_common, beyond: factor - in_common };
    }
    let beyond = positions.beyond(factor, node);
    Overlap { in_common: common(factor, beyond), beyond }
}

/// What samplers remember after each emitted token.
fn states(verified: &Verified, positions: &mut impl Positions) -> Result<Vec<SamplerState>, VerifyError> {
    if positions.state_before(0).is_none() {
        return Ok(Vec::new());
    }
    let path = &verified.accepted_path;
    let mut states: Vec<SamplerState> = path.iter().filter_map(|&node| positions.state_before(node + 1)).collect();
    if let Some(&last) = verified.emitted.get(path.len()) {
        come_to(positions, row_after(path))?;
        states.extend(positions.state_after(last));
    }
    Ok(states)
}
