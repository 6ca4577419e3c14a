//! Workers that give HTTP/2 no room to send them replies: nothing that they make the server hold stays longer than a bound.
//!
//! In this case HTTP/2 holds one reply and asks for no more, so nothing in the call makes progress by itself: neither the time limit of its
//! messages nor that of its shards.

use crate::call::{Call, LONG};
use crate::support::*;
use croupier::proto::*;
use decode_request::Request;
use std::time::{Duration, Instant};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// The shortest timeout that a test can use.
const SHORT: Duration = Duration::from_millis(400);
/// Bytes of a message, and of the part of it that is sent: more than HTTP/2 keeps unread in this server.
const LARGE: (usize, usize) = (8 << 20, 6 << 20);
/// Bytes of an answer that HTTP/2 takes at once.
const PIECE: f64 = 65536.0;
/// Rows of an answer that has several pieces.
const ROWS: u64 = 2000;
const COLUMNS: [u32; 2] = [20, 30];
const BYTES: &str = "croupier_in_flight_bytes";
const RANKS: &str = "croupier_shard_ranks";
const UNREAD: &str = "croupier_rejected_total{reason=\"reply_timeout\"}";

fn bounded(limits: &mut croupier::limits::Limits) {
    (limits.reply_timeout, limits.receive_timeout, limits.shard_timeout) = (SHORT, LONG, LONG);
}

fn request(request: Request) -> DecodeRequest {
    DecodeRequest { request: Some(request) }
}

fn sharded() -> StreamConfig {
    StreamConfig { vocab_shards: Some(VocabShards { columns: COLUMNS.to_vec() }), ..config() }
}

/// The columns of a row that belong to rank `rank`.
fn columns(rank: usize) -> InlineLogits {
    let InlineLogits { data, row_stride } = match inline(&[vec![0.0; COLUMNS[rank] as usize]]) {
        Some(step::Logits::Inline(logits)) => logits,
        _ => unreachable!(),
    };
    InlineLogits { data, row_stride }
}

/// A step that samples nothing, but waits for the columns of rank 1.
fn sharded_step(step_id: u64) -> Step {
    let own = sharded_logits::Columns::Inline(columns(0));
    let logits = Some(step::Logits::Sharded(ShardedLogits { columns: Some(own) }));
    Step { step_id, work: vec![sample_work(1)], logits, ..Default::default() }
}

fn shard(step_id: u64) -> AttachRequest {
    let columns = Some(vocab_shard::Columns::Inline(columns(1)));
    AttachRequest { request: Some(attach_request::Request::Shard(VocabShard { step_id, columns })) }
}

fn rank(token: Vec<u8>) -> AttachRequest {
    let (vocab_start_index, vocab_end_index) = (COLUMNS[0], COLUMNS[0] + COLUMNS[1]);
    let dtype = LogitsDtype::F32.into();
    let rank = AttachRank { token, rank: 1, vocab_start_index, vocab_end_index, logits_dtype: dtype };
    AttachRequest { request: Some(attach_request::Request::Rank(rank)) }
}

