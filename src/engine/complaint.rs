//! Logs work that was not done and sequences that were not opened, and who sent them: at level debug, and once in a while
//! for each model at a level that servers log, so that an operator who sees the metric finds the worker.

use super::finished::Worked;
use super::step::{LogitsBlock, RowFailure, RowStatus};
use crate::complaints::complain_at_times;
use crate::metrics::ModelMetrics;
use crate::sampling::fault::{self, Found};
use crate::sampling::row::RowError;
use crate::sequence::OpenError;
use std::sync::Arc;
use std::time::Instant;

/// How many rows of a work are searched for the reason of its failure.
const MAX_ROWS: usize = 64;

/// Who sends steps.
#[derive(Debug, Clone)]
pub struct StepOrigin {
    /// The metrics of the model.
    pub model: ModelMetrics,
    /// The other end of the connection, as the log names it.
    pub peer: Arc<str>,
}

impl StepOrigin {
    /// What the log names the other end if there is none.
    pub const NOBODY: &str = "nobody";
}

impl From<ModelMetrics> for StepOrigin {
    fn from(model: ModelMetrics) -> Self {
        Self { model, peer: Self::NOBODY.into() }
    }
}

/// Logs a sequence that was not opened.
pub(super) fn opening(origin: &StepOrigin, step_id: u64, sequence_id: u64, error: &OpenError) {
    let (peer, model) = (&*origin.peer, &origin.model);
    complain_at_times!(
        model.complaints.openings,
        peer,
        model = model.name(),
        step_id,
        sequence_id,
        status = error.label(),
        "a sequence was not opened: {error}"
    );
}

/// Logs work that was not done. Peer, model, step and sequence say who sent it.
pub(super) fn work(origin: &StepOrigin, step_id: u64, logits: &LogitsBlock, worked: &Worked) {
    let (Err(failure), sequence_id) = (&worked.done, worked.sequence) else { return };
    if matches!(failure.status, RowStatus::NanLogits | RowStatus::PositiveInfinity) {
        return bad_logits(origin, step_id, logits, worked, failure);
    }
    let (peer, model, status) = (&*origin.peer, &origin.model, failure.label());
    // That a row listed too few tokens is no mistake, and an opening that failed has a line of its own.
    if failure.status == RowStatus::BeyondTopN || failure.is_not_opened() {
        return quietly(origin, step_id, sequence_id, failure);
    }
    complain_at_times!(
        model.complaints.works,
        peer,
        model = model.name(),
        step_id,
        sequence_id,
        status,
        "work was not done: {}",
        failure.message
    );
}

/// Logs work that was not done for those who look at level debug.
fn quietly(origin: &StepOrigin, step_id: u64, sequence_id: Option<u64>, failure: &RowFailure) {
    let (peer, model, status) = (&*origin.peer, origin.model.name(), failure.label());
    tracing::debug!(peer, model, step_id, sequence_id, status, "work was not done: {}", failure.message);
}

/// Warns once in a while of logits that no worker means to send. Row, column and number may show what made them. A row
/// of nothing but such logits is a model's fault; some at the end of a row are padding that nobody wrote.
fn bad_logits(origin: &StepOrigin, step_id: u64, logits: &LogitsBlock, worked: &Worked, failure: &RowFailure) {
    let (peer, model, sequence_id) = (&*origin.peer, &origin.model, worked.sequence);
    let Some(more) = model.complaints.bad_logits.next(Instant::now()) else {
        return quietly(origin, step_id, sequence_id, failure);
    };
    let error = match failure.status {
        RowStatus::PositiveInfinity => RowError::PositiveInfinity,
        _ => RowError::Nan,
    };
    let bad = first_bad(logits, worked, error);
    let (row, columns) = bad.map(|(row, found)| (row, found.count)).unzip();
    let first = bad.and_then(|(_, found)| found.first);
    // A row that lists its tokens has no columns.
    let is_list = row.and_then(|row| logits.row(row)).is_some_and(|row| row.listed().is_some());
    let (column, token_id) = if is_list { (None, first) } else { (first, None) };
    tracing::warn!(
        peer,
        model = model.name(),
        step_id,
        sequence_id,
        row,
        column,
        token_id,
        columns,
        more,
        "bad logits: {}",
        failure.message
    );
}

/// The first row with bad logits. `None` if a device reads the rows where they lie, or if they
/// have changed since.
fn first_bad(logits: &LogitsBlock, worked: &Worked, error: RowError) -> Option<(u64, Found)> {
    (worked.first_row..).take(worked.rows.min(MAX_ROWS)).find_map(|row| {
        let found = fault::find(error, &logits.row(row)?).filter(|found| found.count > 0)?;
        Some((row, found))
    })
}
