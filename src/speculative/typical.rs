//! Typical acceptance (Cai et al. 2024, Medusa, section 2.3.1; Hewitt et al. 2022): a draft token is accepted
//! if its target probability is at least `min(epsilon, alpha * exp(-H))`, `H` the target's entropy in nats. So
//! where the target is undecided, any plausible token will do. Not lossless: the draft decides among them.
//!
//! The target is the processed one, and what follows the accepted tokens is drawn from it as a plain row.

use super::weights::count;
pub use crate::params::acceptance::Typical;
use crate::sampling::mass::{Y_FLOOR, log_total};

impl Typical {
    /// The least target probability that is accepted, where the target has this entropy. A token without any
    /// probability is never accepted.
    #[must_use]
    pub fn threshold(&self, entropy: f64) -> f64 {
        // libm: the platforms' own exponentials differ in last bits.
        f64::from(self.epsilon).min(f64::from(self.alpha) * libm::exp(-entropy))
    }
}

/// Shannon entropy in nats of tokens with these [terms](entropy_term) and masses in total: `-sum of p ln p` with
/// `ln p = y ln 2 - ln(total / 2^40)`, as logprobs are.
#[must_use]
pub fn entropy(terms: u64, total: u64) -> f64 {
    log_total(total) + std::f64::consts::LN_2 * (terms as f64 / total as f64)
}

/// What a token of this exponent and mass adds: `-y * mass`, at most 2^39.1, as an integer so that a row's sum
/// does not depend on the order of addition.
#[must_use]
pub fn entropy_term(y: f32, mass: u64) -> u64 {
    // Where y is cut the mass is 0.
    count(mass as f64 * f64::from(-y.max(Y_FLOOR)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::mass::mass;

    fn of_probabilities(probs: &[f64]) -> f64 {
        let most = probs.iter().copied().fold(0.0, f64::max);
        let tokens: Vec<(f32, u64)> = probs.iter().map(|p| (p / most).log2() as f32).map(|y| (y, mass(y))).collect();
        entropy(tokens.iter().map(|&(y, mass)| entropy_term(y, mass)).sum(), tokens.iter().map(|t| t.1).sum())
    }

    #[test]
    fn entropy_of_known_distributions() {
        assert_eq!(of_probabilities(&[1.0]), 0.0);
        assert!((of_probabilities(&vec![1.0; 1 << 20]) - 20.0 * std::f64::consts::LN_2).abs() < 1e-6);
        assert!((of_probabilities(&[0.25, 0.75]) - 0.562_335_144_6).abs() < 1e-7);
        assert!((of_probabilities(&[0.25, 0.0, 0.75]) - 0.562_335_144_6).abs() < 1e-7);
    }

    #[test]
    fn the_threshold_falls_with_entropy() {
        let typical = Typical { epsilon: 0.2, alpha: 0.4 };
        // exp(-H) of n equally likely tokens is 1 / n.
        for (tokens, expected) in [(1, 0.2), (2, 0.2), (4, 0.1), (10, 0.04)] {
            let threshold = typical.threshold(of_probabilities(&vec![1.0; tokens]));
            assert!((threshold - expected).abs() < 1e-8, "{tokens}");
        }
    }
}
