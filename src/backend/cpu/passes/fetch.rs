//! The first pass over memory that others may write. See the [module](super) for safety.

use super::{AHEAD, BLOCK, Scan, spread};
use crate::backend::cpu::simd::{Format, Simd};

/// Block maxima and NaN check of `count` whole blocks. Every value is read once. `from` is the beginning of a cache
/// line.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn look<S: Simd, F: Format>(
    from: *const u8,
    count: usize,
    maxima: &mut [f32],
) -> Scan {
    // SAFETY: passed on; nothing is stored.
    unsafe { each_block::<S, F, false>(from, std::ptr::null_mut(), count, maxima) }
}

/// As [`look`], and writes the values that it read to `to`, which has room for whole blocks only.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn fetch<S: Simd, F: Format>(
    from: *const u8,
    to: &mut [u8],
    maxima: &mut [f32],
) -> Scan {
    // SAFETY: passed on; the blocks are those that `to` holds.
    unsafe { each_block::<S, F, true>(from, to.as_mut_ptr(), to.len() / (BLOCK * F::SIZE), maxima) }
}

#[inline(always)]
unsafe fn each_block<S: Simd, F: Format, const KEEP: bool>(
    from: *const u8,
    to: *mut u8,
    count: usize,
    maxima: &mut [f32],
) -> Scan {
    // SAFETY: see the module; blocks lie in what the caller promises, and a hint may be any address. Without `KEEP` the place
    // to store at is only handed on.
    unsafe {
        let (mut all, mut nan) = (S::splat(f32::NEG_INFINITY), 0);
        for i in 0..count {
            let b = if S::SPREADS { spread(i, count) } else { i };
            let at = from.add(b * BLOCK * F::SIZE);
            let to = to.wrapping_add(b * BLOCK * F::SIZE);
            S::ahead(at, AHEAD, BLOCK * F::SIZE);
            let mut max = S::splat(f32::NEG_INFINITY);
            for v in (0..BLOCK / S::LANES).step_by(2) {
                let (one, two) = (v * S::LANES * F::SIZE, (v + 1) * S::LANES * F::SIZE);
                let x0 = F::fetch::<S, KEEP>(at.add(one), to.wrapping_add(one));
                let x1 = F::fetch::<S, KEEP>(at.add(two), to.wrapping_add(two));
                nan |= S::either_nan(x0, x1);
                max = S::max(max, S::max(x0, x1));
            }
            maxima[b] = S::reduce_max(max);
            all = S::max(all, max);
        }
        Scan { max: S::reduce_max(all), nan: nan != 0 }
    }
}
