//! Passes that find: maxima, candidates, samples, ranks. See the [module](super) for safety.

// Blocks and vectors are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::{BLOCK, Blocks, PAD, SAMPLE_STRIDE, Scan, Skip, Values, Weigh, exponent, load};
use crate::backend::cpu::keys::key;
use crate::backend::cpu::simd::{Format, Simd};

/// Block maxima and NaN check in one read of the row.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn scan<S: Simd, F: Format>(row: &[u8], maxima: &mut [f32]) -> Scan {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let mut all = S::splat(f32::NEG_INFINITY);
        let mut nan = 0;
        for (b, maximum) in maxima.iter_mut().enumerate().take(rows.count()) {
            let at = rows.get(b);
            let mut max = S::splat(f32::NEG_INFINITY);
            for v in (0..BLOCK / S::LANES).step_by(2) {
                let (x0, x1) = (load::<S, F>(at, v), load::<S, F>(at, v + 1));
                // One comparison sees a NaN in either vector.
                nan |= S::either_nan(x0, x1);
                max = S::max(max, S::max(x0, x1));
            }
            *maximum = S::reduce_max(max);
            all = S::max(all, max);
        }
        Scan { max: S::reduce_max(all), nan: nan != 0 }
    }
}

/// Keys of the values at or above `at_least`, which is finite; token ids ascend.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn collect<S: Simd, F: Format>(
    row: &[u8],
    maxima: &[f32],
    at_least: f32,
    keys: &mut Vec<u64>,
) {
    // SAFETY: see the module; the store fits `values`, whose length is that of the longest vector.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let bound = S::splat(at_least);
        let mut values = [0.0f32; PAD];
        for b in 0..rows.count() {
            if maxima[b] < at_least {
                continue;
            }
            let at = rows.get(b);
            for v in 0..BLOCK / S::LANES {
                let x = load::<S, F>(at, v);
                let mut lanes = S::ge(x, bound);
                if lanes != 0 {
                    S::store(values.as_mut_ptr(), x);
                }
                while lanes != 0 {
                    let lane = lanes.trailing_zeros() as usize;
                    keys.push(key((b * BLOCK + v * S::LANES + lane) as u32, values[lane & (PAD - 1)]));
                    lanes &= lanes - 1;
                }
            }
        }
    }
}

/// Widens one block into BLOCK floats, padded with −∞.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn widen<S: Simd, F: Format>(row: &[u8], block: usize, out: &mut [f32]) {
    assert!(out.len() >= BLOCK, "a block needs room; this is a bug");
    // SAFETY: see the module; the stores stay inside `out`, just checked.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let at = rows.get(block);
        for v in 0..BLOCK / S::LANES {
            S::store(out.as_mut_ptr().add(v * S::LANES), load::<S, F>(at, v));
        }
    }
}

/// One vector of every [`SAMPLE_STRIDE`]th block, as a guess of how the values below `below` are spread:
/// values at or above it are given as −∞ with mass 0. Tokens are not reported.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn sample<S: Simd, F: Format>(
    row: &[u8],
    weigh: Weigh,
    below: f32,
    spread: &mut Values,
) {
    // SAFETY: see the module; the lists have room for every vector stored.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale, bound) = (S::splat(weigh.max), S::splat(weigh.scale), S::splat(below));
        let vectors = rows.count().div_ceil(SAMPLE_STRIDE);
        spread.logits.resize(vectors * S::LANES, 0.0);
        spread.masses.resize(vectors * S::LANES, 0);
        for i in 0..vectors {
            let x = load::<S, F>(rows.get(SAMPLE_STRIDE * i), i % (BLOCK / S::LANES));
            let x = S::where_gt(bound, x, x);
            S::store(spread.logits[i * S::LANES..].as_mut_ptr(), x);
            S::mass_store(spread.masses[i * S::LANES..].as_mut_ptr(), S::mass(exponent::<S>(x, max, scale)));
        }
    }
}

/// How many values are at or above `value` in blocks before `skip`, or above it in blocks after `skip`.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn preceding<S: Simd, F: Format>(
    row: &[u8],
    maxima: &[f32],
    skip: Skip,
    value: f32,
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let bound = S::splat(value);
        let mut count = 0;
        for b in 0..rows.count() {
            if (skip.from..skip.to).contains(&b) || maxima[b] < value {
                continue;
            }
            let at = rows.get(b);
            for v in 0..BLOCK / S::LANES {
                let x = load::<S, F>(at, v);
                // Equal values precede when their ids are smaller.
                let lanes = if b < skip.from { S::ge(x, bound) } else { S::gt(x, bound) };
                count += u64::from(lanes.count_ones());
            }
        }
        count
    }
}

/// Number of values at or above `bound`, in a list padded to whole vectors.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn count_ge<S: Simd>(values: &[f32], bound: f32) -> usize {
    // SAFETY: see the module; the chunks are whole vectors.
    unsafe {
        let bound = S::splat(bound);
        let mut count = 0;
        for chunk in values.chunks_exact(S::LANES) {
            count += S::ge(S::load_f32(chunk.as_ptr().cast()), bound).count_ones() as usize;
        }
        count
    }
}

/// Sum of the masses whose value is at or above `bound`, in lists padded to whole vectors.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn sum_ge<S: Simd>(values: &[f32], masses: &[u64], bound: f32) -> u64 {
    // SAFETY: see the module; the chunks are whole vectors.
    unsafe {
        let bound = S::splat(bound);
        let mut sum = S::mass_zero();
        for (values, masses) in values.chunks_exact(S::LANES).zip(masses.chunks_exact(S::LANES)) {
            let lanes = S::ge(S::load_f32(values.as_ptr().cast()), bound);
            sum = S::mass_add_lanes(sum, S::mass_load(masses.as_ptr()), lanes);
        }
        S::mass_sum(sum)
    }
}
