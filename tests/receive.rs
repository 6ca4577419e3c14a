//! Messages that do not arrive, or not completely, and the room that they take meanwhile.

use crate::call::{Call, LONG};
use crate::support::*;
use bytes::Bytes;
use croupier::proto::*;
use prost::Message;
use std::time::{Duration, Instant};
use tonic::{Code, Status};

const SAMPLE: &str = "Sample";
const DECODE: &str = "Decode";
/// The shortest timeout that a test can use.
const SHORT: Duration = Duration::from_millis(300);

fn ended(status: &Status) -> (Code, String) {
    (status.code(), violation(status).1)
}

fn requests(server: &TestServer, method: &str, code: &str) -> f64 {
    server.series(&format!("croupier_requests_total{{method=\"{method}\",code=\"{code}\"}}"))
}

async fn until(server: &TestServer, series: &str, value: f64) {
    let start = Instant::now();
    while server.series(series) != value {
        assert!(start.elapsed() < LONG, "{series} is {}, not {value}", server.series(series));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const BYTES: &str = "croupier_in_flight_bytes";

/// A stateless message counts with its full size before it is complete, and none is received for which there is no room.
#[tokio::test]
async fn stateless_messages_take_their_room_before_they_come() {
    const MESSAGE: usize = 1 << 20;
    let server = TestServer::with_limits(|limits| {
        (limits.max_message_bytes, limits.max_bytes_in_flight) = (MESSAGE, 6 * MESSAGE);
        limits.receive_timeout = LONG;
    })
    .await;
    let mut calls = Vec::new();
    // Incomplete messages may take three eighths of the room, so that messages that never arrive leave some to steps.
    for _ in 0..2 {
        let mut call = Call::open(&server, SAMPLE).await;
        call.begin(MESSAGE, &[0; 10]);
        calls.push(call);
    }
    until(&server, BYTES, (2 * MESSAGE) as f64).await;
    let mut third = Call::open(&server, SAMPLE).await;
    third.begin(MESSAGE, &[0; 10]);
    let (status, _) = third.end().await;
    assert_eq!(ended(&status), (Code::ResourceExhausted, "BYTES_IN_FLIGHT".to_owned()), "{status}");
    // The call was counted, though nobody ever read it.
    assert_eq!(requests(&server, SAMPLE, "RESOURCE_EXHAUSTED"), 1.0);
    // A message that could never be taken is refused for its length, and takes no room.
    let mut long = Call::open(&server, SAMPLE).await;
    long.begin(MESSAGE + 1, &[0; 10]);
    assert_eq!(ended(&long.end().await.0), (Code::OutOfRange, "MESSAGE_TOO_LONG".to_owned()));
    assert_eq!(requests(&server, SAMPLE, "OUT_OF_RANGE"), 1.0);
    // A client that leaves frees its room.
    drop(calls);
    until(&server, BYTES, 0.0).await;
    until(&server, "croupier_requests_total{method=\"Sample\",code=\"CANCELLED\"}", 2.0).await;
    // Some proxies reset calls like this. It is not an error in the message either.
    let mut proxied = Call::open(&server, SAMPLE).await;
    proxied.begin(MESSAGE, &[0; 10]);
    until(&server, BYTES, MESSAGE as f64).await;
    proxied.bytes.send_reset(h2::Reason::NO_ERROR);
    until(&server, "croupier_requests_total{method=\"Sample\",code=\"CANCELLED\"}", 3.0).await;
    assert_eq!(server.series("croupier_rejected_total{reason=\"keepalive_timeout\"}"), 0.0);
    let mut malformed = Call::open(&server, SAMPLE).await;
    malformed.begin(3, &[0xFF; 3]);
    malformed.finish();
    assert_eq!(ended(&malformed.end().await.0), (Code::InvalidArgument, "MALFORMED_MESSAGE".to_owned()));
    assert_eq!(requests(&server, SAMPLE, "INVALID_ARGUMENT"), 1.0);
    assert_eq!(server.series("croupier_rejected_total{reason=\"malformed_message\"}"), 1.0);
}

/// Calls that never send a message are bounded too.
#[tokio::test]
async fn silent_stateless_calls_are_bounded() {
    let server = TestServer::with_limits(|limits| limits.max_queued_steps = 3).await;
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(Call::open(&server, SAMPLE).await);
    }
    let refused = async {
        loop {
            let (status, _) = {
                let mut call = Call::open(&server, SAMPLE).await;
                call.send_alone(&SampleRequest::default());
                call.end().await
            };
            // The server may not have seen the three calls yet.
            if status.code() == Code::ResourceExhausted {
                return status;
            }
        }
    };
    let status = tokio::time::timeout(LONG, refused).await.expect("there are three");
    assert_eq!(violation(&status).1, "QUEUE_FULL");
    drop(calls);
    until(&server, "croupier_requests_total{method=\"Sample\",code=\"CANCELLED\"}", 3.0).await;
    let mut call = Call::open(&server, SAMPLE).await;
    call.send_alone(&SampleRequest::default());
    assert_ne!(call.end().await.0.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_message_that_stops_in_the_middle_ends_its_call() {
    let server = TestServer::with_limits(|limits| limits.receive_timeout = SHORT).await;
    let late = (Code::Aborted, "RECEIVE_TIMEOUT".to_owned());
    let mut sample = Call::open(&server, SAMPLE).await;
    sample.begin(1000, &[0; 999]);
    let (status, _) = sample.end().await;
    assert_eq!(ended(&status), late, "{status}");
    assert!(status.message().contains("300ms (receive_timeout)"), "{status}");
    // A call that keeps its side open after its message is ended in the same way.
    let mut open = Call::open(&server, SAMPLE).await;
    open.send(&SampleRequest::default());
    assert_eq!(ended(&open.end().await.0), late);
    assert_eq!(requests(&server, SAMPLE, "ABORTED"), 2.0);
    assert_eq!(server.series(BYTES), 0.0);
    // The first message of a stream, and a later one; an incomplete prefix, and a silent call.
    for method in [DECODE, "Attach"] {
        for sent in [&[][..], &[0, 0], &[0, 0, 0, 0, 9, 1]] {
            let mut call = Call::open(&server, method).await;
            if !sent.is_empty() {
                call.bytes.send_data(Bytes::copy_from_slice(sent), false).unwrap();
            }
            let (status, _) = call.end().await;
            assert_eq!(ended(&status), late, "{method} {sent:?}: {status}");
        }
        assert_eq!(requests(&server, method, "ABORTED"), 3.0);
    }
    until(&server, "croupier_streams", 0.0).await;
    let mut stream = Call::open(&server, DECODE).await;
    stream.send(&DecodeRequest { request: Some(decode_request::Request::Config(config())) });
    stream.begin(1 << 20, &[0; 1 << 10]);
    let (status, replies) = stream.end().await;
    assert_eq!(ended(&status), late);
    assert!(replies > 0, "it was configured");
    until(&server, "croupier_streams", 0.0).await;
    assert_eq!(server.series("croupier_rejected_total{reason=\"receive_timeout\"}"), 9.0);
}

/// A client or proxy that ends a call in the middle of a message gets an error, and not OK.
#[tokio::test]
async fn a_call_that_ends_inside_a_message_is_malformed() {
    let server = TestServer::start().await;
    let malformed = (Code::InvalidArgument, "MALFORMED_MESSAGE".to_owned());
    for method in [SAMPLE, DECODE, "Attach"] {
        for sent in [&[0, 0][..], &[0, 0, 0, 0, 9, 1]] {
            let mut call = Call::open(&server, method).await;
            call.bytes.send_data(Bytes::copy_from_slice(sent), false).unwrap();
            call.finish();
            let (status, _) = call.end().await;
            assert_eq!(ended(&status), malformed, "{method} {sent:?}: {status}");
            assert!(status.message().contains("inside a message"), "{status}");
        }
        assert_eq!(requests(&server, method, "INVALID_ARGUMENT"), 2.0, "{method}");
    }
    let mut silent = Call::open(&server, SAMPLE).await;
    silent.finish();
    assert_eq!(ended(&silent.end().await.0), malformed);
    // Messages that arrived completely before it are answered first.
    let mut stream = Call::open(&server, DECODE).await;
    stream.send(&DecodeRequest { request: Some(decode_request::Request::Config(config())) });
    stream.begin(9, &[0x12]);
    stream.finish();
    let (status, replies) = stream.end().await;
    assert_eq!(ended(&status), malformed);
    assert!(replies > 0, "it was configured");
    until(&server, "croupier_streams", 0.0).await;
    assert_eq!(server.series(BYTES), 0.0);
}

/// The time of a message is bounded, not the time between two. Bytes that come slowly but in time are accepted.
#[tokio::test]
async fn a_stream_may_be_silent_between_messages() {
    let server = TestServer::with_limits(|limits| limits.receive_timeout = SHORT).await;
    let mut stream = Call::open(&server, DECODE).await;
    stream.send(&DecodeRequest { request: Some(decode_request::Request::Config(config())) });
    tokio::time::sleep(3 * SHORT).await;
    let step = DecodeRequest { request: Some(decode_request::Request::Step(Step::default())) }.encode_to_vec();
    let mut bytes = vec![0, 0, 0, 0, u8::try_from(step.len()).unwrap()];
    bytes.extend(step);
    for byte in bytes {
        stream.bytes.send_data(Bytes::from(vec![byte]), false).unwrap();
    }
    stream.bytes.send_data(Bytes::new(), true).unwrap();
    assert_eq!(stream.end().await.0.code(), Code::Ok);
}

/// The time that a message takes to arrive is a stage of its own. A message that arrives at once took no time, and the other stages do not
/// include it.
#[tokio::test]
async fn the_time_that_a_message_takes_is_recorded() {
    let server = TestServer::start().await;
    let stage =
        |stage: &str, part: &str| server.series(&format!("croupier_step_duration_seconds_{part}{{stage=\"{stage}\"}}"));
    let mut stream = Call::open(&server, DECODE).await;
    stream.send(&DecodeRequest { request: Some(decode_request::Request::Config(config())) });
    until(&server, "croupier_step_duration_seconds_count{stage=\"receive\"}", 1.0).await;
    assert_eq!(stage("receive", "sum"), 0.0);
    let step = DecodeRequest { request: Some(decode_request::Request::Step(Step::default())) }.encode_to_vec();
    let begun = Instant::now();
    stream.begin(step.len(), &[]);
    tokio::time::sleep(SHORT).await;
    stream.bytes.send_data(step.into(), true).unwrap();
    assert_eq!(stream.end().await.0.code(), Code::Ok);
    let elapsed = begun.elapsed().as_secs_f64();
    assert_eq!(stage("receive", "count"), 2.0);
    let seconds = stage("receive", "sum");
    assert!(seconds > SHORT.as_secs_f64() / 2.0, "{seconds} s");
    let total = stage("total", "sum");
    assert!(seconds + total <= elapsed + 0.001, "{total} s: it begins with the whole message");
}

/// Zero means no bound.
#[tokio::test]
async fn without_a_bound_a_message_may_take_its_time() {
    let server = TestServer::with_limits(|limits| limits.receive_timeout = Duration::ZERO).await;
    let mut call = Call::open(&server, SAMPLE).await;
    call.begin(2, &[]);
    tokio::time::sleep(2 * SHORT).await;
    assert_eq!(server.series(BYTES), 2.0);
    call.bytes.send_data(Bytes::from_static(&[0x08, 0x05]), true).unwrap();
    assert_ne!(call.end().await.0.code(), Code::Aborted);
}

#[tokio::test]
async fn calls_that_do_not_exist_are_counted() {
    let server = TestServer::start().await;
    assert_eq!(Call::open(&server, "Divine").await.end().await.0.code(), Code::Unimplemented);
    assert_eq!(requests(&server, "other", "UNIMPLEMENTED"), 1.0);
}

/// Calls that sample nothing have small messages, with the same time limit: anyone may ask for health.
#[tokio::test]
async fn calls_that_sample_nothing_are_bounded_too() {
    let server = TestServer::with_limits(|limits| limits.receive_timeout = SHORT).await;
    for method in ["GetServerInfo", "grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"] {
        let mut long = Call::open(&server, method).await;
        long.begin(4097, &[0; 10]);
        let (status, _) = long.end().await;
        assert_eq!(ended(&status), (Code::OutOfRange, "MESSAGE_TOO_LONG".to_owned()), "{method}: {status}");
        for sent in [&[][..], &[0, 0, 0, 0, 9, 1], &[0, 0, 0, 0, 0]] {
            let mut stops = Call::open(&server, method).await;
            if !sent.is_empty() {
                stops.bytes.send_data(Bytes::copy_from_slice(sent), false).unwrap();
            }
            let (status, _) = stops.end().await;
            assert_eq!(ended(&status), (Code::Aborted, "RECEIVE_TIMEOUT".to_owned()), "{method}: {status}");
        }
    }
    assert_eq!(requests(&server, "GetServerInfo", "ABORTED"), 3.0);
    for method in ["GetServerInfo", "grpc.health.v1.Health/Check"] {
        let mut whole = Call::open(&server, method).await;
        whole.send_alone(&GetServerInfoRequest {});
        assert_eq!(whole.end().await.0.code(), Code::Ok, "{method}");
    }
}

/// Messages that arrived completely before it, even in the same bytes, are answered first.
#[tokio::test]
async fn a_message_that_is_too_long_takes_none_with_it() {
    let server = TestServer::with_limits(|limits| limits.max_message_bytes = 1 << 20).await;
    let mut call = Call::open(&server, DECODE).await;
    let config = DecodeRequest { request: Some(decode_request::Request::Config(config())) }.encode_to_vec();
    let step = DecodeRequest { request: Some(decode_request::Request::Step(Step::default())) }.encode_to_vec();
    let mut bytes = Vec::new();
    for message in [&config, &step] {
        bytes.extend([&[0][..], &(message.len() as u32).to_be_bytes(), message].concat());
    }
    bytes.extend([&[0][..], &(2u32 << 20).to_be_bytes()].concat());
    call.bytes.send_data(bytes.into(), false).unwrap();
    let (status, _) = call.end().await;
    assert_eq!(ended(&status), (Code::OutOfRange, "MESSAGE_TOO_LONG".to_owned()), "{status}");
    assert_eq!(server.series("croupier_steps_total{data_path=\"none\"}"), 1.0);
}
