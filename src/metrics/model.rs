//! Metrics that carry a model label. The label comes from clients, so the number of labels is bounded.

use super::labelled::labelled;
use super::speculative::Speculation;
use super::{WorkKind, catalog as cat, labels};
use crate::complaints::Complaints;
use crate::permits;
use metrics::{Counter, Gauge, Histogram, Recorder};
use std::collections::HashMap;
use std::sync::{Arc, Once, PoisonError, RwLock};

labelled! {
    /// How a row repeats another one, the label `like`.
    pub enum Repeated {
        /// It equals a row that the text had in the work before.
        Earlier = "earlier",
        /// It equals the row before the draft token that it comes after.
        Parent = "parent",
        /// It equals the row of another text of the step that ended with another token.
        Neighbour = "neighbour",
        /// It equals no other row, but all of its logits are the same number.
        Flat = "flat",
    }
}

/// Most bytes of a model label. A longer label counts as "other".
pub const MAX_LABEL_BYTES: usize = 128;

/// The handles of one model label.
#[derive(Debug, Clone)]
pub struct ModelMetrics {
    /// Tokens emitted.
    pub tokens: Counter,
    /// Decode streams open. There is no limit of their own.
    pub streams: Arc<permits::Counter>,
    /// Sequences open.
    pub sequences: Gauge,
    /// Works whose rows were cut to the tokens that they list.
    pub truncated: Counter,
    /// Rows that came again, in the order of [`Repeated`].
    repeated: Arc<[Counter; Repeated::ALL.len()]>,
    /// Kept draft tokens that were forgotten without being verified.
    pub unverified: Counter,
    /// Draft tokens beyond what was advised.
    pub beyond_advice: Counter,
    /// Verifications of kept draft tokens that were sent as if they had no distribution.
    pub without_distribution: Counter,
    /// Shares of draft tokens that were accepted, by sequence.
    pub sequence_acceptance: Histogram,
    pub(crate) complaints: Arc<ModelComplaints>,
    name: Arc<str>,
    by_reason: Arc<ByReason>,
    pub(super) speculation: Arc<Speculation>,
}

#[derive(Debug)]
struct ByReason {
    rows: Vec<Counter>,
    failed: Vec<Counter>,
    finished: Vec<Counter>,
    not_opened: Vec<Counter>,
}

/// Limits log lines about what a model's workers do wrong, of each kind by itself.
#[derive(Debug, Default)]
pub(crate) struct ModelComplaints {
    /// Logits that no worker means to send.
    pub(crate) bad_logits: Complaints,
    /// Other work that was not done.
    pub(crate) works: Complaints,
    /// Sequences that were not opened.
    pub(crate) openings: Complaints,
}

impl ModelMetrics {
    fn register(r: &dyn Recorder, model: &str) -> Self {
        let each = |def: cat::Def, key: &'static str, values: &[&str]| -> Vec<Counter> {
            values.iter().map(|&value| def.as_counter(r, &[("model", model), (key, value)])).collect()
        };
        Self {
            tokens: cat::TOKENS.as_counter(r, &[("model", model)]),
            streams: permits::Counter::new(usize::MAX, cat::MODEL_STREAMS.as_gauge(r, &[("model", model)])),
            sequences: cat::MODEL_SEQUENCES.as_gauge(r, &[("model", model)]),
            truncated: cat::ROWS_TRUNCATED.as_counter(r, &[("model", model)]),
            repeated: Arc::new(
                Repeated::ALL.map(|like| cat::ROWS_REPEATED.as_counter(r, &[("model", model), ("like", like.name())])),
            ),
            unverified: cat::SPEC_UNVERIFIED.as_counter(r, &[("model", model)]),
            beyond_advice: cat::SPEC_BEYOND_ADVICE.as_counter(r, &[("model", model)]),
            without_distribution: cat::SPEC_WITHOUT_DISTRIBUTION.as_counter(r, &[("model", model)]),
            sequence_acceptance: cat::SPEC_SEQUENCE_ACCEPTANCE.as_histogram(r, &[("model", model)]),
            complaints: Arc::default(),
            name: model.into(),
            by_reason: Arc::new(ByReason {
                rows: each(cat::ROWS, "kind", &WorkKind::ALL.map(WorkKind::name)),
                failed: each(cat::ROWS_INVALID, "reason", labels::ROW_STATUSES),
                finished: each(cat::SEQUENCES_FINISHED, "reason", labels::FINISH_REASONS),
                not_opened: each(cat::OPENINGS_FAILED, "reason", labels::OPEN_ERRORS),
            }),
            speculation: Arc::new(Speculation::new(model)),
        }
    }

    /// The model's label.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Counts rows that came again.
    pub fn rows_repeated(&self, like: Repeated, rows: usize) {
        self.repeated[like as usize].increment(rows as u64);
    }

    /// Counts rows of one kind that were answered with OK.
    pub fn rows(&self, kind: WorkKind, rows: u64) {
        self.by_reason.rows[kind as usize].increment(rows);
    }

    /// Counts a sequence that was not opened; `reason` is that of `sequence::OpenError`, such as "already_exists".
    pub fn open_failed(&self, reason: &'static str) {
        self.by_reason.not_opened[labels::index(labels::OPEN_ERRORS, reason)].increment(1);
    }

    /// Counts failed rows; `reason` is the wire's row status in lower case, such as "nan_logits", or its cause,
    /// "state_bytes" or "not_opened".
    pub fn rows_failed(&self, reason: &'static str, rows: u64) {
        self.by_reason.failed[labels::index(labels::ROW_STATUSES, reason)].increment(rows);
    }

    /// Counts a sequence that ended; `reason` is the wire's finish reason in lower case.
    pub fn finished(&self, reason: &'static str) {
        self.by_reason.finished[labels::index(labels::FINISH_REASONS, reason)].increment(1);
    }
}

/// The model labels seen so far, and "other".
#[derive(Debug)]
pub(super) struct Models {
    most: usize,
    known: RwLock<HashMap<String, ModelMetrics>>,
    other: ModelMetrics,
    count: Gauge,
    overflow: Once,
}

impl Models {
    pub(super) fn new(r: &dyn Recorder, most: usize) -> Self {
        let (other, count) = (ModelMetrics::register(r, labels::OTHER), cat::MODEL_LABELS.as_gauge(r, &[]));
        Self { most, known: RwLock::new(HashMap::new()), other, count, overflow: Once::new() }
    }

    /// The handles of `label`, registered at first sight while there is room.
    pub(super) fn get(&self, r: &dyn Recorder, label: &str) -> ModelMetrics {
        if label == labels::OTHER || label.len() > MAX_LABEL_BYTES {
            return self.other.clone();
        }
        // A panic elsewhere cannot leave the map half changed, so a poisoned lock may be used.
        if let Some(found) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(label) {
            return found.clone();
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(label) {
            return found.clone();
        }
        if known.len() >= self.most {
            drop(known);
            self.overflow.call_once(|| {
                let max_model_labels = self.most;
                tracing::warn!(label, max_model_labels, "this model label and all further ones count as \"other\"");
            });
            return self.other.clone();
        }
        let made = ModelMetrics::register(r, label);
        known.insert(label.to_owned(), made.clone());
        self.count.set(known.len() as f64);
        made
    }
}
