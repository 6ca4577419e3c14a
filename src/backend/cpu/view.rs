//! A row as the passes see it: the logits as they arrived, with some blocks replaced.
//!
//! Masks, bias and penalties touch few tokens, so the row is not copied. Each block that holds a touched token is widened and adjusted on
//! the side, and its maximum is hidden from the passes over the row. The side blocks lie together like a short row, and a pass over them
//! completes the result.
//!
//! - Where only the first tokens of the order matter, a touched block that holds none of them is only hidden.
//! - Where a list says which tokens are allowed, the side blocks are the whole row.
//! - A row's mask hides the blocks in which it leaves nothing, and puts those in which it leaves some tokens on the
//!   side.

mod lists;
mod store;

use super::ReadFrom;
use super::keys;
use super::level::{Level, Passes};
use super::memory;
pub(super) use super::passes::maximum;
use super::passes::{BLOCK, Keep, PAD, Range, Sample, Scan, Shape, Skip, Split, Squares, Terms, Values, Weigh, blocks};
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::mask::TokenMask;
use crate::sampling::row::{RowError, RowSpec};

/// A row with some blocks replaced.
pub(super) struct View<'a> {
    pub(super) level: Level,
    row: Logits<'a>,
    passes: Passes,
    /// Block maxima as the passes over the row see them: −∞ for replaced blocks. Padded.
    plain: &'a [f32],
    side: Side<'a>,
    /// Maxima of all blocks. Padded with −∞ to whole vectors.
    pub(super) maxima: &'a [f32],
    /// The largest value.
    pub(super) max: f32,
    /// The mask, which hides values in blocks that are not on the side.
    mask: Option<TokenMask<'a>>,
}

/// A block in which no token is left.
static NOTHING: [f32; BLOCK] = [f32::NEG_INFINITY; BLOCK];

/// Replaced blocks in ascending order, stored together.
#[derive(Clone, Copy)]
struct Side<'a> {
    passes: Passes,
    blocks: &'a [u32],
    values: &'a [f32],
    maxima: &'a [f32],
}

/// Storage of a view's lists, kept from row to row.
#[derive(Debug, Default)]
pub(super) struct ViewStore {
    /// Touched tokens, with their logits before and after.
    changes: Vec<store::Change>,
    /// Block maxima after the mask, before these changes.
    before: Vec<f32>,
    plain: Vec<f32>,
    maxima: Vec<f32>,
    side_blocks: Vec<u32>,
    /// Values of the side blocks, followed by leftovers of earlier rows.
    side_values: Vec<f32>,
    side_maxima: Vec<f32>,
}

impl ViewStore {
    /// Bytes of memory that the lists hold.
    pub(super) fn bytes(&self) -> usize {
        let lists = [&self.before, &self.plain, &self.maxima, &self.side_values, &self.side_maxima];
        let lists: usize = lists.into_iter().map(|list| size_of_val(list.as_slice())).sum();
        size_of_val(self.changes.as_slice()) + size_of_val(self.side_blocks.as_slice()) + lists
    }
}

/// Scans `row`, and writes its block maxima, padded, to `maxima`.
pub(super) fn scan(passes: Passes, row: &Logits<'_>, read_from: ReadFrom, maxima: &mut Vec<f32>) -> Scan {
    room_for_maxima(row, maxima);
    // Where hints are not wanted, reading at eight places is as fast as at one from caches, and faster from memory.
    if read_from == ReadFrom::Memory || !memory::wants_hints() {
        passes.far_scan(row.bytes(), maxima)
    } else {
        passes.scan(row.bytes(), maxima)
    }
}

/// Resizes `maxima` to one −∞ for each block of `row`, padded.
pub(super) fn room_for_maxima(row: &Logits<'_>, maxima: &mut Vec<f32>) {
    maxima.clear();
    maxima.resize(blocks(row.vocab_size()).next_multiple_of(PAD), f32::NEG_INFINITY);
}

impl<'a> View<'a> {
    /// The row as it arrived.
    pub(super) fn raw(level: Level, row: Logits<'a>, maxima: &'a [f32], max: f32) -> Self {
        let side = Side { passes: level.passes(Dtype::F32), blocks: &[], values: &[], maxima: &[] };
        Self { level, row, passes: level.passes(row.dtype()), plain: maxima, side, maxima, max, mask: None }
    }

