//! Passes that measure a row for a sampler: its entropy. See the [module](super) for safety.

// Blocks and vectors are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::{BLOCK, Blocks, NO_MASS_Y, Weigh, exponent, load};
use crate::backend::cpu::simd::Format;
use crate::backend::cpu::simd::real::Real;
use crate::sampling::mass::Y_FLOOR;

/// What [`terms`] found.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend::cpu) struct Terms {
    /// The sum of the [entropy terms](crate::sampling::entropy::entropy_term).
    pub(in crate::backend::cpu) terms: u64,
    /// The sum of the masses.
    pub(in crate::backend::cpu) total: u64,
}

/// Entropy terms and masses of the row. Blocks without mass have no terms either.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn terms<S: Real, F: Format>(row: &[u8], maxima: &[f32], weigh: Weigh) -> Terms {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        let (floor, zero) = (S::splat(Y_FLOOR), S::splat(0.0));
        let (mut terms, mut total) = (S::mass_zero(), S::mass_zero());
        for b in 0..rows.count() {
            if (maxima[b] - weigh.max) * weigh.scale < NO_MASS_Y {
                continue;
            }
            let at = rows.get(b);
            for v in 0..BLOCK / S::LANES {
                let y = exponent::<S>(load::<S, F>(at, v), max, scale);
                let (mass, distance) = (S::mass(y), S::widened(S::sub(zero, S::max(y, floor))));
                terms = S::mass_add(terms, S::count(S::real_mul(S::real(mass), distance)));
                total = S::mass_add(total, mass);
            }
        }
        Terms { terms: S::mass_sum(terms), total: S::mass_sum(total) }
    }
}
