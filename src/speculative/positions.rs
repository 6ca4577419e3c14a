//! What the rules ask of a verification. The specification answers in [`plain`](super::plain), a backend in its own
//! way with the same bits; the rules themselves are written once, above this.

use super::relaxed::Relaxed;
use super::weights::OwnProbability;
use crate::params::state::SamplerState;
use crate::sampling::row::RowError;

/// A draft and the rows to verify it with. Draft tokens go by their indices; row 0 follows the sequence's last token,
/// row `i + 1` draft token `i`.
///
/// One row at a time is looked at: the last that was [come to](Positions::come_to). What is *left* there is at first
/// the row's own distribution, the target, and changes with [`Positions::take`].
pub trait Positions {
    /// A draft token.
    fn token(&self, node: usize) -> u32;

    /// Whether the sequence ends with a draft token.
    fn ends(&self, node: usize) -> bool;

    /// Whether no other token could have been proposed in its place. So for every proposer without chance, whether
    /// it says so or gives a distribution of one token. And for any in a text whose draws follow a key
    /// ([`race`](crate::sampling::mark::race)), where only the token that a plain row would draw carries the mark.
    fn is_certain(&self, node: usize) -> bool;

    /// The probability that a draft token had in its draft distribution.
    fn proposed(&self, node: usize) -> f64;

    /// What that probability is for tokens drawn from its draft distribution.
    fn own_probability(&self, node: usize) -> OwnProbability;

    /// Goes to a row, whose whole target is left there.
    ///
    /// # Errors
    /// [`RowError`] if it has no distribution. Rows that nothing goes to may be anything.
    fn come_to(&mut self, row: usize) -> Result<(), RowError>;

    /// From here on rows are come to for their measure only, which nothing that is emitted goes by.
    fn look_aside(&mut self) {}

    /// The probability of a token in what is left.
    fn share(&mut self, token: u32) -> f64;

    /// Draws from what is left: inverse CDF in token-id order, as a plain row; by the race where there is one.
    fn draw(&mut self, uniform: u64) -> u32;

    /// The sum of `max(factor * left - draft, 0)` over all tokens.
    fn beyond(&mut self, factor: f64, node: usize) -> f64;

    /// What is left becomes `max(factor * left - draft, 0)`, normalised; unless that is nothing, which it is only
    /// where the two are equal up to rounding: then what is left will do.
    fn take(&mut self, factor: f64, node: usize);

    /// Whether the target has one token.
    fn has_one(&mut self) -> bool;

    /// The target's most likely token.
    fn first(&mut self) -> u32;

    /// The target's [entropy](super::typical::entropy).
    fn entropy(&mut self) -> f64;

    /// The tokens that [relaxed acceptance](super::relaxed) takes here.
    ///
    /// # Errors
    /// As [`Positions::come_to`].
    fn relaxed(&mut self, relaxed: &Relaxed) -> Result<Vec<u32>, RowError>;

    /// The probability that a token from a draft distribution is one of `tokens`, each of which is there once.
    fn chance_of(&mut self, node: usize, tokens: &[u32]) -> f64;

    /// The probability that a token from a draft distribution has at least this share, and more than 0, of the target.
    fn chance_from(&mut self, node: usize, share: f64) -> f64;

    /// 1 + the number of tokens before this one in the [order](crate::sampling::order) of the row's adjusted logits; 0 where a
    /// [listed](crate::sampling::listed) row does not tell.
    fn rank(&mut self, token: u32) -> u32;

    /// What samplers remember before a row whose parent was come to; `None` where they have no state.
    fn state_before(&self, row: usize) -> Option<SamplerState>;

    /// What they remember after this token at the position come to.
    fn state_after(&mut self, token: u32) -> Option<SamplerState>;
}
