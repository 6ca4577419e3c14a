//! The row that a walk is at, and those that it will be at again.

use super::left::Left;
use crate::backend::VerifyJob;
use crate::backend::cpu::distribution::{Distribution, Store, Wanted};
use crate::backend::cpu::level::Level;
use crate::backend::cpu::view::{View, ViewStore};
use crate::sampling::observed::{Observed, Seen, Share};
use crate::sampling::row::RowSpec;
use crate::sampling::samplers::skew::Along;
use crate::speculative::weights::Weights;

/// A row that was come to.
pub(super) struct Here {
    pub(super) row: usize,
    /// Its maximum as sent.
    max: f32,
    pub(super) target: Distribution,
    /// The target, if it is a list, and what is left of it.
    pub(super) list: Option<[Weights; 2]>,
    /// Whether something was taken from that.
    pub(super) is_taken_from: bool,
    /// What the whole target is drawn from along, where it is not by token ids; it is a list then.
    pub(super) along: Option<Along>,
    /// What is left, if it is none.
    pub(super) left: Left,
    /// The residual weighed last, as long as what is left is the same.
    pub(super) weighed: Option<Weighed>,
    /// What adaptive-p saw.
    seen: Option<Seen>,
}

#[derive(Clone, Copy)]
pub(super) struct Weighed {
    pub(super) factor: f64,
    pub(super) node: usize,
    pub(super) total: u64,
}

/// Longer lists of a row are made again rather than set aside.
const MOST_ASIDE: usize = 2048;

/// What all rows of a job on the side may take, in bytes; further ones are made again.
pub(super) const MOST_ASIDE_BYTES: usize = 8 << 20;

/// A row that was left, with what the stores held of it: a fifth of a byte a token, the blocks that masks, bias and
/// penalties touch, and a list of at most [`MOST_ASIDE`] tokens. It goes with the job.
pub(super) struct Aside {
    pub(super) here: Here,
    maxima: Vec<f32>,
    view: ViewStore,
    sums: Vec<u64>,
}

impl Here {
    /// A row that was prepared: its distribution.
    pub(super) fn new(
        level: Level,
        job: &VerifyJob<'_>,
        row: usize,
        max: f32,
        spec: &RowSpec<'_>,
        maxima: &[f32],
        adjusted: &ViewStore,
        store: &mut Store,
    ) -> Self {
        let view = view(level, job, row, max, maxima, adjusted);
        let target = Distribution::processed(&view, &spec.filters, spec.chain.as_ref(), Wanted::All, store);
        let list = target.entries(store).map(|entries| Weights::new(entries.into_iter()));
        let list = list.map(|list| [list.clone(), list]);
        // The store may still hold what an earlier row was drawn from along.
        let along = store.chain.take_along().filter(|_| target.is_chain());
        let seen = store.chain.take_seen();
        Self { row, max, target, list, is_taken_from: false, along, left: Left::Target, weighed: None, seen }
    }

    /// Whether it is worth the memory to set it aside.
    pub(super) fn is_small(&self) -> bool {
        let seen = self.seen.as_ref().map_or(0, |seen| seen.masses.len());
        seen <= MOST_ASIDE && self.list.as_ref().is_none_or(|[target, _]| target.entries().len() <= MOST_ASIDE)
    }

    /// What it takes on the side, about, with what the stores hold of it.
    pub(super) fn bytes(&self, maxima: &[f32], view: &ViewStore, store: &Store) -> usize {
        let listed = self.list.as_ref().map_or(0, |[target, _]| target.entries().len());
        let seen = self.seen.as_ref().map_or(0, |seen| seen.masses.len());
        // Both lists of weights, what is drawn from along, and what was seen.
        let lists = (3 * listed + seen) * size_of::<(u32, u64)>();
        size_of_val(maxima) + view.bytes() + store.sum_bytes() + lists + size_of::<Aside>()
    }

    /// What samplers learn from a token.
    pub(super) fn observed(&self, view: &View<'_>, token: u32) -> Observed {
        let mass = match &self.list {
            Some([target, _]) => target.weight(token),
            None => self.target.mass_of(token, view.value(token)),
        };
        let along = self.along.as_ref().map(|along| along.share(token));
        let drawn = along.unwrap_or(Share { mass, total: self.target.total() });
        Observed { drawn, seen: self.seen.as_ref().map_or(drawn, |seen| seen.share(token)) }
    }

    /// The row as it was prepared.
    pub(super) fn view<'v>(
        &self,
        level: Level,
        job: &VerifyJob<'v>,
        maxima: &'v [f32],
        store: &'v ViewStore,
    ) -> View<'v> {
        view(level, job, self.row, self.max, maxima, store)
    }

    /// The whole target is left.
    pub(super) fn start(&mut self) {
        if let Some([target, left]) = &mut self.list {
            left.clone_from(target);
            self.is_taken_from = false;
        }
        if !matches!(self.left, Left::Target) {
            (self.left, self.weighed) = (Left::Target, None);
        }
    }
}

impl Aside {
    /// Takes from the stores what they hold of a row.
    pub(super) fn new(here: Here, maxima: &mut Vec<f32>, view: &mut ViewStore, store: &mut Store) -> Self {
        // The store of residuals is that of the row come to.
        let here = Here { left: Left::Target, weighed: None, ..here };
        Self { here, maxima: std::mem::take(maxima), view: std::mem::take(view), sums: store.take_sums() }
    }

    /// Gives it back to them.
    pub(super) fn back(self, maxima: &mut Vec<f32>, view: &mut ViewStore, store: &mut Store) -> Here {
        (*maxima, *view) = (self.maxima, self.view);
        store.give_sums(self.sums);
        self.here
    }
}

/// A prepared row of a job, by its number and its maximum as sent.
fn view<'v>(
    level: Level,
    job: &VerifyJob<'v>,
    row: usize,
    max: f32,
    maxima: &'v [f32],
    store: &'v ViewStore,
) -> View<'v> {
    let row = &job.rows[row];
    View::from_store(&View::raw(level, row.logits, maxima, max), &row.spec, store)
}
