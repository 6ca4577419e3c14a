//! The acceptance rules by name, and which of them are lossless.

pub use crate::params::acceptance::AcceptanceRule;

impl AcceptanceRule {
    /// Whether emitted tokens have the target's distribution. `certain`: whether each target distribution
    /// leaves one token, as it does for temperature 0 and `top_k` 1. Then the most likely token is the only one,
    /// and typical acceptance, which takes no token without a share and whose threshold is at most `epsilon <= 1`, takes it alone.
    #[must_use]
    pub fn is_lossless(&self, certain: bool) -> bool {
        match self {
            Self::Rejection | Self::Block => true,
            Self::Greedy | Self::Typical(_) => certain,
            Self::Relaxed(_) | Self::Synthetic(_) => false,
        }
    }
}
