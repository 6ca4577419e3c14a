//! What becomes of spans.

use super::catalog as cat;
use metrics::{Counter, Recorder};

/// What became of a span, the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traced {
    /// The collector took it.
    Exported,
    /// The queue was full.
    Dropped,
    /// The collector could not be reached or did not take it.
    Failed,
}

/// Values of the label `result`, in the order of [`Traced`].
const RESULTS: [&str; 3] = ["exported", "dropped", "failed"];

/// Handles of traces.
#[derive(Debug)]
pub struct Traces {
    /// Trace contexts that were not valid.
    pub invalid_contexts: Counter,
    /// In the order of [`Traced`].
    spans: Vec<Counter>,
}

impl Traces {
    pub(super) fn register(r: &dyn Recorder) -> Self {
        Self {
            invalid_contexts: cat::TRACE_CONTEXTS_INVALID.as_counter(r, &[]),
            spans: RESULTS.iter().map(|&result| cat::TRACE_SPANS.as_counter(r, &[("result", result)])).collect(),
        }
    }

    /// This became of so many spans.
    pub fn spans(&self, result: Traced, count: u64) {
        self.spans[result as usize].increment(count);
    }
}
