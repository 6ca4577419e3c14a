//! Health as gRPC's health service tells it, and as the admin port does.

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

/// Names whose status says whether work is taken: the whole server, the service, and what probes ask for.
pub const READINESS: [&str; 3] = ["", sampler_server::SERVICE_NAME, "readiness"];
/// The name whose status says whether the process is worth keeping.
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
    /// The engine has not moved for long; restart it if it does not go on.
    Stalled,
    /// Will not recover; restart it.
    Broken,
}

impl State {
    /// Whether the process is worth keeping.
    #[must_use]
    pub fn is_live(self) -> bool {
        !matches!(self, Self::Stalled | Self::Broken)
    }
}

/// The state, and whom to tell when it changes.
#[derive(Debug, Clone)]
pub struct Health {
    state: watch::Sender<State>,
    reporter: HealthReporter,
    metrics: Metrics,
    /// Held while everyone is told, so that who tells of an older state is not the last one.
    telling: Arc<Mutex<()>>,
}

impl Health {
    /// A server that starts.
    pub async fn new(metrics: Metrics) -> Self {
        let (state, reporter) = (watch::Sender::new(State::Starting), HealthReporter::new());
        let health = Self { state, reporter, metrics, telling: Arc::default() };
        health.set(State::Starting).await;
        health
    }

    /// Tells everyone.
    pub async fn set(&self, state: State) {
        self.state.send_replace(state);
        self.tell().await;
    }

    /// Tells everyone, if it is still in that state; says whether it was.
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

    /// gRPC's health service. Watches end once `stop` says so, or the connections that they are on would not.
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
        // The last status is out by then: it is set before the stop.
        let end = tokio_stream::once(Err(status::from_error(&Error::Draining)));
        Ok(Response::new(Box::pin(Until::stopped(statuses, &self.stop).chain(end))))
    }
}

fn serving(yes: bool) -> ServingStatus {
    if yes { ServingStatus::Serving } else { ServingStatus::NotServing }
}
