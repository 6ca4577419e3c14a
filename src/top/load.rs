//! How busy the server is, what its batches hold, and what it waits for.

use super::difference::Difference;
use super::figures::Count;
use crate::metrics::catalog::{self as cat, Def};
use serde::Serialize;

/// The load of the engine and of the process. What the server does not tell is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Load {
    /// The time over which all of this was counted, in seconds.
    pub seconds: f64,
    /// Share of this time in which the engine was at a batch.
    pub busy: Option<f64>,
    /// Cores that the process used on average.
    pub cores_used: Option<f64>,
    /// Cores that its threads waited for on average, although they could run.
    pub cores_waited_for: Option<f64>,
    /// Number of threads that sample.
    pub sampling_threads: Option<u64>,
    /// Mean number of steps in a batch. `None` without batches.
    pub steps_per_batch: Option<f64>,
    /// Mean number of rows in a batch. `None` without batches.
    pub rows_per_batch: Option<f64>,
    /// How long streams waited for their workers.
    pub worker_turn: Option<Durations>,
    /// How long batches and steps waited for grammars.
    pub grammar_wait: Option<Durations>,
    /// How long grammars took to compile.
    pub grammar_compile: Option<Durations>,
}

/// How long something took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Durations {
    /// How often it happened.
    pub count: Count,
    /// Median in seconds, estimated from buckets. `None` if it did not happen.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

impl Load {
    pub(super) fn of(d: &Difference<'_>) -> Self {
        let cores = |def: &Def| d.counted(def).and_then(|cpu| per_second(cpu.new, d));
        let mean = |def: &Def| d.histogram(def).and_then(|batches| batches.mean());
        Self {
            seconds: d.seconds,
            busy: d.histogram(&cat::BATCH_DURATION).and_then(|batches| per_second(batches.sum, d)),
            cores_used: cores(&cat::PROCESS_CPU),
            cores_waited_for: cores(&cat::CPU_WAIT),
            sampling_threads: d.counted(&cat::BACKEND_THREADS).map(|threads| threads.total as u64),
            steps_per_batch: mean(&cat::BATCH_STEPS),
            rows_per_batch: mean(&cat::BATCH_ROWS),
            worker_turn: durations(&cat::WORKER_TURN, d),
            grammar_wait: durations(&cat::GRAMMAR_WAIT, d),
            grammar_compile: durations(&cat::GRAMMAR_COMPILE, d),
        }
    }
}

fn per_second(amount: f64, d: &Difference<'_>) -> Option<f64> {
    (d.seconds > 0.0).then(|| amount / d.seconds)
}

fn durations(def: &Def, d: &Difference<'_>) -> Option<Durations> {
    let all = d.histogram(def)?;
    let [p50, p99] = [0.5, 0.99].map(|quantile| all.quantile(quantile));
    Some(Durations { count: Count::new(all.count, d.seconds), p50, p99 })
}
