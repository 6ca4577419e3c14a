//! Synthetic acceptance: each draft token that the target could emit is accepted with a fixed probability, however
//! likely it is. A token that masks or filters removed is not accepted. This is for load tests of a worker at a given
//! acceptance rate; the text is worthless. Not lossless.

use super::numbers::unit;
pub use crate::params::acceptance::Synthetic;

impl Synthetic {
    /// Whether a token with this accept number is accepted, provided that the target could emit it.
    #[must_use]
    pub fn accepts(&self, uniform: u64) -> bool {
        unit(uniform) < f64::from(self.rate)
    }
}
