//! What a foreign client may send: bytes that are not a message, fields from the future, calls that do not exist. And how a fault inside
//! the server looks from outside.

use crate::raw::Raw;
use crate::support::*;
use bytes::Bytes;
use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::proto::*;
use croupier::sampling::row::RowResult;
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tonic::{Code, Request, Response, Status, Streaming};

/// Calls `path` with these messages.
async fn call(
    server: &TestServer,
    path: &'static str,
    messages: Vec<Vec<u8>>,
) -> Result<Response<Streaming<Bytes>>, Status> {
    let mut grpc = tonic::client::Grpc::new(server.channel().await);
    grpc.ready().await.unwrap();
    let messages: Vec<Bytes> = messages.into_iter().map(Bytes::from).collect();
    let path = axum::http::uri::PathAndQuery::from_static(path);
    grpc.streaming(Request::new(tokio_stream::iter(messages)), path, Raw).await
}

/// The status that ends the call, and how many messages came before it.
async fn outcome(server: &TestServer, path: &'static str, messages: Vec<Vec<u8>>) -> (usize, Status) {
    let mut replies = match call(server, path, messages).await {
        Ok(response) => response.into_inner(),
        Err(status) => return (0, status),
    };
    let mut count = 0;
    loop {
        match replies.message().await {
            Ok(Some(_)) => count += 1,
            Ok(None) => return (count, Status::ok("")),
            Err(status) => return (count, status),
        }
    }
}

const DECODE: &str = "/croupier.v1.Sampler/Decode";

fn encoded(request: decode_request::Request) -> Vec<u8> {
    DecodeRequest { request: Some(request) }.encode_to_vec()
}

#[tokio::test]
async fn bytes_that_are_no_message_are_an_invalid_argument() {
    let server = TestServer::start().await;
    let configured = encoded(decode_request::Request::Config(config()));
    let garbage: [&[u8]; 7] = [
        b"\xFF\xFF\xFF",
        b"hello, world",
        &[0x12, 0x7F, 0x01],
        &[0x0B, 0x0C],
        // Invalid UTF-8 in `config.model`.
        &[0x0A, 0x03, 0x1A, 0x01, 0xFF],
        // A `vocab_size` that is a string, and a varint that never ends.
        &[0x0A, 0x03, 0x0A, 0x01, 0x41],
        &[0x0A, 0x0B, 0x08, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
    ];
    for bytes in garbage {
        for path in [DECODE, "/croupier.v1.Sampler/Sample"] {
            let (_, status) = outcome(&server, path, vec![bytes.to_vec()]).await;
            assert_eq!(status.code(), Code::InvalidArgument, "{path} {bytes:?}: {status}");
        }
        let (replies, status) = outcome(&server, DECODE, vec![configured.clone(), bytes.to_vec()]).await;
        assert_eq!((replies, status.code()), (1, Code::InvalidArgument), "{bytes:?}: {status}");
        assert!(["MALFORMED_MESSAGE", "INVALID_FIELD"].contains(&violation(&status).1.as_str()), "{status}");
    }
    assert!(server.series("croupier_rejected_total{reason=\"malformed_message\"}") >= garbage.len() as f64);
    // An empty message has no oneof.
    let (_, status) = outcome(&server, DECODE, vec![vec![]]).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "request"));
}

/// A length-delimited field.
fn encoded_field(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut field);
    prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    field.extend(bytes);
    field
}