/// Waits until a series is above a value, and returns the series' value.
async fn above(server: &TestServer, series: &str, value: f64) -> f64 {
    let start = Instant::now();
    while server.series(series) <= value {
        assert!(start.elapsed() < LONG, "{series} is still {value}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.series(series)
}

/// Checks that a call ended because its worker did not read.
fn expect_unread(status: &Status) {
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert_eq!(status.get_details_error_info().expect("a reason").reason, "REPLY_TIMEOUT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_stops_in_the_middle_does_not_stay() {
    let gate = Gate::default();
    let server = TestServer::with_backend(gate.clone(), bounded).await;
    let mut call = Call::closed(&server, "Decode").await;
    call.send(&request(Request::Config(config())));
    call.begun().await;
    let first = Step { step_id: 1, open: vec![open(1, seeded(1))], ..sample_step(&[(1, logits(1, 0))]) };
    call.send(&request(Request::Step(first)));
    gate.wait_for_batch().await;
    // While the first step runs, the second is read as far as it arrives.
    call.begin_large(LARGE.0, LARGE.1).await;
    // That takes time, which is not charged to the worker.
    tokio::time::sleep(2 * SHORT).await;
    assert_eq!(server.series(UNREAD), 0.0);
    gate.open();
    assert_eq!(above(&server, UNREAD, 0.0).await, 1.0);
    server.expect_sequences(0).await;
    expect_unread(&call.end().await.0);
    server.expect_series("croupier_streams", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_wait_for_shards_behind_a_reply_do_not_stay() {
    let server = TestServer::with_limits(bounded).await;
    let mut call = Call::closed(&server, "Decode").await;
    call.send(&request(Request::Config(sharded())));
    call.begun().await;
    let mut bytes = 0.0;
    for step_id in 1..=3 {
        call.send(&request(Request::Step(Step {
            deadline_ms: if step_id == 1 { 2000 } else { 0 },
            ..sharded_step(step_id)
        })));
        bytes = above(&server, BYTES, bytes).await;
    }
    // The first step is answered: it missed its deadline. Nobody takes the answer.
    server.expect_series("croupier_shard_failures_total{reason=\"deadline\"}", 1.0).await;
    assert_eq!(above(&server, UNREAD, 0.0).await, 1.0);
    // What is left is less than one of the steps.
    left_with_http2(&server, bytes / 4.0).await;
    expect_unread(&call.end().await.0);
    server.expect_series(BYTES, 0.0).await;
}

/// The same holds for a stream that ended with an error of which its worker does not hear.
#[tokio::test(flavor = "multi_thread")]
async fn sequences_do_not_outlive_the_end_of_their_stream() {
    let gate = Gate::default();
    let server = TestServer::with_backend(gate.clone(), bounded).await;
    let mut call = Call::closed(&server, "Decode").await;
    call.send(&request(Request::Config(config())));
    call.begun().await;
    let first = Step { step_id: 1, open: vec![open(1, seeded(1))], ..sample_step(&[(1, logits(1, 0))]) };
    call.send(&request(Request::Step(first)));
    gate.wait_for_batch().await;
    call.send(&request(Request::Config(config())));
    above(&server, "croupier_rejected_total{reason=\"invalid_field\"}", 0.0).await;
    gate.open();
    server.expect_sequences(0).await;
    assert_eq!(call.end().await.0.code(), Code::InvalidArgument);
    assert_eq!(server.series(UNREAD), 0.0, "a call that ends has one reason");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_does_not_read_leaves_its_group() {
    let server = TestServer::with_limits(bounded).await;
    let mut worker = server.stream().await.unwrap();
    worker.send(Request::Config(sharded())).await;
    let token = worker.ready().await.shard_offer.expect("ranks may attach").token;
    let mut call = Call::closed(&server, "Attach").await;
    call.send(&rank(token.clone()));
    call.begun().await;
    call.send(&shard(1));
    call.begin_large(LARGE.0, LARGE.1).await;
    tokio::time::sleep(2 * SHORT).await;
    assert_eq!(server.series(UNREAD), 0.0);
    worker.send(Request::Step(sharded_step(1))).await;
    worker.step_reply().await.unwrap();
    assert_eq!(above(&server, UNREAD, 0.0).await, 1.0);
    // Another call may now take its place in the group. What HTTP/2 holds of the old call keeps its place on the server.
    let mut next = Call::open(&server, "Attach").await;
    next.send(&rank(token));
    server.expect_series(RANKS, 2.0).await;
    expect_unread(&call.end().await.0);
    server.expect_series(RANKS, 1.0).await;
    drop(worker);
    assert_eq!(next.end().await.0.code(), Code::Ok);
}

/// A worker that would read is left alone, however long a step takes and however slowly the next one arrives.
#[tokio::test(flavor = "multi_thread")]
async fn who_would_read_is_not_taken_for_one_who_does_not() {
    let gate = Gate::default();
    let server = TestServer::with_backend(gate.clone(), bounded).await;
    let mut call = Call::open(&server, "Decode").await;
    call.send(&request(Request::Config(config())));
    let first = Step { step_id: 1, open: vec![open(1, seeded(1))], ..sample_step(&[(1, logits(1, 0))]) };
    call.send(&request(Request::Step(first)));
    gate.wait_for_batch().await;
    tokio::time::sleep(2 * SHORT).await;
    gate.open();
    call.begin_large(LARGE.0, LARGE.1).await;
    tokio::time::sleep(2 * SHORT).await;
    let mut worker = server.stream().await.unwrap();
    worker.send(Request::Config(sharded())).await;
    worker.ready().await;
    let waits = Step { deadline_ms: 3 * SHORT.as_millis() as u32, ..sharded_step(1) };
    worker.send(Request::Step(waits)).await;
    assert_eq!(worker.step_reply().await.unwrap().work.len(), 1);
    assert_eq!(server.series(UNREAD), 0.0);
    assert_eq!(server.series("croupier_streams"), 2.0);
}

/// An answer goes to HTTP/2 piece by piece. The rest of it counts until the client has taken it, or has taken too long.
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_stateless_call_does_not_stay() {
    let server = TestServer::with_limits(bounded).await;
    let Some(step::Logits::Inline(logits)) = inline(&[logits(1, 0)]) else { unreachable!() };
    let logprobs = Some(LogprobsParams { top_n: 20, ..Default::default() });
    let params = SamplingParams { logprobs, ..seeded(1) };
    let row = SampleRow { params: Some(params), row: Some(0), ..Default::default() };
    let logits_dtype = LogitsDtype::F32.into();
    let rows = vec![row; ROWS as usize];
    let batch = SampleRequest { vocab_size: VOCAB, logits_dtype, rows, logits: Some(logits), ..Default::default() };
    let mut reads = Call::open(&server, "Sample").await;
    reads.send_alone(&batch);
    let (status, all) = reads.end().await;
    assert_eq!(status.code(), Code::Ok);
    assert!(all > 2 << 16, "an answer of several pieces: {all} bytes");
    server.expect_series(BYTES, 0.0).await;
    let patient = TestServer::with_limits(|limits| limits.reply_timeout = LONG).await;
    let mut call = Call::closed(&patient, "Sample").await;
    call.send_alone(&batch);
    call.begun().await;
    let held = patient.series(BYTES);
    assert!(held > all as f64 / 2.0, "{held} bytes");
    let mut call = Call::closed(&server, "Sample").await;
    call.send_alone(&batch);
    call.begun().await;
    assert_eq!(above(&server, UNREAD, 0.0).await, 1.0);
    left_with_http2(&server, 2.0 * PIECE).await;
    expect_unread(&call.end().await.0);
    server.expect_series(BYTES, 0.0).await;
}

/// A reply of any size goes to HTTP/2 in the same way, and what HTTP/2 holds of it counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_not_read_to_its_end_does_not_stay() {
    let server = TestServer::with_limits(bounded).await;
    let mut call = Call::closed(&server, "Decode").await;
    call.send(&request(Request::Config(config())));
    call.begun().await;
    let logprobs = Some(LogprobsParams { top_n: 20, ..Default::default() });
    let asked = |id| open(id, SamplingParams { logprobs: logprobs.clone(), ..seeded(1) });
    let work = (0..ROWS).map(|id| Work { first_row: Some(0), ..sample_work(id) }).collect();
    let open = (0..ROWS).map(asked).collect();
    let step = Step { step_id: 1, open, work, logits: inline(&[logits(1, 0)]), ..Default::default() };
    call.send(&request(Request::Step(step)));
    // No other reply is due, so the stream might be silent for as long as it likes. But the client does not take this one.
    assert_eq!(above(&server, UNREAD, 0.0).await, 1.0);
    left_with_http2(&server, 2.0 * PIECE).await;
    server.expect_sequences(0).await;
    expect_unread(&call.end().await.0);
    server.expect_series(BYTES, 0.0).await;
}

/// Waits until all that is left of answers is what HTTP/2 was given: a piece that it could not send whole, and the next.
async fn left_with_http2(server: &TestServer, most: f64) {
    let start = Instant::now();
    while server.series(BYTES) > most {
        assert!(start.elapsed() < LONG, "{} bytes", server.series(BYTES));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(server.series(BYTES) > 0.0, "what HTTP/2 has counts");
}
