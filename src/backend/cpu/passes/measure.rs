//! Passes that measure a row for samplers: its entropy and the squares of its masses. See the [module](super) for
//! safety.

// Blocks and vectors are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::{BLOCK, Blocks, Weigh, exponent, exponents, has_mass, load};
use crate::backend::cpu::simd::Format;
use crate::backend::cpu::simd::measures::Measures;
use crate::backend::cpu::simd::sums::{GROUP, Sums};
use crate::sampling::mass::Y_FLOOR;

/// What [`terms`] found.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend::cpu) struct Terms {
    /// The sum of the [entropy terms](crate::sampling::entropy::entropy_term).
    pub(in crate::backend::cpu) terms: u64,
    /// The sum of the masses.
    pub(in crate::backend::cpu) total: u64,
    /// How many values are not −∞.
    pub(in crate::backend::cpu) candidates: u64,
}

/// Entropy terms, masses and candidates of the row. Blocks without mass have no terms either.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn terms<S: Sums, F: Format>(row: &[u8], maxima: &[f32], weigh: Weigh) -> Terms {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        let (floor, masked) = (S::splat(Y_FLOOR), S::splat(f32::NEG_INFINITY));
        let (mut terms, mut total, mut candidates) = (S::mass_zero(), 0, 0);
        for b in 0..rows.count() {
            if maxima[b] == f32::NEG_INFINITY {
                continue;
            }
            let (at, mut sum) = (rows.get(b), S::sum_zero());
            for v in 0..BLOCK / S::LANES {
                candidates += u64::from(S::gt(load::<S, F>(at, v), masked).count_ones());
            }
            if !has_mass(weigh.largest(maxima[b])) {
                continue;
            }
            for v in (0..BLOCK / S::LANES).step_by(GROUP) {
                let mut y = exponents::<S, F>(at, v, max, scale);
                for y in &mut y {
                    *y = S::max(*y, floor);
                }
                let shares = S::shares(y);
                sum = S::sum_add(sum, shares);
                terms = S::terms_add(terms, y, shares);
            }
            total += S::sum_total(sum);
        }
        Terms { terms: S::mass_sum(terms), total, candidates }
    }
}

/// What [`squares`] found.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend::cpu) struct Squares {
    /// The sum of the squares of the masses.
    pub(in crate::backend::cpu) squares: u128,
    /// The sum of the masses.
    pub(in crate::backend::cpu) total: u64,
}

/// The sum of the squares of the row's masses, and the sum of the masses.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn squares<S: Measures, F: Format>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
) -> Squares {
    // SAFETY: see the module; what is stored fits the array.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        let (floor, mut masses) = (S::splat(Y_FLOOR), [0u64; BLOCK]);
        let (mut squares, mut total) = (0, S::mass_zero());
        for b in 0..rows.count() {
            if !has_mass(weigh.largest(maxima[b])) {
                continue;
            }
            let at = rows.get(b);
            for v in 0..BLOCK / S::LANES {
                let mass = S::mass(S::max(exponent::<S>(load::<S, F>(at, v), max, scale), floor));
                S::mass_store(masses.as_mut_ptr().add(v * S::LANES), mass);
                total = S::mass_add(total, mass);
            }
            squares += S::squares(&masses);
        }
        Squares { squares, total: S::mass_sum(total) }
    }
}