#[tokio::test]
async fn a_message_of_very_many_parts_is_refused_undecoded() {
    let server = TestServer::start().await;
    let configured = encoded(decode_request::Request::Config(config()));
    let step = |items: Vec<u8>| {
        let mut step = vec![0x12];
        prost::encoding::encode_varint(items.len() as u64, &mut step);
        step.extend(items);
        step
    };
    // An empty bias, 300,000 times: 600 KB on the wire.
    let biases: Vec<u8> = [0x42, 0].repeat(300_000);
    let params = encoded_field(2, &biases);
    let (replies, status) = outcome(&server, DECODE, vec![configured.clone(), step(encoded_field(3, &params))]).await;
    assert_eq!((replies, status.code()), (1, Code::InvalidArgument));
    assert_eq!(violation(&status).1, "TOO_MANY_ITEMS");
    // Lists with limits of their own. More items than a list may have would take a thousand times as much memory once decoded.
    for (tag, field) in [(0x1A, "step.open"), (0x22, "step.work")] {
        let (replies, status) = outcome(&server, DECODE, vec![configured.clone(), step([tag, 0].repeat(20_000))]).await;
        assert_eq!((replies, status.code()), (1, Code::InvalidArgument));
        assert_eq!(violation(&status), (field.to_owned(), "INVALID_FIELD".to_owned()), "{status}");
    }
    assert_eq!(server.series("croupier_rejected_total{reason=\"too_many_items\"}"), 1.0);
}

/// A message with one more field, of a later schema.
fn newer(message: &impl prost::Message, number: u32) -> Vec<u8> {
    [message.encode_to_vec(), encoded_field(number, &[1, 2])].concat()
}

#[tokio::test]
async fn an_opening_or_work_of_a_later_schema_fails_alone() {
    let server = TestServer::start().await;
    let configured = encoded(decode_request::Request::Config(config()));
    // Sequence 2 asks for a sampler that does not exist yet. The others and their work are as usual.
    let asking = [vec![8, 2], encoded_field(2, &newer(&seeded(5), 91))].concat();
    let opens = [open(1, seeded(5)).encode_to_vec(), asking, open(3, seeded(5)).encode_to_vec()];
    let works = [sample_work(1).encode_to_vec(), sample_work(2).encode_to_vec(), newer(&sample_work(3), 8)];
    let rest = Step { logits: inline(&[logits(5, 0), logits(5, 0), logits(5, 0)]), ..Default::default() };
    let fields = opens.iter().map(|open| encoded_field(3, open)).chain(works.iter().map(|work| encoded_field(4, work)));
    let step = [fields.collect::<Vec<_>>().concat(), rest.encode_to_vec()].concat();
    let again = encoded(decode_request::Request::Step(sample_step(&[(3, logits(5, 0))])));
    let mut replies =
        call(&server, DECODE, vec![configured, encoded_field(2, &step), again]).await.unwrap().into_inner();
    let mut results = Vec::new();
    while let Some(reply) = replies.message().await.unwrap() {
        match DecodeResponse::decode(reply).unwrap().response {
            Some(decode_response::Response::Step(result)) => results.push(result),
            other => assert!(matches!(other, Some(decode_response::Response::Ready(_))), "{other:?}"),
        }
    }
    use OpenStatus::{Ok as Open, Unimplemented};
    let statuses: Vec<OpenStatus> = results[0].open.iter().map(|open| open.status()).collect();
    assert_eq!(statuses, [Open, Unimplemented, Open]);
    assert_eq!(results[0].open[1].error.as_ref().unwrap().field, "params.91");
    let statuses: Vec<RowStatus> = results[0].work.iter().map(|work| work.status()).collect();
    assert_eq!(statuses, [RowStatus::Ok, RowStatus::UnknownSequence, RowStatus::Unimplemented]);
    assert!(results[0].work[2].message.starts_with("8: "), "{}", results[0].work[2].message);
    assert_eq!(token(&results[1].work[0]), token(&results[0].work[0]), "nothing was sampled for sequence 3 before");
    let failed = "croupier_openings_failed_total{model=\"default\",reason=\"unimplemented\"}";
    assert_eq!(server.series(failed), 1.0);
}

