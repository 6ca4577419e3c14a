//! Traces, if they are configured: the tracer that records them, and the task that exports them.

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

/// Starts to record the share `ratio` of all traces that begin here, and to export them.
pub(super) fn start(collector: Collector, ratio: f64, metrics: &Metrics) -> (Tracer, Exporting) {
    let (tracer, spans) = Tracer::new(ratio, metrics.clone());
    let exporter = Exporter { collector, spans, instance: tracer.instance(), metrics: metrics.clone() };
    let stop = CancellationToken::new();
    let task = tokio::spawn(exporter.run(stop.clone()));
    (tracer, Exporting { stop, task })
}

impl Exporting {
    /// Exports the spans that are left, as far as that is possible within a moment.
    pub(super) async fn flush(self) {
        self.stop.cancel();
        if timeout(CUT_GRACE, self.task).await.is_err() {
            tracing::warn!("the collector did not accept the last spans in time; they are lost");
        }
    }
}
