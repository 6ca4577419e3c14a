//! The passes over a row. Each is written once, generic over [`Simd`] and [`Format`].
//!
//! A row is read in blocks of [`BLOCK`] values. The first pass keeps each block's maximum. Every later pass looks at
//! the maximum first, and skips blocks that cannot matter. The last block is padded with −∞.
//!
//! | pass | reads | gives |
//! |---|---|---|
//! | [`scan`], [`far_scan`] | the row | block maxima, whether there is a NaN |
//! | [`look`], [`fetch()`] | whole blocks of foreign memory | the same; `fetch` also a copy |
//! | [`sums`], [`lot_sums`], [`total`] | blocks with mass | mass of each block or of several together, total |
//! | [`split`] | blocks with mass | mass above a cut by block, and the total |
//! | [`kept_sums`] | blocks reaching a bound | mass by block of the values that are kept |
//! | [`packed_sums`] | blocks reaching a bound | the same, for few such values |
//! | [`range_sums`] | blocks reaching `low` | mass by block of the values in `low..high` |
//! | [`shaped_sums`] | blocks with mass | mass of each block of a row whose logits are reshaped |
//! | [`collect`] | blocks reaching a bound | keys of the values at or above it |
//! | [`between`] | blocks reaching `low` | the values in `low..high` |
//! | [`widen`] | one block | its values as f32, −∞ for those that a mask removes |
//! | [`masked()`] | blocks of which a mask leaves some values | block maxima after the mask |
//! | [`sample`] | one vector of every fourth block | values below a bound, for a guess |
//! | [`least`], [`moments()`] | blocks with a candidate | the least logit; the sums for a deviation |
//! | [`terms`] | blocks with mass | entropy terms and the total |
//! | [`squares`] | blocks with mass | squares of masses and the total |
//! | [`weights`] | blocks with a candidate | every mass, and the total |
//! | [`adapted`] | the result of `weights` | mass of each block after adaptive-p |
//! | [`raised`] | the row | the row with green logits raised, its block maxima |
//! | [`raise`], [`race_words`], [`patterns`] | no row | what watermarks need, by block |
//! | [`merge`], [`weigh_classes`], [`layer()`] | masses, weights | the steps of a tournament |
//! | [`preceding`] | blocks reaching a value | how many values precede it |
//!
//! # Safety
//! Every function requires the level's instructions. Slices are checked by their callers: block slices
//! hold [`blocks`] entries. Pointers handed to loads stay inside the row or the padded copy of its tail.

mod adapt;
mod fetch;
mod find;
mod lot;
mod mark;
mod masked;
mod measure;
mod moments;
mod packed;
mod play;
mod shaped;
mod weigh;

pub(super) use adapt::{Adapt, adapted, weights};
pub(super) use fetch::{fetch, look};
pub(super) use find::{between, collect, count_ge, far_scan, preceding, sample, sampled_ge, scan, sum_ge};
pub(super) use mark::{Raise, Words, race_words, raise, raised};
pub(super) use masked::{masked, widen};
pub(super) use measure::{Squares, Terms, squares, terms};
pub(super) use moments::{least, moments};
pub(super) use play::{LAYERS, PATTERNS, layer, merge, patterns, weigh_classes};
pub(super) use shaped::{Shape, shaped_sums};
pub(super) use weigh::{kept_sums, lot_sums, masses, packed_sums, range_sums, split, sums, total};

use super::simd::sums::GROUP;
use super::simd::{Format, Simd};
use crate::sampling::mass;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Values per block.
pub(super) const BLOCK: usize = 128;
/// Block maxima and other float lists are padded with −∞ to a multiple of this.
pub(super) const PAD: usize = 16;
/// A block whose largest exponent is at most this has masses of at most 2^27. A lane adds up BLOCK / LANES <= 16 of
/// these, which fits a u32.
pub(super) const NARROW_Y: f32 = -13.0;
/// Values that are taken out of a sum again may have exponents above 0, up to this.
pub(super) const MAX_Y: f32 = 4.0;
/// A block whose largest exponent is below this has no mass: 2^-41.5 * 2^40 < 1, in any rounding.
pub(super) const NO_MASS_Y: f32 = -41.5;

/// [`sample`] reads one block in this many.
const SAMPLE_STRIDE: usize = 4;
/// A sample is padded to a multiple of this: four vectors, which are summed in parallel.
const SAMPLE_PAD: usize = 4 * PAD;

/// A row from memory is read at this many places by turns.
const PLACES: usize = 8;
/// How far ahead of each such place values are prefetched, in bytes. A larger distance is no faster.
pub(super) const AHEAD: usize = 1024;

/// The i-th block that is read of a row of `blocks` blocks from memory: one from each eighth of the row in turn. By
/// itself a processor prefetches only up to the end of a page. With eight streams, seven go on meanwhile.
#[inline(always)]
pub(super) fn spread(i: usize, blocks: usize) -> usize {
    let each = blocks / PLACES;
    if i < each * PLACES { i % PLACES * each + i / PLACES } else { i }
}

