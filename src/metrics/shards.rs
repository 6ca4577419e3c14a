//! Metrics of rows whose columns come from several ranks.

use super::catalog as cat;
use super::labelled::labelled;
use super::paths::DataPath;
use metrics::{Counter, Gauge, Histogram, Recorder};

labelled! {
    /// Why a step's rows did not have all of their columns, the label `reason`.
    #[allow(missing_docs)] // Documented where they happen, and in docs/metrics.md.
    pub enum ShardFault {
        NotAttached = "not_attached",
        NotAnnounced = "not_announced",
        Deadline = "deadline",
        Left = "left",
        LeftOut = "left_out",
        Rows = "rows",
    }
}

/// The ways in which one shard can reach the server.
const WAYS: [DataPath; 3] = [DataPath::Inline, DataPath::SharedMemory, DataPath::DeviceMemory];

/// Handles of shards.
#[derive(Debug)]
#[allow(missing_docs)] // Each is documented by the help text of its metric.
pub struct Shards {
    pub ranks: Gauge,
    pub bytes: Gauge,
    pub wait: Histogram,
    /// In the order of [`WAYS`].
    announced: Vec<Counter>,
    /// In the order of [`ShardFault`].
    failed: Vec<Counter>,
}

impl Shards {
    pub(super) fn register(r: &dyn Recorder) -> Self {
        let announced = |&way: &DataPath| cat::SHARDS.as_counter(r, &[("data_path", way.name())]);
        let failed = |reason: ShardFault| cat::SHARD_FAILURES.as_counter(r, &[("reason", reason.name())]);
        Self {
            ranks: cat::SHARD_RANKS.as_gauge(r, &[]),
            bytes: cat::SHARD_BYTES.as_gauge(r, &[]),
            wait: cat::SHARD_WAIT.as_histogram(r, &[]),
            announced: WAYS.iter().map(announced).collect(),
            failed: ShardFault::ALL.map(failed).into(),
        }
    }

    /// Counts an announced shard. A shard without rows counts as sent in a message.
    pub fn announced(&self, way: DataPath) {
        let way = if way == DataPath::None { DataPath::Inline } else { way };
        let ways = WAYS.iter().zip(&self.announced);
        ways.filter(|(known, _)| **known == way).for_each(|(_, announced)| announced.increment(1));
    }

    /// Counts a step that did not get all of its shards.
    pub fn failed(&self, reason: ShardFault) {
        self.failed[reason as usize].increment(1);
    }
}
