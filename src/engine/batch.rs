//! One batch: the steps it took, the rows they need, and the results.

use super::admission::InFlight;
use super::commit::Results;
use super::plan::{Costs, ENTRIES_A_SPARSE, MAX_EXPLAINED_LOGITS, MAX_LISTED_ENTRIES, Planned, plan_work};
use super::rows::{MAX_AHEAD_ENTRIES, RowSource, run_rows};
use super::state::{Queued, Stream, StreamId};
use super::step::{Open, Opened, RowFailure, RowStatus, Step, WorkKind};
use super::verify::{MeasurementSelector, VerifySource, run_verifications};
use super::{grammar, memory};
use crate::backend::Backend;
use crate::limits::Limits;
use crate::permits::Permit;
use crate::sequence::table::Table;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// Steps that run together, and their results afterwards.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    /// When the batch was gathered.
    pub(super) gathered: Instant,
    pub(super) steps: Vec<BatchedStep>,
    /// How many rows are to run.
    pub(super) rows: usize,
    /// Bytes of the rows that the batch's steps use, of draft distributions over all tokens, and of masks of grammars.
    row_bytes: usize,
    /// Entries of sequences that the batch's top-n rows go through, and what takes as long.
    entries: usize,
    /// How many logits are explained.
    explained: usize,
}

/// A step in a batch.
#[derive(Debug)]
pub(super) struct BatchedStep {
    pub(super) stream: StreamId,
    pub(super) step: Step,
    /// See [`Queued`].
    pub(super) weight: usize,
    pub(super) open: Vec<Opened>,
    /// What each work needs, or why it is not done.
    pub(super) plan: Vec<Result<Planned, RowFailure>>,
    /// What the backend found, once it has run.
    pub(super) results: Results,
    pub(super) permits: InFlight,
}

impl Batch {
    pub(super) fn new(number: u64, gathered: Instant) -> Self {
        Self { number, gathered, steps: Vec::new(), rows: 0, row_bytes: 0, entries: 0, explained: 0 }
    }

    /// Whether the step's rows fit. A batch without rows has room for any step.
    pub(super) fn has_room_for(&self, step: &Step, limits: &Limits) -> bool {
        let fits = |taken: usize, more: usize, limit: usize| taken.saturating_add(more) <= limit;
        self.rows == 0
            || self.entries < MAX_LISTED_ENTRIES
                && self.explained < MAX_EXPLAINED_LOGITS
                && fits(self.rows, step.rows(), limits.max_rows_per_step)
                && fits(self.row_bytes, step.row_bytes(), limits.max_row_bytes_per_step)
    }

    /// Takes a step: closes and opens its sequences, and plans its rows.
    pub(super) fn take(&mut self, id: StreamId, queued: Queued, stream: &mut Stream, limits: &Limits) {
        let Queued { mut step, mut permits, weight } = queued;
        self.row_bytes += step.row_bytes();
        for &sequence in &step.close {
            stream.table.close(sequence);
        }
        let open = open_all(&mut stream.table, std::mem::take(&mut step.open));
        let plan = self.plan(&mut stream.table, &step, &open, &mut permits.in_flight.reply, limits);
        drop(permits.queued);
        let (results, permits) = (Results::default(), permits.in_flight);
        self.steps.push(BatchedStep { stream: id, step, weight, open, plan, results, permits });
    }

