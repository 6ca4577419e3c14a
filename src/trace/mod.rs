//! Traces: a span for each step and each `Sample` that is recorded, with a span inside it for each stage.
//!
//! Read [`context`] (whose trace a step belongs to), then [`Tracer`] (whether it is recorded, and what of it). What is
//! recorded goes into a bounded queue; [`crate::otlp`] takes it from there. Without a tracer a step costs a look at an
//! `Option` when it comes and another when it goes.

pub mod context;
mod ids;

use crate::metrics::{DataPath, Metrics, Stage, Traced};
use context::Context;
use ids::{Ids, Share};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// Steps whose spans wait for the collector: at about 300 bytes each, and their stages, well below 2 MB. More are dropped.
const MOST_WAITING: usize = 2048;

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

/// A span that is not over. Boxed, so that a step that is not recorded carries a null pointer.
#[derive(Debug)]
pub struct OpenSpan {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    parent: Option<[u8; 8]>,
    operation: Operation,
    received: Instant,
    /// What is known of it so far.
    pub facts: Facts,
}

/// What is told of a step beside its times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The stream's model label.
    pub model: String,
    /// The worker's number of the step.
    pub step_id: u64,
    /// Size of the message.
    pub message_bytes: usize,
    /// How its logits came.
    pub data_path: Option<DataPath>,
    /// Rows that its work uses.
    pub rows: usize,
    /// Tokens emitted.
    pub tokens: usize,
    /// Draft tokens verified, and how many of them were accepted.
    pub drafts: (usize, usize),
    /// Works answered with an error.
    pub failed: usize,
    /// When the backend began and ended, if it came to that.
    pub backend: Option<(Instant, Instant)>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanEnd {
    /// When.
    pub at: Instant,
    /// The gRPC status of the call, if the call ended with it.
    pub code: Option<&'static str>,
    /// Why it was refused or is wrong; `None`: it was answered.
    pub reason: Option<&'static str>,
}

/// A span that is over, and the stages in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The trace it belongs to.
    pub trace_id: [u8; 16],
    /// Its number.
    pub span_id: [u8; 8],
    /// The span it is part of, in another process.
    pub parent: Option<[u8; 8]>,
    /// What it covers.
    pub operation: Operation,
    /// What is told of it.
    pub facts: Facts,
    /// The gRPC status of the call, if the call ended with it.
    pub code: Option<&'static str>,
    /// Why it was refused or is wrong.
    pub reason: Option<&'static str>,
    /// Beginning and end, since the Unix epoch.
    pub time: (Duration, Duration),
    /// The stages it came to, one after another: number, name, beginning and end.
    pub stages: Vec<([u8; 8], &'static str, Duration, Duration)>,
}

impl Span {
    /// Spans that the collector gets of it.
    #[must_use]
    pub fn count(&self) -> u64 {
        1 + self.stages.len() as u64
    }
}

impl Tracer {
    /// A tracer that records `ratio` of the traces that begin here, and where their spans come out.
    #[must_use]
    pub fn new(ratio: f64, metrics: Metrics) -> (Self, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(MOST_WAITING);
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

    /// The context of a step, from its field; empty: none.
    fn of_step(&self, text: &str) -> Option<Context> {
        if text.is_empty() { None } else { self.counted(Context::parse(text.as_bytes())) }
    }

    fn counted(&self, context: Option<Context>) -> Option<Context> {
        if context.is_none() {
            self.metrics.traces.invalid_contexts.increment(1);
        }
        context
    }

    /// Begins the span of a step if it is recorded. `own` is the step's `traceparent`; without one it belongs to
    /// `stream`, and without that it begins a trace. Who has a parent is recorded if and only if the parent is.
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

    /// Ends a span. When the queue is full it is dropped and counted.
    pub fn end(&self, open: OpenSpan, end: SpanEnd) {
        let OpenSpan { trace_id, span_id, parent, operation, received, facts } = open;
        // The clock that people read may jump: it is read once, and the steady one gives the rest.
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
