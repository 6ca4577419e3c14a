//! One batch: the steps it took, the rows they need, and the results.

use super::admission::{InFlight, StepPermits};
use super::aside::Aside;
use super::aside_room;
use super::commit::Results;
use super::grammar::StepMasks;
use super::memory;
use super::plan::{Costs, ENTRIES_A_SPARSE, MAX_EXPLAINED_LOGITS, MAX_LISTED_ENTRIES, Planned, plan_work};
use super::queued::Queued;
use super::rows::{MAX_AHEAD_ENTRIES, RowSource, run_rows};
use super::step::{Open, Opened, RowFailure, RowStatus, Step, WorkKind};
use super::stream::{Stream, StreamId};
use super::verify::{MeasurementSelector, VerifySource, run_verifications};
use crate::backend::Backend;
use crate::limits::Limits;
use crate::permits::Permit;
use crate::sequence::table::Table;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Steps that run together, and their results afterwards.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    /// When the batch was gathered.
    pub(super) gathered: Instant,
    pub(super) steps: Vec<BatchedStep>,
    taken: Taken,
}

/// What steps take of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Taken {
    /// How many rows are to run.
    pub(super) rows: usize,
    /// Bytes of the rows that the steps use, of draft distributions over all tokens, and of masks of grammars.
    row_bytes: usize,
    /// Entries of sequences that top-n rows go through, and what takes as long.
    entries: usize,
    /// How many logits are explained.
    explained: usize,
}

impl Taken {
    /// What these steps take together.
    pub(super) fn all(steps: &[BatchedStep]) -> Self {
        steps.iter().fold(Self::default(), |all, step| all.and(step.taken))
    }

    fn and(self, other: Self) -> Self {
        Self {
            rows: self.rows.saturating_add(other.rows),
            row_bytes: self.row_bytes.saturating_add(other.row_bytes),
            entries: self.entries.saturating_add(other.entries),
            explained: self.explained.saturating_add(other.explained),
        }
    }
}

/// A step in a batch.
#[derive(Debug)]
pub(super) struct BatchedStep {
    pub(super) stream: StreamId,
    pub(super) step: Step,
    pub(super) open: Vec<Opened>,
    /// What each work needs, or why it is not done.
    pub(super) plan: Vec<Result<Planned, RowFailure>>,
    taken: Taken,
    /// Its place in the queue, until its batch begins.
    pub(super) queued: Option<Permit>,
    /// The masks of its rows, until they are filled in.
    pub(super) masks: Option<StepMasks>,
    /// What the backend found, once it has run.
    pub(super) results: Results,
    pub(super) permits: InFlight,
}

impl Batch {
    pub(super) fn new(number: u64, gathered: Instant) -> Self {
        Self { number, gathered, steps: Vec::new(), taken: Taken::default() }
    }

    /// How many rows are to run.
    pub(super) fn rows(&self) -> usize {
        self.taken.rows
    }

    /// Whether the step's rows fit. A batch without rows has room for any step.
    pub(super) fn has_room_for(&self, step: &Step, limits: &Limits) -> bool {
        self.has_room(Taken { rows: step.rows(), row_bytes: step.row_bytes(), ..Taken::default() }, limits)
    }

    /// The same for steps that take this much.
    pub(super) fn has_room(&self, more: Taken, limits: &Limits) -> bool {
        let all = self.taken.and(more);
        self.taken.rows == 0
            || self.taken.entries < MAX_LISTED_ENTRIES
                && self.taken.explained < MAX_EXPLAINED_LOGITS
                && all.rows <= limits.max_rows_per_step
                && all.row_bytes <= limits.max_row_bytes_per_step
    }

    /// Takes a step: closes and opens its sequences, plans its rows, and asks for their masks.
    pub(super) fn take(&mut self, id: StreamId, queued: Queued, stream: &mut Stream, limits: &Limits) {
        let Queued { mut step, mut permits, .. } = queued;
        for &sequence in &step.close {
            stream.table.close(sequence);
        }
        let open = open_all(&mut stream.table, std::mem::take(&mut step.open));
        let (plan, taken) = self.plan(&mut stream.table, &step, &open, &mut permits.in_flight.reply, limits);
        let StepPermits { queued, in_flight: permits } = permits;
        let (queued, masks, results) = (Some(queued), None, Results::default());
        let mut batched = BatchedStep { stream: id, step, open, plan, taken, queued, masks, results, permits };
        batched.masks = StepMasks::ask(&batched, &stream.table);
        self.taken = self.taken.and(taken);
        self.steps.push(batched);
    }

