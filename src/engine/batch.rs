//! One batch: the steps it took, the rows they need, and what comes of them.

use super::rows::{MAX_AHEAD_ENTRIES, RowSource, run_rows};
use super::state::{Queued, Stream, StreamId};
use super::step::{Done, Opened, RowFailure, RowStatus, Step, Work, WorkKind};
use crate::backend::Backend;
use crate::limits::Limits;
use crate::permits::Permit;
use crate::sampling::row::RowOutput;
use crate::sequence::Sequence;
use crate::sequence::table::Table;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// Steps taken together, and their results once run.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    now: Instant,
    pub(super) steps: Vec<Taken>,
    /// Rows to run.
    pub(super) rows: usize,
    /// One per row, in order.
    pub(super) results: Vec<Result<RowOutput, RowFailure>>,
}

/// A step in a batch.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) stream: StreamId,
    pub(super) step: Step,
    pub(super) open: Vec<Opened>,
    /// For each work the rows to expect, or why there are none.
    pub(super) plan: Vec<Result<usize, RowFailure>>,
    pub(super) permits: (Permit, Permit),
}

impl Taken {
    /// Rows to run, and so results.
    pub(super) fn rows(&self) -> usize {
        self.plan.iter().flatten().sum()
    }
}

impl Batch {
    pub(super) fn new(number: u64, now: Instant) -> Self {
        Self { number, now, steps: Vec::new(), rows: 0, results: Vec::new() }
    }

    /// Whether the step's rows fit. A step alone always does.
    pub(super) fn has_room_for(&self, step: &Step, max_rows: usize) -> bool {
        self.rows == 0 || self.rows + step.rows() <= max_rows
    }

    /// Takes a step: closes and opens its sequences, plans its rows.
    pub(super) fn take(&mut self, id: StreamId, queued: Queued, stream: &mut Stream, limits: &Limits) {
        let Queued { mut step, permits } = queued;
        for &sequence in &step.close {
            stream.table.close(sequence);
        }
        let open: Vec<Opened> = step
            .open
            .drain(..)
            .map(|open| {
                let result = open.sequence.and_then(|sequence| stream.table.open(open.sequence_id, sequence));
                Opened { sequence_id: open.sequence_id, result }
            })
            .collect();
        // An id whose opening failed may be open all the same, as another text that must go on untouched.
        let failed: HashSet<u64> = open.iter().filter(|open| open.result.is_err()).map(|o| o.sequence_id).collect();
        let expired = step.deadline.is_some_and(|deadline| self.now > deadline);
        let mut plan = Vec::with_capacity(step.work.len());
        for work in &step.work {
            let planned = if work.sequence_id.is_some_and(|sequence| failed.contains(&sequence)) {
                Err(unknown_sequence("the sequence could not be opened in this step"))
            } else if expired {
                Err(RowFailure::new(RowStatus::DeadlineExceeded, "the step's deadline passed before its rows started"))
            } else {
                plan_work(&mut stream.table, work, &step, self.number, limits)
            };
            self.rows += *planned.as_ref().unwrap_or(&0);
            plan.push(planned);
        }
        drop(permits.queued);
        self.steps.push(Taken { stream: id, step, open, plan, permits: permits._in_flight });
    }

    /// Runs all rows.
    pub(super) fn run(&mut self, streams: &HashMap<StreamId, Stream>, backend: &mut dyn Backend) {
        // Planned rows always have a source. Should one not, none may run: results are told apart by order.
        self.results = match self.sources(streams) {
            Some(sources) => run_rows(&sources, MAX_AHEAD_ENTRIES, backend),
            None => vec![Err(RowFailure::new(RowStatus::Internal, "a row of the batch was lost")); self.rows],
        };
    }

    fn sources<'a>(&'a self, streams: &'a HashMap<StreamId, Stream>) -> Option<Vec<RowSource<'a>>> {
        let mut sources = Vec::with_capacity(self.rows);
        for taken in &self.steps {
            let table = &streams.get(&taken.stream)?.table;
            for (work, planned) in taken.step.work.iter().zip(&taken.plan) {
                let Ok(rows) = planned else { continue };
                for row in 0..*rows {
                    let logits = taken.step.logits.row(work.first_row + row as u64)?;
                    let sequence = work.sequence_id.and_then(|id| table.get(id));
                    sources.push(RowSource::new(logits, work.kind.as_ref().ok()?, sequence, row)?);
                }
            }
        }
        Some(sources)
    }
}

fn unknown_sequence(message: &'static str) -> RowFailure {
    RowFailure::new(RowStatus::UnknownSequence, message)
}

/// The rows a work needs, or why it cannot be done.
fn plan_work(table: &mut Table, work: &Work, step: &Step, batch: u64, limits: &Limits) -> Result<usize, RowFailure> {
    let entered = match work.sequence_id.map(|id| table.enter_batch(id, batch)) {
        None => None,
        Some(None) => return Err(unknown_sequence("no such sequence is open on this stream")),
        Some(Some((_, true))) => {
            let message = "the sequence has other work in this step; send it in the next one";
            return Err(RowFailure::new(RowStatus::DuplicateSequence, message));
        }
        Some(Some((sequence, false))) => Some(sequence),
    };
    let kind = work.kind.as_ref().map_err(RowFailure::clone)?;
    let rows = match kind {
        WorkKind::Sample => {
            may_sample(entered, limits)?;
            1
        }
        WorkKind::Score(score) => score.tokens.len(),
    };
    if work.first_row.saturating_add(rows as u64) > step.logits.rows() {
        let message =
            format!("needs {rows} rows from row {}, the step has {} rows", work.first_row, step.logits.rows());
        return Err(RowFailure::new(RowStatus::RowOutOfRange, message));
    }
    Ok(rows)
}

fn may_sample(sequence: Option<&Sequence>, limits: &Limits) -> Result<(), RowFailure> {
    let Some(sequence) = sequence else {
        return Err(RowFailure::new(RowStatus::InvalidWork, "sequence_id: is required to sample"));
    };
    if sequence.finished().is_some() {
        return Err(RowFailure::new(RowStatus::SequenceFinished, "the sequence has ended; close it"));
    }
    if sequence.history_len() >= limits.max_history_tokens as u64 {
        let message = "prompt and output are as long as max_history_tokens allows";
        return Err(RowFailure::new(RowStatus::HistoryLimit, message));
    }
    Ok(())
}

/// What came of a work whose rows have run, `results` being theirs; commits its token.
pub(super) fn finish(
    table: &mut Table,
    work: Work,
    mut results: impl Iterator<Item = Result<RowOutput, RowFailure>>,
) -> Result<Done, RowFailure> {
    let lost = || RowFailure::new(RowStatus::Internal, "the row has no result");
    match work.kind? {
        WorkKind::Sample => {
            let output = results.next().ok_or_else(lost)??;
            let sequence = work.sequence_id.and_then(|id| table.get_mut(id)).ok_or_else(lost)?;
            let finish = sequence.commit(output.token);
            Ok(Done::Sampled { output, finish })
        }
        WorkKind::Score(_) => results.collect::<Result<_, _>>().map(Done::Scored),
    }
}
