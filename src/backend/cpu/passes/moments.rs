//! Passes for the deviation of logits. See the [module](super) for safety.

// Blocks are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::{BLOCK, Blocks, load};
use crate::backend::cpu::simd::measures::Measures;
use crate::backend::cpu::simd::{Format, Simd};
use crate::sampling::samplers::top_n_sigma::Moments;

/// The values of a block.
#[inline(always)]
unsafe fn values<S: Simd, F: Format>(at: *const u8) -> [f32; BLOCK] {
    let mut values = [0.0f32; BLOCK];
    for v in 0..BLOCK / S::LANES {
        // SAFETY: see the module; v * LANES + LANES <= BLOCK.
        unsafe { S::store(values.as_mut_ptr().add(v * S::LANES), load::<S, F>(at, v)) };
    }
    values
}

/// The least value that is not −∞; +∞ if there is none.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn least<S: Measures, F: Format>(row: &[u8], maxima: &[f32]) -> f32 {
    let rows = Blocks::<F>::new(row);
    let mut least = f32::INFINITY;
    for b in 0..rows.count() {
        if maxima[b] > f32::NEG_INFINITY {
            // SAFETY: see the module.
            least = least.min(unsafe { S::least(&values::<S, F>(rows.get(b))) });
        }
    }
    least
}

/// Adds the row's values to the sums of a deviation.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn moments<S: Measures, F: Format>(row: &[u8], maxima: &[f32], into: &mut Moments) {
    let rows = Blocks::<F>::new(row);
    for b in 0..rows.count() {
        if maxima[b] > f32::NEG_INFINITY {
            // SAFETY: see the module.
            unsafe { S::moments_add(&values::<S, F>(rows.get(b)), into) };
        }
    }
}
