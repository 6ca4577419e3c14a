//! Logs work that was not done and sequences that were not opened, and who sent them: at level debug, and once in a while
//! for each model at a level that servers log, so that an operator who sees the metric finds the worker.

use super::finished::Worked;
use super::step::{LogitsBlock, RowFailure, RowStatus};
use crate::complaints::complain_at_times;
use crate::metrics::ModelMetrics;
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

/// The first logit that is NaN or +infinity, whichever the row has, and how many of them it has.
struct BadLogit {
    row: u64,
    at: LogitPlace,
    columns: usize,
}

/// The place of a logit in its row.
enum LogitPlace {
    /// A column of a whole row.
    Column(usize),
    /// A token of a row that lists its tokens and so has no columns.
    Token(u32),
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
    let bad = first_bad(logits, worked, failure.status);
    let (row, columns) = (bad.as_ref().map(|bad| bad.row), bad.as_ref().map(|bad| bad.columns));
    let (column, token_id) = match bad.map(|bad| bad.at) {
        Some(LogitPlace::Column(column)) => (Some(column), None),
        Some(LogitPlace::Token(token)) => (None, Some(token)),
        None => (None, None),
    };
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

/// The first bad logit. `None` if the rows are in a device's memory, or have changed since.
fn first_bad(logits: &LogitsBlock, worked: &Worked, status: RowStatus) -> Option<BadLogit> {
    let is_bad = |logit: f32| match status {
        RowStatus::PositiveInfinity => logit == f32::INFINITY,
        _ => logit.is_nan(),
    };
    (worked.first_row..).take(worked.rows.min(MAX_ROWS)).find_map(|row| {
        let logits = logits.row(row).filter(|row| row.device_address().is_none())?;
        if let Some(listed) = logits.listed() {
            let mut bad = listed.entries().iter().filter(|entry| is_bad(entry.logit));
            let at = LogitPlace::Token(bad.next()?.token);
            return Some(BadLogit { row, at, columns: 1 + bad.count() });
        }
        let mut copy = vec![0; logits.byte_len()];
        let values = logits.taken(&mut copy).widen();
        let column = values.iter().position(|value| is_bad(*value))?;
        Some(BadLogit {
            row,
            at: LogitPlace::Column(column),
            columns: values.iter().filter(|value| is_bad(**value)).count(),
        })
    })
}