    /// The row after masks, bias and penalties.
    pub(super) fn adjusted(raw: &View<'a>, spec: &RowSpec<'a>, store: &'a mut ViewStore) -> Result<Self, RowError> {
        if spec.is_untouched() {
            return Ok(View { ..*raw });
        }
        store.side_blocks.clear();
        match (spec.allowed, spec.greens()) {
            (None, Some(greens)) => store.raise(raw, spec, greens),
            (Some(allowed), _) => store.only(raw, spec, allowed),
            (None, None) => store.touch(raw, spec),
        }
        let view = Self::from_store(raw, spec, store);
        if view.max == f32::INFINITY { Err(RowError::PositiveInfinity) } else { Ok(view) }
    }

    /// The view that [`View::adjusted`] made, as long as `store` holds it.
    pub(super) fn from_store(raw: &View<'a>, spec: &RowSpec<'a>, store: &'a ViewStore) -> Self {
        if spec.is_untouched() {
            return View { ..*raw };
        }
        let side = Side {
            passes: raw.side.passes,
            blocks: &store.side_blocks,
            values: &store.side_values[..store.side_blocks.len() * BLOCK],
            maxima: &store.side_maxima,
        };
        let max = maximum(&store.maxima);
        if spec.greens().is_some() {
            // Any value may have changed, so the side is the row.
            let row = Logits::new(Dtype::F32, bytemuck::cast_slice(&store.side_values[..raw.vocab_size()]));
            let (passes, maxima) = (raw.side.passes, &store.maxima);
            let side = Side { passes, blocks: &[], values: &[], maxima: &[] };
            return Self { level: raw.level, row, passes, plain: maxima, side, maxima, max, mask: None };
        }
        Self {
            level: raw.level,
            row: raw.row,
            passes: raw.passes,
            plain: &store.plain,
            side,
            maxima: &store.maxima,
            max,
            mask: spec.mask,
        }
    }

    /// Which values of a block the mask leaves, if the block is not on the side.
    fn bits(&self, block: usize) -> u128 {
        self.mask.map_or(u128::MAX, |mask| mask.block(block))
    }

    /// Where the values of a block lie: a row, and the block's place in that row.
    pub(super) fn place(&self, block: usize) -> (Logits<'a>, usize) {
        match self.side.blocks.binary_search(&(block as u32)) {
            Ok(at) => (Logits::new(Dtype::F32, bytemuck::cast_slice(self.side.values)), at),
            Err(_) if self.bits(block) == u128::MAX => (self.row, block),
            // What a mask leaves of a block that is not on the side cannot matter.
            Err(_) => (Logits::new(Dtype::F32, bytemuck::cast_slice(&NOTHING)), 0),
        }
    }

    /// The bytes of a row with a greenlist, all of whose values are in f32.
    pub(super) fn bytes_of_greens(&self) -> &[u8] {
        self.row.bytes()
    }

    /// Number of tokens.
    pub(super) fn vocab_size(&self) -> usize {
        self.row.vocab_size()
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        blocks(self.vocab_size())
    }

    /// The passes, for lists of values.
    pub(super) fn passes(&self) -> Passes {
        self.passes
    }

    /// The value of one token.
    pub(super) fn value(&self, token: u32) -> f32 {
        match self.side.blocks.binary_search(&(token / BLOCK as u32)) {
            Ok(at) => self.side.values[at * BLOCK + token as usize % BLOCK],
            Err(_) if self.mask.is_some_and(|mask| !mask.allows(token)) => f32::NEG_INFINITY,
            Err(_) => self.row.get(token),
        }
    }

    /// The values of one block, padded with −∞.
    pub(super) fn block(&self, block: usize) -> [f32; BLOCK] {
        let mut out = [0.0; BLOCK];
        match self.side.blocks.binary_search(&(block as u32)) {
            Ok(at) => out.copy_from_slice(&self.side.values[at * BLOCK..][..BLOCK]),
            Err(_) => self.passes.widen(self.row.bytes(), block, self.bits(block), &mut out),
        }
        out
    }

    /// Mass of each block, and their total.
    pub(super) fn sums(&self, weigh: Weigh, sums: &mut Vec<u64>) -> u64 {
        self.by_block(sums, |passes, row, maxima, sums| passes.sums(row, maxima, weigh, sums))
    }

    /// As [`View::sums`], counting only the masses that `keep` allows.
    pub(super) fn kept_sums(&self, weigh: Weigh, keep: Keep, sums: &mut Vec<u64>) -> u64 {
        self.by_block(sums, |passes, row, maxima, sums| passes.kept_sums(row, maxima, weigh, keep, sums))
    }

