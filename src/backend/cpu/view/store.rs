//! Makes side blocks: the blocks that masks, bias and penalties touch, as they are afterwards.

use super::{View, ViewStore};
use crate::backend::cpu::passes::{BLOCK, Raise, maximum};
use crate::backend::cpu::{foreign_rows, greens, select};
use crate::sampling::mask::TokenMask;
use crate::sampling::row::RowSpec;
use crate::sampling::watermark::greenlist::Greenlist;

impl ViewStore {
    /// Makes side blocks for the whole row: −∞ except for the tokens of `allowed`, adjusted.
    pub(super) fn only(&mut self, raw: &View<'_>, spec: &RowSpec<'_>, allowed: &[u32]) {
        self.side_blocks.extend(0..raw.blocks() as u32);
        self.side_values.clear();
        self.side_values.resize(raw.blocks() * BLOCK, f32::NEG_INFINITY);
        for &token in allowed.iter().filter(|&&token| !spec.is_masked(token)) {
            self.side_values[token as usize] = raw.row.get(token);
        }
        self.apply(raw, spec);
        self.finish(raw);
    }

    /// Makes side blocks that hold every touched token, adjusted. Blocks that cannot matter are only hidden.
    pub(super) fn touch(&mut self, raw: &View<'_>, spec: &RowSpec<'_>) {
        self.change(raw, spec);
        self.before.clear();
        self.before.extend_from_slice(raw.maxima);
        if let Some(mask) = spec.mask {
            raw.passes.masked(raw.row.bytes(), mask, &mut self.before);
        }
        let from = self.needed_from(raw, spec);
        self.plain.clear();
        self.plain.extend_from_slice(raw.maxima);
        self.maxima.clear();
        self.maxima.extend_from_slice(&self.before);
        self.side_maxima.clear();
        let changes = std::mem::take(&mut self.changes);
        let mut changed = by_block(&changes).peekable();
        if let Some(mask) = spec.mask {
            for block in 0..raw.blocks() {
                let bits = mask.block(block);
                let of_block = changed.next_if(|changes| block_of(changes[0].token) == block).unwrap_or_default();
                if bits != u128::MAX || !of_block.is_empty() {
                    self.touch_block(raw, block, bits, of_block, from);
                }
            }
        }
        changed.for_each(|of_block| self.touch_block(raw, block_of(of_block[0].token), u128::MAX, of_block, from));
        self.changes = changes;
    }

    /// Lists what touched tokens become, in ascending order.
    fn change(&mut self, raw: &View<'_>, spec: &RowSpec<'_>) {
        self.changes.clear();
        let ban = |&token: &u32| Change { token, from: raw.row.get(token), to: f32::NEG_INFINITY };
        let mut banned = spec.banned.iter().map(ban).peekable();
        spec.adjusts.for_each(|adjust| {
            let token = adjust.token();
            while let Some(before) = banned.next_if(|ban| ban.token < token) {
                self.changes.push(before);
            }
            let from = raw.row.get(token);
            let adjusted = Change { token, from, to: adjust.apply(from, &spec.penalties) };
            self.changes.push(banned.next_if(|ban| ban.token == token).unwrap_or(adjusted));
        });
        self.changes.extend(banned);
        for change in self.changes.iter_mut().filter(|change| spec.is_masked(change.token)) {
            change.to = f32::NEG_INFINITY;
        }
    }

    /// A value below which no token matters. If only the first tokens of the order are asked for, at least as many
    /// blocks have a value that reaches it.
    fn needed_from(&mut self, raw: &View<'_>, spec: &RowSpec<'_>) -> f32 {
        let Some(first) = foreign_rows::top_drawn_from(spec, raw.vocab_size()) else { return f32::NEG_INFINITY };
        self.maxima.clear();
        self.maxima.extend_from_slice(&self.before);
        for changes in by_block(&self.changes) {
            let block = block_of(changes[0].token);
            self.maxima[block] = reach(self.before[block], changes).0;
        }
        select::bound_of_top(raw.passes, &self.maxima, maximum(&self.maxima), first)
    }

    /// Hides a block. If it may have a value of at least `from`, as it was or as it becomes, puts it on the side, with
    /// the values whose bits are set and with its changes.
    fn touch_block(&mut self, raw: &View<'_>, block: usize, bits: u128, changes: &[Change], from: f32) {
        (self.plain[block], self.maxima[block]) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        if bits == 0 {
            return;
        }
        let (least, most) = reach(self.before[block], changes);
        if most < from {
            return;
        }
        let start = self.side_blocks.len() * BLOCK;
        if self.side_values.len() < start + BLOCK {
            self.side_values.resize(start + BLOCK, 0.0);
        }
        let values = &mut self.side_values[start..start + BLOCK];
        raw.passes.widen(raw.row.bytes(), block, bits, values);
        for change in changes {
            values[change.token as usize % BLOCK] = change.to;
        }
        let max = if least == most { most } else { maximum(values) };
        self.side_blocks.push(block as u32);
        self.side_maxima.push(max);
        self.maxima[block] = max;
    }