    /// Finds out what each work of a step needs, or why it is not done, and takes room for what it may report.
    fn plan(
        &mut self,
        table: &mut Table,
        step: &Step,
        open: &[Opened],
        reply_room: &mut Permit,
        limits: &Limits,
    ) -> Vec<Result<Planned, RowFailure>> {
        // If an opening fails, its id may still belong to an open sequence, with another text that must go on
        // untouched.
        let failed: HashSet<u64> = open.iter().filter(|open| open.result.is_err()).map(|o| o.sequence_id).collect();
        let is_late = step.deadline.is_some_and(|deadline| self.gathered > deadline);
        let late =
            || RowFailure::new(RowStatus::DeadlineExceeded, "the step's deadline passed before its rows started");
        let of_step = step.logits.failure().or_else(|| is_late.then(late));
        let (mut plan, mut costs) = (Vec::with_capacity(step.work.len()), Costs::default());
        for work in &step.work {
            let mut with_work = costs;
            let planned = match (work.sequence_id, &of_step) {
                (Some(id), _) if failed.contains(&id) => Err(RowFailure::not_opened()),
                (_, Some(failure)) => Err(failure.clone()),
                (_, None) => plan_work(table, work, step, &mut with_work, self.number, limits),
            };
            let planned = planned.and_then(|planned| memory::reserve_lists(reply_room, table, work).map(|()| planned));
            if let Ok(planned) = &planned {
                self.rows += planned.rows();
                // Only what is done costs anything: other works of the step may need what a failed one does not use.
                costs = with_work;
            }
            plan.push(planned);
        }
        self.entries += costs.entries.saturating_add(step.sparse_entries().saturating_mul(ENTRIES_A_SPARSE));
        self.row_bytes += costs.mask_bytes;
        self.explained += costs.explained;
        plan
    }

    /// Fills in the masks of rows that have to match a grammar. Returns whether there are such rows.
    pub(super) fn fill_masks(&mut self, streams: &HashMap<StreamId, Stream>) -> bool {
        grammar::fill(&mut self.steps, streams)
    }

    /// Runs all rows.
    pub(super) fn run(
        &mut self,
        streams: &HashMap<StreamId, Stream>,
        selector: &mut MeasurementSelector,
        backend: &mut dyn Backend,
    ) {
        // Planned work always has its rows. If one had none, none may run, because results come in the order of the
        // plans.
        let Some((rows, verify)) = self.sources(streams) else { return };
        let mut verified = run_verifications(&verify, MAX_AHEAD_ENTRIES, selector, backend).into_iter();
        let mut rows = run_rows(&rows, MAX_AHEAD_ENTRIES, backend).into_iter();
        for step in &mut self.steps {
            step.results = Results::of(&step.plan, &mut rows, &mut verified);
        }
    }

    fn sources<'a>(&'a self, streams: &'a HashMap<StreamId, Stream>) -> Option<Sources<'a>> {
        let (mut rows, mut verify) = (Vec::with_capacity(self.rows), Vec::new());
        for batched in &self.steps {
            let table = &streams.get(&batched.stream)?.table;
            for (work, planned) in batched.step.work.iter().zip(&batched.plan) {
                let Ok(planned) = planned else { continue };
                let sequence = work.sequence_id.and_then(|id| table.get(id));
                let (kind, logits) = (work.kind.as_ref().ok()?, &batched.step.logits);
                match planned {
                    Planned::Rows(count) => {
                        for row in 0..*count {
                            let logits = logits.row(work.first_row + row as u64)?;
                            rows.push(RowSource::new(logits, work.masks.row(row), kind, sequence, row)?);
                        }
                    }
                    Planned::Verify(_) => {
                        let WorkKind::Verify(asked) = kind else { return None };
                        let masks = &work.masks;
                        verify.push(VerifySource {
                            work: asked,
                            logits,
                            masks,
                            first_row: work.first_row,
                            sequence: sequence?,
                        });
                    }
                }
            }
        }
        Some((rows, verify))
    }
}

/// Opens the sequences of a step, as far as there is room for them.
fn open_all(table: &mut Table, open: Vec<Open>) -> Vec<Opened> {
    let opened = |Open { sequence_id, sequence }: Open| Opened {
        sequence_id,
        result: sequence.and_then(|sequence| table.open(sequence_id, sequence)),
    };
    open.into_iter().map(opened).collect()
}

type Sources<'a> = (Vec<RowSource<'a>>, Vec<VerifySource<'a>>);
