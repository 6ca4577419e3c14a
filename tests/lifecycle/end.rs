//! The end: draining, and events that end a server that was not told to stop.

use crate::common::{Fatal, Lost, NEVER, config, requests, serve, start, until};
use croupier::app::{App, Drained, Error};
use croupier::config::Config;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use std::time::Duration;
use tokio::net::TcpStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

#[tokio::test]
async fn readiness_and_health_flip_when_draining() {
    let server = start(Config { lame_duck: Duration::from_secs(20), ..config() }).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.tcp())).expect("an address");
    let mut health = HealthClient::new(channel.connect().await.expect("a connection"));
    for service in ["", "croupier.v1.Sampler", "liveness", "readiness"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let reply = health.check(request).await.expect("a status").into_inner();
        assert_eq!(reply.status(), ServingStatus::Serving, "{service}");
    }
    assert_eq!((server.get("/readyz").await.0, server.get("/livez").await.0), (200, 200));
    assert_eq!(server.series("croupier_ready").await, 1.0);

    server.stop.cancel();
    until("not ready", async || server.get("/readyz").await.0 == 503).await;
    assert_eq!(server.get("/readyz").await.1, "draining\n");
    assert_eq!(server.get("/livez").await.0, 200, "a draining server must not be restarted");
    for (service, status) in [
        ("", ServingStatus::NotServing),
        ("readiness", ServingStatus::NotServing),
        ("liveness", ServingStatus::Serving),
    ] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let reply = health.check(request).await.expect("a status").into_inner();
        assert_eq!(reply.status(), status, "{service}");
    }
    server.task.abort();
}

#[tokio::test]
async fn draining_does_not_wait_for_a_client_that_never_spoke() {
    let server = start(Config { first_byte_timeout: NEVER * 2, drain_timeout: NEVER * 2, ..config() }).await;
    let _silent = TcpStream::connect(server.tcp()).await.expect("a connection");
    until("connected", async || server.series("croupier_connections{transport=\"tcp\"}").await == 1.0).await;
    assert_eq!(server.shut_down().await.expect("a clean end"), Drained::Clean);
}

#[tokio::test]
async fn draining_ends_an_open_stream_at_the_deadline() {
    let server = start(Config { drain_timeout: Duration::from_millis(300), ..config() }).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let mut other = client.clone();
    let call = tokio::spawn(async move {
        let mut replies = client.decode(tokio_stream::pending()).await?.into_inner();
        replies.message().await
    });
    // Once the call's task runs, its request is the first on the connection. So when the server has answered the second request, it has the
    // first.
    tokio::task::yield_now().await;
    other.get_server_info(GetServerInfoRequest {}).await.expect("an answer");
    drop(other);
    assert!(!call.is_finished());
    assert_eq!(server.shut_down().await.expect("an end"), Drained::Cut);
    let ended = tokio::time::timeout(NEVER, call).await.expect("the client notices").expect("no panic");
    let status = ended.expect_err("no answer");
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    assert_eq!(status.get_details_error_info().expect("a reason").reason, "DRAIN_TIMEOUT", "{status}");
}

/// A client whose runtime is not driven does not read. So its connection's task has its own runtime here.
#[test]
fn draining_cuts_a_client_that_does_not_read() {
    const TOKENS: u32 = 1024;
    let servers = tokio::runtime::Runtime::new().expect("a runtime");
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = servers.block_on(start(Config { drain_timeout: Duration::from_millis(300), ..config() }));
    // A reply of 16 MB, more than sockets hold: many logprobs for each of many sequences.
    let logprobs = LogprobsParams { token_ids: (0..TOKENS).collect(), ..Default::default() };
    let requests = requests(TOKENS, SamplingParams { logprobs: Some(logprobs), ..Default::default() }, 4096);
    let mut replies = client.block_on(async {
        // The windows are large enough for the whole reply, so that the socket is what is full.
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.tcp())).expect("an address");
        let endpoint = endpoint.initial_stream_window_size(1 << 30).initial_connection_window_size(1 << 30);
        let channel = endpoint.connect().await.expect("a connection");
        let mut client = SamplerClient::new(channel).max_decoding_message_size(usize::MAX);
        let replies = client.decode(tokio_stream::iter(requests)).await.expect("a stream").into_inner();
        until("at work", async || server.series("croupier_batch_rows_count").await == 1.0).await;
        replies
    });
    servers.block_on(async {
        until("answered", async || server.series("croupier_response_bytes_count").await == 2.0).await;
        assert_eq!(server.shut_down().await.expect("an end"), Drained::Cut);
    });
    // The server's runtime still runs: if the connection had not been cut, the whole reply would arrive now.
    let rest = async {
        while replies.message().await?.is_some() {}
        Ok::<_, tonic::Status>(())
    };
    let ended = client.block_on(async { tokio::time::timeout(NEVER, rest).await }).expect("the client notices");
    assert!(ended.is_err(), "{ended:?}");
}

#[tokio::test]
async fn the_end_of_the_engine_is_the_end_of_the_process_with_code_70() {
    let server = serve(App::bind_with(config(), Box::new(Fatal)).await.expect("free ports")).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let requests = tokio_stream::iter(requests(8, SamplingParams::default(), 1));
    // The call may be cut before it has begun.
    let call = client.decode(requests).await;
    let ended = tokio::time::timeout(NEVER, server.task).await.expect("it ends").expect("no panic outside the engine");
    let error = ended.expect_err("not a clean end");
    assert!(matches!(error, Error::Engine), "{error}");
    assert_eq!(error.exit_code(), 70);
    let rest = async {
        let mut replies = call?.into_inner();
        while replies.message().await?.is_some() {}
        Ok::<_, tonic::Status>(())
    };
    assert!(rest.await.is_err(), "the call must not seem to end well");
}

#[tokio::test]
async fn a_lost_device_is_never_asked_again_and_ends_the_process_with_code_86() {
    let server = serve(App::bind_with(config(), Box::new(Lost)).await.expect("free ports")).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let requests = tokio_stream::iter(requests(8, SamplingParams::default(), 1));
    let call = client.decode(requests).await;
    let ended = tokio::time::timeout(NEVER, server.task).await.expect("it ends").expect("no panic outside the engine");
    let error = ended.expect_err("not a clean end");
    assert!(matches!(error, Error::DeviceLost), "{error}");
    assert_eq!(error.exit_code(), 86);
    let Ok(replies) = call else { return };
    let mut replies = replies.into_inner();
    while let Ok(Some(reply)) = replies.message().await {
        let answered = matches!(reply.response, Some(decode_response::Response::Step(_)));
        assert!(!answered, "an answer from a broken device: {reply:?}");
    }
}

#[tokio::test]
async fn an_idle_server_drains_at_once() {
    let server = start(Config { drain_timeout: NEVER * 2, ..config() }).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    client.get_server_info(GetServerInfoRequest {}).await.expect("an answer");
    assert_eq!(server.shut_down().await.expect("a clean end"), Drained::Clean);
}
