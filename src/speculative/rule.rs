//! The acceptance rules by name, and which of them are lossless.

pub use crate::params::acceptance::AcceptanceRule;

impl AcceptanceRule {
    /// Whether emitted tokens have the target's distribution. `certain` says whether each target distribution has only
    /// one token left, as with temperature 0 or `top_k` 1. Then that token is also the most likely one. Typical
    /// acceptance takes it and no other, because its threshold is at most `epsilon <= 1` and it accepts no token of
    /// probability 0.
    #[must_use]
    pub fn is_lossless(&self, certain: bool) -> bool {
        match self {
            Self::Rejection | Self::Block => true,
            Self::Greedy | Self::Typical(_) => certain,
            Self::Relaxed(_) | Self::Synthetic(_) => false,
        }
    }
}
