//! Results in their wire form. Every domain status has exactly one wire status.

use super::report;
use super::samplers::wire_state;
use crate::engine::step::{Done, Last, Opened, RowFailure, RowStatus, StepReply, Verification};
use crate::error::Refusal;
use crate::params::FieldError;
use crate::params::state::SamplerState;
use crate::permits::Permit;
use crate::proto;
use crate::rpc::status::retry_after_ms;
use crate::sampling::row::RowOutput;
use crate::sequence::speculation::NextDraft;
use crate::sequence::{FinishReason, OpenError};
use crate::speculative::verified::{Chances, Trial};

/// The reply to a step, and the room that the reply takes.
pub(in crate::rpc) fn step_result(reply: StepReply) -> (proto::StepResult, Permit) {
    let in_slots = reply.in_slots;
    let result = proto::StepResult {
        step_id: reply.id,
        open: reply.open.into_iter().map(open_result).collect(),
        work: if in_slots { Vec::new() } else { reply.work.into_iter().map(work_result).collect() },
        refusal: None,
        in_slots,
        go_away: false,
    };
    (result, reply.room)
}

/// The reply to a step that was refused.
pub(in crate::rpc) fn refused(step_id: u64, refusal: Refusal) -> proto::StepResult {
    proto::StepResult { step_id, refusal: Some(told(refusal)), ..Default::default() }
}

/// A refusal in its wire form.
pub(super) fn told(refusal: Refusal) -> proto::Refusal {
    proto::Refusal {
        reason: refusal.reason().name().to_owned(),
        message: refusal.message().to_owned(),
        retry_after_ms: retry_after_ms(refusal),
    }
}

/// What an error of an opening is called: as the result of the opening itself on a stream, and as the status of the row
/// that opens the sequence in a stateless batch.
fn statuses(error: &OpenError) -> (proto::OpenStatus, RowStatus) {
    use proto::OpenStatus as Wire;
    match error {
        OpenError::Invalid(_) => (Wire::InvalidArgument, RowStatus::InvalidWork),
        OpenError::Unimplemented(_) => (Wire::Unimplemented, RowStatus::Unimplemented),
        OpenError::HistoryLimit { .. } | OpenError::StateLimit { .. } => {
            (Wire::ResourceExhausted, RowStatus::HistoryLimit)
        }
        // None of these is a row's: each row has an id of its own, and a batch without room is refused whole.
        OpenError::AlreadyExists => (Wire::AlreadyExists, RowStatus::InvalidWork),
        OpenError::StreamLimit { .. } | OpenError::Refused(_) => (Wire::ResourceExhausted, RowStatus::InvalidWork),
    }
}

fn open_result(opened: Opened) -> proto::OpenResult {
    let sequence_id = opened.sequence_id;
    let error = match opened.result {
        Ok((seed, position)) => {
            let status = proto::OpenStatus::Ok.into();
            return proto::OpenResult { sequence_id, status, seed, position, error: None };
        }
        Err(error) => error,
    };
    let (status, _) = statuses(&error);
    let FieldError { field, message } = error.into();
    let error = Some(proto::FieldError { field, message });
    proto::OpenResult { sequence_id, status: status.into(), error, ..Default::default() }
}

fn work_result(result: Result<Done, RowFailure>) -> proto::WorkResult {
    let truncated = result.as_ref().is_ok_and(Done::is_truncated);
    proto::WorkResult { truncated, ..work_done(result) }
}

fn work_done(result: Result<Done, RowFailure>) -> proto::WorkResult {
    let (tokens, finish, next, state) = match result {
        Ok(Done::Sampled { output, finish, next, state }) => (vec![token(output)], finish, next, state),
        Ok(Done::Drafted { token, finish, .. }) => {
            (vec![proto::Token { token_id: token, ..Default::default() }], finish, NextDraft::default(), None)
        }
        Ok(Done::Verified { verification, finish, next, state }) => {
            return proposing(verified(*verification, finish), next, state);
        }
        Ok(Done::Scored(outputs)) => (outputs.into_iter().map(token).collect(), None, NextDraft::default(), None),
        Err(failure) => {
            let status = row_status(failure.status);
            return proto::WorkResult { status, message: failure.message.into_owned(), ..Default::default() };
        }
    };
    let finish_reason = finish_reason(finish);
    let done = proto::WorkResult { status: proto::RowStatus::Ok.into(), tokens, finish_reason, ..Default::default() };
    proposing(done, next, state)
}

/// Adds to a result what to draft next and the state of its samplers.
fn proposing(result: proto::WorkResult, next: NextDraft, state: Option<SamplerState>) -> proto::WorkResult {
    let NextDraft { tokens: proposed_token_ids, advised: advised_draft_length } = next;
    let sampler_state = state.map(wire_state);
    proto::WorkResult { proposed_token_ids, advised_draft_length, sampler_state, ..result }
}

