//! The admin port: metrics and probes over HTTP. Every connection carries one short request. When there are too many
//! connections, the oldest makes room, so that silent ones cannot keep the probes out.

mod connections;

use crate::metrics::Metrics;
use crate::rpc::health::{Health, State};
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use connections::Listener;
use std::io;
use tokio::net::TcpListener;

/// The content type of Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// Serves the admin port until dropped.
///
/// # Errors
/// What the system says.
pub async fn serve(listener: TcpListener, metrics: Metrics, health: Health) -> io::Result<()> {
    axum::serve(Listener::new(listener, metrics.clone()), router(metrics, health)).await
}

fn router(metrics: Metrics, health: Health) -> Router {
    let ready = health.clone();
    Router::new()
        .route("/metrics", get(move || async move { answer(StatusCode::OK, METRICS_TYPE, metrics.render()) }))
        .route("/livez", get(move || async move { state(health.state(), State::is_live) }))
        .route("/readyz", get(move || async move { state(ready.state(), |s| s == State::Ready) }))
        .fallback(|| async {
            let hint = "not found; known: /metrics, /livez and /readyz\n";
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
