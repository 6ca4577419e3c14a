//! Lists that samplers take from a view, and what they measure of it.

use super::View;
use crate::backend::cpu::passes::{BLOCK, Range, Values, Weigh};
use crate::backend::cpu::simd::sums::BLOCKS_PER_LOT;
use crate::sampling::samplers::top_n_sigma::Moments;

impl View<'_> {
    /// The least value that is not −∞.
    pub(in crate::backend::cpu) fn least(&self) -> f32 {
        let row = self.passes.least(self.row.bytes(), self.plain);
        row.min(self.side.passes.least(self.side.bytes(), self.side.maxima))
    }

    /// The sums that the deviation of all finite values is computed from.
    pub(in crate::backend::cpu) fn moments(&self) -> Moments {
        let mut moments = Moments::new(self.max, self.least());
        self.passes.moments(self.row.bytes(), self.plain, &mut moments);
        self.side.passes.moments(self.side.bytes(), self.side.maxima, &mut moments);
        moments
    }

    /// Writes the mass of each [lot](BLOCKS_PER_LOT) of blocks. Returns their total.
    pub(in crate::backend::cpu) fn lot_sums(&self, weigh: Weigh, sums: &mut Vec<u64>) -> u64 {
        let count = self.blocks().div_ceil(BLOCKS_PER_LOT);
        sums.clear();
        sums.resize(count + self.side.blocks.len(), 0);
        let (row, beside) = sums.split_at_mut(count);
        let mut total = 0;
        if self.side.blocks.len() < self.blocks() {
            total += self.passes.lot_sums(self.row.bytes(), self.plain, weigh, row);
        }
        total += self.side.passes.sums(self.side.bytes(), self.side.maxima, weigh, beside);
        for (&block, &sum) in self.side.blocks.iter().zip(beside.iter()) {
            row[block as usize / BLOCKS_PER_LOT] += sum;
        }
        sums.truncate(count);
        total
    }

    /// Writes the mass of each token as a float, in whole blocks, with -1 for masked tokens. Returns their total.
    pub(in crate::backend::cpu) fn weights(&self, weigh: Weigh, weights: &mut Vec<f32>) -> u64 {
        let (count, side) = (self.blocks() * BLOCK, self.side.values.len());
        // Every weight is written, so old ones need not be cleared first.
        weights.resize(count + side, 0.0);
        let (row, beside) = weights.split_at_mut(count);
        let mut total = if side < count { self.passes.weights(self.row.bytes(), self.plain, weigh, row) } else { 0 };
        total += self.side.passes.weights(self.side.bytes(), self.side.maxima, weigh, beside);
        for (&block, side) in self.side.blocks.iter().zip(beside.chunks_exact(BLOCK)) {
            row[block as usize * BLOCK..][..BLOCK].copy_from_slice(side);
        }
        weights.truncate(count);
        total
    }

    /// Tokens and logits in `range`, in no order.
    pub(in crate::backend::cpu) fn tokens(&self, range: Range, inside: &mut Values) {
        inside.clear();
        self.list(range, inside);
    }

    /// The values in two ranges with their masses, in no order.
    pub(in crate::backend::cpu) fn in_both(&self, weigh: Weigh, ranges: [Range; 2], inside: &mut Values) {
        inside.clear();
        for range in ranges {
            self.list(range, inside);
        }
        inside.masses.resize(inside.tokens.len(), 0);
        inside.pad();
        self.passes.masses(&inside.logits, weigh, &mut inside.masses);
        inside.unpad();
    }
}