/// Libraries that write every field of an object also write two of which only one may be set. Decoding keeps the last.
#[tokio::test]
async fn what_is_set_together_is_refused_where_it_stands() {
    let server = TestServer::start().await;
    let configured = encoded(decode_request::Request::Config(config()));
    let marks = encoded_field(90, &[encoded_field(3, &[]), encoded_field(1, &[])].concat());
    let marked = [vec![8, 2], encoded_field(2, &marks)].concat();
    let opens = [open(1, seeded(5)).encode_to_vec(), marked, open(3, seeded(5)).encode_to_vec()];
    let drafts = encoded_field(6, &[encoded_field(3, &[]), encoded_field(6, &[])].concat());
    let works = [sample_work(1).encode_to_vec(), [vec![8, 3], drafts].concat()];
    let rest = Step { logits: inline(&[logits(5, 0), logits(5, 0)]), ..Default::default() };
    let fields = opens.iter().map(|open| encoded_field(3, open)).chain(works.iter().map(|work| encoded_field(4, work)));
    let step = [fields.collect::<Vec<_>>().concat(), rest.encode_to_vec()].concat();
    let mut replies =
        call(&server, DECODE, vec![configured.clone(), encoded_field(2, &step)]).await.unwrap().into_inner();
    replies.message().await.unwrap().expect("the stream is ready");
    let reply = DecodeResponse::decode(replies.message().await.unwrap().unwrap()).unwrap();
    let Some(decode_response::Response::Step(result)) = reply.response else { panic!("{reply:?}") };
    let error = result.open[1].error.as_ref().expect("it was not opened");
    assert_eq!((result.open[1].status(), error.field.as_str()), (OpenStatus::InvalidArgument, "params.watermark.kgw"));
    assert_eq!(error.message, "is set together with gumbel; send only one of them");
    let statuses: Vec<RowStatus> = result.work.iter().map(|work| work.status()).collect();
    assert_eq!(statuses, [RowStatus::Ok, RowStatus::InvalidWork]);
    assert!(result.work[1].message.starts_with("verify.deterministic: is set together with kept"), "{result:?}");
    // How many rows a work takes decides which rows the next works mean.
    let two_kinds = [sample_work(1).encode_to_vec(), encoded_field(5, &[])].concat();
    let rows = Step { logits: inline(&[logits(5, 0)]), ..Default::default() };
    let step = encoded_field(2, &[encoded_field(4, &two_kinds), rows.encode_to_vec()].concat());
    let (count, status) = outcome(&server, DECODE, vec![configured, step]).await;
    assert_eq!((count, status.code(), violation(&status).0.as_str()), (1, Code::InvalidArgument, "step.work[0].score"));
}

#[tokio::test]
async fn a_row_of_a_later_schema_fails_alone() {
    let server = TestServer::start().await;
    let row = SampleRow { params: Some(seeded(5)), ..Default::default() };
    let Some(step::Logits::Inline(logits)) = inline(&[logits(5, 0), logits(5, 0)]) else { unreachable!() };
    let rest = SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        logits: Some(logits),
        ..Default::default()
    };
    let rows = [encoded_field(6, &row.encode_to_vec()), encoded_field(6, &newer(&row, 7))].concat();
    let message = [rows, rest.encode_to_vec()].concat();
    let mut replies = call(&server, "/croupier.v1.Sampler/Sample", vec![message]).await.unwrap().into_inner();
    let answer = SampleResponse::decode(replies.message().await.unwrap().unwrap()).unwrap();
    let statuses: Vec<RowStatus> = answer.rows.iter().map(|row| row.status()).collect();
    assert_eq!(statuses, [RowStatus::Ok, RowStatus::Unimplemented]);
}

#[tokio::test]
async fn other_fields_of_a_later_schema_end_the_call() {
    let server = TestServer::start().await;
    let configured = encoded(decode_request::Request::Config(config()));
    let rows = Step { logits: inline(&[logits(5, 0)]), ..Default::default() };
    let unknown_work = [encoded_field(4, &encoded_field(9, &[])), rows.encode_to_vec()].concat();
    for (messages, replies, path) in [
        (vec![encoded_field(1, &newer(&config(), 1000))], 0, "config.1000"),
        (vec![configured.clone(), newer(&DecodeRequest::default(), 9)], 1, "9"),
        (vec![configured.clone(), encoded_field(2, &newer(&Step::default(), 10))], 1, "step.10"),
        (vec![configured, encoded_field(2, &unknown_work)], 1, "step.work[0].9"),
    ] {
        let (count, status) = outcome(&server, DECODE, messages).await;
        assert_eq!(
            (count, status.code(), violation(&status).0.as_str()),
            (replies, Code::Unimplemented, path),
            "{status}"
        );
    }
}

