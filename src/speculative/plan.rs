//! How a draft is to be verified, and the one way from there to a rule.

use super::numbers::Numbers;
use super::positions::Positions;
use super::rule::AcceptanceRule;
use super::tree::{self, Tree, row_after};
use super::verified::{Trial, Verified};
use super::weights::common;
use super::{VerifyError, block, come_to, judge, shifts, siblings};
use crate::params::state::SamplerState;

/// What a verification goes by besides draft and rows.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// How draft tokens stand to one another.
    pub tree: &'a Tree,
    /// How they are accepted.
    pub rule: AcceptanceRule,
    /// Of each row whether [relaxed acceptance](super::relaxed) is strict there; empty: nowhere.
    pub strict: &'a [bool],
    /// The sequence's random numbers.
    pub numbers: Numbers,
    /// Whether trials say what was to be expected. It changes no decision.
    pub measure: bool,
}

impl Plan<'_> {
    /// Whether only the token that a plain row would draw is accepted at this row.
    pub(super) fn is_strict(&self, row: usize) -> bool {
        matches!(self.rule, AcceptanceRule::Relaxed(_)) && self.strict.get(row) == Some(&true)
    }

    /// Verifies.
    ///
    /// # Errors
    /// [`VerifyError`] if a row that was needed has no distribution.
    pub fn verify(&self, positions: &mut impl Positions) -> Result<Verified, VerifyError> {
        // Where nothing is left to chance there is nothing to gain from a block, and the plain row's text to keep.
        let certain = || (0..self.tree.len()).all(|node| positions.is_certain(node));
        let mut verified = match self.rule {
            // No draft: a plain row, whatever the rule.
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

    /// A trial of the lossless rules: with the sum of min(factor * left, draft) as what was to be expected.
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

/// What is left at a position, held against a draft distribution.
#[derive(Clone, Copy)]
pub(super) struct Overlap {
    /// The sum of min over all tokens.
    pub(super) in_common: f64,
    /// What is left beyond that.
    pub(super) beyond: f64,
}

/// Of `factor` times what is left here. Of a distribution with one token that token's probability tells, so that nothing has to be
/// summed up.
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
