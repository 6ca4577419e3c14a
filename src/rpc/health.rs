//! Health, as the gRPC health service and the admin port report it.

use super::outbound::until::Until;
use super::status;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::proto::sampler_server;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{Mutex, watch};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};
use tonic_health::server::{HealthReporter, HealthService};

/// Names whose status says whether the server takes work: the whole server, the service, and the name that probes use.
pub const READINESS: [&str; 3] = ["", sampler_server::SERVICE_NAME, "readiness"];
/// The name whose status says whether the process should be kept running.
pub const LIVENESS: &str = "liveness";

/// What the server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not ready yet.
    Starting,
    /// Takes work.
    Ready,
    /// Finishes what it has.
    Draining,
    /// The engine has not moved for long. Restart the process if the engine does not go on.
    Stalled,
    /// The server will not recover. Restart the process.
    Broken,
}

impl State {
    /// Whether the process should be kept running.
    #[must_use]
    pub fn is_live(self) -> bool {
        !matches!(self, Self::Stalled | Self::Broken)
    }
}

/// The state, and everyone who is told when it changes.
#[derive(Debug, Clone)]
pub struct Health {
    state: watch::Sender<State>,
    reporter: HealthReporter,
    metrics: Metrics,
    /// Held while everyone is told. Without it, a call that reports an older state could be the last to report.
    telling: Arc<Mutex<()>>,
}

impl Health {
    /// The health of a server that is starting.
    pub async fn new(metrics: Metrics) -> Self {
        let (state, reporter) = (watch::Sender::new(State::Starting), HealthReporter::new());
        let health = Self { state, reporter, metrics, telling: Arc::default() };
        health.set(State::Starting).await;
        health
    }

    /// Sets the state and tells everyone.
    pub async fn set(&self, state: State) {
        self.state.send_replace(state);
        self.tell().await;
    }

    /// Changes the state from `from` to `to` and tells everyone; does nothing in any other state. Returns whether the
    /// state changed.
    pub async fn turn(&self, from: State, to: State) -> bool {
        let turned = self.state.send_if_modified(|state| {
            let is = *state == from;
            *state = if is { to } else { *state };
            is
        });
        if turned {
            self.tell().await;
        }
        turned
    }

    async fn tell(&self) {
        let _telling = self.telling.lock().await;
        let state = self.state();
        self.metrics.ready.set(if state == State::Ready { 1.0 } else { 0.0 });
        for name in READINESS {
            self.reporter.set_service_status(name, serving(state == State::Ready)).await;
        }
        self.reporter.set_service_status(LIVENESS, serving(state.is_live())).await;
    }

    /// What the server is doing.
    #[must_use]
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// The gRPC health service. Watches end when `stop` is cancelled; otherwise they would keep their connections open.
    pub(super) fn service(&self, stop: CancellationToken) -> impl health_server::Health {
        Watched { service: HealthService::from_health_reporter(self.reporter.clone()), stop }
    }
}

#[derive(Debug)]
struct Watched {
    service: HealthService,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl health_server::Health for Watched {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        self.service.check(request).await
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let statuses = self.service.watch(request).await?.into_inner();
        // The last status is already out: it is set before `stop` is cancelled.
        let end = tokio_stream::once(Err(status::from_error(&Error::Draining)));
        Ok(Response::new(Box::pin(Until::stopped(statuses, &self.stop).chain(end))))
    }
}

fn serving(yes: bool) -> ServingStatus {
    if yes { ServingStatus::Serving } else { ServingStatus::NotServing }
}
