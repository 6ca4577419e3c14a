//! How logits reached the server: what the data paths carried, what they hold, and which rows a GPU left to the CPU.

use super::difference::{Difference, Increase};
use super::figures::Count;
use crate::metrics::catalog as cat;
use serde::Serialize;

/// Figures on the data paths of docs/data-paths.md.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Paths {
    /// Regions of shared and of device memory, leased or lent.
    pub regions: u64,
    /// Ranks above 0 that are attached.
    pub ranks: u64,
    /// By label `data_path`. Paths without steps or shards are left out.
    pub used: Vec<Path>,
    /// 99th percentile of the time that steps waited for their last shard, in seconds. `None` without such steps.
    pub shard_wait_p99: Option<f64>,
    /// Rows that the GPU has no kernel for, by label `reason`. Reasons without rows are left out.
    pub handed_over: Vec<HandedOver>,
}

/// One data path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Path {
    /// Label `data_path`.
    pub data_path: String,
    /// Number of steps accepted.
    pub steps: Count,
    /// Number of shards that ranks above 0 announced.
    pub shards: Count,
}

/// Rows that the CPU sampled in place of the GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HandedOver {
    /// Label `reason`.
    pub reason: String,
    /// Number of rows.
    pub rows: Count,
}

impl Paths {
    pub(super) fn of(d: &Difference<'_>) -> Self {
        let [steps, shards] = [cat::STEPS, cat::SHARDS].map(|def| d.by(&def, ["data_path"]));
        let mut names: Vec<_> = steps.keys().chain(shards.keys()).copied().collect();
        names.sort_unstable();
        names.dedup();
        let path = |name: [&str; 1]| {
            let count = |of: Option<&Increase>| Count::new(of.copied().unwrap_or_default(), d.seconds);
            Path { data_path: name[0].to_owned(), steps: count(steps.get(&name)), shards: count(shards.get(&name)) }
        };
        let rows = d.by(&cat::HANDED_OVER, ["reason"]).into_iter();
        let handed_over =
            rows.map(|([reason], rows)| HandedOver { reason: reason.to_owned(), rows: Count::new(rows, d.seconds) });
        Self {
            regions: d.gauge(&cat::REGIONS) as u64,
            ranks: d.gauge(&cat::SHARD_RANKS) as u64,
            used: names.into_iter().map(path).filter(|p| p.steps.total + p.shards.total > 0).collect(),
            shard_wait_p99: d.histogram(&cat::SHARD_WAIT).and_then(|wait| wait.quantile(0.99)),
            handed_over: handed_over.filter(|h| h.rows.total > 0).collect(),
        }
    }
}
