//! A step from the end of its rows to its answer: what it changes in its stream, what is recorded of it, and its reply.

use super::admission::InFlight;
use super::batch::BatchedStep;
use super::commit::finish;
use super::repeated::{FirstRow, like_neighbours};
use super::step::{Done, Opened, RowFailure, RowStatus, Step, StepReply};
use super::stream::{Stream, StreamId};
use super::{complaint, memory};
use crate::grammar::propose::ToDraft;
use crate::metrics::{Last, Metrics, ModelMetrics, Repeated, WorkKind};
use crate::sampling::fingerprint::{Fingerprint, is_flat};
use crate::sampling::logits::Logits;
use crate::sequence::repeated::WorkRows;
use crate::sequence::table::Table;
use std::time::Instant;

/// A step whose tokens are committed and which is not answered yet.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) stream: StreamId,
    /// The step without its works.
    step: Step,
    open: Vec<Opened>,
    pub(super) work: Vec<Worked>,
    permits: InFlight,
}

/// A work with its result.
#[derive(Debug)]
pub(super) struct Worked {
    pub(super) sequence: Option<u64>,
    pub(super) first_row: u64,
    pub(super) rows: usize,
    pub(super) done: Result<Done, RowFailure>,
}

impl Worked {
    /// [`Sequence::draft_by_grammar`](crate::sequence::Sequence::draft_by_grammar), for works that emitted tokens.
    pub(super) fn draft_by_grammar<'t>(&self, table: &'t Table) -> Option<ToDraft<'t>> {
        self.done.as_ref().ok()?.next()?;
        table.get(self.sequence?)?.draft_by_grammar()
    }
}

impl Stream {
    /// Commits the results of a step's rows.
    pub(super) fn finish(&mut self, batched: BatchedStep) -> Finished {
        let BatchedStep { stream, mut step, open, plan, mut results, permits, .. } = batched;
        for (id, error) in open.iter().filter_map(|opened| Some((opened.sequence_id, opened.result.as_ref().err()?))) {
            self.origin.model.open_failed(error.label());
            complaint::opening(&self.origin, step.id, id, error);
        }
        let (mut work, mut first_rows) = (Vec::with_capacity(plan.len()), Vec::new());
        for (asked, planned) in std::mem::take(&mut step.work).into_iter().zip(plan) {
            let (sequence, first_row, rows) = (asked.sequence_id, asked.first_row, asked.rows());
            let kept = |table: &Table| sequence.and_then(|id| table.get(id)).map_or(0, |found| found.drafts().len());
            let before = kept(&self.table);
            let advised = sequence.filter(|_| asked.is_verify()).and_then(|id| self.table.get(id)?.advised());
            let done = planned.and_then(|planned| finish(&mut self.table, asked, planned, &mut results));
            self.origin.model.unverified.increment(unverified(&done, before, kept(&self.table)));
            self.tested(sequence, advised, &done);
            first_rows.extend(self.look_at_rows(sequence, step.logits.row(first_row), &done));
            work.push(Worked { sequence, first_row, rows, done });
        }
        self.origin.model.rows_repeated(Repeated::Neighbour, like_neighbours(first_rows));
        Finished { stream, step, open, work, permits }
    }

    /// Records what a verification says about its sequence.
    fn tested(&mut self, sequence: Option<u64>, advised: Option<u32>, done: &Result<Done, RowFailure>) {
        let (Some(id), Ok(Done::Verified { verification, .. })) = (sequence, done) else { return };
        let round = verification.round();
        if let Some(sequence) = self.table.get_mut(id) {
            sequence.tested(round.accepted, round.last == Last::Recovered);
        }
        let beyond = advised.map_or(0, |advised| verification.depth.saturating_sub(advised as usize));
        self.origin.model.beyond_advice.increment(beyond as u64);
        self.origin.model.without_distribution.increment(u64::from(verification.without_distribution));
    }

