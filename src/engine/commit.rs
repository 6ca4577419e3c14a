//! The results of rows, and what they change in their sequences.

use super::draft::Branch;
use super::plan::Planned;
use super::step::{Done, DraftWork, RowFailure, RowStatus, Work, WorkKind};
use super::verification::Verification;
use crate::metrics::Proposer;
use crate::sampling::row::RowOutput;
use crate::sequence::Sequence;
use crate::sequence::table::Table;
use crate::speculative::verified::TokenOrigin;

/// The results of a step's rows.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// One result for each row that no verification uses, in order.
    rows: std::vec::IntoIter<Result<RowOutput, RowFailure>>,
    /// One result for each verification, in order.
    verified: std::vec::IntoIter<Result<Verification, RowFailure>>,
}

impl Results {
    /// Takes the results of a step's plan from those of a batch.
    pub(super) fn of(
        plan: &[Result<Planned, RowFailure>],
        rows: &mut impl Iterator<Item = Result<RowOutput, RowFailure>>,
        verified: &mut impl Iterator<Item = Result<Verification, RowFailure>>,
    ) -> Self {
        let planned = || plan.iter().flatten();
        let plain = planned().map(|planned| if let Planned::Rows(rows) = planned { *rows } else { 0 }).sum();
        let verifications = planned().filter(|planned| matches!(planned, Planned::Verify(_))).count();
        let rows: Vec<_> = rows.by_ref().take(plain).collect();
        let verified: Vec<_> = verified.by_ref().take(verifications).collect();
        Self { rows: rows.into_iter(), verified: verified.into_iter() }
    }
}

/// The result of a work, whose tokens are committed.
pub(super) fn finish(
    table: &mut Table,
    work: Work,
    planned: Planned,
    results: &mut Results,
) -> Result<Done, RowFailure> {
    let sequence = work.sequence_id.and_then(|id| table.get_mut(id));
    match planned {
        Planned::Rows(rows) => {
            let mut own = results.rows.by_ref().take(rows);
            let done = finish_rows(sequence, work.kind?, &mut own);
            own.for_each(drop);
            done
        }
        Planned::Verify(_) => {
            let verification = results.verified.next().ok_or_else(lost)??;
            Ok(commit_verified(sequence.ok_or_else(lost)?, verification))
        }
    }
}

fn finish_rows(
    sequence: Option<&mut Sequence>,
    kind: WorkKind,
    results: &mut impl Iterator<Item = Result<RowOutput, RowFailure>>,
) -> Result<Done, RowFailure> {
    match kind {
        WorkKind::Sample => {
            let output = results.next().ok_or_else(lost)??;
            let sequence = sequence.ok_or_else(lost)?;
            if let Some(state) = sequence.learned(None, output.observed) {
                sequence.remember(state);
            }
            let finish = sequence.commit(output.token);
            sequence.set_last_token_origin(TokenOrigin::Sampled);
            let (next, state) = (sequence.next_draft(&[]), sequence.returned_state());
            Ok(Done::Sampled { output, finish, next, state })
        }
        WorkKind::Draft(work) => {
            let output = results.next().ok_or_else(lost)??;
            keep_draft(sequence.ok_or_else(lost)?, work, output)
        }
        WorkKind::Score(_) => {
            // Prompts are scored by the thousand rows, so it helps to say which row is wrong. A failing backend fails
            // all rows, so then it does not.
            let named = |(at, result): (usize, Result<RowOutput, RowFailure>)| {
                result.map_err(|failure| match failure.status {
                    RowStatus::Internal => failure,
                    _ => RowFailure { message: format!("scored row {at}: {}", failure.message).into(), ..failure },
                })
            };
            results.enumerate().map(named).collect::<Result<_, _>>().map(Done::Scored)
        }
        WorkKind::Verify(_) => Err(lost()),
    }
}

/// Keeps a draft token that was drawn.
fn keep_draft(sequence: &mut Sequence, work: DraftWork, output: RowOutput) -> Result<Done, RowFailure> {
    let (token, truncated, kept) = (output.token, output.approximation.truncated, output.kept.ok_or_else(lost)?);
    let branch = Branch::of(work, sequence.drafts())?;
    let mut ahead = sequence.ahead();
    for token in branch.path(sequence.drafts()) {
        sequence.grow(&mut ahead, token);
    }
    let finish = sequence.grow(&mut ahead, token);
    let before = branch.parent.and_then(|parent| sequence.drafts().state(parent));
    let state = sequence.learned(before, output.observed);
    if work.restart {
        sequence.forget_drafts();
    }
    sequence.keep_draft(branch.parent, token, kept, state);
    Ok(Done::Drafted { token, finish, truncated })
}

/// Commits the tokens that a verification emits.
fn commit_verified(sequence: &mut Sequence, verification: Verification) -> Done {
    let mut finish = None;
    if let Some(&state) = verification.verified.states.last() {
        sequence.remember(state);
    }
    for &token in &verification.verified.emitted {
        finish = sequence.commit(token);
    }
    sequence.set_last_token_origin(verification.last_token_origin());
    // Forced tokens are accepted in any case, so their acceptance says nothing about other tokens.
    let is_forced = matches!(verification.proposer, Proposer::Grammar | Proposer::Thinking);
    let next = sequence.next_draft(if is_forced { &[] } else { &verification.verified.trials });
    Done::Verified { verification: Box::new(verification), finish, next, state: sequence.returned_state() }
}

fn lost() -> RowFailure {
    RowFailure::lost("the row has no result")
}
