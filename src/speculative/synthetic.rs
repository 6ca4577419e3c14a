//! Synthetic acceptance: each draft token is accepted with a fixed probability, whatever it is. For load tests
//! of a worker at a given acceptance rate; the text is worthless. Not lossless.

use super::numbers::unit;

/// Parameters of synthetic acceptance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Synthetic {
    /// The probability. Range 0 ..= 1.
    pub rate: f32,
}

impl Synthetic {
    /// Whether a token with this accept number is accepted.
    #[must_use]
    pub fn accepts(&self, uniform: u64) -> bool {
        unit(uniform) < f64::from(self.rate)
    }
}