    /// Records the rows of a work; `first` is the first of them. Returns the first row if it can be compared with those
    /// of other texts.
    fn look_at_rows(
        &mut self,
        sequence: Option<u64>,
        first: Option<Logits<'_>>,
        done: &Result<Done, RowFailure>,
    ) -> Option<FirstRow> {
        let (rows, emitted, like_parents, flat) = match done {
            Ok(Done::Sampled { output, .. }) => {
                let found = first.as_ref().and_then(Fingerprint::of);
                let flat = found.is_none() && first.as_ref().is_some_and(|row| is_flat(row, output.token));
                (WorkRows { first: found, ..WorkRows::default() }, &[output.token][..], 0, flat.into())
            }
            Ok(Done::Verified { verification: found, .. }) => {
                (found.rows, found.verified.emitted.as_slice(), found.like_parents, found.flat)
            }
            _ => return None,
        };
        let text = self.table.get_mut(sequence?)?;
        let before = text.last_emitted();
        let is_again = text.note_rows(rows, emitted);
        for (like, found) in
            [(Repeated::Earlier, is_again.into()), (Repeated::Parent, like_parents), (Repeated::Flat, flat)]
        {
            self.origin.model.rows_repeated(like, found);
        }
        Some(FirstRow { fingerprint: rows.first?, after: before? })
    }

    /// Whether a grammar decides what any of the step's sequences drafts next.
    pub(super) fn drafts_by_grammar(&self, finished: &Finished) -> bool {
        finished.work.iter().any(|worked| worked.draft_by_grammar(&self.table).is_some())
    }

    /// Gives a step's room back and sends its reply.
    pub(super) fn answer(&mut self, finished: Finished, metrics: &Metrics, started: Instant, finished_at: Instant) {
        let Finished { step, open, work, permits, .. } = finished;
        let InFlight { message, rows, reply: mut room } = permits;
        for worked in &work {
            worked.sequence.into_iter().for_each(|id| self.table.settle(id));
            record(metrics, &self.origin.model, worked.rows, &worked.done);
            complaint::work(&self.origin, step.id, &step.logits, worked);
        }
        let work: Vec<_> = work.into_iter().map(|worked| worked.done).collect();
        // Room first, so that whoever sees the reply or the tokens also sees the room.
        drop((message, rows, step.logits));
        room.set(memory::of_reply(&open, &work));
        let in_slots = step.slots.is_some_and(|slots| slots.tell(step.id, &work));
        let (received, finished) = (step.received, finished_at);
        let reply = StepReply { id: step.id, open, work, in_slots, received, started, finished, room };
        // The channel has room for all steps that a stream may have in flight. Sending fails only when the stream is
        // gone, and then nobody waits for the reply.
        let _ = self.replies.try_send(reply);
    }
}

/// How many kept draft tokens were forgotten in this work without having been verified.
fn unverified(done: &Result<Done, RowFailure>, before: usize, after: usize) -> u64 {
    let (drawn, verified) = match done {
        Ok(Done::Drafted { .. }) => (1, 0),
        Ok(Done::Verified { verification, .. }) => (0, verification.kept),
        _ => (0, 0),
    };
    (before + drawn).saturating_sub(after + verified) as u64
}

/// Counts the result of a work that asked for `rows` rows.
fn record(metrics: &Metrics, model: &ModelMetrics, rows: usize, done: &Result<Done, RowFailure>) {
    if done.as_ref().is_ok_and(Done::is_truncated) {
        model.truncated.increment(1);
    }
    match done {
        Ok(Done::Sampled { finish, .. }) => {
            model.rows(WorkKind::Sample, 1);
            model.tokens.increment(1);
            if let Some(reason) = finish {
                model.finished(reason.label());
            }
        }
        Ok(Done::Drafted { .. }) => model.rows(WorkKind::Draft, 1),
        Ok(Done::Verified { verification, finish, .. }) => {
            model.rows(WorkKind::Verify, verification.drafted as u64 + 1);
            model.tokens.increment(verification.outputs.len() as u64);
            if let Some(reason) = finish {
                model.finished(reason.label());
            }
            metrics.verified(model, &verification.round());
        }
        Ok(Done::Scored(outputs)) => model.rows(WorkKind::Score, outputs.len() as u64),
        Err(failure) => {
            if failure.status == RowStatus::Internal {
                tracing::error!(error = %failure.message, "a row failed because of a fault in the server");
            }
            // A work that cannot be read asks for no rows, but its error counts as one.
            model.rows_failed(failure.label(), rows.max(1) as u64);
        }
    }
}
