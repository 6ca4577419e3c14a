//! How much memory a reply takes until its worker has read it.

use super::step::{Done, RowFailure};
use crate::sampling::row::RowOutput;

/// The memory of a step's results. It counts as a message in flight, since a worker that does not read can have many of them.
pub(super) fn bytes(work: &[Result<Done, RowFailure>]) -> usize {
    size_of_val(work) + work.iter().flatten().map(beyond).sum::<usize>()
}

/// What a result takes beside its place in the list.
fn beyond(done: &Done) -> usize {
    match done {
        Done::Sampled { output, .. } => lists(output),
        Done::Drafted { .. } => 0,
        Done::Scored(outputs) => all(outputs),
        Done::Verified { verification, .. } => {
            let verified = &verification.verified;
            let small = size_of_val(&*verified.trials) + size_of_val(&*verified.states);
            size_of_val(&**verification) + small + all(&verification.outputs)
        }
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
