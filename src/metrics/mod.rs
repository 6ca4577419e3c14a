//! Every metric: name, unit, help, buckets and handles. No metric name is written anywhere else.
//!
//! Each server has its own recorder instead of the global one, so several servers can live in one process. Handles are
//! made once and kept. Recording is an atomic addition, or for a histogram a push into a lock-free bucket that
//! [`Metrics::upkeep`] empties.

pub(crate) mod catalog;
mod cpu_wait;
pub mod exposition;
mod labelled;
mod labels;
mod lengths;
mod model;
mod paths;
mod process;
mod reloads;
mod repeats;
mod shards;
mod speculative;
mod traces;

use crate::backend::BackendInfo;
use crate::error::Reason;
use crate::limits::Limits;
use catalog::{self as cat, Def};
use labelled::labelled;
use metrics::{Counter, Gauge, Histogram, NoopRecorder, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use model::Models;
pub use model::{MAX_LABEL_BYTES, ModelMetrics, Repeated};
pub use paths::{DataPath, Lease};
use process::Process;
use reloads::Reloads;
pub use reloads::Secret;
pub use shards::{ShardFault, Shards};
pub use speculative::{Last, Proposer, Round};
use std::sync::Arc;
use std::time::Duration;
pub use traces::{Traced, Traces};

/// How often [`Metrics::upkeep`] should run. At 100,000 steps a second, some 10 MB of samples gather between two runs.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);

labelled! {
    /// Stages of a step, the label `stage`. Traces use them too.
    pub enum Stage {
        /// From the first byte of a message to the whole message. This comes before the step and is not part of
        /// `Total`.
        Receive = "receive",
        /// From receipt until the backend is free, including the opening of sequences.
        Queue = "queue",
        /// In the backend.
        Backend = "backend",
        /// From the backend's answer to the reply being handed to the transport.
        Reply = "reply",
        /// All stages from the whole message on.
        Total = "total",
    }
}

labelled! {
    /// Kinds of work, the label `kind`.
    pub enum WorkKind {
        /// Sample work.
        Sample = "sample",
        /// Draft work.
        Draft = "draft",
        /// Score work.
        Score = "score",
        /// Verify work.
        Verify = "verify",
    }
}

labelled! {
    /// How a connection reaches the server, the label `transport`.
    pub enum Transport {
        /// TCP.
        Tcp = "tcp",
        /// A Unix domain socket.
        Uds = "uds",
        /// The side socket that hands out regions.
        Region = "region",
    }
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
#[allow(missing_docs)] // Each is documented by the help text of its metric.
pub struct Handles {
    pub ready: Gauge,
    pub streams: Gauge,
    pub sequences: Gauge,
    pub state_bytes: Gauge,
    pub queue_depth: Gauge,
    pub bytes_in_flight: Gauge,
    pub rows_in_flight: Gauge,
    pub batch_rows: Histogram,
    pub batch_steps: Histogram,
    pub batch_duration: Histogram,
    pub worker_turn: Histogram,
    pub grammar_wait: Histogram,
    pub grammar_compile: Histogram,
    pub request_bytes: Histogram,
    pub response_bytes: Histogram,
    pub accept_errors: Counter,
    pub tls_certificate_expiry: Gauge,
    reloads: Reloads,
    pub regions: Gauge,
    pub region_bytes: Gauge,
    pub device_region_bytes: Gauge,
    pub device_region_capacity: Gauge,
    /// In the order of [`Lease`].
    leases: Vec<Counter>,
    /// In the order of [`DataPath`].
    steps: Vec<Counter>,
    /// In the order of `labels::HANDED_OVER`.
    handed_over: Vec<Counter>,
    stages: Vec<Histogram>,
    connections: Vec<Gauge>,
    calls: Vec<Call>,
    /// In the order of [`Reason`].
    refusals: Vec<Counter>,
    pub traces: Traces,
    pub shards: Shards,
    process: Process,
    models: Models,
    exporter: Option<Exporter>,
}

/// Handles of one method.
#[derive(Debug)]
struct Call {
    duration: Histogram,
    /// In the order of `labels::CODES`.
    ended: Vec<Counter>,
}

/// Renders the metrics, and registers series for model labels that are first seen later.
struct Exporter {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

impl Exporter {
    fn new() -> Self {
        let builder = cat::ALL.iter().filter(|def| !def.buckets.is_empty()).fold(PrometheusBuilder::new(), |b, def| {
            b.set_buckets_for_metric(Matcher::Full(def.name.to_owned()), def.buckets)
                .unwrap_or_else(|_| unreachable!("only an empty list of buckets is refused"))
        });
        let recorder = builder.build_recorder();
        cat::ALL.iter().for_each(|def| def.describe(&recorder));
        let handle = recorder.handle();
        Self { recorder, handle }
    }
}

impl Metrics {
    /// Registers every series whose labels are known beforehand.
    #[must_use]
    pub fn new(limits: &Limits, backend: &BackendInfo) -> Self {
        let exporter = Exporter::new();
        let recorder: &dyn Recorder = &exporter.recorder;
        let info =
            [("version", env!("CARGO_PKG_VERSION")), ("backend", backend.name), ("device", backend.device.as_str())];
        cat::BUILD_INFO.as_gauge(recorder, &info).set(1.0);
        let capacity = |def: Def, limit: usize| def.as_gauge(recorder, &[]).set(limit as f64);
        capacity(cat::STREAMS_CAPACITY, limits.max_streams);
        capacity(cat::CONNECTIONS_CAPACITY, limits.max_connections);
        capacity(cat::QUEUE_CAPACITY, limits.max_queued_steps);
        capacity(cat::IN_FLIGHT_BYTES_CAPACITY, limits.max_bytes_in_flight);
        capacity(cat::SEQUENCES_CAPACITY, limits.max_sequences);
        capacity(cat::STATE_BYTES_CAPACITY, limits.max_state_bytes);
        capacity(cat::REGION_BYTES_CAPACITY, limits.max_region_bytes);
        capacity(cat::SHARD_RANKS_CAPACITY, limits.max_attached_ranks);
        capacity(cat::SHARD_BYTES_CAPACITY, limits.max_shard_bytes);
        capacity(cat::MODEL_LABELS_CAPACITY, limits.max_model_labels);
        capacity(cat::BACKEND_THREADS, backend.parallelism);
        let mut handles = Handles::register(recorder, limits.max_model_labels);
        handles.exporter = Some(exporter);
        Self(Arc::new(handles))
    }

    /// Handles that record nothing, for tests of other parts.
    #[must_use]
    pub fn noop() -> Self {
        Self(Arc::new(Handles::register(&NoopRecorder, 0)))
    }

    /// The exposition, in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        let Some(exporter) = &self.exporter else { return String::new() };
        self.process.update();
        exporter.handle.render()
    }

    /// Moves recorded samples into their buckets. Without this they pile up until the next scrape.
    pub fn upkeep(&self) {
        if let Some(exporter) = &self.exporter {
            exporter.handle.run_upkeep();
        }
    }

    /// The handles of a model label. Beyond the configured number of labels, these are the handles of "other".
    #[must_use]
    pub fn model(&self, label: &str) -> ModelMetrics {
        self.models.get(self.recorder(), label)
    }

    /// Records that a draft was verified.
    pub fn verified(&self, model: &ModelMetrics, round: &Round<'_>) {
        model.speculation.record(self.recorder(), round);
    }

    fn recorder(&self) -> &dyn Recorder {
        self.exporter.as_ref().map_or(&NoopRecorder, |e| &e.recorder)
    }

    /// Counts rows that were handed to another backend.
    pub fn handed_over(&self, reason: &str, rows: u64) {
        self.handed_over[labels::index(labels::HANDED_OVER, reason)].increment(rows);
    }

    /// Records how long a stage of a step took.
    pub fn stage(&self, stage: Stage, elapsed: Duration) {
        self.stages[stage as usize].record(elapsed);
    }

    /// Records how long the backend took for a batch of `steps` steps.
    pub fn batch(&self, steps: usize, elapsed: Duration) {
        self.batch_duration.record(elapsed);
        self.stages[Stage::Backend as usize].record_many(elapsed, steps);
    }

    /// Records that changed files were read, and whether they were good and so taken.
    pub fn reloaded(&self, what: Secret, ok: bool) {
        self.reloads.record(what, ok);
    }

    /// Records the end of a call. `method` is "Decode", "Attach", "Sample" or "GetServerInfo", and anything else counts
    /// as "other"; `code` is a gRPC code name.
    pub fn call_finished(&self, method: &str, code: &'static str, elapsed: Duration) {
        let call = &self.calls[labels::index(labels::METHODS, method)];
        call.ended[labels::index(labels::CODES, code)].increment(1);
        call.duration.record(elapsed);
    }

    /// Counts a connection, call or step that was refused for this reason.
    pub fn refused(&self, reason: Reason) {
        self.refusals[reason as usize].increment(1);
    }

    /// Counts a request for a region.
    pub fn lease(&self, result: Lease) {
        self.leases[result as usize].increment(1);
    }

    /// Counts an accepted step.
    pub fn step(&self, path: DataPath) {
        self.steps[path as usize].increment(1);
    }

    /// The gauge of open connections over `transport`.
    pub fn connections(&self, transport: Transport) -> &Gauge {
        &self.connections[transport as usize]
    }
}

impl Handles {
    fn register(r: &dyn Recorder, max_model_labels: usize) -> Self {
        Self {
            ready: cat::READY.as_gauge(r, &[]),
            streams: cat::STREAMS.as_gauge(r, &[]),
            sequences: cat::SEQUENCES.as_gauge(r, &[]),
            state_bytes: cat::STATE_BYTES.as_gauge(r, &[]),
            queue_depth: cat::QUEUE_DEPTH.as_gauge(r, &[]),
            bytes_in_flight: cat::IN_FLIGHT_BYTES.as_gauge(r, &[]),
            rows_in_flight: cat::IN_FLIGHT_ROWS.as_gauge(r, &[]),
            batch_rows: cat::BATCH_ROWS.as_histogram(r, &[]),
            batch_steps: cat::BATCH_STEPS.as_histogram(r, &[]),
            batch_duration: cat::BATCH_DURATION.as_histogram(r, &[]),
            worker_turn: cat::WORKER_TURN.as_histogram(r, &[]),
            grammar_wait: cat::GRAMMAR_WAIT.as_histogram(r, &[]),
            grammar_compile: cat::GRAMMAR_COMPILE.as_histogram(r, &[]),
            request_bytes: cat::REQUEST_BYTES.as_histogram(r, &[]),
            response_bytes: cat::RESPONSE_BYTES.as_histogram(r, &[]),
            accept_errors: cat::ACCEPT_ERRORS.as_counter(r, &[]),
            tls_certificate_expiry: cat::TLS_CERTIFICATE_EXPIRY.as_gauge(r, &[]),
            reloads: Reloads::register(r),
            regions: cat::REGIONS.as_gauge(r, &[]),
            region_bytes: cat::REGION_BYTES.as_gauge(r, &[]),
            device_region_bytes: cat::DEVICE_REGION_BYTES.as_gauge(r, &[]),
            device_region_capacity: cat::DEVICE_REGION_BYTES_CAPACITY.as_gauge(r, &[]),
            leases: Lease::ALL.map(|l| cat::REGION_LEASES.as_counter(r, &[("result", l.name())])).into(),
            steps: DataPath::ALL.map(|p| cat::STEPS.as_counter(r, &[("data_path", p.name())])).into(),
            handed_over: labels::HANDED_OVER
                .iter()
                .map(|reason| cat::HANDED_OVER.as_counter(r, &[("reason", reason)]))
                .collect(),
            stages: Stage::ALL.map(|s| cat::STEP_DURATION.as_histogram(r, &[("stage", s.name())])).into(),
            connections: Transport::ALL.map(|t| cat::CONNECTIONS.as_gauge(r, &[("transport", t.name())])).into(),
            calls: labels::METHODS.iter().map(|&method| Call::register(r, method)).collect(),
            refusals: Reason::ALL.iter().map(|&reason| rejected(r, reason)).collect(),
            traces: Traces::register(r),
            shards: Shards::register(r),
            process: Process::register(r),
            models: Models::new(r, max_model_labels),
            exporter: None,
        }
    }
}

fn rejected(r: &dyn Recorder, reason: Reason) -> Counter {
    cat::REJECTED.as_counter(r, &[("reason", &reason.name().to_ascii_lowercase())])
}

impl Call {
    fn register(r: &dyn Recorder, method: &str) -> Self {
        let ended = |&code: &&str| cat::REQUESTS.as_counter(r, &[("method", method), ("code", code)]);
        Self {
            duration: cat::CALL_DURATION.as_histogram(r, &[("method", method)]),
            ended: labels::CODES.iter().map(ended).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
