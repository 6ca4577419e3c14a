//! Traces, if there are to be any: their tracer, and the task that carries them away.

use super::CUT_GRACE;
use crate::metrics::Metrics;
use crate::otlp::{Collector, Exporter};
use crate::trace::Tracer;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The task that exports.
#[derive(Debug)]
pub(super) struct Exporting {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Records a share of all traces that begin here, and starts to export them.
pub(super) fn start(collector: Collector, ratio: f64, metrics: &Metrics) -> (Tracer, Exporting) {
    let (tracer, spans) = Tracer::new(ratio, metrics.clone());
    let exporter = Exporter { collector, spans, instance: tracer.instance(), metrics: metrics.clone() };
    let stop = CancellationToken::new();
    let task = tokio::spawn(exporter.run(stop.clone()));
    (tracer, Exporting { stop, task })
}

impl Exporting {
    /// Exports what there still is, as far as it goes within a moment.
    pub(super) async fn flush(self) {
        self.stop.cancel();
        if timeout(CUT_GRACE, self.task).await.is_err() {
            tracing::warn!("the collector did not take the last spans in time; leaving them");
        }
    }
}
