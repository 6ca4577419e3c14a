//! The specification's answers to what the rules ask. Like the rest of the specification, they are sequential and
//! favour clarity over speed.

use super::VerifyError;
use super::draft::Draft;
use super::plan::Plan;
use super::positions::Positions;
use super::relaxed::Relaxed;
use super::typical;
use super::verified::Verified;
use super::weights::{ONE, OwnProbability, Weights, share};
use crate::params::state::SamplerState;
use crate::sampling::distribution::Distribution;
use crate::sampling::row::RowError;
use crate::sampling::watermark::race::Race;

/// The target as the verified sequence sees it. The draft tokens before a row count as emitted: penalties, bans and
/// lengths take them into account.
pub trait Target {
    /// The distribution that a plain row would be drawn from. Row 0 is the row after the sequence's last token, row
    /// `i + 1` the row after draft token `i`.
    ///
    /// # Errors
    /// [`RowError`] if that row has no distribution. Verification asks only for the rows that it reaches.
    fn distribution(&mut self, row: usize) -> Result<Distribution, RowError>;

    /// The distribution that [relaxed acceptance](super::relaxed) judges: that of the same row, but with
    /// [`Relaxed::filters`].
    ///
    /// # Errors
    /// As [`Target::distribution`].
    fn relaxed(&mut self, row: usize) -> Result<Distribution, RowError>;

    /// Whether the sequence ends with a draft token: at EOS, a stop token or its maximum length. Draft tokens behind
    /// that one are dropped.
    fn ends(&self, node: usize) -> bool;

    /// Whether the sequence's draws follow a key. If so, every emitted token is the plain row's, even where draft
    /// tokens were drawn by chance.
    fn is_raced(&self) -> bool {
        false
    }

    /// The race that decides the draw of a row.
    fn race(&self, _row: usize) -> Option<Race> {
        None
    }

    /// See [`Positions::look_aside`].
    fn look_aside(&mut self) {}

    /// What samplers remember before a row.
    fn state_before(&self, _row: usize) -> Option<SamplerState> {
        None
    }

    /// What samplers remember after a token of a row with this distribution.
    fn state_after(&self, _row: usize, _target: &Distribution, _token: u32) -> Option<SamplerState> {
        None
    }
}

/// Verifies drafts by `plan`.
///
/// # Errors
/// [`VerifyError`] if a row that verification needs has no distribution.
///
/// # Panics
/// If the tree does not have exactly `drafts.len()` tokens, which is a bug.
pub fn verify(drafts: &[Draft], plan: &Plan<'_>, target: &mut impl Target) -> Result<Verified, VerifyError> {
    assert_eq!(plan.tree.len(), drafts.len(), "one parent per draft token; this is a bug");
    plan.verify(&mut Plain { drafts, target, current: None })
}

struct Plain<'a, T> {
    drafts: &'a [Draft],
    target: &'a mut T,
    current: Option<CurrentRow>,
}

/// The row that the rules look at, and what is left of its target.
struct CurrentRow {
    row: usize,
    target: Distribution,
    left: Weights,
    /// Whether nothing has been taken from the target yet.
    is_whole: bool,
}

impl<T> Plain<'_, T> {
    fn current(&self) -> &CurrentRow {
        self.current.as_ref().expect("a rule comes to a row first; this is a bug")
    }

    fn residual(&self, factor: f64, node: usize) -> Weights {
        let draft = self.drafts[node].weights();
        self.current().left.residual(factor, draft.total(), |token| draft.weight(token))
    }
}

impl<T: Target> Positions for Plain<'_, T> {
    fn token(&self, node: usize) -> u32 {
        self.drafts[node].token()
    }

    fn ends(&self, node: usize) -> bool {
        self.target.ends(node)
    }

    fn is_certain(&self, node: usize) -> bool {
        self.target.is_raced() || self.drafts[node].is_certain()
    }

    fn proposed(&self, node: usize) -> f64 {
        let draft = &self.drafts[node];
        draft.weights().share(draft.token())
    }

    fn own_probability(&self, node: usize) -> OwnProbability {
        self.drafts[node].weights().own_probability()
    }

    fn come_to(&mut self, row: usize) -> Result<(), RowError> {
        let target = self.target.distribution(row)?;
        self.current = Some(CurrentRow { row, left: Weights::from(&target), target, is_whole: true });
        Ok(())
    }

    fn look_aside(&mut self) {
        self.target.look_aside();
    }

    fn share(&mut self, token: u32) -> f64 {
        self.current().left.share(token)
    }

    fn draw(&mut self, uniform: u64) -> u32 {
        let current = self.current();
        match self.target.race(current.row) {
            Some(race) => current.target.first_of(race),
            None if current.is_whole => current.target.draw(uniform),
            None => current.left.draw(uniform),
        }
    }

    fn beyond(&mut self, factor: f64, node: usize) -> f64 {
        self.residual(factor, node).total() as f64 / ONE
    }

    fn take(&mut self, factor: f64, node: usize) {
        let left = self.residual(factor, node);
        if let Some(current) = self.current.as_mut().filter(|_| left.total() > 0) {
            (current.left, current.is_whole) = (left, false);
        }
    }

    fn has_one(&mut self) -> bool {
        Weights::from(&self.current().target).is_certain()
    }

    fn first(&mut self) -> u32 {
        self.current().target.kept()[0].candidate.token
    }

    fn entropy(&mut self) -> f64 {
        let target = &self.current().target;
        let term =
            |w: &crate::sampling::filters::Weighted| typical::entropy_term(target.exponent(w.candidate.logit), w.mass);
        typical::entropy(target.kept().iter().map(term).sum(), target.total())
    }

    fn relaxed(&mut self, relaxed: &Relaxed) -> Result<Vec<u32>, RowError> {
        let judged = self.target.relaxed(self.current().row)?;
        let accepted = relaxed.accepted(judged.kept().iter().map(|w| w.mass), judged.total());
        Ok(judged.kept()[..accepted].iter().map(|w| w.candidate.token).collect())
    }

    fn chance_of(&mut self, node: usize, tokens: &[u32]) -> f64 {
        let draft = self.drafts[node].weights();
        share(tokens.iter().map(|&token| draft.weight(token)).sum(), draft.total())
    }

    fn chance_from(&mut self, node: usize, least: f64) -> f64 {
        let target = Weights::from(&self.current().target);
        let draft = self.drafts[node].weights();
        let accepted = draft.entries().iter().filter(|&&(token, _)| {
            let share = target.share(token);
            share > 0.0 && share >= least
        });
        share(accepted.map(|&(_, weight)| weight).sum(), draft.total())
    }

    fn rank(&mut self, token: u32) -> u32 {
        self.current().target.rank(token)
    }

    fn state_before(&self, row: usize) -> Option<SamplerState> {
        self.target.state_before(row)
    }

    fn state_after(&mut self, token: u32) -> Option<SamplerState> {
        let current = self.current();
        self.target.state_after(current.row, &current.target, token)
    }
}
