//! Logs work that was not done, and who sent it.

use super::finished::Worked;
use super::step::{LogitsBlock, RowStatus};
use crate::metrics::ModelMetrics;
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

/// The first logit that is not a number, and how many of them its row has.
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

/// Logs every work that was not done at level debug. Once in a while it also warns of logits that no worker means to
/// send. Peer, model, step and sequence say who sent them; row, column and number may show what made them. A row of
/// nothing but such logits is a model's fault; some at the end of a row are padding that nobody wrote.
pub(super) fn complain(origin: &StepOrigin, step_id: u64, logits: &LogitsBlock, worked: &Worked) {
    let (Err(failure), sequence_id) = (&worked.done, worked.sequence) else { return };
    let (peer, model) = (&*origin.peer, &origin.model);
    tracing::debug!(
        peer,
        model = model.name(),
        step_id,
        sequence_id,
        status = failure.label(),
        "work was not done: {}",
        failure.message
    );
    if failure.status != RowStatus::NanLogits {
        return;
    }
    if let Some(more) = model.bad_logits.next(Instant::now()) {
        let bad = first_bad(logits, worked);
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
}

/// The first bad logit. `None` if the rows are in a device's memory, or have changed since.
fn first_bad(logits: &LogitsBlock, worked: &Worked) -> Option<BadLogit> {
    (worked.first_row..).take(worked.rows.min(MAX_ROWS)).find_map(|row| {
        let logits = logits.row(row).filter(|row| row.device_address().is_none())?;
        if let Some(listed) = logits.listed() {
            let mut bad = listed.entries().iter().filter(|entry| entry.logit.is_nan());
            let at = LogitPlace::Token(bad.next()?.token);
            return Some(BadLogit { row, at, columns: 1 + bad.count() });
        }
        let mut copy = vec![0; logits.byte_len()];
        let values = logits.taken(&mut copy).widen();
        let column = values.iter().position(|value| value.is_nan())?;
        Some(BadLogit {
            row,
            at: LogitPlace::Column(column),
            columns: values.iter().filter(|value| value.is_nan()).count(),
        })
    })
}
