//! Side blocks: what masks, bias and penalties made of the blocks that they touch.

use super::{DENSE_SHARE, View, ViewStore};
use crate::backend::cpu::passes::{BLOCK, Raise, maximum};
use crate::backend::cpu::{greens, own, select};
use crate::sampling::mark::greenlist::Greenlist;
use crate::sampling::row::RowSpec;

impl ViewStore {
    /// Side blocks for the whole row, everything −∞ but the tokens of `allowed`.
    pub(super) fn only(&mut self, raw: &View<'_>, allowed: &[u32]) {
        self.side_blocks.extend(0..raw.blocks() as u32);
        self.side_values.resize(raw.blocks() * BLOCK, f32::NEG_INFINITY);
        for &token in allowed {
            self.side_values[token as usize] = raw.row.get(token);
        }
    }

    /// Side blocks that hold every touched token, with their old values.
    pub(super) fn touch(&mut self, raw: &View<'_>, spec: &RowSpec<'_>) {
        let tokens = spec.adjusts.iter().map(|adjust| adjust.token()).chain(spec.banned.iter().copied());
        self.side_blocks.extend(tokens.map(|token| token / BLOCK as u32));
        // Both lists ascend; only where they meet is there anything to sort.
        self.side_blocks.sort_unstable();
        self.side_blocks.dedup();
        if self.side_blocks.len() * DENSE_SHARE > raw.blocks() {
            self.side_blocks.clear();
            self.side_blocks.extend(0..raw.blocks() as u32);
        }
        self.side_values.resize(self.side_blocks.len() * BLOCK, 0.0);
        for (&block, values) in self.side_blocks.iter().zip(self.side_values.chunks_exact_mut(BLOCK)) {
            raw.passes.widen(raw.row.bytes(), block as usize, values);
        }
    }

    /// Adjusts the side values.
    pub(super) fn apply(&mut self, raw: &View<'_>, spec: &RowSpec<'_>) {
        let whole = self.side_blocks.len() == raw.blocks();
        let mut at = 0;
        for adjust in spec.adjusts.iter() {
            let place = place(&self.side_blocks, whole, adjust.token(), &mut at);
            let value = &mut self.side_values[place];
            *value = adjust.apply(*value, &spec.penalties);
        }
        if let Some(greens) = spec.greens() {
            greens::raise(raw.passes, greens, spec.allowed, &mut self.side_values);
        }
        at = 0;
        for &token in spec.banned {
            let place = place(&self.side_blocks, whole, token, &mut at);
            self.side_values[place] = f32::NEG_INFINITY;
        }
    }

    /// A value below which it is all the same what raised tokens become: if only the first of the order are asked for, so many
    /// blocks that nothing else touches have one that reaches it, and raising takes nothing away.
    fn raised_from(&mut self, raw: &View<'_>, spec: &RowSpec<'_>) -> f32 {
        let Some(first) = own::first_drawn_from(spec, raw.vocab_size()) else { return f32::NEG_INFINITY };
        self.maxima.clear();
        self.maxima.extend_from_slice(raw.maxima);
        touched(spec).for_each(|block| self.maxima[block] = f32::NEG_INFINITY);
        select::bound_of_top(raw.passes, (&self.maxima, maximum(&self.maxima)), first)
    }

    /// All of a row with a greenlist but without a list of what is allowed: side blocks for the whole row, adjusted, and their
    /// maxima.
    pub(super) fn raise(&mut self, raw: &View<'_>, spec: &RowSpec<'_>, greens: &Greenlist) {
        let (count, from) = (raw.blocks(), self.raised_from(raw, spec));
        self.side_blocks.extend(0..count as u32);
        // Every value is written, so what was there is not taken out first.
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
        for block in touched(spec) {
            self.side_maxima[block] = maximum(&self.side_values[block * BLOCK..][..BLOCK]);
        }
    }

    /// Maxima of the side blocks, and the two lists that follow from them.
    pub(super) fn finish(&mut self, raw: &View<'_>) {
        self.side_maxima.clear();
        self.side_maxima.resize(self.side_blocks.len(), f32::NEG_INFINITY);
        raw.side.passes.scan(bytemuck::cast_slice(&self.side_values), &mut self.side_maxima);
        self.place_maxima(raw);
    }

    /// The two lists of maxima that follow from those of the side blocks.
    pub(super) fn place_maxima(&mut self, raw: &View<'_>) {
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

/// Blocks of tokens with an adjustment or ban.
fn touched(spec: &RowSpec<'_>) -> impl Iterator<Item = usize> {
    let tokens = spec.adjusts.iter().map(|adjust| adjust.token()).chain(spec.banned.iter().copied());
    tokens.map(|token| token as usize / BLOCK)
}

/// Where `token` lies among the side values; `at` walks along `side_blocks` with ascending tokens.
fn place(side_blocks: &[u32], whole: bool, token: u32, at: &mut usize) -> usize {
    if whole {
        return token as usize;
    }
    while side_blocks[*at] < token / BLOCK as u32 {
        *at += 1;
    }
    *at * BLOCK + token as usize % BLOCK
}
