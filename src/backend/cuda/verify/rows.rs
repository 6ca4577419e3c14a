//! How many rows of each draft are asked for at a time.
//!
//! Rows behind a rejection are computed in vain, so where all rows take more than two turns of the device, the first of
//! each draft come first, as many as run at once, and then those of the drafts that are still alive. Each such round
//! costs the host's turnaround, which is less than a turn.

use super::Open;
use crate::backend::cuda::ask::{Asked, LaunchLimits};
use std::ops::Range;

/// The least rows of a draft that are asked for together. A draft that goes on mostly has its next token accepted too.
const LEAST: usize = 2;

/// How rows are asked for.
pub(super) struct Positions {
    /// How many rows run at once; `None` if all are asked for first.
    at_once: Option<usize>,
}

impl Positions {
    pub(super) fn new(open: &[Open<'_>], limits: &LaunchLimits) -> Self {
        let rows = || open.iter().flat_map(|ready| ready.table.job.rows);
        let largest = rows().map(|row| Asked::row(*row).room()).max().unwrap_or(1);
        let at_once = limits.at_once.min(limits.bytes / largest);
        Self { at_once: (rows().count() > at_once.saturating_mul(2)).then_some(at_once) }
    }

    /// The rows that are asked for first.
    pub(super) fn first(&self, open: &[Open<'_>]) -> Vec<(usize, Range<usize>)> {
        let by_position = |ready: &Open<'_>| ready.table.is_asked_by_position(&ready.drafts);
        let whole = open.iter().filter(|ready| !by_position(ready)).map(|ready| ready.table.job.rows.len()).sum();
        let drafts = open.iter().filter(|ready| by_position(ready)).count();
        let each = self.each(drafts, whole);
        let first = |ready| if by_position(ready) { each } else { usize::MAX };
        let rows = |(at, ready)| (at, of(ready, 0, first(ready)));
        open.iter().enumerate().map(rows).collect()
    }

    /// The rows that are asked for next, by the index of each job and the first row that it lacks.
    pub(super) fn next(&self, open: &[Open<'_>], lacking: &[(usize, usize)]) -> Vec<(usize, Range<usize>)> {
        let each = self.each(lacking.len(), 0);
        lacking.iter().map(|&(at, row)| (at, of(&open[at], row, each))).collect()
    }

    /// How many rows of each of so many drafts are asked for, beside so many other rows.
    fn each(&self, drafts: usize, others: usize) -> usize {
        self.at_once.map_or(usize::MAX, |at_once| (at_once.saturating_sub(others) / drafts.max(1)).max(LEAST))
    }
}

/// At most so many rows of a job from this one on.
fn of(ready: &Open<'_>, from: usize, count: usize) -> Range<usize> {
    from..ready.table.job.rows.len().min(from.saturating_add(count))
}
