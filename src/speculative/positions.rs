//! What the rules ask of a verification. The specification answers in [`plain`](super::plain); a backend answers in its
//! own way, with the same bits. The rules themselves are written only once, on top of this trait.

use super::relaxed::Relaxed;
use super::weights::OwnProbability;
use crate::params::state::SamplerState;
use crate::sampling::row::RowError;

/// A draft and the rows to verify it with. A draft token is named by its index, the node. Row 0 follows the sequence's
/// last token, row `i + 1` follows draft token `i`.
///
/// The rules look at one row at a time, the one that [`Positions::come_to`] was last called with. What is *left* there
/// is at first the row's own distribution, the target; [`Positions::take`] changes it.
pub trait Positions {
    /// The draft token with this index.
    fn token(&self, node: usize) -> u32;

    /// Whether the sequence ends with a draft token.
    fn ends(&self, node: usize) -> bool;

    /// Whether no other token could have been proposed in its place. This holds for every proposer without chance,
    /// whether it says so or gives a distribution of one token. It also holds for every draft token of a text whose
    /// draws follow a key ([`race`](crate::sampling::watermark::race)), because there only the token that a plain row would
    /// draw carries the mark.
    fn is_certain(&self, node: usize) -> bool;

    /// The probability that a draft token had in its draft distribution.
    fn proposed(&self, node: usize) -> f64;

    /// The mean and variance of that probability over tokens drawn from the same draft distribution.
    fn own_probability(&self, node: usize) -> OwnProbability;

    /// Makes a row the current one. All of its target is left then.
    ///
    /// # Errors
    /// [`RowError`] if it has no distribution. Rows that are never visited may be anything.
    fn come_to(&mut self, row: usize) -> Result<(), RowError>;

    /// Announces that rows visited from here on are only measured, so that nothing emitted depends on them.
    fn look_aside(&mut self) {}

    /// The probability of a token in what is left.
    fn share(&mut self, token: u32) -> f64;

    /// Draws from what is left: by inverse CDF in token-id order, as a plain row does, or by the race if there is one.
    fn draw(&mut self, uniform: u64) -> u32;

    /// The sum of `max(factor * left - draft, 0)` over all tokens.
    fn beyond(&mut self, factor: f64, node: usize) -> f64;

    /// Replaces what is left by `max(factor * left - draft, 0)`, normalised. If that is nothing, what is left does not
    /// change: the two distributions are then equal up to rounding, so it will do.
    fn take(&mut self, factor: f64, node: usize);

    /// Whether the target has only one token.
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

    /// The probability that a token drawn from this node's draft distribution is one of `tokens`, which are all
    /// different.
    fn chance_of(&mut self, node: usize, tokens: &[u32]) -> f64;

    /// The probability that a token drawn from this node's draft distribution has a target probability above 0 and of
    /// at least `share`.
    fn chance_from(&mut self, node: usize, share: f64) -> f64;

    /// 1 + the number of tokens before this one in the [order](crate::sampling::order) of the row's adjusted logits; 0
    /// if a [listed](crate::sampling::listed) row does not say.
    fn rank(&mut self, token: u32) -> u32;

    /// What samplers remember before a row whose parent row was visited; `None` if they have no state.
    fn state_before(&self, row: usize) -> Option<SamplerState>;

    /// What they remember after this token at the current row.
    fn state_after(&mut self, token: u32) -> Option<SamplerState>;
}
