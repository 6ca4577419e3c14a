//! The admin port: metrics and probes over HTTP. Every connection carries one short request, so that idle ones cannot
//! keep the probes out.

use crate::metrics::Metrics;
use crate::rpc::health::{Health, State};
use crate::rpc::listener::{Connection, Guard};
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; charset=utf-8";
/// Scrapers and probes need a handful.
const MAX_CONNECTIONS: usize = 64;
/// A slow scrape takes milliseconds.
const MAX_DURATION: Duration = Duration::from_secs(10);

/// Serves until dropped.
///
/// # Errors
/// What the system says.
pub async fn serve(listener: TcpListener, metrics: Metrics, health: Health) -> io::Result<()> {
    let guard = Guard::one_request(MAX_CONNECTIONS, MAX_DURATION, metrics.clone());
    axum::serve(Guarded { listener, guard }, router(metrics, health)).await
}

fn router(metrics: Metrics, health: Health) -> Router {
    let ready = health.clone();
    Router::new()
        .route("/metrics", get(move || async move { answer(StatusCode::OK, METRICS_TYPE, metrics.render()) }))
        .route("/livez", get(move || async move { state(health.state(), State::is_live) }))
        .route("/readyz", get(move || async move { state(ready.state(), |s| s == State::Ready) }))
        .fallback(|| async {
            let hint = "not found; there are /metrics, /livez and /readyz\n";
            answer(StatusCode::NOT_FOUND, TEXT_TYPE, hint.to_owned())
        })
}

fn state(state: State, good: impl Fn(State) -> bool) -> Response {
    let code = if good(state) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(code, TEXT_TYPE, format!("{state:?}\n").to_lowercase())
}

fn answer(code: StatusCode, content_type: &'static str, body: String) -> Response {
    (code, [(header::CONTENT_TYPE, content_type), (header::CONNECTION, "close")], body).into_response()
}

struct Guarded {
    listener: TcpListener,
    guard: Guard,
}

impl axum::serve::Listener for Guarded {
    type Io = Connection<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let connection = self.guard.next(&self.listener).await;
        let peer = connection.get_ref().peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        (connection, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
