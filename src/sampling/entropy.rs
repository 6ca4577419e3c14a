//! Entropy of integer masses.

use super::mass::{Y_FLOOR, log_total};

/// Shannon entropy in nats of tokens with these [terms](entropy_term) and masses in total: `-sum of p ln p` with
/// `ln p = y ln 2 - ln(total / 2^40)`, as logprobs are.
#[must_use]
pub fn entropy(terms: u64, total: u64) -> f64 {
    log_total(total) + std::f64::consts::LN_2 * (terms as f64 / total as f64)
}

/// What a token of this exponent and mass adds: `-y * mass`, at most 2^39.1, as an integer so that a row's sum
/// does not depend on the order of addition.
#[must_use]
#[inline]
pub fn entropy_term(y: f32, mass: u64) -> u64 {
    // Where y is cut the mass is 0.
    count(mass as f64 * f64::from(-y.max(Y_FLOOR)))
}

/// A real number of at least 0 and at most 2^52 as an integer: the nearest, the even one of two.
#[must_use]
#[inline]
pub fn count(real: f64) -> u64 {
    // The integers from 2^52 to 2^53 are the floats there, one bit apart.
    const SHIFT: f64 = (1u64 << 52) as f64;
    (real + SHIFT).to_bits() - SHIFT.to_bits()
}

/// An integer below 2^52 as a real number. A conversion is one operation for each number alone, these are for vectors of them.
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