fn verified(verification: Verification, finish: Option<FinishReason>) -> proto::WorkResult {
    let Verification { verified, outputs, last, tests_wanted, .. } = verification;
    let tests = if tests_wanted { verified.trials.iter().map(draft_test).collect() } else { Vec::new() };
    let last_token = match last {
        Last::Accepted => proto::LastToken::Accepted,
        Last::Recovered => proto::LastToken::Recovered,
        Last::Bonus => proto::LastToken::Bonus,
    };
    let verify = proto::VerifyResult {
        accepted_count: verified.accepted_count() as u32,
        accepted_path: verified.accepted_path.iter().map(|&index| index as u32).collect(),
        lossless: verified.lossless,
        last_token: last_token.into(),
        tests,
    };
    proto::WorkResult {
        status: proto::RowStatus::Ok.into(),
        tokens: outputs.into_iter().map(token).collect(),
        finish_reason: finish_reason(finish),
        verify: Some(verify),
        ..Default::default()
    }
}

fn draft_test(trial: &Trial) -> proto::DraftTest {
    let chance = |of: fn(Chances) -> f64| trial.chances.map_or(0.0, of) as f32;
    proto::DraftTest {
        index: trial.index as u32,
        accepted: trial.accepted,
        expected_acceptance: trial.expected.unwrap_or_default() as f32,
        total_variation: trial.total_variation.unwrap_or_default() as f32,
        rejected_rank: trial.rejected_rank.unwrap_or_default(),
        target_probability: chance(|chances| chances.target),
        draft_probability: chance(|chances| chances.draft),
        expected_draft_probability: chance(|chances| chances.own.mean),
        draft_probability_variance: chance(|chances| chances.own.variance),
        late_overlap: trial.shifts.late.map(|overlap| overlap as f32),
        early_overlap: trial.shifts.early.map(|overlap| overlap as f32),
        next_overlap: trial.shifts.next.map(|overlap| overlap as f32),
    }
}

/// The result of one row of a stateless batch, from its opening and its work.
pub(in crate::rpc) fn sample_row(opened: Opened, result: Result<Done, RowFailure>) -> proto::SampleRowResult {
    let seed = match opened.result {
        Ok((seed, _)) => seed,
        Err(error) => {
            let status = row_status(statuses(&error).1);
            return proto::SampleRowResult { status, message: error.to_string(), ..Default::default() };
        }
    };
    let work = work_result(result);
    proto::SampleRowResult {
        status: work.status,
        message: work.message,
        token: work.tokens.into_iter().next(),
        finish_reason: work.finish_reason,
        seed,
        sampler_state: work.sampler_state,
        truncated: work.truncated,
    }
}

fn token(output: RowOutput) -> proto::Token {
    let report = output.report.map(|told| report::told(*told));
    let Some(logprobs) = output.logprobs else {
        return proto::Token { token_id: output.token, report, ..Default::default() };
    };
    let rounded_logprobs = output.approximation.rounded;
    let (top_token_ids, top_logprobs) = logprobs.top.into_iter().unzip();
    proto::Token {
        token_id: output.token,
        logprob: Some(logprobs.logprob),
        rank: Some(logprobs.rank),
        top_token_ids,
        top_logprobs,
        requested_logprobs: logprobs.requested,
        report,
        rounded_logprobs,
    }
}

fn finish_reason(reason: Option<FinishReason>) -> i32 {
    reason.map_or(proto::FinishReason::Unspecified.into(), |reason| reason as i32)
}

fn row_status(status: RowStatus) -> i32 {
    status as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers here are the wire's numbers.
    #[test]
    fn numbers_mean_on_the_wire_what_they_mean_here() {
        use RowStatus::*;
        let statuses = [
            NanLogits,
            Unimplemented,
            PositiveInfinity,
            AllMasked,
            UnknownSequence,
            SequenceFinished,
            DuplicateSequence,
            RowOutOfRange,
            InvalidWork,
            HistoryLimit,
            DeadlineExceeded,
            Internal,
            GrammarTooComplex,
            ReplyBytes,
            ShardMissing,
            ShardMismatch,
            BeyondTopN,
        ];
        // Every status except OK and the one that is never sent.
        assert_eq!(statuses.len(), (2..=i32::from(u8::MAX)).filter(|&i| proto::RowStatus::try_from(i).is_ok()).count());
        for status in statuses {
            let wire = proto::RowStatus::try_from(row_status(status)).expect("it is on the wire");
            assert_eq!(wire.as_str_name(), format!("ROW_STATUS_{}", status.label().to_uppercase()));
        }
        for reason in [
            FinishReason::Eos,
            FinishReason::StopToken,
            FinishReason::MaxTokens,
            FinishReason::Repetition,
            FinishReason::StopSequence,
        ] {
            let wire = proto::FinishReason::try_from(finish_reason(Some(reason))).expect("it is on the wire");
            assert_eq!(wire.as_str_name(), format!("FINISH_REASON_{}", reason.label().to_uppercase()));
        }
    }
}
