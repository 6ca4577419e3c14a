//! The weights that are left to draw from at a position whose target is not a list.

use super::passes::{Passes, Reals};
use super::proposed::{Cut, Proposed};
use crate::backend::cpu::distribution::Distribution;
use crate::backend::cpu::passes::BLOCK;
use crate::backend::cpu::view::View;
use crate::sampling::mass::draw_point;
use crate::speculative::weights::Residual;

/// Storage of residuals. Kept from draft to draft; bounded by the vocabulary.
#[derive(Debug, Default)]
pub(crate) struct ResidualStore {
    /// The weight that is left, by block.
    sums: Vec<u64>,
    /// The weight by block of the residual that was weighed last.
    next: Vec<u64>,
    /// Weights by token, used from the second residual of a position on.
    dense: Vec<u64>,
}

/// What is left at a position.
#[derive(Debug, Clone, Copy)]
pub(super) enum RowResidual {
    /// The whole target.
    Target,
    /// What the target has beyond a draft token's distribution. Computed again where it is needed.
    Beyond { node: usize, factor: f64, total: u64 },
    /// The weights in the store.
    Dense { total: u64 },
}

/// A position whose target has masses by block.
pub(super) struct Blocks<'a> {
    pub(super) passes: Passes,
    pub(super) view: View<'a>,
    pub(super) target: &'a Distribution,
    /// The target's mass by block.
    pub(super) sums: &'a [u64],
    pub(super) cut: Cut,
    pub(super) drafts: &'a [Proposed<'a>],
    pub(super) left: RowResidual,
}

impl Blocks<'_> {
    /// The sum of what is left.
    pub(super) fn total(&self) -> u64 {
        match self.left {
            RowResidual::Target => self.target.total(),
            RowResidual::Beyond { total, .. } | RowResidual::Dense { total } => total,
        }
    }

    /// The weight that is left of a token.
    pub(super) fn mass_of(&self, token: u32, store: &ResidualStore) -> u64 {
        let target = || self.target.mass_of(token, self.view.value(token));
        match self.left {
            RowResidual::Target => target(),
            RowResidual::Beyond { node, factor, .. } => {
                self.by(factor, node).weight(target(), self.drafts[node].mass_of(token))
            }
            RowResidual::Dense { .. } => store.dense[token as usize],
        }
    }

    /// The target's masses in a block.
    pub(super) fn target_reals(&self, at: usize, out: &mut Reals) {
        let (row, place) = self.view.place(at);
        self.cut.reals(row, place, at, self.passes, out);
    }

    /// The residual of the target beyond a draft token's distribution.
    fn by(&self, factor: f64, node: usize) -> Residual {
        Residual::new(factor, self.target.total(), self.drafts[node].total)
    }

    /// The target's weights beyond a draft token's distribution in a block, and their sum.
    fn beyond(&self, at: usize, by: Residual, node: usize, weights: &mut [u64; BLOCK]) -> u64 {
        let (mut target, mut draft) = ([0.0; BLOCK], [0.0; BLOCK]);
        self.target_reals(at, &mut target);
        self.drafts[node].reals(at, self.passes, &mut draft);
        self.passes.beyond(&target, &draft, by, weights)
    }

    /// The weights that are left in a block, as masses.
    fn left_reals(&self, at: usize, store: &ResidualStore, out: &mut Reals) {
        let mut weights = [0; BLOCK];
        match self.left {
            RowResidual::Target => return self.target_reals(at, out),
            RowResidual::Beyond { node, factor, .. } => {
                self.beyond(at, self.by(factor, node), node, &mut weights);
            }
            RowResidual::Dense { .. } => weights.copy_from_slice(&store.dense[at * BLOCK..][..BLOCK]),
        }
        self.passes.as_masses(&weights, out);
    }

    /// The sum of the target's weights beyond a draft token's distribution in a block; `None` where one pass cannot
    /// compute it.
    fn sum_beyond(&self, at: usize, by: Residual, node: usize) -> Option<u64> {
        if !matches!(self.left, RowResidual::Target) || !self.cut.is_none() {
            return None;
        }
        let (row, place) = self.view.place(at);
        self.passes.sum_beyond(&self.cut.block(row, place, at), &self.drafts[node].whole(at)?, by)
    }

    /// Weighs, by block, what is left beyond a draft token's distribution, and returns the total. With `dense`, stores
    /// the new weights by token; those of what is left until now are lost.
    pub(super) fn weigh(&self, factor: f64, node: usize, dense: bool, store: &mut ResidualStore) -> u64 {
        let by = Residual::new(factor, self.total(), self.drafts[node].total);
        store.next.clear();
        store.next.resize(self.sums.len(), 0);
        if dense {
            store.dense.resize(self.sums.len() * BLOCK, 0);
        }
        let (mut left, mut draft, mut weights) = ([0.0; BLOCK], [0.0; BLOCK], [0; BLOCK]);
        for at in 0..self.sums.len() {
            let here = match self.left {
                RowResidual::Target => self.sums[at],
                RowResidual::Beyond { .. } | RowResidual::Dense { .. } => store.sums[at],
            };
            let sum = if here > 0 && !dense { self.sum_beyond(at, by, node) } else { None };
            if let Some(sum) = sum {
                store.next[at] = sum;
            } else if here > 0 {
                self.left_reals(at, store, &mut left);
                self.drafts[node].reals(at, self.passes, &mut draft);
                store.next[at] = self.passes.beyond(&left, &draft, by, &mut weights);
            }
            if dense {
                let stored = &mut store.dense[at * BLOCK..][..BLOCK];
                if store.next[at] > 0 { stored.copy_from_slice(&weights) } else { stored.fill(0) }
            }
        }
        store.next.iter().sum()
    }

    /// Inverse CDF in token-id order, over a residual.
    pub(super) fn draw(&self, uniform: u64, store: &ResidualStore) -> u32 {
        let mut point = draw_point(uniform, self.total());
        let mut before = |weight: u64| {
            let passed = point >= weight;
            point -= if passed { weight } else { 0 };
            passed
        };
        let at = store.sums.iter().position(|&sum| !before(sum)).expect("the point is below the total; this is a bug");
        let mut weights = [0; BLOCK];
        match self.left {
            RowResidual::Target => unreachable!("the target draws for itself; this is a bug"),
            RowResidual::Beyond { node, factor, .. } => {
                self.beyond(at, self.by(factor, node), node, &mut weights);
            }
            RowResidual::Dense { .. } => weights.copy_from_slice(&store.dense[at * BLOCK..][..BLOCK]),
        }
        let i = weights.iter().position(|&weight| !before(weight));
        (at * BLOCK + i.expect("the block's weights sum to its sum; this is a bug")) as u32
    }
}

impl ResidualStore {
    /// What was weighed last becomes what is left.
    pub(super) fn take(&mut self) {
        std::mem::swap(&mut self.sums, &mut self.next);
    }
}
