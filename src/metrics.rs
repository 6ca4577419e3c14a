//! Every metric: name, unit, help, buckets and handles. No metric name is written anywhere else.

use metrics::{Counter, Gauge, Histogram};
use std::sync::Arc;
use std::time::Duration;

/// Stages of a step, the label `stage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// From admission to the backend becoming free.
    Queue,
    /// In the backend.
    Backend,
    /// From the backend's answer to the reply being handed to the transport.
    Reply,
    /// All of it.
    Total,
}

/// Kinds of work, the label `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// Sample work.
    Sample,
    /// Score work.
    Score,
}

/// The server's metric handles, cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Handles>);

impl std::ops::Deref for Metrics {
    type Target = Handles;

    fn deref(&self) -> &Handles {
        &self.0
    }
}

/// Handles that carry no model label.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Handles {
    pub streams: Gauge,
    pub sequences: Gauge,
    pub queue_depth: Gauge,
    pub bytes_in_flight: Gauge,
    pub rows_in_flight: Gauge,
    pub batch_rows: Histogram,
    pub batch_steps: Histogram,
    pub request_bytes: Histogram,
    pub response_bytes: Histogram,
    pub accept_errors: Counter,
}

/// Handles of one model label.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct ModelMetrics {
    pub tokens: Counter,
}

impl Metrics {
    /// Handles that record nothing, for tests of other parts.
    #[must_use]
    pub fn noop() -> Self {
        Self(Arc::new(Handles {
            streams: Gauge::noop(),
            sequences: Gauge::noop(),
            queue_depth: Gauge::noop(),
            bytes_in_flight: Gauge::noop(),
            rows_in_flight: Gauge::noop(),
            batch_rows: Histogram::noop(),
            batch_steps: Histogram::noop(),
            request_bytes: Histogram::noop(),
            response_bytes: Histogram::noop(),
            accept_errors: Counter::noop(),
        }))
    }

    /// Handles of a model label; past the configured number of labels, those of "other".
    #[must_use]
    pub fn model(&self, _label: &str) -> ModelMetrics {
        ModelMetrics { tokens: Counter::noop() }
    }

    /// A stage of a step took this long.
    pub fn stage(&self, _stage: Stage, _elapsed: Duration) {}

    /// A call ended. `method` is "Decode", "Sample", "GetServerInfo" or "other"; `code` a gRPC code name.
    pub fn call_finished(&self, _method: &'static str, _code: &'static str, _elapsed: Duration) {}

    /// A stream, step or connection was refused for this reason (a `SCREAMING_CASE` constant).
    pub fn refused(&self, _reason: &'static str) {}
}

impl ModelMetrics {
    /// Rows of one kind were answered with OK.
    pub fn rows(&self, _kind: WorkKind, _rows: u64) {}

    /// A row failed; `reason` is the wire's row status in lower case, such as "nan_logits".
    pub fn row_failed(&self, _reason: &'static str) {}

    /// A sequence ended; `reason` is the wire's finish reason in lower case.
    pub fn finished(&self, _reason: &'static str) {}
}
