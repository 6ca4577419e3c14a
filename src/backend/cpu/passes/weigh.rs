//! Passes that compute masses, by block and in total. See the [module](super) for safety.

// Blocks and vectors are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::lot::{Adding, Exponents, Plain, block_mass};
use super::{BLOCK, Blocks, Keep, PAD, Range, Split, Values, Weigh, exponent, exponents, has_mass, load};
use crate::backend::cpu::simd::sums::{GROUP, Sums};
use crate::backend::cpu::simd::{Format, Simd};
use crate::sampling::mass::Y_FLOOR;

/// Mass of each block, and their total. Values may exceed the maximum, by up to [`MAX_Y`](super::MAX_Y) exponents.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn sums<S: Sums, F: Format>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
    sums: &mut [u64],
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (by, mut total) = (Plain::<S, F>::new(weigh), 0);
        for b in 0..rows.count() {
            let largest = weigh.largest(maxima[b]);
            sums[b] = if has_mass(largest) { block_mass::<S>(rows.get(b), largest, by) } else { 0 };
            total += sums[b];
        }
        total
    }
}

/// Mass of a lot of blocks.
#[inline(always)]
unsafe fn of_lot<S: Sums, F: Format>(
    rows: &Blocks<'_, F>,
    maxima: &[f32],
    weigh: Weigh,
    (lot, adding): (std::ops::Range<usize>, &mut Adding<S>),
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let by = Plain::<S, F>::new(weigh);
        loop {
            for b in lot.clone() {
                let largest = weigh.largest(maxima[b]);
                if has_mass(largest) {
                    adding.add(rows.get(b), largest, by);
                }
            }
            if let Some(mass) = adding.take() {
                return mass;
            }
        }
    }
}

/// Mass of each lot of blocks, and their total.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn lot_sums<S: Sums, F: Format>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
    sums: &mut [u64],
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (mut adding, mut total) = (Adding::<S>::new(), 0);
        for (lot, sum) in rows.lots().zip(sums) {
            *sum = of_lot(&rows, maxima, weigh, (lot, &mut adding));
            total += *sum;
        }
        total
    }
}

/// Mass of the row.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn total<S: Sums, F: Format>(row: &[u8], maxima: &[f32], weigh: Weigh) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (mut adding, mut total) = (Adding::<S>::new(), 0);
        for lot in rows.lots() {
            total += of_lot(&rows, maxima, weigh, (lot, &mut adding));
        }
        total
    }
}

/// Mass of the row, and mass of the values at or above `cut`: by block into `above`, and in total.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn split<S: Sums, F: Format>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
    cut: f32,
    above: &mut [u64],
) -> Split {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (mut adding, mut all) = (Adding::<S>::new(), 0);
        for lot in rows.lots() {
            all += loop {
                for b in lot.clone() {
                    above[b] = split_block::<S, F>(rows.get(b), maxima[b], (weigh, cut), &mut adding);
                }
                if let Some(mass) = adding.take() {
                    break mass;
                }
            };
        }
        Split { total: all, above: above.iter().sum() }
    }
}

/// Adds a block, and returns its mass at or above `cut`.
#[inline(always)]
unsafe fn split_block<S: Sums, F: Format>(
    at: *const u8,
    most: f32,
    (weigh, cut): (Weigh, f32),
    adding: &mut Adding<S>,
) -> u64 {
    let largest = weigh.largest(most);
    if !has_mass(largest) {
        return 0;
    }
    // SAFETY: see the module.
    unsafe {
        let by = Plain::<S, F>::new(weigh);
        if most < cut {
            adding.add(at, largest, by);
            return 0;
        }
        let (mut whole, mut sum, bound) = (S::sum_zero(), S::sum_zero(), S::splat(cut));
        for v in (0..BLOCK / S::LANES).step_by(GROUP) {
            let mut shares = S::shares(by.of(at, v));
            whole = S::sum_add(whole, shares);
            for i in 0..GROUP {
                shares[i] = S::where_ge(shares[i], load::<S, F>(at, v + i), bound);
            }
            sum = S::sum_add(sum, shares);
        }
        adding.add_sum(whole);
        S::sum_total(sum)
    }
}