#[tokio::test]
async fn whoever_asks_what_the_server_knows_may_be_newer() {
    let server = TestServer::start().await;
    let (replies, status) =
        outcome(&server, "/croupier.v1.Sampler/GetServerInfo", vec![encoded_field(1000, b"AB")]).await;
    assert_eq!((replies, status.code()), (1, Code::Ok), "{status}");
}

#[tokio::test]
async fn a_call_that_does_not_exist_is_unimplemented() {
    let server = TestServer::start().await;
    for path in ["/croupier.v1.Sampler/Deal", "/croupier.v2.Sampler/Decode", "/"] {
        let (_, status) = outcome(&server, path, vec![]).await;
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
}

/// Panics on batches while its flag is set.
struct Faulty(Arc<AtomicBool>);

impl Backend for Faulty {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        assert!(!self.0.load(Ordering::SeqCst), "a test of panics");
        CpuBackend::new(1).run(jobs)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        assert!(!self.0.load(Ordering::SeqCst), "a test of panics");
        CpuBackend::new(1).verify(jobs)
    }
}

#[tokio::test]
async fn a_fault_in_the_backend_fails_its_rows_and_the_server_goes_on() {
    let faulty = Arc::new(AtomicBool::new(false));
    let server = TestServer::with_backend(Faulty(Arc::clone(&faulty)), |_| ()).await;
    let (mut worker, mut twin) = (server.worker().await, server.worker().await);
    for stream in [&mut worker, &mut twin] {
        stream.step(open_step(vec![open(1, seeded(3))])).await;
    }
    for position in 0..4 {
        faulty.store(true, Ordering::SeqCst);
        let failed = worker.step(sample_step(&[(1, logits(3, position))])).await;
        assert_eq!(failed.work[0].status(), RowStatus::Internal);
        faulty.store(false, Ordering::SeqCst);
        let done = worker.step(sample_step(&[(1, logits(3, position))])).await;
        let expected = twin.step(sample_step(&[(1, logits(3, position))])).await;
        assert_eq!(token(&done.work[0]), token(&expected.work[0]));
    }
}

/// The HTTP status and text of a call from a client that does not know gRPC.
async fn over_http(server: &TestServer, method: &str, content_type: Option<&str>) -> (u16, String) {
    let socket = tokio::net::TcpStream::connect(server.tcp_address()).await.unwrap();
    let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = axum::http::Request::builder().method(method).uri("http://here/croupier.v1.Sampler/Sample");
    let request = content_type.into_iter().fold(request, |request, kind| request.header("content-type", kind));
    let (answer, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
    // If the call was refused by its headers, it may be gone by then.
    let _ = body.send_data(b"{\"vocab_size\": 4}"[..].into(), true);
    let answer = answer.await.unwrap();
    let (status, mut body) = (answer.status().as_u16(), answer.into_body());
    let mut text = Vec::new();
    while let Some(Ok(bytes)) = body.data().await {
        text.extend_from_slice(&bytes);
    }
    connection.abort();
    (status, String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn what_is_no_call_of_grpc_is_told_so_and_its_bytes_are_not_taken_for_messages() {
    let server = TestServer::start().await;
    let json = Some("application/json");
    let kinds = [None, json, Some("application/grpc+json"), Some("application/grpc-web"), Some("application/grpcx")];
    for kind in kinds {
        let (status, text) = over_http(&server, "POST", kind).await;
        assert_eq!(status, 415, "{kind:?}: {text}");
        assert!(text.contains("content-type application/grpc"), "{text}");
    }
    for method in ["GET", "PUT"] {
        assert_eq!(over_http(&server, method, Some("application/grpc")).await.0, 405, "{method}");
    }
    assert_eq!(server.series("croupier_rejected_total{reason=\"wrong_protocol\"}"), 7.0);
    for kind in ["application/grpc", "Application/gRPC+proto", "application/grpc; charset=utf-8"] {
        assert_eq!(over_http(&server, "POST", Some(kind)).await, (200, String::new()), "{kind}");
    }
}
