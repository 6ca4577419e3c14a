//! One stateless batch: a stream of one step that opens a sequence for every row. Dropping the call, at its deadline or
//! by cancellation, drops that stream, and the engine forgets the step.

use super::blocking::blocking;
use super::caller::Caller;
use super::convert::config::{Config, config};
use super::convert::opening::{batch_takes_long, take_long};
use super::convert::{copies, reply, step};
use super::inbound::deadline::Deadline;
use super::outbound::outlet::Outgoing;
use super::traces::{self, MaybeSpan};
use super::{Received, Shared};
use crate::engine::StepOrigin;
use crate::engine::StreamHandle;
use crate::engine::step::{LogitsBlock, Masks, Step, Work, WorkKind};
use crate::error::{Error, Refusal};
use crate::grammar::CompileDeadline;
use crate::message::codec::{Looked, RawSampleRequest};
use crate::proto;
use crate::trace::context::Context;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout_at;
use tonic::{Response, Status};

/// A call in progress. It is counted however it ends.
#[derive(Debug)]
pub(super) struct Call {
    shared: Arc<Shared>,
    caller: Caller,
    started: Instant,
    /// The code of the call's answer, once there is one.
    code: Option<tonic::Code>,
    deadline: Deadline,
    /// The call's answer, until HTTP/2 has taken it.
    outgoing: Outgoing,
    /// The trace that the call belongs to.
    parent: Option<Context>,
    span: MaybeSpan,
}

impl Call {
    /// A call that starts now.
    pub(super) fn start(shared: Arc<Shared>, caller: Caller, parent: Option<Context>, deadline: Deadline) -> Self {
        Self {
            shared,
            caller,
            started: Instant::now(),
            code: None,
            deadline,
            outgoing: Outgoing::default(),
            parent,
            span: None,
        }
    }

    /// The call's answer.
    pub(super) fn finish<T>(mut self, result: Result<T, Error>) -> Result<Response<T>, Status> {
        if let Err(error) = &result {
            self.shared.end_refused(self.span.take(), error, true);
        }
        let result = result.map(Response::new).map_err(|error| self.shared.refuse(&error, &self.caller));
        self.code = Some(result.as_ref().err().map_or(tonic::Code::Ok, Status::code));
        let mut response = result?;
        response.extensions_mut().insert(self.outgoing.clone());
        Ok(response)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let code = self.code.unwrap_or_else(|| self.deadline.unanswered());
        self.shared.end_left(self.span.take(), code);
        self.shared.finished("Sample", self.started, code);
    }
}

/// Samples a batch.
///
/// # Errors
/// A mistake in the message's shape, or no room.
pub(super) async fn run(call: &mut Call, request: RawSampleRequest) -> Result<proto::SampleResponse, Error> {
    let (shared, span) = (&call.shared, &mut call.span);
    let (request, dropped) = proto::SampleRequest::read(request, &shared.limits)?;
    let received = shared.received(&request, dropped);
    let arrived = received.at;
    *span = shared.sample_span(call.parent, &received);
    shared.admit()?;
    let compile_deadline = call.deadline.compile_deadline();
    let begun = match turn(shared, &request, received.bytes, &compile_deadline).await {
        // The call keeps its turn until `begin` is done.
        Ok(_turn) => begin(shared, &call.caller, span, request, received, &compile_deadline),
        Err(error) => Err(error),
    };
    // A deadline may pass while long work cannot be interrupted. The client then expects DEADLINE_EXCEEDED, not the
    // error of that work.
    let mut stream = if call.deadline.is_over() { return Err(Error::DeadlineExceeded) } else { begun? };
    let answer = stream.reply().await.ok_or(Error::EngineStopped)?;
    let finished = answer.finished;
    traces::tell(span, |facts| traces::answered(facts, &answer));
    call.outgoing.expect(answer.room);
    let rows = answer.open.into_iter().zip(answer.work);
    let rows = rows.map(|(opened, result)| reply::sample_row(opened, result)).collect();
    let response = proto::SampleResponse { rows };
    let now = shared.replied(arrived, finished);
    shared.end_answered(span.take(), now, Some(tonic::Code::Ok));
    shared.sent(&response);
    Ok(response)
}

/// A turn at taking in a batch that takes long; `None` for a batch that does not. A call that waits for its turn has
/// neither a thread nor a place in the queue, and keeps the same room as while its message was on its way.
async fn turn<'s>(
    shared: &'s Shared,
    request: &proto::SampleRequest,
    bytes: usize,
    compile_deadline: &CompileDeadline,
) -> Result<Option<SemaphorePermit<'s>>, Error> {
    if !batch_takes_long(request, &shared.setup) {
        return Ok(None);
    }
    if let Ok(turn) = shared.long_calls.try_acquire() {
        return Ok(Some(turn));
    }
    let _waits = (shared.engine.admit_stateless()?, shared.engine.admit_message(bytes)?);
    let turn = timeout_at(compile_deadline.until().into(), shared.long_calls.acquire()).await;
    // The semaphore is never closed.
    turn.map(Result::ok).map_err(|_| Error::Refused(Refusal::GrammarsBusy))
}

