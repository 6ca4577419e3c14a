//! Synthetic acceptance: each draft token is accepted with a fixed probability, whatever it is. For load tests
//! of a worker at a given acceptance rate; the text is worthless. Not lossless.

use super::numbers::unit;
pub use crate::params::acceptance::Synthetic;

impl Synthetic {
    /// Whether a token with this accept number is accepted.
    #[must_use]
    pub fn accepts(&self, uniform: u64) -> bool {
        unit(uniform) < f64::from(self.rate)
    }
}
