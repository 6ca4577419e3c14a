//! Grammars that take long to compile keep nobody else waiting, and the callers who sent them may leave.

use super::*;
use std::fmt::Write;
use std::time::{Duration, Instant};
use tonic::Code;

/// Grammars that take some tenths of a second each, all different.
fn slow(which: usize) -> Option<GrammarParams> {
    let mut text = format!("start: \"x{which}\"? r0\n");
    for rule in 0..2000 {
        let _ = writeln!(text, "r{rule}: \"a{rule}\" r{}?", (rule + 1) % 2000);
    }
    by(Kind::Lark(text))
}

fn request(which: usize) -> SampleRequest {
    let params = Some(SamplingParams { grammar: slow(which), ..seeded(1) });
    let data: Vec<u8> = logits(1, 0).iter().flat_map(|logit| logit.to_le_bytes()).collect();
    SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        eos_token_ids: vec![EOS],
        rows: vec![SampleRow { params, ..Default::default() }],
        logits: Some(InlineLogits { data: data.into(), row_stride: 0 }),
        ..Default::default()
    }
}

/// Such calls once took a place in the queue, so that steps were refused, and a thread each, until no thread was left.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_for_grammars_take_no_place_and_may_leave() {
    const CALLS: usize = 24;
    // A quarter of these may be received at once.
    let server = TestServer::with_limits(|limits| limits.max_queued_steps = 32).await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    let begun = Instant::now();
    let mut calls = Vec::new();
    for which in 0..CALLS {
        let (mut client, mut request) = (server.client().await, tonic::Request::new(request(which)));
        request.set_timeout(Duration::from_millis(500));
        calls.push(tokio::spawn(async move { client.sample(request).await }));
    }
    let message = prost::Message::encoded_len(&request(0)) as f64;
    let (mut steps, mut most_places, mut most_bytes) = (0, 0.0f64, 0.0f64);
    while !calls.iter().all(tokio::task::JoinHandle::is_finished) {
        // A refused step fails here.
        token(&only(worker.step(sample_step(&[(1, logits(1, steps))])).await));
        steps += 1;
        most_places = most_places.max(server.series("croupier_queue_depth"));
        most_bytes = most_bytes.max(server.series("croupier_in_flight_bytes"));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut left = 0;
    for call in calls {
        if let Err(status) = call.await.unwrap() {
            // Either the server or the client's own library notices the deadline first.
            assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
            left += 1;
        }
    }
    assert!(left > 0, "they took too little time to wait for each other: {:?}", begun.elapsed());
    assert!(most_places <= 9.0, "{most_places} places in the queue");
    assert!(most_bytes > 12.0 * message, "messages that wait count: {most_bytes} of {message} each");
    // The few grammars that are still compiled for nobody free their bytes at the end.
    server.expect_series("croupier_in_flight_bytes", 0.0).await;
}
