//! What a client that is not ours may send: bytes that are no message, fields from the future, calls that
//! do not exist. And what a fault inside the server looks like from outside.

#![allow(clippy::unwrap_used)]

mod support;

use bytes::{Buf, BufMut, Bytes};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::proto::*;
use croupier::sampling::row::RowResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::*;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Response, Status, Streaming};

/// Messages as bytes, whatever they hold.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

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
    use prost::Message;
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
        // Invalid UTF-8 in config.model.
        &[0x0A, 0x03, 0x1A, 0x01, 0xFF],
        // A vocab_size that is a string, and a varint that never ends.
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
    // Nothing at all is a message without its oneof.
    let (_, status) = outcome(&server, DECODE, vec![vec![]]).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "request"));
}

/// A field of bytes.
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
    // A bias of nothing, 300,000 times: 600 KB on the wire.
    let biases: Vec<u8> = [0x42, 0].repeat(300_000);
    let params = encoded_field(2, &biases);
    let (replies, status) = outcome(&server, DECODE, vec![configured.clone(), step(encoded_field(3, &params))]).await;
    assert_eq!((replies, status.code()), (1, Code::InvalidArgument));
    assert_eq!(violation(&status).1, "TOO_MANY_ITEMS");
    // Lists that have limits of their own: more than one may have would take a thousand times as much once decoded.
    for (tag, field) in [(0x1A, "step.open"), (0x22, "step.work")] {
        let (replies, status) = outcome(&server, DECODE, vec![configured.clone(), step([tag, 0].repeat(20_000))]).await;
        assert_eq!((replies, status.code()), (1, Code::InvalidArgument));
        assert_eq!(violation(&status), (field.to_owned(), "INVALID_FIELD".to_owned()), "{status}");
    }
    assert_eq!(server.series("croupier_rejected_total{reason=\"too_many_items\"}"), 1.0);
}

#[tokio::test]
async fn fields_from_the_future_are_ignored() {
    let server = TestServer::start().await;
    let mut configured = encoded(decode_request::Request::Config(config()));
    // Field 1000: a number, and one of bytes.
    configured.extend([0xC0, 0x3E, 0x01, 0xC2, 0x3E, 0x02, 0x41, 0x42]);
    let (replies, status) = outcome(&server, DECODE, vec![configured]).await;
    assert_eq!((replies, status.code()), (1, Code::Ok));
}

#[tokio::test]
async fn a_call_that_does_not_exist_is_unimplemented() {
    let server = TestServer::start().await;
    for path in ["/croupier.v1.Sampler/Deal", "/croupier.v2.Sampler/Decode", "/"] {
        let (_, status) = outcome(&server, path, vec![]).await;
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
}

/// Panics on the batches it is told to.
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
