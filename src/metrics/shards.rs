//! Metrics of rows whose columns come from several ranks.

use super::catalog as cat;
use super::paths::{DATA_PATHS, DataPath};
use metrics::{Counter, Gauge, Histogram, Recorder};

/// Why a step's rows had not all of their columns, the label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // Documented where they happen, and in docs/metrics.md.
pub enum ShardFault {
    NotAttached,
    NotAnnounced,
    Deadline,
    Left,
    LeftOut,
    Rows,
}

/// Their labels, in the order of [`ShardFault`].
pub const SHARD_FAILURES: [&str; 6] = ["not_attached", "not_announced", "deadline", "left", "left_out", "rows"];
/// Ways for one shard to get here.
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
    /// In the order of [`SHARD_FAILURES`].
    failed: Vec<Counter>,
}

impl Shards {
    pub(super) fn register(r: &dyn Recorder) -> Self {
        let announced = |&way: &DataPath| cat::SHARDS.as_counter(r, &[("data_path", DATA_PATHS[way as usize])]);
        let failed = |&reason: &&str| cat::SHARD_FAILURES.as_counter(r, &[("reason", reason)]);
        Self {
            ranks: cat::SHARD_RANKS.as_gauge(r, &[]),
            bytes: cat::SHARD_BYTES.as_gauge(r, &[]),
            wait: cat::SHARD_WAIT.as_histogram(r, &[]),
            announced: WAYS.iter().map(announced).collect(),
            failed: SHARD_FAILURES.iter().map(failed).collect(),
        }
    }

    /// A shard was announced. One without rows is of a message.
    pub fn announced(&self, way: DataPath) {
        let way = if way == DataPath::None { DataPath::Inline } else { way };
        let ways = WAYS.iter().zip(&self.announced);
        ways.filter(|(known, _)| **known == way).for_each(|(_, announced)| announced.increment(1));
    }

    /// A step had not all of its shards.
    pub fn failed(&self, reason: ShardFault) {
        self.failed[reason as usize].increment(1);
    }
}
