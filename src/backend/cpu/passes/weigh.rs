//! Passes that weigh: masses by block and in total. See the [module](super) for safety.

// Blocks and vectors are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::{BLOCK, Blocks, Keep, MAX_VECTORS, NARROW_Y, NO_MASS_Y, PAD, Range, Values, Weigh, exponent, load};
use crate::backend::cpu::simd::{Format, Simd};

/// Mass of each block, and their total.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn sums<S: Simd, F: Format>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
    sums: &mut [u64],
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        let mut total = 0;
        for b in 0..rows.count() {
            let largest = (maxima[b] - weigh.max) * weigh.scale;
            sums[b] = if largest < NO_MASS_Y {
                0
            } else if largest <= NARROW_Y {
                let (at, mut sum) = (rows.get(b), S::narrow_zero());
                for v in 0..BLOCK / S::LANES {
                    sum = S::narrow_add(sum, S::narrow(exponent::<S>(load::<S, F>(at, v), max, scale)));
                }
                S::narrow_sum(sum)
            } else {
                let (at, mut sum) = (rows.get(b), S::mass_zero());
                for v in 0..BLOCK / S::LANES {
                    sum = S::mass_add(sum, S::mass(exponent::<S>(load::<S, F>(at, v), max, scale)));
                }
                S::mass_sum(sum)
            };
            total += sums[b];
        }
        total
    }
}

/// As [`sums`], of the masses that `keep` allows. Without `CUT`, `keep.above` is not looked at; without
/// `NEED`, `keep.need` is not.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn kept_sums<S: Simd, F: Format, const CUT: bool, const NEED: bool>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
    keep: Keep,
    sums: &mut [u64],
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale, above) = (S::splat(weigh.max), S::splat(weigh.scale), S::splat(keep.above));
        let mut total = 0;
        for b in 0..rows.count() {
            sums[b] = 0;
            let reaches = maxima[b] > keep.skip && (!CUT || maxima[b] > keep.above);
            if reaches && (maxima[b] - weigh.max) * weigh.scale >= NO_MASS_Y {
                let (at, mut sum) = (rows.get(b), S::mass_zero());
                for v in 0..BLOCK / S::LANES {
                    let x = load::<S, F>(at, v);
                    let y = exponent::<S>(x, max, scale);
                    let y = if CUT { S::where_gt(x, above, y) } else { y };
                    let mass = S::mass(y);
                    sum = if NEED { S::mass_add_ge(sum, mass, keep.need) } else { S::mass_add(sum, mass) };
                }
                sums[b] = S::mass_sum(sum);
                total += sums[b];
            }
        }
        total
    }
}

/// Mass (or with `COUNT` the number) of the values at or above `high` by block, and the values in
/// `low..high` without their masses. Returns the total of the former.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn bracket<S: Simd, F: Format, const COUNT: bool>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
    range: Range,
    sums: &mut [u64],
    inside: &mut Values,
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        let (low, high) = (S::splat(range.low), S::splat(range.high));
        let mut total = 0;
        for b in 0..rows.count() {
            sums[b] = 0;
            if maxima[b] < range.low {
                continue;
            }
            let (at, mut sum, mut count) = (rows.get(b), S::mass_zero(), 0);
            // Which values are inside, by vector. They are listed after the block: a call in between would
            // push every vector register to memory.
            let (mut listed, mut any) = ([0u32; MAX_VECTORS], 0);
            for v in 0..BLOCK / S::LANES {
                let x = load::<S, F>(at, v);
                let above = S::ge(x, high);
                listed[v] = S::ge(x, low) & !above;
                any |= listed[v];
                if COUNT {
                    count += u64::from(above.count_ones());
                } else {
                    sum = S::mass_add_lanes(sum, S::mass(exponent::<S>(x, max, scale)), above);
                }
            }
            sums[b] = if COUNT { count } else { S::mass_sum(sum) };
            total += sums[b];
            if any != 0 {
                list::<S, F>(at, b, &listed, inside);
            }
        }
        total
    }
}

/// Lists the values of a block whose bits are set.
#[inline(always)]
unsafe fn list<S: Simd, F: Format>(at: *const u8, block: usize, listed: &[u32; MAX_VECTORS], inside: &mut Values) {
    // SAFETY: see the module; the store fits `values`, whose length is that of the longest vector.
    unsafe {
        let mut values = [0.0f32; PAD];
        for v in 0..BLOCK / S::LANES {
            let mut lanes = listed[v];
            if lanes != 0 {
                S::store(values.as_mut_ptr(), load::<S, F>(at, v));
            }
            while lanes != 0 {
                let lane = lanes.trailing_zeros() as usize & (PAD - 1);
                inside.logits.push(values[lane]);
                inside.tokens.push((block * BLOCK + v * S::LANES + lane) as u32);
                lanes &= lanes - 1;
            }
        }
    }
}

/// Masses of a list of values padded to whole vectors.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn masses<S: Simd>(values: &[f32], weigh: Weigh, masses: &mut [u64]) {
    // SAFETY: see the module; the chunks are whole vectors.
    unsafe {
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        for (values, masses) in values.chunks_exact(S::LANES).zip(masses.chunks_exact_mut(S::LANES)) {
            let x = S::load_f32(values.as_ptr().cast());
            S::mass_store(masses.as_mut_ptr(), S::mass(exponent::<S>(x, max, scale)));
        }
    }
}
