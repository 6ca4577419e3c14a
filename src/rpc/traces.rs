//! Records calls and steps in traces.

use super::{Received, Shared, status};
use crate::engine::step::{Done, Step, StepReply};
use crate::error::Error;
use crate::trace::context::Context;
use crate::trace::{Facts, OpenSpan, Operation, SpanEnd};
use std::time::Instant;
use tonic::Code;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

/// The header name of W3C Trace Context.
pub(super) const TRACEPARENT: &str = "traceparent";

/// An open span, if the call or step is recorded.
pub(super) type MaybeSpan = Option<Box<OpenSpan>>;

impl Shared {
    /// The trace that a call belongs to.
    pub(super) fn context(&self, metadata: &MetadataMap) -> Option<Context> {
        let values = metadata.get_all(TRACEPARENT);
        self.tracer.as_ref()?.of_call(values.iter().map(AsciiMetadataValue::as_bytes))
    }

    /// The span of a step, if it is recorded.
    pub(super) fn step_span(&self, own: &str, stream: Option<Context>, received: &Received) -> MaybeSpan {
        let span = self.tracer.as_ref()?.step(own, stream, received.at);
        of_message(span, received)
    }

    /// The span of a call of Sample, if it is recorded.
    pub(super) fn sample_span(&self, parent: Option<Context>, received: &Received) -> MaybeSpan {
        let span = self.tracer.as_ref()?.begin(Operation::Sample, parent, received.at);
        of_message(span, received)
    }

    /// Ends the span of a step or call that was answered.
    pub(super) fn end_answered(&self, span: MaybeSpan, at: Instant, code: Option<Code>) {
        self.end(span, || SpanEnd { at, code: code.map(status::code_name), reason: None });
    }

    /// Ends the span of a step or call that was refused or is wrong. `ends_call` says that the whole call ends with it.
    pub(super) fn end_refused(&self, span: MaybeSpan, error: &Error, ends_call: bool) {
        self.end(span, || {
            let code = ends_call.then(|| status::code_name(status::from_error(error).code()));
            SpanEnd { at: Instant::now(), code, reason: Some(error.reason().name()) }
        });
    }

    /// Ends the span of a step or call without an answer, because its worker left or its deadline passed.
    pub(super) fn end_left(&self, span: MaybeSpan, code: Code) {
        let name = status::code_name(code);
        self.end(span, || SpanEnd { at: Instant::now(), code: Some(name), reason: Some(name) });
    }

    fn end(&self, span: MaybeSpan, end: impl FnOnce() -> SpanEnd) {
        if let (Some(span), Some(tracer)) = (span, &self.tracer) {
            tracer.end(*span, end());
        }
    }
}

fn of_message(mut span: MaybeSpan, received: &Received) -> MaybeSpan {
    tell(&mut span, |facts| facts.message_bytes = received.bytes);
    span
}

/// Adds facts to a span, if there is one.
pub(super) fn tell(span: &mut MaybeSpan, told: impl FnOnce(&mut Facts)) {
    if let Some(span) = span {
        told(&mut span.facts);
    }
}

/// Adds which step it is.
pub(super) fn named(facts: &mut Facts, model: &str, step_id: u64) {
    facts.model = model.to_owned();
    facts.step_id = step_id;
}

/// Adds what a step asks for.
pub(super) fn asked(facts: &mut Facts, step: &Step) {
    facts.rows = step.rows();
    facts.data_path = Some(step.logits.data_path());
}

/// Adds the results of a step, and when the backend worked on it.
pub(super) fn answered(facts: &mut Facts, reply: &StepReply) {
    facts.tokens = reply.work.iter().flatten().map(Done::tokens).sum();
    let drafts = reply.work.iter().flatten().filter_map(Done::drafts);
    facts.drafts = drafts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    facts.failed = reply.work.iter().filter(|work| work.is_err()).count();
    facts.backend = Some((reply.started, reply.finished));
}