    /// Takes a step that an earlier batch took and set aside. Its masks are there, or it is too late for them.
    pub(super) fn take_back(&mut self, mut step: BatchedStep, table: &mut Table) {
        aside_room::leave(step.queued.as_mut(), &mut step.permits);
        step.end_if_late(self.gathered);
        step.fill_masks(Duration::ZERO);
        for id in step.step.work.iter().filter_map(|work| work.sequence_id) {
            table.enter_batch(id, self.number);
        }
        self.taken = self.taken.and(step.taken);
        self.steps.push(step);
    }

    /// Fills in the masks of rows that have to match a grammar, and sets steps aside whose masks take long.
    pub(super) fn fill_masks(&mut self, aside: &mut Aside) {
        aside.fill(self);
        self.taken = Taken::all(&self.steps);
    }

    /// Finds out what each work of a step needs, or why it is not done, and takes room for what it may report. Returns
    /// also what the step takes of the batch.
    fn plan(
        &self,
        table: &mut Table,
        step: &Step,
        open: &[Opened],
        reply_room: &mut Permit,
        limits: &Limits,
    ) -> (Vec<Result<Planned, RowFailure>>, Taken) {
        // If an opening fails, its id may still belong to an open sequence, with another text that must go on
        // untouched.
        let failed: HashSet<u64> = open.iter().filter(|open| open.result.is_err()).map(|o| o.sequence_id).collect();
        let of_step = step.logits.failure().or_else(|| late(step, self.gathered));
        let (mut plan, mut costs, mut rows) = (Vec::with_capacity(step.work.len()), Costs::default(), 0);
        for work in &step.work {
            let mut with_work = costs;
            let planned = match (work.sequence_id, &of_step) {
                (Some(id), _) if failed.contains(&id) => Err(RowFailure::not_opened()),
                (_, Some(failure)) => Err(failure.clone()),
                (_, None) => plan_work(table, work, step, &mut with_work, self.number, limits),
            };
            let planned = planned.and_then(|planned| memory::reserve_lists(reply_room, table, work).map(|()| planned));
            if let (Err(_), Some(id)) = (&planned, work.sequence_id) {
                // No later step may be in this batch with what this one's reply settles.
                table.enter_batch(id, self.number);
            }
            if let Ok(planned) = &planned {
                rows += planned.rows();
                // Only what is done costs anything: other works of the step may need what a failed one does not use.
                costs = with_work;
            }
            plan.push(planned);
        }
        let taken = Taken {
            rows,
            row_bytes: step.row_bytes().saturating_add(costs.mask_bytes),
            entries: costs.entries.saturating_add(step.sparse_entries().saturating_mul(ENTRIES_A_SPARSE)),
            explained: costs.explained,
        };
        (plan, taken)
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
        let (mut rows, mut verify) = (Vec::with_capacity(self.rows()), Vec::new());
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

impl BatchedStep {
    /// Whether it waits for masks, which it does no longer than its deadline.
    pub(super) fn lacks_masks(&mut self, now: Instant) -> bool {
        self.end_if_late(now);
        self.masks.as_mut().is_some_and(|masks| !masks.wait(Duration::ZERO))
    }

    /// Does none of its work if its deadline has passed.
    fn end_if_late(&mut self, now: Instant) {
        if let Some(late) = late(&self.step, now) {
            self.masks = None;
            self.plan.iter_mut().filter(|planned| planned.is_ok()).for_each(|planned| *planned = Err(late.clone()));
        }
    }

    /// Fills in its masks if all of them are there within this time. Returns whether that is so.
    pub(super) fn fill_masks(&mut self, within: Duration) -> bool {
        let Some(mut masks) = self.masks.take() else { return true };
        if !masks.wait(within) {
            self.masks = Some(masks);
            return false;
        }
        masks.fill(self);
        true
    }
}

/// Why no work of a step is done whose rows would start so late.
fn late(step: &Step, start: Instant) -> Option<RowFailure> {
    let is_late = step.deadline.is_some_and(|deadline| start > deadline);
    let late = || RowFailure::new(RowStatus::DeadlineExceeded, "the step's deadline passed before its rows started");
    is_late.then(late)
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
