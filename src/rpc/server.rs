//! The gRPC server over the connections of one listening socket: its services and its HTTP/2 settings.

use super::Service;
use super::health::Health;
use super::outbound::until::Until;
use crate::proto::FILE_DESCRIPTOR_SET;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::server::Connected;
use tonic_health::pb::health_server::HealthServer;

/// Most bytes of a request's metadata. Sampling needs none; a proxy may add some.
const MAX_HEADER_BYTES: u32 = 8 << 10;
/// Calls of one connection beside its Decode streams: stateless ones, health, and streams about to be refused. Beyond
/// this HTTP/2 limit a call waits silently in the client.
const OTHER_CALLS: usize = 100;

/// What the connections of all sockets may do, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionSettings {
    /// Most Decode streams of one connection.
    pub max_streams: usize,
    /// How many bytes a client may send on one stream before it must wait.
    pub stream_window: u32,
    /// How many bytes a client may send on one connection before it must wait.
    pub connection_window: u32,
    /// Time between pings to a silent client. Zero: no pings.
    pub keepalive_interval: Duration,
    /// The time within which a ping must be answered.
    pub keepalive_timeout: Duration,
    /// A connection older than this takes no new calls. Zero: no age limit.
    pub max_age: Duration,
}

/// All routes that are served, with those of reflection if `reflects`. After `stop`, only calls of the sampler last.
#[must_use]
pub fn routes(service: Service, health: &Health, reflects: bool, stop: &CancellationToken) -> Routes {
    let health = HealthServer::new(health.service(stop.clone()));
    let routes = if reflects { reflection(stop) } else { Routes::default() };
    service.add_to(routes.add_service(health))
}

/// The service and the method of a path `/service/method`.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.strip_prefix('/').and_then(|path| path.split_once('/')).unwrap_or_default()
}

/// gRPC reflection, with which tools ask for the schema.
fn reflection(stop: &CancellationToken) -> Routes {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // The types of the error details, which tools decode by reflection.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    // Both versions: grpcurl and many others still ask for the older one.
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => {
            let routes = Routes::new(v1).add_service(v1alpha).into_axum_router();
            Routes::from(routes.layer(from_fn_with_state(stop.clone(), asked_until)))
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "reflection is not served: the descriptors are broken");
            Routes::default()
        }
    }
}

/// Ends a client's requests when the server stops, because a reflection call lasts as long as its requests.
async fn asked_until(State(stop): State<CancellationToken>, request: Request, next: Next) -> Response {
    let asked = |body: Body| Body::from_stream(Until::stopped(body.into_data_stream(), &stop));
    next.run(request.map(asked)).await
}

/// Serves `routes` on `connections` until `stopped` resolves. Ends when the last connection has ended.
pub fn serve<I, C, F>(
    connections: I,
    stopped: F,
    routes: Routes,
    settings: ConnectionSettings,
    frame_size: u32,
) -> impl Future<Output = Result<(), String>> + Send + 'static + use<I, C, F>
where
    I: Stream<Item = io::Result<C>> + Send + 'static,
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let calls = settings.max_streams.saturating_add(OTHER_CALLS);
    let per_connection = u32::try_from(calls).unwrap_or(u32::MAX);
    let keepalive = Some(settings.keepalive_interval).filter(|interval| *interval > Duration::ZERO);
    // The windows are fixed: adaptive windows start at 64 KiB, and shrink h2's budget for small frames with them.
    let mut server = tonic::transport::Server::builder();
    if settings.max_age > Duration::ZERO {
        // There is no grace period: running streams hold a worker's sequences, and end when the worker closes them.
        server = server.max_connection_age(settings.max_age);
    }
    let router = server
        .initial_stream_window_size(settings.stream_window)
        .initial_connection_window_size(settings.connection_window)
        .http2_adaptive_window(Some(false))
        .max_frame_size(frame_size)
        .max_concurrent_streams(per_connection)
        .http2_keepalive_interval(keepalive)
        .http2_keepalive_timeout(Some(settings.keepalive_timeout))
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .add_routes(routes);
    async move { router.serve_with_incoming_shutdown(connections, stopped).await.map_err(|e| e.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_whatever_they_are() {
        assert_eq!(split("/croupier.v1.Sampler/Decode"), ("croupier.v1.Sampler", "Decode"));
        for path in ["", "/", "x", "/x"] {
            assert_eq!(split(path), ("", ""), "{path}");
        }
    }
}
