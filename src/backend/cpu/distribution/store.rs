//! The lists of a distribution.

use super::{Store, TOP_P_BLOCKS, TOP_P_LIST};
use crate::backend::cpu::passes::{PAD, Sample, Weigh};
use crate::backend::cpu::search::Anchor;
use crate::backend::cpu::view::View;
use crate::backend::cpu::{keys, select};

impl Store {
    /// Room for a sample of a row.
    pub(in crate::backend::cpu) fn sample(&mut self) -> &mut Sample {
        &mut self.search.sample
    }

    /// Kept mass by block, of a distribution that is not a list.
    pub(in crate::backend::cpu) fn sums(&self) -> &[u64] {
        &self.sums
    }

    /// Takes the sums out. [`Store::give_sums`] puts them back.
    pub(in crate::backend::cpu) fn take_sums(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.sums)
    }

    /// Bytes of memory that the sums take.
    pub(in crate::backend::cpu) fn sum_bytes(&self) -> usize {
        size_of_val(self.sums.as_slice())
    }

    /// Puts the sums back.
    pub(in crate::backend::cpu) fn give_sums(&mut self, sums: Vec<u64>) {
        self.sums = sums;
    }

    /// Computes the masses of the keys.
    pub(super) fn weigh_keys(&mut self, view: &View<'_>, weigh: Weigh) {
        let padded = self.keys.len().next_multiple_of(PAD);
        self.logits.clear();
        self.logits.extend(self.keys.iter().map(|&key| keys::logit(key)));
        self.logits.resize(padded, f32::NEG_INFINITY);
        self.masses.resize(padded, 0);
        view.passes().masses(&self.logits, weigh, &mut self.masses);
        self.masses.truncate(self.keys.len());
    }

    /// Lists the tokens at or above the maximum of [`TOP_P_BLOCKS`] blocks, with their masses, unless there are too
    /// many. Returns where the list ends.
    pub(super) fn list_largest(&mut self, view: &View<'_>, weigh: Weigh) -> Anchor {
        let bound = select::bound_of_top(view.passes(), view.maxima, view.max, TOP_P_BLOCKS.min(view.blocks()));
        view.collect(bound, &mut self.keys);
        if self.keys.len() > TOP_P_LIST {
            self.keys.clear();
            self.masses.clear();
            return Anchor::TOP;
        }
        self.keys.sort_unstable();
        self.weigh_keys(view, weigh);
        Anchor { logit: bound, weight: self.masses.iter().sum() }
    }

    /// The place at which the running mass reaches `need`.
    pub(super) fn reaching(&self, need: u64) -> Option<usize> {
        let mut sum = 0;
        self.masses.iter().position(|&mass| {
            sum += mass;
            sum >= need
        })
    }

    pub(super) fn truncate(&mut self, kept: usize) {
        self.keys.truncate(kept);
        self.masses.truncate(kept);
    }

    pub(super) fn retain(&mut self, need: u64) {
        let mut masses = self.masses.iter();
        self.keys.retain(|_| masses.next().is_some_and(|&mass| mass >= need));
        self.masses.retain(|&mass| mass >= need);
    }

    /// Inverse CDF in token-id order over the list.
    pub(super) fn draw(&mut self, mut point: u64) -> u32 {
        let mut by_token: Vec<(u32, u64)> =
            self.keys.iter().map(|&key| keys::token(key)).zip(self.masses.iter().copied()).collect();
        by_token.sort_unstable_by_key(|&(token, _)| token);
        for (token, mass) in by_token {
            if point < mass {
                return token;
            }
            point -= mass;
        }
        unreachable!("the point is below the total")
    }
}
