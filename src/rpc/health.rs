//! Health as gRPC's health service tells it, and as the admin port does.

use crate::metrics::Metrics;
use crate::proto::sampler_server;
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, HealthService};

/// Names whose status says whether work is taken: the whole server, the service, and what probes ask for.
const READINESS: [&str; 3] = ["", sampler_server::SERVICE_NAME, "readiness"];
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
}

impl Health {
    /// A server that starts.
    pub async fn new(metrics: Metrics) -> Self {
        let health = Self { state: watch::Sender::new(State::Starting), reporter: HealthReporter::new(), metrics };
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

    pub(super) fn service(&self) -> HealthService {
        HealthService::from_health_reporter(self.reporter.clone())
    }
}

fn serving(yes: bool) -> ServingStatus {
    if yes { ServingStatus::Serving } else { ServingStatus::NotServing }
}
