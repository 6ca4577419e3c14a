//! Bounds on what waits and what is in flight: steps, bytes and rows in front of a blocked backend.

use super::*;
use prost::Message;

/// Rows of this many tokens dominate a step's bytes: the room for its reply is less than half of a row.
const TOKENS: u32 = 16384;

/// A server whose backend is blocked: what arrives stays in flight.
async fn held(change: impl FnOnce(&mut croupier::limits::Limits)) -> (TestServer, Gate, Worker) {
    let gate = Gate::default();
    let server = TestServer::with_backend(gate.clone(), change).await;
    let mut worker = server.worker_with(StreamConfig { vocab_size: TOKENS, ..config() }).await;
    // One by one, since each counts among the bytes in flight until it is open.
    for id in 0..40 {
        worker.step(open_step(vec![open(id, seeded(id))])).await;
    }
    worker.send_step(step_of(0, 1)).await;
    gate.wait_for_batch().await;
    (server, gate, worker)
}

/// A step of `rows` rows, for sequences from `first` on.
fn step_of(first: u64, rows: u64) -> Step {
    sample_step(&(first..first + rows).map(|id| (id, vec![0.0; TOKENS as usize])).collect::<Vec<_>>())
}

#[tokio::test]
async fn steps_waiting() {
    refused_at_the_bound("QUEUE_FULL", |limits| limits.max_queued_steps = 1, &[1], 1).await;
}

