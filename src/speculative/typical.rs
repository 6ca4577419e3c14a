//! Typical acceptance (Cai et al. 2024, Medusa, section 2.3.1; Hewitt et al. 2022): a draft token is accepted if its
//! target probability is at least `min(epsilon, alpha * exp(-H))`, where `H` is the target's entropy in nats. So where
//! the target is undecided, any plausible token is accepted. Not lossless: the draft decides which of the plausible
//! tokens comes.
//!
//! The target is the processed distribution. The token after the accepted ones is drawn from it as in a plain row.

pub use crate::params::acceptance::Typical;
pub use crate::sampling::entropy::{entropy, entropy_term};

impl Typical {
    /// The least target probability that is accepted where the target has this entropy. A token of probability 0 is
    /// never accepted, even if the threshold is 0.
    #[must_use]
    pub fn threshold(&self, entropy: f64) -> f64 {
        // libm, because the exponentials of different platforms differ in their last bits.
        f64::from(self.epsilon).min(f64::from(self.alpha) * libm::exp(-entropy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_threshold_falls_with_entropy() {
        let typical = Typical { epsilon: 0.2, alpha: 0.4 };
        // exp(-H) of n equally likely tokens is 1 / n.
        for (tokens, expected) in [(1, 0.2), (2, 0.2), (4, 0.1), (10, 0.04)] {
            let threshold = typical.threshold(f64::from(tokens).ln());
            assert!((threshold - expected).abs() < 1e-8, "{tokens}");
        }
    }
}