    /// Adjusts the side values, which are the whole row.
    fn apply(&mut self, raw: &View<'_>, spec: &RowSpec<'_>) {
        spec.adjusts.for_each(|adjust| {
            let value = &mut self.side_values[adjust.token() as usize];
            *value = adjust.apply(*value, &spec.penalties);
        });
        if let Some(greens) = spec.greens() {
            greens::raise(raw.passes, greens, spec.allowed, &mut self.side_values);
        }
        for &token in spec.banned {
            self.side_values[token as usize] = f32::NEG_INFINITY;
        }
    }

    /// A value below which it does not matter what raised tokens become. If only the first tokens of the order are
    /// asked for, at least as many blocks that nothing else touches have a value that reaches it after the mask, and
    /// raising lowers no value.
    fn raised_from(&mut self, raw: &View<'_>, spec: &RowSpec<'_>) -> f32 {
        let Some(first) = foreign_rows::top_drawn_from(spec, raw.vocab_size()) else { return f32::NEG_INFINITY };
        self.maxima.clear();
        self.maxima.extend_from_slice(raw.maxima);
        if let Some(mask) = spec.mask {
            raw.passes.masked(raw.row.bytes(), mask, &mut self.maxima);
        }
        touched(spec).for_each(|block| self.maxima[block] = f32::NEG_INFINITY);
        select::bound_of_top(raw.passes, &self.maxima, maximum(&self.maxima), first)
    }

    /// Makes side blocks for the whole of a row that has a greenlist but no list of allowed tokens: adjusted, with
    /// their maxima.
    pub(super) fn raise(&mut self, raw: &View<'_>, spec: &RowSpec<'_>, greens: &Greenlist) {
        let (count, from) = (raw.blocks(), self.raised_from(raw, spec));
        self.side_blocks.extend(0..count as u32);
        // Every value is written, so old ones need not be cleared first.
        self.side_values.resize(count * BLOCK, 0.0);
        self.side_maxima.resize(count, 0.0);
        let wanted = Raise { greens, maxima: raw.maxima, from };
        raw.passes.raised(raw.row.bytes(), wanted, &mut self.side_values, &mut self.side_maxima);
        for adjust in spec.adjusts.iter() {
            let token = adjust.token();
            let adjusted = adjust.apply(raw.row.get(token), &spec.penalties);
            self.side_values[token as usize] = greens.raise(token, adjusted);
        }
        for &token in spec.banned {
            self.side_values[token as usize] = f32::NEG_INFINITY;
        }
        if let Some(mask) = spec.mask {
            self.hide(mask);
            return self.finish(raw);
        }
        for block in touched(spec) {
            self.side_maxima[block] = maximum(&self.side_values[block * BLOCK..][..BLOCK]);
        }
        self.place_maxima(raw);
    }

    /// Removes what a mask removes. The side blocks are the whole row.
    fn hide(&mut self, mask: TokenMask<'_>) {
        for (values, block) in self.side_values.chunks_exact_mut(BLOCK).zip(0..) {
            let bits = mask.block(block);
            for (value, lane) in values.iter_mut().zip(0..) {
                *value = if bits >> lane & 1 == 1 { *value } else { f32::NEG_INFINITY };
            }
        }
    }

    /// Computes the maxima of the side blocks, and the two lists that follow from them.
    fn finish(&mut self, raw: &View<'_>) {
        self.side_maxima.clear();
        self.side_maxima.resize(self.side_blocks.len(), f32::NEG_INFINITY);
        raw.side.passes.scan(bytemuck::cast_slice(&self.side_values), &mut self.side_maxima);
        self.place_maxima(raw);
    }

    /// Makes the two lists of maxima that follow from those of the side blocks.
    fn place_maxima(&mut self, raw: &View<'_>) {
        self.plain.clear();
        self.plain.extend_from_slice(raw.maxima);
        self.maxima.clear();
        self.maxima.extend_from_slice(raw.maxima);
        for (&block, &max) in self.side_blocks.iter().zip(&self.side_maxima) {
            self.plain[block as usize] = f32::NEG_INFINITY;
            self.maxima[block as usize] = max;
        }
    }
}

/// A touched token's logit before and after.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    token: u32,
    from: f32,
    to: f32,
}

/// Groups changes, which are in ascending order, by block.
fn by_block(changes: &[Change]) -> impl Iterator<Item = &[Change]> {
    changes.chunk_by(|one, next| block_of(one.token) == block_of(next.token))
}

/// The least and the largest that a block's maximum can be after these changes, without reading the block. They differ
/// only where a changed value was the maximum.
fn reach(before: f32, changes: &[Change]) -> (f32, f32) {
    let changed = changes.iter().fold(f32::NEG_INFINITY, |max, change| if change.to > max { change.to } else { max });
    let most = if changed > before { changed } else { before };
    let is_covered = changes.iter().any(|change| change.from == before);
    (if is_covered { changed } else { most }, most)
}

/// The blocks of tokens that have an adjustment or a ban.
fn touched(spec: &RowSpec<'_>) -> impl Iterator<Item = usize> {
    let tokens = spec.adjusts.iter().map(|adjust| adjust.token()).chain(spec.banned.iter().copied());
    tokens.map(block_of)
}

/// The block of a token.
fn block_of(token: u32) -> usize {
    token as usize / BLOCK
}
