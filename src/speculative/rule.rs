//! The acceptance rules by name.

use super::relaxed::Relaxed;
use super::synthetic::Synthetic;
use super::typical::Typical;

/// How draft tokens are accepted. See each rule's file for what it does and where it is from.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum AcceptanceRule {
    /// Standard rejection sampling.
    #[default]
    Rejection,
    /// The draft token must be the target's most likely one.
    Greedy,
    /// Block verification. In a tree that is not a chain: [`AcceptanceRule::Rejection`].
    Block,
    /// Typical acceptance.
    Typical(Typical),
    /// Relaxed acceptance.
    Relaxed(Relaxed),
    /// A fixed rate.
    Synthetic(Synthetic),
}

impl AcceptanceRule {
    /// Whether emitted tokens have the target's distribution. `certain`: whether each target distribution
    /// leaves one token, as it does for temperature 0 and `top_k` 1. Then the most likely token is the only one,
    /// and typical acceptance, whose threshold is above 0 and at most `epsilon <= 1`, takes it alone.
    #[must_use]
    pub fn is_lossless(&self, certain: bool) -> bool {
        match self {
            Self::Rejection | Self::Block => true,
            Self::Greedy => certain,
            Self::Typical(typical) => certain && typical.epsilon > 0.0,
            Self::Relaxed(_) | Self::Synthetic(_) => false,
        }
    }
}
