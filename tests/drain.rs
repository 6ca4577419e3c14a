//! The drain, when something else lasts or breaks meanwhile.

mod common;

use common::{Fatal, Lost, NEVER, Running, config, requests, serve, start, until};
use croupier::app::{App, Drained, Error};
use croupier::backend::Backend;
use croupier::config::Config;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
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

/// How serving ends when the backend breaks while a stream is open that began before the drain.
async fn broken_in_the_drain(backend: Box<dyn Backend>) -> Error {
    let server = serve(App::bind_with(patient(), backend).await.expect("free ports")).await;
    let mut client = SamplerClient::new(channel(&server).await);
    let (sender, messages) = mpsc::channel(2);
    let [config, step] = requests(8, SamplingParams::default(), 1);
    sender.send(config).await.expect("room");
    let mut replies = client.decode(ReceiverStream::new(messages)).await.expect("a stream").into_inner();
    replies.message().await.expect("a reply").expect("not the end");
    server.stop.cancel();
    until("draining", async || server.get("/readyz").await.1 == "draining\n").await;
    sender.send(step).await.expect("room");
    let ended = tokio::time::timeout(NEVER, server.task).await.expect("it ends").expect("no panic outside the engine");
    ended.expect_err("not a clean end")
}

#[tokio::test]
async fn a_device_lost_in_the_drain_is_told_by_the_exit_code() {
    let error = broken_in_the_drain(Box::new(Lost)).await;
    assert!(matches!(error, Error::DeviceLost) && error.exit_code() == 86, "{error}");
}

#[tokio::test]
async fn the_end_of_the_engine_in_the_drain_is_told_by_the_exit_code() {
    let error = broken_in_the_drain(Box::new(Fatal)).await;
    assert!(matches!(error, Error::Engine) && error.exit_code() == 70, "{error}");
}
