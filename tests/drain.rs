//! The drain, when something else lasts or breaks meanwhile.

mod common;

use common::{NEVER, Running, config, start};
use croupier::app::Drained;
use croupier::config::Config;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

/// A drain may last longer than a test may wait for its end.
fn patient() -> Config {
    Config { drain_timeout: NEVER * 2, ..config() }
}

async fn channel(server: &Running) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.tcp())).expect("an address");
    endpoint.connect().await.expect("a connection")
}

#[tokio::test]
async fn who_watches_health_hears_of_the_drain_and_does_not_prolong_it() {
    let server = start(patient()).await;
    let mut health = HealthClient::new(channel(&server).await);
    let mut watches = Vec::new();
    for service in ["", "croupier.v1.Sampler", "readiness", "liveness"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let mut statuses = health.watch(request).await.expect("a watch").into_inner();
        let first = statuses.message().await.expect("a status").expect("not the end");
        assert_eq!(first.status(), ServingStatus::Serving, "{service}");
        watches.push((service, statuses));
    }
    let drained = tokio::spawn(server.shut_down());
    for (service, mut statuses) in watches {
        let expected = if service == "liveness" { ServingStatus::Serving } else { ServingStatus::NotServing };
        let mut last = ServingStatus::Serving;
        let end = loop {
            match statuses.message().await {
                Ok(status) => last = status.expect("an end with a status").status(),
                Err(end) => break end,
            }
        };
        assert_eq!((last, end.code()), (expected, tonic::Code::Unavailable), "{service}: {end}");
    }
    assert_eq!(drained.await.expect("no panic").expect("a clean end"), Drained::Clean);
}

#[tokio::test]
async fn a_tool_that_looks_at_the_schema_does_not_prolong_the_drain() {
    let server = start(Config { reflection: true, ..patient() }).await;
    let mut client = ServerReflectionClient::new(channel(&server).await);
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let request = ServerReflectionRequest { host: String::new(), message_request };
    // It asks once and may ask again.
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let mut answers = client.server_reflection_info(requests).await.expect("a call").into_inner();
    answers.message().await.expect("an answer").expect("not the end");
    let drained = tokio::spawn(server.shut_down());
    assert_eq!(answers.message().await.expect("an end"), None);
    assert_eq!(drained.await.expect("no panic").expect("a clean end"), Drained::Clean);
}