/// As [`sums`], counting only the masses that `keep` allows.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn kept_sums<S: Sums, F: Format>(
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
        // Masses here are f32, so one that reaches `need` also reaches the next f32 from there, and so does its share.
        let need = S::splat(ceiling(keep.need) / S::UNIT);
        let mut total = 0;
        for b in 0..rows.count() {
            sums[b] = 0;
            if maxima[b] > keep.above && has_mass(weigh.largest(maxima[b])) {
                let (at, mut sum) = (rows.get(b), S::sum_zero());
                for v in (0..BLOCK / S::LANES).step_by(GROUP) {
                    let mut shares = S::shares(exponents::<S, F>(at, v, max, scale));
                    for i in 0..GROUP {
                        let kept = S::where_gt(shares[i], load::<S, F>(at, v + i), above);
                        shares[i] = S::where_ge(kept, kept, need);
                    }
                    sum = S::sum_add(sum, shares);
                }
                sums[b] = S::sum_total(sum);
                total += sums[b];
            }
        }
        total
    }
}

/// As [`kept_sums`], counting only the values at or above `keep.above`, which is finite. These are packed together and
/// then weighed, which is faster where they are few. `packed` is working memory.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn packed_sums<S: Simd, F: Format>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
    keep: Keep,
    packed: &mut Values,
    sums: &mut [u64],
) -> u64 {
    // SAFETY: see the module; there is room for all values and for what the last store may write behind them.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (low, values) = (S::splat(keep.above), packed.room(rows.count() * BLOCK + PAD));
        let mut count = 0;
        for b in 0..rows.count() {
            if maxima[b] >= keep.above {
                let at = rows.get(b);
                for v in 0..BLOCK / S::LANES {
                    let x = load::<S, F>(at, v);
                    let lanes = S::ge(x, low);
                    S::pack(values.add(count), x, lanes);
                    count += lanes.count_ones() as usize;
                }
            }
            // The end of this block in the list, for now.
            sums[b] = count as u64;
        }
        let (values, masses) = packed.packed(count);
        self::masses::<S>(values, weigh, masses);
        packed.packed_by_block(keep.need, sums)
    }
}

/// As [`sums`], counting only the values in a range. Values outside it may exceed the maximum.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn range_sums<S: Sums, F: Format>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
    range: Range,
    sums: &mut [u64],
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        let (low, high) = (S::splat(range.low), S::splat(range.high));
        let mut total = 0;
        for b in 0..rows.count() {
            sums[b] = 0;
            if maxima[b] >= range.low && has_mass(weigh.largest(maxima[b])) {
                let (at, mut sum) = (rows.get(b), S::sum_zero());
                for v in (0..BLOCK / S::LANES).step_by(GROUP) {
                    let mut shares = S::shares(exponents::<S, F>(at, v, max, scale));
                    for i in 0..GROUP {
                        let x = load::<S, F>(at, v + i);
                        shares[i] = S::where_gt(S::where_ge(shares[i], x, low), high, x);
                    }
                    sum = S::sum_add(sum, shares);
                }
                sums[b] = S::sum_total(sum);
                total += sums[b];
            }
        }
        total
    }
}

/// The least f32 that is not below an integer.
fn ceiling(number: u64) -> f32 {
    let nearest = number as f32;
    if (nearest as u64) < number { nearest.next_up() } else { nearest }
}

/// The masses of a list of values, padded to whole vectors.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn masses<S: Simd>(values: &[f32], weigh: Weigh, masses: &mut [u64]) {
    // SAFETY: see the module; the chunks are whole vectors.
    unsafe {
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        // Here blocks without mass have not been left out, and arithmetic with subnormal numbers takes a hundred times
        // as long.
        let massless = S::splat(Y_FLOOR - 1.0);
        for (values, masses) in values.chunks_exact(S::LANES).zip(masses.chunks_exact_mut(S::LANES)) {
            let x = S::load_f32(values.as_ptr().cast());
            S::mass_store(masses.as_mut_ptr(), S::mass(S::max(exponent::<S>(x, max, scale), massless)));
        }
    }
}
