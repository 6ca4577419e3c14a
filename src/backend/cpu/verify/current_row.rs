//! The row that a walk is at, and the rows that it will come to again.

use super::residual::RowResidual;
use crate::backend::VerifyJob;
use crate::backend::cpu::distribution::{Distribution, Store, Wanted};
use crate::backend::cpu::level::Level;
use crate::backend::cpu::view::{View, ViewStore};
use crate::sampling::observed::{Observed, Seen, Share};
use crate::sampling::row::RowSpec;
use crate::sampling::samplers::skew::Along;
use crate::speculative::weights::Weights;

/// The current row.
pub(super) struct CurrentRow {
    pub(super) row: usize,
    /// The row's largest logit, as sent.
    max: f32,
    pub(super) target: Distribution,
    /// The target and what is left of it, if the target is a list.
    pub(super) list: Option<[Weights; 2]>,
    /// Whether something was taken from that list.
    pub(super) is_taken_from: bool,
    /// The candidates with cumulative masses, where the whole target is not drawn from by token ids. The target is a
    /// list then.
    pub(super) along: Option<Along>,
    /// What is left, if the target is not a list.
    pub(super) left: RowResidual,
    /// The residual that was weighed last. Valid as long as what is left stays the same.
    pub(super) weighed: Option<Weighed>,
    /// The distribution that adaptive-p saw.
    seen: Option<Seen>,
}

#[derive(Clone, Copy)]
pub(super) struct Weighed {
    pub(super) factor: f64,
    pub(super) node: usize,
    pub(super) total: u64,
}

/// Rows with longer lists are prepared again rather than set aside.
const MAX_SUSPENDED_TOKENS: usize = 2048;

/// How many bytes all rows that a job sets aside may take. Further rows are prepared again.
pub(super) const MAX_SUSPENDED_BYTES: usize = 8 << 20;

/// A row that was left, with what the stores held of it: a fifth of a byte for each token, the blocks that masks, bias
/// and penalties touch, and a list of at most [`MAX_SUSPENDED_TOKENS`] tokens. It is dropped with the job.
pub(super) struct SuspendedRow {
    pub(super) current: CurrentRow,
    maxima: Vec<f32>,
    view: ViewStore,
    sums: Vec<u64>,
}

impl CurrentRow {
    /// Makes the distribution of a row that was prepared, given its number, its largest logit as sent and its view.
    pub(super) fn new(row: usize, max: f32, view: &View<'_>, spec: &RowSpec<'_>, store: &mut Store) -> Self {
        let target = Distribution::processed(view, &spec.filters, spec.chain.as_ref(), Wanted::All, store);
        let list = target.entries(store).map(|entries| Weights::new(entries.into_iter()));
        let list = list.map(|list| [list.clone(), list]);
        // The store may still hold the candidates of an earlier row.
        let along = store.chain.take_along().filter(|_| target.is_chain());
        let seen = store.chain.take_seen();
        Self { row, max, target, list, is_taken_from: false, along, left: RowResidual::Target, weighed: None, seen }
    }

    /// Whether the row is small enough to be set aside.
    pub(super) fn is_small(&self) -> bool {
        let seen = self.seen.as_ref().map_or(0, |seen| seen.masses.len());
        seen <= MAX_SUSPENDED_TOKENS
            && self.list.as_ref().is_none_or(|[target, _]| target.entries().len() <= MAX_SUSPENDED_TOKENS)
    }

    /// About how many bytes the row takes when it is set aside, with what the stores hold of it.
    pub(super) fn bytes(&self, maxima: &[f32], view: &ViewStore, store: &Store) -> usize {
        let listed = self.list.as_ref().map_or(0, |[target, _]| target.entries().len());
        let seen = self.seen.as_ref().map_or(0, |seen| seen.masses.len());
        // Both lists of weights, the candidates that are drawn along, and what adaptive-p saw.
        let lists = (3 * listed + seen) * size_of::<(u32, u64)>();
        size_of_val(maxima) + view.bytes() + store.sum_bytes() + lists + size_of::<SuspendedRow>()
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

    /// The view of the row as it was prepared.
    pub(super) fn view<'v>(
        &self,
        level: Level,
        job: &VerifyJob<'v>,
        maxima: &'v [f32],
        store: &'v ViewStore,
    ) -> View<'v> {
        view(level, job, self.row, self.max, maxima, store)
    }

    /// Begins anew: the whole target is left.
    pub(super) fn start(&mut self) {
        if let Some([target, left]) = &mut self.list {
            left.clone_from(target);
            self.is_taken_from = false;
        }
        if !matches!(self.left, RowResidual::Target) {
            (self.left, self.weighed) = (RowResidual::Target, None);
        }
    }
}

impl SuspendedRow {
    /// Takes out of the stores what they hold of a row.
    pub(super) fn new(current: CurrentRow, maxima: &mut Vec<f32>, view: &mut ViewStore, store: &mut Store) -> Self {
        // The store of residuals belongs to the row that the walk is at.
        let current = CurrentRow { left: RowResidual::Target, weighed: None, ..current };
        Self { current, maxima: std::mem::take(maxima), view: std::mem::take(view), sums: store.take_sums() }
    }

    /// Puts it back into the stores.
    pub(super) fn back(self, maxima: &mut Vec<f32>, view: &mut ViewStore, store: &mut Store) -> CurrentRow {
        (*maxima, *view) = (self.maxima, self.view);
        store.give_sums(self.sums);
        self.current
    }
}

/// The view of a prepared row, given its number and its largest logit as sent.
pub(super) fn view<'v>(
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
