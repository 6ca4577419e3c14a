//! The gRPC server over the connections of one listening socket: services, and the settings of HTTP/2.

use super::Service;
use super::health::Health;
use super::outbound::until::Until;
use crate::config::Config;
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

/// Metadata of a request. Sampling needs none; a proxy may add some.
const MAX_HEADER_BYTES: u32 = 8 << 10;
/// Calls of one connection beside its Decode streams: stateless ones, health, and streams about to be refused. Past
/// this bound of HTTP/2 a call waits in the client without a word.
const OTHER_CALLS: usize = 100;

/// Everything that is served. After `stop` nothing lasts but the calls of the sampler.
#[must_use]
pub fn routes(service: Service, health: &Health, config: &Config, stop: &CancellationToken) -> Routes {
    let health = HealthServer::new(health.service(stop.clone()));
    let routes = if config.reflection { reflection(stop) } else { Routes::default() };
    service.add_to(routes.add_service(health))
}

/// Service and method of a path, `/service/method`.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.strip_prefix('/').and_then(|path| path.split_once('/')).unwrap_or_default()
}

/// What tools ask for the schema.
fn reflection(stop: &CancellationToken) -> Routes {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // Of the details of a refusal, which tools show by it.
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

/// Ends what a client asks for when the server stops: a call of reflection lasts as long as its requests.
async fn asked_until(State(stop): State<CancellationToken>, request: Request, next: Next) -> Response {
    let asked = |body: Body| Body::from_stream(Until::stopped(body.into_data_stream(), &stop));
    next.run(request.map(asked)).await
}

/// Serves `routes` on `connections` until `stopped` resolves; ends when the last connection has.
pub fn serve<I, C, F>(
    connections: I,
    stopped: F,
    routes: Routes,
    config: &Config,
    frame_size: u32,
) -> impl Future<Output = Result<(), String>> + Send + 'static + use<I, C, F>
where
    I: Stream<Item = io::Result<C>> + Send + 'static,
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let calls = config.limits.max_streams.saturating_add(OTHER_CALLS);
    let per_connection = u32::try_from(calls).unwrap_or(u32::MAX);
    let keepalive = Some(config.keepalive_interval).filter(|interval| *interval > Duration::ZERO);
    // Fixed windows: the adaptive ones start at 64 KiB and shrink h2's budget for small frames with them.
    let mut server = tonic::transport::Server::builder();
    if config.max_connection_age > Duration::ZERO {
        // Without a grace: streams that run are a worker's sequences, and end when it closes them.
        server = server.max_connection_age(config.max_connection_age);
    }
    let router = server
        .initial_stream_window_size(config.http2.stream_window)
        .initial_connection_window_size(config.http2.connection_window)
        .http2_adaptive_window(Some(false))
        .max_frame_size(frame_size)
        .max_concurrent_streams(per_connection)
        .http2_keepalive_interval(keepalive)
        .http2_keepalive_timeout(Some(config.keepalive_timeout))
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