#[tokio::test]
async fn what_is_refused_is_not_read() {
    let (server, gate, mut worker) =
        held(|limits| (limits.max_queued_steps, limits.max_state_bytes) = (1, 1 << 19)).await;
    worker.send_step(step_of(1, 1)).await;
    // A step and a batch whose content would be refused or fail: the server does not get as far as reading it.
    let wrong = Step { logits: None, open: vec![open(1, seeded(1))], ..step_of(1, 1) };
    worker.send_step(wrong).await;
    server.expect_series("croupier_rejected_total{reason=\"queue_full\"}", 1.0).await;
    let state = server.series("croupier_state_bytes");
    let long = SamplingParams { repetition_penalty: Some(1.1), ..seeded(1) };
    let row = SampleRow { params: Some(long), prompt_token_ids: (0..1 << 16).collect(), ..Default::default() };
    let sample = || SampleRequest {
        vocab_size: 1 << 16,
        logits_dtype: LogitsDtype::F32.into(),
        rows: vec![row.clone()],
        logits: Some(InlineLogits { data: vec![0; 4 << 16].into(), row_stride: 0 }),
        ..Default::default()
    };
    let mut client = server.client().await;
    let status = client.sample(sample()).await.unwrap_err();
    assert_eq!((status.code(), violation(&status).1.as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
    assert_eq!(server.series("croupier_state_bytes"), state);
    gate.open();
    for _ in 0..2 {
        assert!(worker.step_reply().await.unwrap().refusal.is_none());
    }
    let refusal = worker.step_reply().await.unwrap().refusal.expect("the stream goes on");
    assert_eq!((refusal.reason.as_str(), server.not_opened("already_exists")), ("QUEUE_FULL", 0.0));
    // If it is read, its text never fits.
    let rows = client.sample(sample()).await.unwrap().into_inner().rows;
    assert_eq!(rows[0].status(), RowStatus::HistoryLimit);
    assert!(rows[0].message.contains("max_state_bytes is 524288"), "{}", rows[0].message);
    assert_eq!(worker.failing_step(Step { logits: None, ..step_of(1, 1) }).await.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn bytes_in_flight() {
    let most = four_rows(|rows| step_of(1, rows));
    refused_at_the_bound("BYTES_IN_FLIGHT", |limits| limits.max_bytes_in_flight = most, &[2, 1], 1).await;
}

/// The bytes of three messages with four rows together, and a little less than those of a fourth message.
fn four_rows(step: impl Fn(u64) -> Step) -> usize {
    let bytes = |rows| {
        let step = Step { step_id: 1, ..step(rows) };
        DecodeRequest { request: Some(decode_request::Request::Step(step)) }.encoded_len()
    };
    // Each row also takes the bytes of a work.
    2 * bytes(1) + bytes(2) + bytes(1) / 2 + 4 * size_of::<croupier::engine::step::Work>()
}

#[tokio::test]
async fn bytes_in_flight_that_are_no_logits() {
    // Room for the row at the backend, and one and a half of these prompts.
    let most = 4 * TOKENS as usize + 45_000;
    let (server, gate, mut worker) = held(|limits| limits.max_bytes_in_flight = most).await;
    let prompt = || OpenSequence { prompt_token_ids: vec![1; 30_000], ..open(50, seeded(1)) };
    worker.send_step(open_step(vec![prompt()])).await;
    worker.send_step(open_step(vec![OpenSequence { sequence_id: 51, ..prompt() }])).await;
    server.expect_series("croupier_rejected_total{reason=\"bytes_in_flight\"}", 1.0).await;
    assert!(server.series("croupier_in_flight_bytes") > 4.0 * f64::from(TOKENS) + 30_000.0);
    gate.open();
    assert!(worker.step_reply().await.unwrap().refusal.is_none());
    assert_eq!(worker.step_reply().await.unwrap().open[0].status(), OpenStatus::Ok);
    let refusal = worker.step_reply().await.unwrap().refusal.expect("no room for a second one");
    assert_eq!(refusal.reason, "BYTES_IN_FLIGHT");
    assert_eq!(server.series("croupier_in_flight_bytes"), 0.0);
    assert_eq!(
        worker.step(open_step(vec![OpenSequence { sequence_id: 51, ..prompt() }])).await.open[0].status(),
        OpenStatus::Ok
    );
}

#[tokio::test]
async fn rows_in_flight() {
    // Room for sixteen full steps. One row is at the backend, so the last step fits only in part.
    refused_at_the_bound("ROWS_IN_FLIGHT", |limits| limits.max_rows_per_step = 5, &[5; 15], 5).await;
}

/// While a step of one row is at the backend, steps with `fits` rows are taken, and one with `more` rows is refused untouched. When there
/// is room again, it is taken.
async fn refused_at_the_bound(
    reason: &str,
    bound: impl FnOnce(&mut croupier::limits::Limits),
    fits: &[u64],
    more: u64,
) {
    let (server, gate, mut worker) = held(bound).await;
    for &rows in fits {
        worker.send_step(step_of(1, rows)).await;
    }
    let too_much = || Step { open: vec![open(99, seeded(1))], ..step_of(20, more) };
    let id = worker.send_step(too_much()).await;
    // All steps have arrived before any is done.
    server.expect_series(&format!("croupier_rejected_total{{reason=\"{}\"}}", reason.to_lowercase()), 1.0).await;
    gate.open();
    for _ in 0..=fits.len() {
        let result = worker.step_reply().await.unwrap();
        assert!(result.refusal.is_none());
    }
    let result = worker.step_reply().await.unwrap();
    let refusal = result.refusal.expect("a refusal");
    assert_eq!((refusal.reason.as_str(), result.step_id), (reason, id));
    assert!(refusal.retry_after_ms > 0 && result.open.is_empty() && result.work.is_empty());
    server.expect_sequences(40).await;
    let result = worker.step(too_much()).await;
    assert_eq!(result.open[0].status(), OpenStatus::Ok);
    result.work.iter().for_each(|done| assert_eq!(done.status(), RowStatus::Ok));
}

#[tokio::test]
async fn steps_in_flight_per_stream_hold_back_reading() {
    // Two steps may wait, so two in flight are never refused. If a third were read, one would be.
    let bounds = |limits: &mut croupier::limits::Limits| {
        (limits.max_steps_in_flight_per_stream, limits.max_queued_steps) = (2, 2);
    };
    let (_server, gate, mut worker) = held(bounds).await;
    for id in 1..=20 {
        worker.send_step(step_of(id, 1)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.open();
    for _ in 0..=20 {
        assert!(worker.step_reply().await.unwrap().refusal.is_none(), "waiting is not refusing");
    }
}

#[tokio::test]
async fn deadline_of_a_step() {
    let (server, gate, mut worker) = held(|_| ()).await;
    worker.send_step(Step { deadline_ms: 1, ..step_of(1, 2) }).await;
    worker.send_step(Step { deadline_ms: 60_000, ..step_of(3, 1) }).await;
    server.expect_series("croupier_queue_depth", 2.0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.open();
    token(&worker.step_reply().await.unwrap().work[0]);
    let late = worker.step_reply().await.unwrap();
    assert!(late.work.iter().all(|done| done.status() == RowStatus::DeadlineExceeded));
    token(&worker.step_reply().await.unwrap().work[0]);
    // The sequences are where they were: at position 0.
    let now = token(&worker.step(step_of(1, 1)).await.work[0]);
    let mut other = server.worker_with(StreamConfig { vocab_size: TOKENS, ..config() }).await;
    let mut fresh = step_of(1, 1);
    fresh.open = vec![open(1, seeded(1))];
    assert_eq!(token(&other.step(fresh).await.work[0]), now);
}