/// The largest value of a padded list. Lane-wise, so that it compiles to vector maxima.
pub(super) fn maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; PAD];
    for chunk in values.chunks_exact(PAD) {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

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
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Weigh {
    /// The row's maximum. No value in a block that is read exceeds it.
    pub(super) max: f32,
    /// From [`scale`](crate::sampling::mass::scale).
    pub(super) scale: f32,
}

impl Weigh {
    /// The largest exponent of a block, from its largest value.
    #[inline(always)]
    fn largest(self, maximum: f32) -> f32 {
        mass::exponent(maximum, self.max, self.scale)
    }
}

/// Whether a block has any mass, judged by its largest exponent.
#[inline(always)]
fn has_mass(largest: f32) -> bool {
    largest >= NO_MASS_Y
}

/// What a value must satisfy for its mass to be counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    /// Only values above this; −∞ where there is no bound.
    pub(super) above: f32,
    /// Only masses of at least this.
    pub(super) need: u64,
}

/// What [`split`] found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    /// Mass of the row.
    pub(super) total: u64,
    /// Mass at or above the cut.
    pub(super) above: u64,
}

/// The bounds of a list of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    /// Inclusive; finite.
    pub(super) low: f32,
    /// Exclusive.
    pub(super) high: f32,
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
    /// Working memory: the blocks looked at, and for each of their values whether it is listed.
    blocks: Vec<u32>,
    bits: Vec<u64>,
}

/// Some values of a row, with estimates of their weights, padded.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) logits: Vec<f32>,
    /// Masses before they become integers.
    pub(super) weights: Vec<f32>,
    /// How many values were looked at.
    pub(super) taken: usize,
}

impl Values {
    pub(super) fn clear(&mut self) {
        self.logits.clear();
        self.tokens.clear();
        self.masses.clear();
    }

    /// Pads logits with −∞ and masses with 0 to whole vectors. The number of tokens stays as it is.
    pub(super) fn pad(&mut self) {
        let padded = self.logits.len().next_multiple_of(PAD);
        self.logits.resize(padded, f32::NEG_INFINITY);
        self.masses.resize(padded, 0);
    }

    /// Adds up by block, into `sums`, the masses of the listed tokens that `kept` accepts. A block's tokens must lie
    /// together.
    #[inline]
    pub(super) fn by_block(&self, blocks: usize, sums: &mut Vec<u64>, kept: impl Fn(u32, f32, u64) -> bool) {
        sums.clear();
        sums.resize(blocks, 0);
        // Sums are written but not read back: otherwise each addition would wait for the one before to come back from
        // memory.
        let (mut last, mut sum) = (usize::MAX, 0);
        for ((&token, &logit), &mass) in self.tokens.iter().zip(&self.logits).zip(&self.masses) {
            let block = token as usize / BLOCK;
            let before = if block == last { sum } else { 0 };
            sum = before + if kept(token, logit, mass) { mass } else { 0 };
            sums[block] = sum;
            last = block;
        }
    }

    /// Removes the padding.
    pub(super) fn unpad(&mut self) {
        self.logits.truncate(self.tokens.len());
        self.masses.truncate(self.tokens.len());
    }
}

/// Pointers to the blocks of a row; the last one may be a padded copy.
struct Blocks<'a, F> {
    row: &'a [u8],
    full: usize,
    /// Initialised only where the row ends within a block: a pass over a few blocks has no time to write half a
    /// kilobyte of zeros.
    tail: MaybeUninit<[u8; BLOCK * 4]>,
    format: PhantomData<F>,
}

impl<'a, F: Format> Blocks<'a, F> {
    #[inline(always)]
    fn new(row: &'a [u8]) -> Self {
        let full = row.len() / (BLOCK * F::SIZE);
        let mut blocks = Self { row, full, tail: MaybeUninit::uninit(), format: PhantomData };
        let rest = &row[full * BLOCK * F::SIZE..];
        if !rest.is_empty() {
            let tail = blocks.tail.write([0; BLOCK * 4]);
            for (at, byte) in tail.iter_mut().enumerate() {
                *byte = F::NEG_INFINITY[at % 4];
            }
            tail[..rest.len()].copy_from_slice(rest);
        }
        blocks
    }

    #[inline(always)]
    fn count(&self) -> usize {
        blocks(self.row.len() / F::SIZE)
    }

    /// Pointer to BLOCK values, readable at any alignment. The row must have the block: `block` is below
    /// [`count`](Self::count).
    #[inline(always)]
    fn get(&self, block: usize) -> *const u8 {
        debug_assert!(block < self.count(), "a row has the block");
        if block < self.full { self.row[block * BLOCK * F::SIZE..].as_ptr() } else { self.tail.as_ptr().cast() }
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

/// The exponents of a group of vectors.
#[inline(always)]
unsafe fn exponents<S: Simd, F: Format>(
    block: *const u8,
    first: usize,
    max: S::Float,
    scale: S::Float,
) -> [S::Float; GROUP] {
    let mut y = [max; GROUP];
    for (i, y) in y.iter_mut().enumerate() {
        // SAFETY: passed on; a block has whole groups.
        *y = unsafe { exponent::<S>(load::<S, F>(block, first + i), max, scale) };
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_read_once() {
        for count in 0..100 {
            let mut read: Vec<_> = (0..count).map(|i| spread(i, count)).collect();
            read.sort_unstable();
            assert_eq!(read, (0..count).collect::<Vec<_>>());
        }
        assert_eq!([0, 1, 7, 8, 16, 23].map(|i| spread(i, 24)), [0, 3, 21, 1, 2, 23]);
    }
}
