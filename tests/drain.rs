//! The drain, when something takes long or fails during it.

use crate::common::{Fatal, Lost, NEVER, Running, config, requests, serve, start, until};
use croupier::app::{App, Drained, Error};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::config::Config;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use croupier::sampling::row::RowResult;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_types::StatusExt;

/// A configuration whose drain may last longer than a test waits for its end.
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
    // The client asks once and may ask again.
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let mut answers = client.server_reflection_info(requests).await.expect("a call").into_inner();
    answers.message().await.expect("an answer").expect("not the end");
    let drained = tokio::spawn(server.shut_down());
    assert_eq!(answers.message().await.expect("an end"), None);
    assert_eq!(drained.await.expect("no panic").expect("a clean end"), Drained::Clean);
}

/// How serving ends if the backend fails during a drain, while a stream from before the drain is open.
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

/// A backend whose device never answers.
struct Stuck;

impl Backend for Stuck {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn run(&mut self, _: &[RowJob<'_>]) -> Vec<RowResult> {
        loop {
            std::thread::park();
        }
    }

    fn verify(&mut self, _: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        self.run(&[]);
        Vec::new()
    }
}

/// The process must then end without waiting for the device, as its driver would.
#[tokio::test]
async fn an_engine_that_is_stuck_is_left() {
    let config = Config { drain_timeout: Duration::from_millis(100), ..config() };
    let server = serve(App::bind_with(config, Box::new(Stuck)).await.expect("free ports")).await;
    let (sender, mut replies) = stream(&server).await;
    let [_, step] = requests(8, SamplingParams::default(), 1);
    sender.send(step).await.expect("room");
    until("the step is there", async || server.get("/metrics").await.1.contains("croupier_in_flight_rows 1")).await;
    assert_eq!(server.shut_down().await.expect("an end"), Drained::EngineBusy);
    assert_eq!(end(&mut replies).await, told_at_the_deadline());
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

/// Whether the server's answer to a step without rows asks the worker to leave.
async fn asks_to_leave(sender: &mpsc::Sender<DecodeRequest>, replies: &mut Streaming<DecodeResponse>, id: u64) -> bool {
    let step = Step { step_id: id, ..Default::default() };
    sender.send(DecodeRequest { request: Some(decode_request::Request::Step(step)) }).await.expect("room");
    match replies.message().await.expect("an answer").expect("not the end").response {
        Some(decode_response::Response::Step(result)) => result.go_away,
        other => panic!("{other:?}"),
    }
}

/// Opens a stream and waits for its first answer.
async fn stream(server: &Running) -> (mpsc::Sender<DecodeRequest>, Streaming<DecodeResponse>) {
    let mut client = SamplerClient::new(channel(server).await);
    let (sender, messages) = mpsc::channel(2);
    let [config, _] = requests(8, SamplingParams::default(), 1);
    sender.send(config).await.expect("room");
    let mut replies = client.decode(ReceiverStream::new(messages)).await.expect("a stream").into_inner();
    replies.message().await.expect("an answer").expect("not the end");
    (sender, replies)
}

#[tokio::test]
async fn open_streams_are_asked_to_leave_once_no_others_are_taken() {
    let lame_duck = Duration::from_millis(300);
    let server = start(Config { lame_duck, ..patient() }).await;
    let address = server.tcp();
    let (sender, mut replies) = stream(&server).await;
    assert!(!asks_to_leave(&sender, &mut replies, 1).await);
    let begun = Instant::now();
    let drained = tokio::spawn(server.shut_down());
    let mut told = 2;
    while !asks_to_leave(&sender, &mut replies, told).await {
        assert!(told < 3000, "never");
        told += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // During the lame-duck time the server still accepts workers that have not heard of the drain: a worker that left at once would come
    // back to it.
    assert!(begun.elapsed() >= lame_duck, "asked too early");
    until("others are not taken", async || TcpStream::connect(address).await.is_err()).await;
    drop((sender, replies));
    assert_eq!(drained.await.expect("no panic").expect("a clean end"), Drained::Clean);
}

#[tokio::test]
async fn a_stream_as_old_as_connections_get_is_asked_to_leave() {
    let server = start(Config { max_connection_age: Duration::from_millis(200), ..patient() }).await;
    let started = Instant::now();
    let (sender, mut replies) = stream(&server).await;
    let is_old = asks_to_leave(&sender, &mut replies, 1).await;
    assert!(!is_old || started.elapsed() >= Duration::from_millis(200));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(asks_to_leave(&sender, &mut replies, 2).await);
    // The stream goes on.
    assert!(asks_to_leave(&sender, &mut replies, 3).await);
}

/// Code and reason of a call that ends without another answer.
async fn end<T>(answers: &mut Streaming<T>) -> (Code, String) {
    let end: Status = answers.message().await.err().expect("no answer");
    (end.code(), end.get_details_error_info().map(|info| info.reason).unwrap_or_default())
}

/// The code and reason of a call that was open at the deadline of a drain.
fn told_at_the_deadline() -> (Code, String) {
    (Code::Unavailable, "DRAIN_TIMEOUT".to_owned())
}

/// Opens a stream whose rows come from two ranks, and the call of the other rank.
async fn ranks(server: &Running) -> (Streaming<DecodeResponse>, Streaming<AttachResponse>) {
    let mut client = SamplerClient::new(channel(server).await);
    let logits_dtype = LogitsDtype::F32.into();
    let vocab_shards = Some(VocabShards { columns: vec![4, 4] });
    let config = StreamConfig { vocab_size: 8, logits_dtype, vocab_shards, ..Default::default() };
    let config = DecodeRequest { request: Some(decode_request::Request::Config(config)) };
    let messages = tokio_stream::once(config).chain(tokio_stream::pending());
    let mut replies = client.decode(messages).await.expect("a stream").into_inner();
    let offer = match replies.message().await.expect("an answer").expect("not the end").response {
        Some(decode_response::Response::Ready(ready)) => ready.shard_offer.expect("ranks may attach"),
        other => panic!("{other:?}"),
    };
    let (vocab_start_index, vocab_end_index) = (4, 8);
    let rank = AttachRank { token: offer.token, rank: 1, vocab_start_index, vocab_end_index, logits_dtype };
    let rank = AttachRequest { request: Some(attach_request::Request::Rank(rank)) };
    let messages = tokio_stream::once(rank).chain(tokio_stream::pending());
    let mut answers = client.attach(messages).await.expect("a call").into_inner();
    answers.message().await.expect("an answer").expect("not the end");
    (replies, answers)
}

/// With and without a reply timeout.
#[tokio::test]
async fn streams_that_are_open_at_the_deadline_hear_why() {
    for reply_timeout in [Duration::ZERO, NEVER] {
        let mut config = Config { drain_timeout: Duration::from_millis(200), ..config() };
        config.limits.reply_timeout = reply_timeout;
        let server = start(config).await;
        let ((_sender, mut replies), (mut sharded, mut answers)) = (stream(&server).await, ranks(&server).await);
        let drained = tokio::spawn(server.shut_down());
        for end in [end(&mut replies).await, end(&mut sharded).await, end(&mut answers).await] {
            assert_eq!(end, told_at_the_deadline(), "{reply_timeout:?}");
        }
        assert_eq!(drained.await.expect("no panic").expect("an end"), Drained::Cut);
    }
}

/// A client that stops after its first bytes: it answers no ping.
async fn stopped_client(server: &Running) -> TcpStream {
    let mut socket = TcpStream::connect(server.tcp()).await.expect("a connection");
    let empty_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("room");
    socket.write_all(&empty_settings).await.expect("room");
    let open = "croupier_connections{transport=\"tcp\"} 2";
    until("both are connected", async || server.get("/metrics").await.1.contains(open)).await;
    socket
}

#[tokio::test]
async fn a_stopped_client_without_a_call_is_waited_for_no_longer_than_others() {
    let server = start(patient()).await;
    let (sender, mut replies) = stream(&server).await;
    let _stopped = stopped_client(&server).await;
    let drained = tokio::spawn(server.shut_down());
    // Longer than the server waits for clients without a call.
    for id in 1..30 {
        asks_to_leave(&sender, &mut replies, id).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!drained.is_finished(), "an open stream is waited for");
    drop((sender, replies));
    assert_eq!(drained.await.expect("no panic").expect("a clean end"), Drained::Clean);
}