    /// As [`View::sums`], counting only the values at or above `keep.above`, which are few, with masses that `keep`
    /// allows.
    pub(super) fn packed_sums(&self, weigh: Weigh, keep: Keep, packed: &mut Values, sums: &mut Vec<u64>) -> u64 {
        self.by_block(sums, |passes, row, maxima, sums| passes.packed_sums(row, maxima, weigh, keep, packed, sums))
    }

    /// As [`View::sums`], counting only the values in a range. Values outside it may exceed the maximum.
    pub(super) fn range_sums(&self, weigh: Weigh, range: Range, sums: &mut Vec<u64>) -> u64 {
        self.by_block(sums, |passes, row, maxima, sums| passes.range_sums(row, maxima, weigh, range, sums))
    }

    /// As [`View::sums`], for reshaped logits.
    pub(super) fn shaped_sums(&self, shape: Shape, sums: &mut Vec<u64>) -> u64 {
        self.by_block(sums, |passes, row, maxima, sums| passes.shaped_sums(row, maxima, shape, sums))
    }

    /// Mass of the row.
    pub(super) fn total(&self, weigh: Weigh) -> u64 {
        let row = self.passes.total(self.row.bytes(), self.plain, weigh);
        row + self.side.passes.total(self.side.bytes(), self.side.maxima, weigh)
    }

    /// Entropy terms and mass of the row.
    pub(super) fn terms(&self, weigh: Weigh) -> Terms {
        let row = self.passes.terms(self.row.bytes(), self.plain, weigh);
        let side = self.side.passes.terms(self.side.bytes(), self.side.maxima, weigh);
        Terms {
            terms: row.terms + side.terms,
            total: row.total + side.total,
            candidates: row.candidates + side.candidates,
        }
    }

    /// The sum of the squares of the row's masses, and the sum of the masses.
    pub(super) fn squares(&self, weigh: Weigh) -> Squares {
        let row = self.passes.squares(self.row.bytes(), self.plain, weigh);
        let side = self.side.passes.squares(self.side.bytes(), self.side.maxima, weigh);
        Squares { squares: row.squares + side.squares, total: row.total + side.total }
    }

    /// Mass of the row, and mass of the values at or above `cut`, in total and by block.
    pub(super) fn split(&self, weigh: Weigh, cut: f32, above: &mut Vec<u64>) -> Split {
        let mut total = 0;
        let above = self.by_block(above, |passes, row, maxima, above| {
            let split = passes.split(row, maxima, weigh, cut, above);
            total += split.total;
            split.above
        });
        Split { total, above }
    }

    /// Number of values at or above `at_least`, which is finite.
    pub(super) fn count(&self, at_least: f32) -> u64 {
        let all = Skip { from: usize::MAX, to: usize::MAX };
        let row = self.passes.preceding(self.row.bytes(), self.plain, all, at_least);
        row + self.side.passes.preceding(self.side.bytes(), self.side.maxima, all, at_least)
    }

    /// Lists the values in `range` with their masses, or with `count` a mass of 1 each. A block's tokens lie together:
    /// those of the row first, in ascending order, then those of the side blocks. Returns how many are of the row.
    pub(super) fn between(&self, count: bool, weigh: Weigh, range: Range, inside: &mut Values) -> usize {
        inside.clear();
        let from = self.list(range, inside);
        inside.masses.resize(inside.tokens.len(), u64::from(count));
        if !count {
            inside.pad();
            self.passes.masses(&inside.logits, weigh, &mut inside.masses);
            inside.unpad();
        }
        from
    }

    /// Appends tokens and logits in `range`: first those of the row, then those of the side blocks. Returns where the
    /// latter begin.
    fn list(&self, range: Range, inside: &mut Values) -> usize {
        self.passes.between(self.row.bytes(), self.plain, range, inside);
        let from = inside.tokens.len();
        self.side.passes.between(self.side.bytes(), self.side.maxima, range, inside);
        // The last pass was over the side blocks; its tokens count from their start.
        inside.tokens[from..].iter_mut().for_each(|token| *token = self.side.token(*token));
        from
    }

