//! Top-n-sigma (Tang et al. 2024): keeps logits of at least the largest minus `n` standard deviations.
//!
//! The population's deviation, of the candidates' logits (llama.cpp; Aphrodite takes the unbiased one, text-generation-webui
//! counts masked logits as 0). Temperature does not change what is kept. Sums are integers: distances to the largest in
//! units of 2^-8, the nearest one, at most 2^20 of them.

use crate::sampling::candidates::Candidates;

/// Units per logit.
const UNITS: f32 = 256.0;
/// Distances are at most this.
const MOST: f32 = 1_048_576.0;

/// A number of at least 0 and at most [`MOST`] as an integer: the nearest, the even one of two.
#[inline]
fn nearest(number: f32) -> u32 {
    // The integers from 2^23 to 2^24 are the floats there, one bit apart.
    const SHIFT: f32 = 8_388_608.0;
    (number + SHIFT).to_bits() - SHIFT.to_bits()
}

/// What a deviation is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moments {
    /// Candidates.
    pub number: u64,
    /// Sum of distances.
    pub sum: u64,
    /// Sum of their squares.
    pub squares: u64,
}

impl Moments {
    /// Takes in logits, of which those at −∞ are no candidates.
    #[inline]
    pub fn add_all(&mut self, max: f32, logits: &[f32]) {
        for &logit in logits {
            let units = nearest(((max - logit) * UNITS).min(MOST));
            let candidate = u32::from(logit > f32::NEG_INFINITY);
            self.number += u64::from(candidate);
            self.sum += u64::from(units * candidate);
            self.squares += u64::from(units * candidate) * u64::from(units);
        }
    }

    /// The least logit that stays.
    #[must_use]
    pub fn least(&self, max: f32, n: f32) -> f32 {
        let (number, sum) = (u128::from(self.number), u128::from(self.sum));
        let variance =
            (number * u128::from(self.squares) - sum * sum) as f64 / (self.number as f64 * self.number as f64);
        let sigma = variance.sqrt() / f64::from(UNITS);
        (f64::from(max) - f64::from(n) * sigma) as f32
    }
}

/// Keeps the candidates above the cut.
pub fn apply(left: &mut Candidates, n: f32) {
    let max = left.kept().first().map_or(0.0, |first| first.candidate.logit);
    let mut moments = Moments::default();
    left.kept().iter().for_each(|w| moments.add_all(max, &[w.candidate.logit]));
    let least = moments.least(max, n);
    left.keep(|w| w.candidate.logit >= least);
}
