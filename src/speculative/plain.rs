//! The specification's answers to what the rules ask: sequential and obvious.

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
use crate::sampling::mark::race::Race;
use crate::sampling::row::RowError;

/// The target as seen from the sequence that is verified. The draft tokens before a row count as emitted: penalties,
/// bans and lengths grow along them.
pub trait Target {
    /// What a plain row would be drawn from after this row's draft token: row 0 is the row after the sequence's last
    /// token, `i + 1` the row after draft token `i`.
    ///
    /// # Errors
    /// [`RowError`] if that row has no distribution. Rows that a verification does not come to are not asked for.
    fn distribution(&mut self, row: usize) -> Result<Distribution, RowError>;

    /// What [relaxed acceptance](super::relaxed) judges by: the same with [`Relaxed::filters`].
    ///
    /// # Errors
    /// As [`Target::distribution`].
    fn relaxed(&mut self, row: usize) -> Result<Distribution, RowError>;

    /// Whether the sequence ends with a draft token: EOS, a stop token, its length. What was drafted behind it is
    /// dropped.
    fn ends(&self, node: usize) -> bool;

    /// Whether the sequence's draws follow a key: then every token is the plain row's, also where a draft token was drawn.
    fn is_raced(&self) -> bool {
        false
    }

    /// The race that decides the draw of a row.
    fn race(&self, _row: usize) -> Option<Race> {
        None
    }

    /// As [`Positions::look_aside`].
    fn look_aside(&mut self) {}

    /// What samplers remember before a row.
    fn state_before(&self, _row: usize) -> Option<SamplerState> {
        None
    }

    /// What they remember after a token of a row with this distribution.
    fn state_after(&self, _row: usize, _target: &Distribution, _token: u32) -> Option<SamplerState> {
        None
    }
}

/// Verifies drafts.
///
/// # Errors
/// [`VerifyError`] if a row that was needed has no distribution.
///
/// # Panics
/// If the tree is not one of `drafts.len()` tokens, which is a bug.
pub fn verify(drafts: &[Draft], plan: &Plan<'_>, target: &mut impl Target) -> Result<Verified, VerifyError> {
    assert_eq!(plan.tree.len(), drafts.len(), "one parent per draft token; this is a bug");
    plan.verify(&mut Plain { drafts, target, here: None })
}

struct Plain<'a, T> {
    drafts: &'a [Draft],
    target: &'a mut T,
    here: Option<Here>,
}

/// A row that was come to.
struct Here {
    row: usize,
    target: Distribution,
    left: Weights,
    /// Whether all of the target is left.
    is_whole: bool,
}

impl<T> Plain<'_, T> {
    fn here(&self) -> &Here {
        self.here.as_ref().expect("a rule comes to a row first; this is a bug")
    }

    fn residual(&self, factor: f64, node: usize) -> Weights {
        let draft = self.drafts[node].weights();
        self.here().left.residual(factor, draft.total(), |token| draft.weight(token))
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
        self.here = Some(Here { row, left: Weights::from(&target), target, is_whole: true });
        Ok(())
    }

    fn look_aside(&mut self) {
        self.target.look_aside();
    }

    fn share(&mut self, token: u32) -> f64 {
        self.here().left.share(token)
    }

    fn draw(&mut self, uniform: u64) -> u32 {
        let here = self.here();
        match self.target.race(here.row) {
            Some(race) => here.target.first_of(race),
            None if here.is_whole => here.target.draw(uniform),
            None => here.left.draw(uniform),
        }
    }

    fn beyond(&mut self, factor: f64, node: usize) -> f64 {
        self.residual(factor, node).total() as f64 / ONE
    }

    fn take(&mut self, factor: f64, node: usize) {
        let left = self.residual(factor, node);
        if let Some(here) = self.here.as_mut().filter(|_| left.total() > 0) {
            (here.left, here.is_whole) = (left, false);
        }
    }

    fn has_one(&mut self) -> bool {
        Weights::from(&self.here().target).is_certain()
    }

    fn first(&mut self) -> u32 {
        self.here().target.kept()[0].candidate.token
    }

    fn entropy(&mut self) -> f64 {
        let target = &self.here().target;
        let term =
            |w: &crate::sampling::filters::Weighted| typical::entropy_term(target.exponent(w.candidate.logit), w.mass);
        typical::entropy(target.kept().iter().map(term).sum(), target.total())
    }

    fn relaxed(&mut self, relaxed: &Relaxed) -> Result<Vec<u32>, RowError> {
        let judged = self.target.relaxed(self.here().row)?;
        let accepted = relaxed.accepted(judged.kept().iter().map(|w| w.mass), judged.total());
        Ok(judged.kept()[..accepted].iter().map(|w| w.candidate.token).collect())
    }

    fn chance_of(&mut self, node: usize, tokens: &[u32]) -> f64 {
        let draft = self.drafts[node].weights();
        share(tokens.iter().map(|&token| draft.weight(token)).sum(), draft.total())
    }

    fn chance_from(&mut self, node: usize, least: f64) -> f64 {
        let target = Weights::from(&self.here().target);
        let draft = self.drafts[node].weights();
        let accepted = draft.entries().iter().filter(|&&(token, _)| {
            let share = target.share(token);
            share > 0.0 && share >= least
        });
        share(accepted.map(|&(_, weight)| weight).sum(), draft.total())
    }

    fn rank(&mut self, token: u32) -> u32 {
        self.here().target.rank(token)
    }

    fn state_before(&self, row: usize) -> Option<SamplerState> {
        self.target.state_before(row)
    }

    fn state_after(&mut self, token: u32) -> Option<SamplerState> {
        let here = self.here();
        self.target.state_after(here.row, &here.target, token)
    }
}