/// Hands the batch to the engine, if there is room for it.
fn begin(
    shared: &Shared,
    caller: &Caller,
    span: &mut MaybeSpan,
    request: proto::SampleRequest,
    mut received: Received,
    compile_deadline: &CompileDeadline,
) -> Result<StreamHandle, Error> {
    let place = shared.engine.place(received.bytes)?;
    let mut dropped = std::mem::take(&mut received.dropped);
    let (config, step, rows) = read(shared, request, received, compile_deadline)?;
    traces::tell(span, |facts| traces::named(facts, &config.model, step.id));
    traces::tell(span, |facts| traces::asked(facts, &step));
    let open: Vec<_> = (0..).zip(rows).map(|(id, row)| opening(id, row)).collect();
    let (take_long, openings) = (take_long(&open, &config), shared.openings(&config, compile_deadline.clone()));
    let open = open.into_iter().enumerate();
    let open = open.map(|(at, wire)| openings.open(wire, dropped.of_opening(at)));
    // The iterator is lazy: `run_stateless` builds the sequences.
    let origin = StepOrigin { model: shared.metrics.model(&config.model), peer: Arc::clone(caller.peer()) };
    blocking(take_long, || shared.engine.run_stateless(place, step, open, origin))
}

/// The request as a step, and the rows for which it opens sequences.
fn read(
    shared: &Shared,
    mut request: proto::SampleRequest,
    received: Received,
    compile_deadline: &CompileDeadline,
) -> Result<(Config, Step, Vec<proto::SampleRow>), Error> {
    let wire = proto::StreamConfig {
        vocab_size: request.vocab_size,
        logits_dtype: request.logits_dtype,
        model: request.model,
        eos_token_ids: request.eos_token_ids,
        default_params: request.default_params,
        wants_regions: false,
        draft_vocabulary: Vec::new(),
        vocab_shards: None,
    };
    let mut config = config(wire, &shared.setup, &shared.limits, shared.engine.state(), compile_deadline)?;
    config.flow = Arc::clone(&shared.setup.sample_flow);
    if request.logits.is_none() && request.top_n.is_none() && !request.rows.is_empty() {
        return Err(Error::invalid("logits", "is required when there are rows"));
    }
    let logits = step::inline_logits(request.logits.unwrap_or_default(), request.vocab_size, &config)
        .map_err(|e| Error::Invalid(e.within("logits")))?;
    let logits = step::with_listed(logits, request.top_n, &config)?;
    check_rows(&request.rows, &logits, &config, shared.limits.max_sequences)?;
    copies::check_copies(request.rows.iter().map(|row| row.params.as_ref()), "rows", &config)?;
    let vocab_size = request.vocab_size;
    let places: Vec<u64> = places(&request.rows).collect();
    let used = places.iter().max().map_or(0, |last| last + 1);
    logits.check_used(used).map_err(|e| Error::Invalid(e.within("logits")))?;
    let work = (0..).zip(places).zip(&mut request.rows).map(|((id, first_row), row)| {
        let work = Work { sequence_id: Some(id), first_row, kind: Ok(WorkKind::Sample), masks: Masks::default() };
        let mask = std::mem::take(&mut row.token_mask);
        step::masked(work, Masks::new("token_mask", mask, 1, vocab_size))
    });
    let work = work.collect();
    let (close, open) = (Vec::new(), Vec::new());
    let Received { at: received, bytes: message_bytes, .. } = received;
    let step = Step { id: 0, close, open, work, logits, message_bytes, received, deadline: None, slots: None };
    Ok((config, step, request.rows))
}

/// The index of the logits row of each row: the one after the previous row's, unless the row names another.
fn places(rows: &[proto::SampleRow]) -> impl Iterator<Item = u64> {
    rows.iter().scan(0, |next, row| {
        let place = row.row.map_or(*next, u64::from);
        *next = place + 1;
        Some(place)
    })
}

/// A batch with more rows than a limit could never run, so the call fails instead of waiting.
fn check_rows(
    rows: &[proto::SampleRow],
    logits: &LogitsBlock,
    config: &Config,
    max_sequences: usize,
) -> Result<(), Error> {
    let bytes = places(rows).map(|row| logits.bytes_of(row, 1)).fold(0, usize::saturating_add);
    let rows = rows.len();
    let sequences = || (rows > max_sequences).then(|| format!("but max_sequences is {max_sequences}"));
    match config.exceeded_by(rows, bytes).or_else(sequences) {
        Some(limit) => Err(Error::invalid("rows", format!("has {rows} rows, {limit}; split the batch"))),
        None => Ok(()),
    }
}

fn opening(sequence_id: u64, row: proto::SampleRow) -> proto::OpenSequence {
    proto::OpenSequence {
        sequence_id,
        params: row.params,
        prompt_token_ids: row.prompt_token_ids,
        output_token_ids: row.output_token_ids,
        sampler_state: row.sampler_state,
        predicted_output_token_ids: Vec::new(),
    }
}
