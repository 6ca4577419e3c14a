//! Traces: a span for each recorded step and each recorded `Sample`, with a span inside it for each stage.
//!
//! Read [`context`] (whose trace a step belongs to), then [`Tracer`] (whether the step is recorded, and what of it).
//! Recorded spans go into a bounded queue, from which [`crate::otlp`] takes them. Without a tracer, a step costs one
//! check of an `Option` when it comes and another when it goes.

pub mod context;
mod ids;

use crate::metrics::{DataPath, Metrics, Stage, Traced};
use context::Context;
use ids::{Ids, Share};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// How many steps' spans may wait for the collector: at about 300 bytes each, with their stages, well below 2 MB.
/// Further spans are dropped.
const MAX_WAITING: usize = 2048;

/// Decides which steps are recorded, and records them.
#[derive(Debug)]
pub struct Tracer {
    ids: Ids,
    share: Share,
    queue: mpsc::Sender<Span>,
    metrics: Metrics,
}

/// What a span covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A step of a Decode stream.
    Step,
    /// A call of Sample.
    Sample,
}

/// An open span. It is boxed, so that a step that is not recorded carries only a null pointer.
#[derive(Debug)]
pub struct OpenSpan {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    parent: Option<[u8; 8]>,
    operation: Operation,
    received: Instant,
    /// What is known of the step so far.
    pub facts: Facts,
}

/// What a span says of its step beside times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The stream's model label.
    pub model: String,
    /// The worker's number of the step.
    pub step_id: u64,
    /// Size of the message.
    pub message_bytes: usize,
    /// How the step's logits came.
    pub data_path: Option<DataPath>,
    /// How many rows the step's work uses.
    pub rows: usize,
    /// How many tokens were emitted.
    pub tokens: usize,
    /// How many draft tokens were verified, and how many of them were accepted.
    pub drafts: (usize, usize),
    /// How many works were answered with an error.
    pub failed: usize,
    /// When the backend began and ended, if it got that far.
    pub backend: Option<(Instant, Instant)>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanEnd {
    /// When the step ended.
    pub at: Instant,
    /// The gRPC status of the call, if the call ended with it.
    pub code: Option<&'static str>,
    /// Why the step was refused or is wrong; `None` if it was answered.
    pub reason: Option<&'static str>,
}

/// A span that has ended, with its stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The trace that the span belongs to.
    pub trace_id: [u8; 16],
    /// The span's id.
    pub span_id: [u8; 8],
    /// The parent span, in another process.
    pub parent: Option<[u8; 8]>,
    /// What the span covers.
    pub operation: Operation,
    /// What the span says of its step.
    pub facts: Facts,
    /// The gRPC status of the call, if the call ended with it.
    pub code: Option<&'static str>,
    /// Why the step was refused or is wrong.
    pub reason: Option<&'static str>,
    /// The beginning and the end, since the Unix epoch.
    pub time: (Duration, Duration),
    /// The stages that the step reached, one after another: id, name, beginning and end.
    pub stages: Vec<([u8; 8], &'static str, Duration, Duration)>,
}

impl Span {
    /// How many spans the collector gets for this one.
    #[must_use]
    pub fn count(&self) -> u64 {
        1 + self.stages.len() as u64
    }
}

impl Tracer {
    /// A tracer that records `ratio` of the traces that begin here, and the receiver of its spans.
    #[must_use]
    pub fn new(ratio: f64, metrics: Metrics) -> (Self, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(MAX_WAITING);
        (Self { ids: Ids::new(), share: Share::new(ratio), queue, metrics }, spans)
    }

    /// Names this process among others.
    #[must_use]
    pub fn instance(&self) -> String {
        self.ids.instance()
    }

    /// The context of a call, from the values of its header `traceparent`.
    pub fn of_call<'a>(&self, values: impl Iterator<Item = &'a [u8]>) -> Option<Context> {
        self.counted(Context::of_header(values)?)
    }

    /// The context of a step, from the text of its field; an empty text means none.
    fn of_step(&self, text: &str) -> Option<Context> {
        if text.is_empty() { None } else { self.counted(Context::parse(text.as_bytes())) }
    }

    fn counted(&self, context: Option<Context>) -> Option<Context> {
        if context.is_none() {
            self.metrics.traces.invalid_contexts.increment(1);
        }
        context
    }

    /// Begins the span of a step if it is recorded. `own` is the step's `traceparent`. Without one the step belongs to
    /// `stream`'s trace, and without that it begins a trace. A step with a parent is recorded if and only if the parent
    /// is.
    pub fn step(&self, own: &str, stream: Option<Context>, received: Instant) -> Option<Box<OpenSpan>> {
        self.begin(Operation::Step, self.of_step(own).or(stream), received)
    }

    /// Begins the span of a call, or of a step, if it is recorded.
    pub fn begin(&self, operation: Operation, parent: Option<Context>, received: Instant) -> Option<Box<OpenSpan>> {
        let (trace_id, recorded) = match parent {
            Some(parent) => (parent.trace_id, parent.sampled),
            None => {
                let id = self.ids.trace();
                (id, self.share.holds(id))
            }
        };
        recorded.then(|| {
            let (span_id, parent) = (self.ids.span(), parent.map(|parent| parent.span_id));
            Box::new(OpenSpan { trace_id, span_id, parent, operation, received, facts: Facts::default() })
        })
    }

    /// Ends a span. If the queue is full, the span is dropped and counted.
    pub fn end(&self, open: OpenSpan, end: SpanEnd) {
        let OpenSpan { trace_id, span_id, parent, operation, received, facts } = open;
        // The wall clock may jump, so it is read only once, and the steady clock gives all differences.
        let (now, wall) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        let time = |at: Instant| wall.saturating_sub(now.saturating_duration_since(at));
        let stages = facts.backend.map_or_else(Vec::new, |(began, ended)| {
            let stages =
                [(Stage::Queue, received, began), (Stage::Backend, began, ended), (Stage::Reply, ended, end.at)];
            stages.map(|(stage, from, to)| (self.ids.span(), stage.name(), time(from), time(to))).into()
        });
        let (code, reason, time) = (end.code, end.reason, (time(received), time(end.at)));
        let span = Span { trace_id, span_id, parent, operation, facts, code, reason, time, stages };
        if let Err(mpsc::error::TrySendError::Full(span) | mpsc::error::TrySendError::Closed(span)) =
            self.queue.try_send(span)
        {
            self.metrics.traces.spans(Traced::Dropped, span.count());
        }
    }
}

#[cfg(test)]
mod tests;
