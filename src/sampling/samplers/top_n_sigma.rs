//! Top-n-sigma (Tang et al. 2024): keeps logits of at least the largest minus `n` standard deviations.
//!
//! The deviation is the population's, of the candidates' logits (llama.cpp; Aphrodite takes the unbiased one,
//! text-generation-webui counts masked logits as 0). Temperature does not change what is kept. Sums are integers: each
//! distance to the largest logit is rounded to the nearest multiple of a power of two, which is chosen so that the
//! largest distance is 2^19 to 2^20 of these units. A deviation is at least the largest distance over the square root
//! of twice the candidates, so it is right within 1e-6 of itself.

use crate::sampling::candidates::Candidates;

/// The most units that a distance has, as a power of two.
const BITS: i32 = 20;
/// How many logits are added up in 32 bits, before their sums are added to those of 64 bits.
const SOME: usize = 128;

/// The sums that a deviation is computed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    max: f32,
    /// Units per logit.
    units: f32,
    /// How many candidates there are.
    number: u64,
    /// Sum of distances.
    sum: u64,
    /// Sum of their squares.
    squares: u64,
}

/// Rounds a number from 0 to 2^20 to the nearest integer, ties to even.
#[inline]
fn nearest(number: f32) -> u32 {
    (number + Moments::SHIFT).to_bits() - Moments::SHIFT.to_bits()
}

impl Moments {
    /// The most units that a distance has.
    pub const MAX: u32 = 1 << BITS;
    /// From this number to twice as much the floats are exactly the integers, one bit apart.
    pub const SHIFT: f32 = 8_388_608.0;

    /// The largest logit, and units per logit.
    #[must_use]
    pub fn scale(&self) -> (f32, f32) {
        (self.max, self.units)
    }

    /// Adds a number of candidates, the sum of their distances and the sum of the squares of these. Distances are in
    /// [units](Self::scale), rounded to the nearest, ties to even, and at most [`MAX`](Self::MAX).
    pub fn add_sums(&mut self, number: u64, sum: u64, squares: u64) {
        self.number += number;
        self.sum += sum;
        self.squares += squares;
    }

    /// Sums over no logit yet, for logits from `min` to `max`.
    #[must_use]
    pub fn new(max: f32, min: f32) -> Self {
        let spread = max - min;
        // The power of two above the spread; one too large for an f32 counts as the largest.
        let exponent = (spread.min(f32::MAX).to_bits() >> 23) as i32 - 126;
        // Powers of 2^-127 and less are not normal numbers, and 2^128 is none.
        let power = (BITS - exponent).clamp(-126, 127);
        let units = f32::from_bits(((power + 127) as u32) << 23);
        Self { max, units, number: 0, sum: 0, squares: 0 }
    }

    /// Adds logits; those at −∞ are not candidates. Inlined, so that it is compiled for the vector instructions of its
    /// caller.
    #[inline(always)]
    pub fn add_all(&mut self, logits: &[f32]) {
        let most = Self::MAX as f32;
        // The number and the sum of so few logits fit 32 bits.
        for some in logits.chunks(SOME) {
            let (mut number, mut sum, mut squares) = (0u32, 0u32, 0u64);
            for &logit in some {
                let candidate = u32::from(logit > f32::NEG_INFINITY);
                let units = nearest(((self.max - logit) * self.units).min(most)) * candidate;
                number += candidate;
                sum += units;
                squares += u64::from(units) * u64::from(units);
            }
            self.number += u64::from(number);
            self.sum += u64::from(sum);
            self.squares += squares;
        }
    }

    /// The least logit that stays.
    #[must_use]
    pub fn least(&self, n: f32) -> f32 {
        let (number, sum) = (u128::from(self.number), u128::from(self.sum));
        let number_squared = self.number as f64 * self.number as f64;
        let variance = (number * u128::from(self.squares) - sum * sum) as f64 / number_squared;
        let sigma = variance.sqrt() / f64::from(self.units);
        (f64::from(self.max) - f64::from(n) * sigma) as f32
    }
}

/// The least of some logits that are not −∞; +∞ if there is none.
#[must_use]
#[inline(always)]
pub fn least_finite(logits: &[f32]) -> f32 {
    // Lane-wise, so that it compiles to vector minima.
    let mut lanes = [f32::INFINITY; 16];
    for chunk in logits.chunks(lanes.len()) {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            let finite = if logit > f32::NEG_INFINITY { logit } else { f32::INFINITY };
            *lane = if finite < *lane { finite } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::INFINITY, f32::min)
}

/// Keeps the candidates at or above the cut.
pub fn apply(left: &mut Candidates, n: f32) {
    let logits: Vec<f32> = left.kept().iter().map(|w| w.candidate.logit).collect();
    let mut moments = Moments::new(logits[0], least_finite(&logits));
    moments.add_all(&logits);
    let least = moments.least(n);
    left.keep(|w| w.candidate.logit >= least);
}
