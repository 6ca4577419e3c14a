//! Typical acceptance (Cai et al. 2024, Medusa, section 2.3.1; Hewitt et al. 2022): a draft token is accepted
//! if its target probability is at least `min(epsilon, alpha * exp(-H))`, `H` the target's entropy in nats. So
//! where the target is undecided, any plausible token will do. Not lossless: the draft decides among them.
//!
//! The target is the processed one, and what follows the accepted tokens is drawn from it as a plain row.

use super::weights::Weights;
pub use crate::params::acceptance::Typical;

impl Typical {
    /// The least target probability that is accepted.
    #[must_use]
    pub fn threshold(&self, target: &Weights) -> f64 {
        // libm: the platforms' own exponentials differ in last bits.
        f64::from(self.epsilon).min(f64::from(self.alpha) * libm::exp(-target.entropy()))
    }

    /// Whether the target accepts a token.
    #[must_use]
    pub fn accepts(&self, target: &Weights, token: u32) -> bool {
        let share = target.share(token);
        // A token that masks or filters removed is never emitted, not even at epsilon 0.
        share > 0.0 && share >= self.threshold(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_falls_with_entropy() {
        let typical = Typical { epsilon: 0.2, alpha: 0.4 };
        let flat = |tokens: u32| Weights::new((0..tokens).map(|token| (token, 1)));
        // exp(-H) of n equally likely tokens is 1 / n.
        for (tokens, expected) in [(1, 0.2), (2, 0.2), (4, 0.1), (10, 0.04)] {
            assert!((typical.threshold(&flat(tokens)) - expected).abs() < 1e-8, "{tokens}");
        }
        assert!(typical.accepts(&flat(4), 3));
        assert!(!typical.accepts(&flat(4), 4));
        assert!(!Typical { epsilon: 0.0, ..typical }.accepts(&flat(4), 4));
        let peaked = Weights::new([(0, 15), (1, 1)].into_iter());
        assert!(typical.accepts(&peaked, 0) && !typical.accepts(&peaked, 1));
    }
}