    /// All values, in token order; their masses have no meaning yet.
    pub(super) fn all(&self, values: &mut Values) {
        // Every value is written, so old ones need not be cleared first.
        values.tokens.clear();
        values.tokens.extend(0..self.vocab_size() as u32);
        values.logits.resize(self.blocks() * BLOCK, 0.0);
        for (block, out) in values.logits.chunks_exact_mut(BLOCK).enumerate() {
            self.passes.widen(self.row.bytes(), block, self.bits(block), out);
        }
        for (&block, side) in self.side.blocks.iter().zip(self.side.values.chunks_exact(BLOCK)) {
            values.logits[block as usize * BLOCK..][..BLOCK].copy_from_slice(side);
        }
        values.masses.resize(values.logits.len(), 0);
        values.unpad();
    }

    /// Runs a pass over the row, then over the side blocks, and puts the sums of the side blocks in their places.
    fn by_block(&self, sums: &mut Vec<u64>, mut pass: impl FnMut(Passes, &[u8], &[f32], &mut [u64]) -> u64) -> u64 {
        let count = self.blocks();
        sums.clear();
        sums.resize(count + self.side.blocks.len(), 0);
        let (row_sums, side_sums) = sums.split_at_mut(count);
        let mut total = 0;
        if self.side.blocks.len() < count {
            total += pass(self.passes, self.row.bytes(), self.plain, row_sums);
        }
        if !side_sums.is_empty() {
            total += pass(self.side.passes, self.side.bytes(), self.side.maxima, side_sums);
        }
        for (&block, &sum) in self.side.blocks.iter().zip(side_sums.iter()) {
            row_sums[block as usize] = sum;
        }
        sums.truncate(count);
        total
    }

    /// Keys of the tokens at or above `at_least`, which is finite; in no particular order.
    pub(super) fn collect(&self, at_least: f32, keys: &mut Vec<u64>) {
        keys.clear();
        if self.side.blocks.len() < self.blocks() {
            self.passes.collect(self.row.bytes(), self.plain, at_least, keys);
        }
        if !self.side.blocks.is_empty() {
            let from = keys.len();
            self.side.passes.collect(self.side.bytes(), self.side.maxima, at_least, keys);
            for key in &mut keys[from..] {
                *key = *key & !0xFFFF_FFFF | u64::from(self.side.token(keys::token(*key)));
            }
        }
    }

    /// A sample of the values below a bound. Replaced blocks show their old values, which is good enough for guesses.
    pub(super) fn sample(&self, weigh: Weigh, below: f32, spread: &mut Sample) {
        // Old values may exceed the adjusted maximum, above which no mass is defined.
        self.passes.sample(self.row.bytes(), weigh, below.min(self.max.next_up()), spread);
    }

    /// 1 + the number of tokens that precede `token`.
    pub(super) fn rank(&self, token: u32) -> u32 {
        let value = self.value(token);
        if value == f32::NEG_INFINITY {
            return self.rank_of_masked(token);
        }
        let own = token as usize / BLOCK;
        let mut count = self.passes.preceding(self.row.bytes(), self.plain, Skip { from: own, to: own + 1 }, value);
        if !self.side.blocks.is_empty() {
            let from = self.side.blocks.partition_point(|&block| (block as usize) < own);
            let to = from + usize::from(self.side.blocks.get(from) == Some(&(own as u32)));
            count += self.side.passes.preceding(self.side.bytes(), self.side.maxima, Skip { from, to }, value);
        }
        let in_block = token as usize % BLOCK;
        let values = self.block(own);
        let before = values.iter().enumerate().filter(|&(i, &x)| x > value || (x == value && i < in_block)).count();
        1 + count as u32 + before as u32
    }

    /// The rank of a token at −∞. Hidden blocks and padding have this value too, so tokens are counted one by one; this
    /// is rare.
    fn rank_of_masked(&self, token: u32) -> u32 {
        let before = |t: u32, x: f32| x > f32::NEG_INFINITY || t < token;
        let count = |b: usize| {
            let tokens = (b * BLOCK) as u32..((b + 1) * BLOCK).min(self.vocab_size()) as u32;
            tokens.zip(self.block(b)).filter(|&(t, x)| before(t, x)).count() as u32
        };
        1 + (0..self.blocks()).map(count).sum::<u32>()
    }
}

impl Side<'_> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.values)
    }

    /// The token of a place among the side blocks.
    fn token(&self, place: u32) -> u32 {
        self.blocks[place as usize / BLOCK] * BLOCK as u32 + place % BLOCK as u32
    }
}
