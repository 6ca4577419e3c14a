//! How much memory a step takes until it is answered, and its reply until the worker has read it.

use super::step::{Done, Open, Opened, RowFailure, Step, Work, WorkKind};
use super::verification::Verification;
use crate::params::state::SamplerState;
use crate::permits::Permit;
use crate::sampling::row::RowOutput;
use crate::sequence::speculation::NextDraft;
use crate::sequence::table::Table;
use crate::sequence::{OpenError, Sequence};
use crate::speculative::verified::Trial;
use std::borrow::Cow;

/// The memory of a step's message, and of its top-n rows once they are read.
pub(super) fn of_message(step: &Step) -> usize {
    step.message_bytes + step.logits.listed_bytes()
}

/// The memory of a step with `openings` openings, which need not be built yet: its message and what is made of it. What
/// sequences take beyond their place in the list counts as state.
pub(super) fn of_step(step: &Step, openings: usize) -> usize {
    let lists = size_of_val(&*step.close) + openings * size_of::<Open>() + size_of_val(&*step.work);
    let texts: usize = step.work.iter().filter_map(|work| work.kind.as_ref().err()).map(text_of_row).sum();
    of_message(step) + lists + texts
}

/// What the reply to a step takes, without lists and without the error texts of sequences that cannot be opened.
pub(super) fn of_places(step: &Step, openings: usize) -> usize {
    let places = openings * size_of::<Opened>() + step.work.len() * size_of::<Result<Done, RowFailure>>();
    places + step.work.iter().map(place_beyond).sum::<usize>()
}

/// What a result takes beside its place in the list, without the lists that it may report.
fn place_beyond(work: &Work) -> usize {
    match &work.kind {
        Ok(WorkKind::Sample | WorkKind::Draft(_)) => 0,
        Ok(WorkKind::Score(_)) => work.rows() * size_of::<RowOutput>(),
        Ok(WorkKind::Verify(_)) => {
            let each = size_of::<RowOutput>() + size_of::<Trial>() + size_of::<SamplerState>();
            size_of::<Verification>() + work.rows() * (each + size_of::<usize>() + size_of::<u32>())
        }
        Err(failure) => text_of_row(failure),
    }
}

/// The error texts of sequences that cannot be opened.
pub(super) fn of_errors(open: &[Open]) -> usize {
    open.iter().filter_map(|open| open.sequence.as_ref().err()).map(text).sum()
}

/// The memory of a step's results. It counts as bytes in flight, because a worker that does not read can have many
/// results.
pub(super) fn of_reply(open: &[Opened], work: &[Result<Done, RowFailure>]) -> usize {
    let texts: usize = open.iter().filter_map(|opened| opened.result.as_ref().err()).map(text).sum();
    size_of_val(open) + texts + size_of_val(work) + work.iter().map(beyond).sum::<usize>()
}

/// Takes room for the lists that a work may report. The room has to be there before the work's rows run, because
/// otherwise a worker that does not read could let the lists pile up. The amount is set to what the reply really takes
/// once the reply is made.
pub(super) fn reserve_lists(room: &mut Permit, table: &Table, work: &Work) -> Result<(), RowFailure> {
    let sequence = work.sequence_id.and_then(|id| table.get(id));
    let each = match (&work.kind, sequence) {
        (Ok(WorkKind::Sample | WorkKind::Verify(_)), Some(sequence)) => sequence.most_reported_bytes(None),
        (Ok(WorkKind::Score(score)), Some(sequence)) => sequence.most_reported_bytes(Some(&score.logprobs)),
        // Rows that belong to no text can be scored too.
        (Ok(WorkKind::Score(score)), None) => score.logprobs.reported_bytes(),
        _ => 0,
    };
    let proposed = match work.kind {
        Ok(WorkKind::Sample | WorkKind::Verify(_)) => sequence.map_or(0, Sequence::most_proposed_bytes),
        _ => 0,
    };
    let lists = each.saturating_mul(work.rows()).saturating_add(proposed);
    let all = room.amount().saturating_add(lists);
    // The only reply of its stream may exceed the stream's share, because otherwise such a reply could never be sent.
    if lists == 0 || room.resize(all) || room.resize_alone(all) { Ok(()) } else { Err(RowFailure::no_reply()) }
}

/// What a result takes beside its place in the list.
fn beyond(result: &Result<Done, RowFailure>) -> usize {
    match result {
        Ok(Done::Sampled { output, next, .. }) => lists(output) + proposed(next),
        Ok(Done::Drafted { .. }) => 0,
        Ok(Done::Scored(outputs)) => all(outputs),
        Ok(Done::Verified { verification, next, .. }) => {
            let verified = &verification.verified;
            let tokens = size_of_val(&*verified.accepted_path) + size_of_val(&*verified.emitted);
            let small = size_of_val(&*verified.trials) + size_of_val(&*verified.states);
            size_of_val(&**verification) + tokens + small + all(&verification.outputs) + proposed(next)
        }
        Err(failure) => text_of_row(failure),
    }
}

fn proposed(next: &NextDraft) -> usize {
    size_of_val(&*next.tokens)
}

fn text(error: &OpenError) -> usize {
    match error {
        OpenError::Invalid(field) | OpenError::Unimplemented(field) => field.field.len() + field.message.len(),
        OpenError::AlreadyExists
        | OpenError::HistoryLimit { .. }
        | OpenError::StateLimit { .. }
        | OpenError::StreamLimit { .. }
        | OpenError::Refused(_) => 0,
    }
}

fn text_of_row(failure: &RowFailure) -> usize {
    match &failure.message {
        Cow::Borrowed(_) => 0,
        Cow::Owned(message) => message.len(),
    }
}

fn all(outputs: &[RowOutput]) -> usize {
    size_of_val(outputs) + outputs.iter().map(lists).sum::<usize>()
}

fn lists(output: &RowOutput) -> usize {
    let logprobs = output.logprobs.as_ref().map_or(0, |l| size_of_val(&*l.top) + size_of_val(&*l.requested));
    let report = output
        .report
        .as_ref()
        .map_or(0, |report| size_of_val(&**report) + size_of_val(&*report.surviving) + size_of_val(&*report.why_not));
    logprobs + report
}
