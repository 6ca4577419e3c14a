//! Counts what happens to spans.

use super::catalog as cat;
use super::labelled::labelled;
use metrics::{Counter, Recorder};

labelled! {
    /// What happened to a span, the label `result`.
    pub enum Traced {
        /// The collector took the span.
        Exported = "exported",
        /// The queue was full.
        Dropped = "dropped",
        /// The collector could not be reached or did not take the span.
        Failed = "failed",
    }
}

/// Handles of traces.
#[derive(Debug)]
pub struct Traces {
    /// Trace contexts that were invalid.
    pub invalid_contexts: Counter,
    /// In the order of [`Traced`].
    spans: Vec<Counter>,
}

impl Traces {
    pub(super) fn register(r: &dyn Recorder) -> Self {
        Self {
            invalid_contexts: cat::TRACE_CONTEXTS_INVALID.as_counter(r, &[]),
            spans: Traced::ALL.map(|result| cat::TRACE_SPANS.as_counter(r, &[("result", result.name())])).into(),
        }
    }

    /// Counts `count` spans with this result.
    pub fn spans(&self, result: Traced, count: u64) {
        self.spans[result as usize].increment(count);
    }
}
