//! The passes over a row, each written once over [`Simd`] and [`Format`].
//!
//! A row is read in blocks of [`BLOCK`] values. The first pass keeps each block's maximum; every later
//! pass looks at the maximum first and skips blocks that cannot matter. The last block is padded with −∞.
//!
//! | pass | reads | gives |
//! |---|---|---|
//! | [`scan`] | the row | block maxima, whether a NaN was met |
//! | [`sums`] | blocks with mass | mass of each block, total |
//! | [`collect`] | blocks reaching a bound | keys of the values at or above it |
//! | [`bracket`] | blocks reaching `low` | mass at or above `high`, values in `low..high` |
//! | [`widen`] | one block | its values as f32 |
//! | [`sample`] | one vector of every fourth block | values below a bound, for a guess |
//! | [`preceding`] | blocks reaching a value | how many values precede it |
//!
//! # Safety
//! Every function requires the level's instructions. Slices are checked by their callers: block slices
//! hold [`blocks`] entries. Pointers handed to loads stay inside the row or the padded copy of its tail.

// Blocks and vectors are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::keys::key;
use super::simd::{Format, Simd};
use std::marker::PhantomData;

/// Values per block.
pub(super) const BLOCK: usize = 128;
/// Block maxima and other float lists are padded with −∞ to a multiple of this.
pub(super) const PAD: usize = 16;
/// A block whose largest exponent is at most this has masses of at most 2^27: the BLOCK / LANES <= 16 of
/// them that meet in one lane fit an i32.
pub(super) const NARROW_Y: f32 = -13.0;
/// A block whose largest exponent is below this has no mass: 2^-41.5 * 2^40 < 1, however rounded.
const NO_MASS_Y: f32 = -41.5;

/// Vectors of a block at the narrowest level.
const MAX_VECTORS: usize = BLOCK / 8;
/// [`sample`] looks at one block in this many.
const SAMPLE_STRIDE: usize = 4;

/// Number of blocks of a row of `values` values.
pub(super) fn blocks(values: usize) -> usize {
    values.div_ceil(BLOCK)
}

/// What [`scan`] found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scan {
    pub(super) max: f32,
    pub(super) nan: bool,
}

/// How values become masses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weigh {
    /// The row's maximum; no value in a block that is looked at exceeds it.
    pub(super) max: f32,
    /// From [`scale`](crate::sampling::mass::scale).
    pub(super) scale: f32,
}

/// What a value must satisfy for its mass to be counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    /// Only values above this; −∞ where there is no cut.
    pub(super) above: f32,
    /// Only masses of at least this.
    pub(super) need: u64,
    /// No value of a block whose maximum is at most this has such a mass.
    pub(super) skip: f32,
}

/// A range of blocks to leave out, possibly empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skip {
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Values with their tokens and masses; the three lists are parallel.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) logits: Vec<f32>,
    pub(super) tokens: Vec<u32>,
    pub(super) masses: Vec<u64>,
}

impl Values {
    pub(super) fn clear(&mut self) {
        self.logits.clear();
        self.tokens.clear();
        self.masses.clear();
    }

    /// Pads logits with −∞ and masses with 0 for whole vectors; tokens keep their number.
    pub(super) fn pad(&mut self) {
        let padded = self.logits.len().next_multiple_of(PAD);
        self.logits.resize(padded, f32::NEG_INFINITY);
        self.masses.resize(padded, 0);
    }
}

/// Pointers to the blocks of a row; the last one may be a padded copy.
struct Blocks<'a, F> {
    row: &'a [u8],
    full: usize,
    tail: [u8; BLOCK * 4],
    format: PhantomData<F>,
}

impl<'a, F: Format> Blocks<'a, F> {
    #[inline(always)]
    fn new(row: &'a [u8]) -> Self {
        let full = row.len() / (BLOCK * F::SIZE);
        let mut tail = [0; BLOCK * 4];
        let rest = &row[full * BLOCK * F::SIZE..];
        if !rest.is_empty() {
            for (at, byte) in tail.iter_mut().enumerate() {
                *byte = F::NEG_INFINITY[at % 4];
            }
            tail[..rest.len()].copy_from_slice(rest);
        }
        Self { row, full, tail, format: PhantomData }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        blocks(self.row.len() / F::SIZE)
    }

    /// BLOCK values, readable at any alignment.
    #[inline(always)]
    fn get(&self, block: usize) -> *const u8 {
        if block < self.full { self.row[block * BLOCK * F::SIZE..].as_ptr() } else { self.tail.as_ptr() }
    }
}

#[inline(always)]
unsafe fn load<S: Simd, F: Format>(block: *const u8, vector: usize) -> S::Float {
    // SAFETY: vector < BLOCK / LANES, so the load stays inside the block.
    unsafe { F::load::<S>(block.add(vector * S::LANES * F::SIZE)) }
}

#[inline(always)]
unsafe fn exponent<S: Simd>(x: S::Float, max: S::Float, scale: S::Float) -> S::Float {
    // SAFETY: passed on.
    unsafe { S::mul(S::sub(x, max), scale) }
}

/// Block maxima and NaN check in one read of the row.
#[inline(always)]
pub(super) unsafe fn scan<S: Simd, F: Format>(row: &[u8], maxima: &mut [f32]) -> Scan {
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

/// Mass of each block, and their total.
#[inline(always)]
pub(super) unsafe fn sums<S: Simd, F: Format>(row: &[u8], maxima: &[f32], weigh: Weigh, sums: &mut [u64]) -> u64 {
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
pub(super) unsafe fn kept_sums<S: Simd, F: Format, const CUT: bool, const NEED: bool>(
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

/// Keys of the values at or above `at_least`, which is finite; token ids ascend.
#[inline(always)]
pub(super) unsafe fn collect<S: Simd, F: Format>(row: &[u8], maxima: &[f32], at_least: f32, keys: &mut Vec<u64>) {
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

/// Bounds of a [`bracket`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    /// Inclusive; finite.
    pub(super) low: f32,
    /// Exclusive.
    pub(super) high: f32,
}

/// Mass (or with `COUNT` the number) of the values at or above `high` by block, and the values in
/// `low..high` without their masses. Returns the total of the former.
#[inline(always)]
pub(super) unsafe fn bracket<S: Simd, F: Format, const COUNT: bool>(
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

/// Widens one block into BLOCK floats, padded with −∞.
#[inline(always)]
pub(super) unsafe fn widen<S: Simd, F: Format>(row: &[u8], block: usize, out: &mut [f32]) {
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
pub(super) unsafe fn sample<S: Simd, F: Format>(row: &[u8], weigh: Weigh, below: f32, spread: &mut Values) {
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
pub(super) unsafe fn preceding<S: Simd, F: Format>(row: &[u8], maxima: &[f32], skip: Skip, value: f32) -> u64 {
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
pub(super) unsafe fn count_ge<S: Simd>(values: &[f32], bound: f32) -> usize {
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
pub(super) unsafe fn sum_ge<S: Simd>(values: &[f32], masses: &[u64], bound: f32) -> u64 {
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

/// Masses of a list of values padded to whole vectors.
#[inline(always)]
pub(super) unsafe fn masses<S: Simd>(values: &[f32], weigh: Weigh, masses: &mut [u64]) {
    // SAFETY: see the module; the chunks are whole vectors.
    unsafe {
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        for (values, masses) in values.chunks_exact(S::LANES).zip(masses.chunks_exact_mut(S::LANES)) {
            let x = S::load_f32(values.as_ptr().cast());
            S::mass_store(masses.as_mut_ptr(), S::mass(exponent::<S>(x, max, scale)));
        }
    }
}
