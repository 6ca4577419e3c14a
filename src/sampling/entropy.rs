//! Entropy of integer masses.

use super::mass::{Y_FLOOR, log_total};

/// Shannon entropy in nats, from the sum of the tokens' [terms](entropy_term) and the sum of their masses:
/// `-sum of p ln p` with `ln p = y ln 2 - ln(total / 2^40)`, as for logprobs.
#[must_use]
pub fn entropy(terms: u64, total: u64) -> f64 {
    log_total(total) + std::f64::consts::LN_2 * (terms as f64 / total as f64)
}

/// The term of a token with this exponent and mass: `-y * mass`, at most 2^39.1. It is an integer, so that a row's sum
/// does not depend on the order of addition.
#[must_use]
#[inline]
pub fn entropy_term(y: f32, mass: u64) -> u64 {
    // Where `y` is below the floor the mass is 0, and so is the product.
    count(mass as f64 * f64::from(-y.max(Y_FLOOR)))
}

/// Rounds a real number from 0 to 2^52 to the nearest integer, ties to even.
#[must_use]
#[inline]
pub fn count(real: f64) -> u64 {
    // From 2^52 to 2^53 the floats are exactly the integers, one bit apart.
    const SHIFT: f64 = (1u64 << 52) as f64;
    (real + SHIFT).to_bits() - SHIFT.to_bits()
}

/// Converts an integer below 2^52 to a real number. A conversion instruction takes one number at a time; these
/// operations vectorise.
#[must_use]
#[inline]
pub fn real(count: u64) -> f64 {
    const SHIFT: f64 = (1u64 << 52) as f64;
    f64::from_bits(count | SHIFT.to_bits()) - SHIFT
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
}
