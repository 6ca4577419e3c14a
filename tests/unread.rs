//! A worker that does not read its replies, and others at the same server.

use crate::support::*;
use croupier::proto::*;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// The reply to a step of these rows has a megabyte, with a logprob of every token for every sequence.
const TOKENS: u32 = 1024;
const SEQUENCES: u64 = 256;
/// More steps than HTTP/2 takes replies of one stream before its worker reads.
const STEPS: u64 = 16;
/// Bytes of a reply that HTTP/2 takes at once. It may hold two such pieces.
const PIECE: f64 = 65536.0;
/// One stream may have an eighth of these bytes, which is less than the replies to all steps have.
const MAX_BYTES: usize = 32 << 20;

/// A stream with open sequences, whose steps have large replies.
async fn talkative(server: &TestServer) -> Worker {
    with_logprobs(server, SEQUENCES).await
}

async fn with_logprobs(server: &TestServer, sequences: u64) -> Worker {
    let logprobs = LogprobsParams { token_ids: (0..TOKENS).collect(), ..Default::default() };
    let params = SamplingParams { logprobs: Some(logprobs), ..seeded(1) };
    let mut worker =
        server.worker_with(StreamConfig { vocab_size: TOKENS, default_params: Some(params), ..config() }).await;
    let open = |sequence_id| OpenSequence { sequence_id, ..Default::default() };
    worker.step(open_step((0..sequences).map(open).collect())).await;
    worker
}

/// Waits until a series has this value, however busy the machine is.
async fn expect(server: &TestServer, series: &str, value: f64) {
    let seen = async {
        while server.series(series) != value {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let seen = tokio::time::timeout(Duration::from_secs(60), seen).await;
    assert!(seen.is_ok(), "{series} is {}, expected {value}", server.series(series));
}

/// The neighbour's vocabulary. Its rows fit only if there is room for 64 KiB.
const NEIGHBOURS_TOKENS: u32 = 16384;

/// Samples sequence 1 until the server gives up the other stream. Returns the most bytes that were in flight meanwhile.
async fn serves_until_the_other_is_gone(server: &TestServer, worker: &mut Worker) -> f64 {
    let asks = async {
        let mut most = 0.0;
        while server.series("croupier_rejected_total{reason=\"reply_timeout\"}") == 0.0 {
            let result = worker.step(sample_step(&[(1, vec![0.0; NEIGHBOURS_TOKENS as usize])])).await;
            assert_eq!(result.refusal, None);
            token(&result.work[0]);
            most = f64::max(most, server.series("croupier_in_flight_bytes"));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        most
    };
    tokio::time::timeout(Duration::from_secs(60), asks).await.expect("it is given up")
}

/// One token for each sequence, all from one row.
fn large_step() -> Step {
    step_of(SEQUENCES)
}

fn step_of(sequences: u64) -> Step {
    let work = (0..sequences).map(|id| Work { first_row: Some(0), ..sample_work(id) }).collect();
    Step { work, logits: inline(&[vec![0.0; TOKENS as usize]]), ..Default::default() }
}

#[tokio::test]
async fn who_does_not_read_loses_the_stream_and_not_the_others_their_room() {
    let gate = Gate::default();
    let timeout = Duration::from_secs(2);
    let bounds = |limits: &mut croupier::limits::Limits| {
        (limits.max_bytes_in_flight, limits.reply_timeout) = (MAX_BYTES, timeout);
    };
    let server = TestServer::with_backend(gate.clone(), bounds).await;
    let mut neighbour = server.worker_with(StreamConfig { vocab_size: NEIGHBOURS_TOKENS, ..config() }).await;
    let logprobs = Some(LogprobsParams { top_n: 5, ..Default::default() });
    neighbour.step(open_step(vec![open(1, SamplingParams { logprobs, ..seeded(1) })])).await;
    let mut silent = talkative(&server).await;
    for _ in 0..STEPS {
        silent.send_step(large_step()).await;
    }
    gate.wait_for_batch().await;
    // The server reads all steps before it answers the first.
    expect(&server, "croupier_queue_depth", STEPS as f64 - 1.0).await;
    gate.open();

    // Rows whose reports have no room within the eighth are not sampled, so that others are served all the time.
    let most = serves_until_the_other_is_gone(&server, &mut neighbour).await;
    // The eighth, the messages that wait, and what HTTP/2 holds.
    assert!(most > 1e6 && most < 0.18 * MAX_BYTES as f64, "{most} bytes");
    // What HTTP/2 holds counts, and is less than one of the replies.
    let counted = server.series("croupier_in_flight_bytes");
    assert!(counted > 0.0 && counted <= 2.0 * PIECE, "{counted} bytes");
    server.expect_sequences(1).await;
    assert_eq!(server.series("croupier_rejected_total{reason=\"reply_timeout\"}"), 1.0);
    assert_eq!(server.series("croupier_streams"), 2.0, "what HTTP/2 has of it keeps its place");

    // Replies that were on their way arrive, then the reason why there are no more.
    let end = end_of_replies(&mut silent).await;
    assert_eq!(end.code(), Code::Aborted);
    assert!(end.message().contains("2s (reply_timeout)"), "{end}");
    assert_eq!(end.get_details_error_info().expect("a reason").reason, "REPLY_TIMEOUT");
    expect(&server, "croupier_streams", 1.0).await;
    expect(&server, "croupier_requests_total{method=\"Decode\",code=\"ABORTED\"}", 1.0).await;
}

/// Reads the replies that still arrive, which are not all, and then why there are no more.
async fn end_of_replies(silent: &mut Worker) -> Status {
    let mut told = 0;
    let end = loop {
        match silent.step_reply().await {
            Ok(_) => told += 1,
            Err(status) => break status,
        }
    };
    assert!(told < STEPS, "all were read");
    end
}

/// A stream that has ended for a reason of its own keeps it, even if its worker does not read so far in time.
#[tokio::test]
async fn who_made_a_mistake_hears_of_it_although_replies_before_it_are_lost() {
    let gate = Gate::default();
    let timeout = Duration::from_millis(400);
    let server = TestServer::with_backend(gate.clone(), |limits| limits.reply_timeout = timeout).await;
    let mut silent = talkative(&server).await;
    for _ in 0..STEPS {
        silent.send_step(large_step()).await;
    }
    silent.send(decode_request::Request::Config(config())).await;
    // The server reads the mistake before it answers the first step.
    gate.wait_for_batch().await;
    expect(&server, "croupier_rejected_total{reason=\"invalid_field\"}", 1.0).await;
    gate.open();
    server.expect_sequences(0).await;
    let end = end_of_replies(&mut silent).await;
    assert_eq!((end.code(), violation(&end).0.as_str()), (Code::InvalidArgument, "config"), "{end}");
    assert_eq!(server.series("croupier_rejected_total{reason=\"reply_timeout\"}"), 0.0);
    expect(&server, "croupier_requests_total{method=\"Decode\",code=\"INVALID_ARGUMENT\"}", 1.0).await;
}

#[tokio::test]
async fn who_leaves_without_having_read_why_is_counted_by_that() {
    // A gated backend stays on its thread. If a step ran where it arrived, the next would be read only after the reply
    // to it, so none would wait.
    let gate = Gate::default();
    gate.open();
    let server = TestServer::with_backend(gate, |limits| limits.reply_timeout = Duration::from_millis(200)).await;
    let mut silent = talkative(&server).await;
    for _ in 0..STEPS {
        silent.send_step(large_step()).await;
    }
    expect(&server, "croupier_rejected_total{reason=\"reply_timeout\"}", 1.0).await;
    drop(silent);
    expect(&server, "croupier_streams", 0.0).await;
    expect(&server, "croupier_requests_total{method=\"Decode\",code=\"ABORTED\"}", 1.0).await;
}

/// HTTP/2 takes each of this worker's replies whole and asks for no more, so no reply is due. What the worker then
/// sends waits in the window of its connection, which the other calls of the connection need.
#[tokio::test]
async fn who_sends_on_and_does_not_read_is_waited_for_no_longer() {
    const OF_SMALL_REPLIES: u64 = 8;
    let server = TestServer::with_limits(|limits| limits.reply_timeout = Duration::from_secs(1)).await;
    let mut silent = with_logprobs(&server, OF_SMALL_REPLIES).await;
    let mut sent = 0;
    let sends = async {
        while server.series("croupier_rejected_total{reason=\"reply_timeout\"}") == 0.0 {
            // Each step is answered before the next is sent, until the server no longer reads a step.
            if server.series("croupier_steps_total{data_path=\"inline\"}") == f64::from(sent) {
                silent.send_step(step_of(OF_SMALL_REPLIES)).await;
                sent += 1;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), sends).await.expect("it is given up");
    server.expect_sequences(0).await;
    let mut told = 0;
    let end = loop {
        match silent.step_reply().await {
            Ok(_) => told += 1,
            Err(status) => break status,
        }
    };
    assert_eq!(told, sent - 1, "replies, of all but the last step");
    assert_eq!(end.get_details_error_info().expect("a reason").reason, "REPLY_TIMEOUT");
    assert_eq!(server.series("croupier_rejected_total{reason=\"receive_timeout\"}"), 0.0);
}

#[tokio::test]
async fn a_worker_may_be_silent_as_long_as_it_likes() {
    let timeout = Duration::from_millis(500);
    let server = TestServer::with_limits(|limits| limits.reply_timeout = timeout).await;
    let mut worker = talkative(&server).await;
    for _ in 0..2 {
        // A reply that HTTP/2 has room for does not wait for the worker, and if none is due there is nothing to read.
        worker.send_step(large_step()).await;
        tokio::time::sleep(timeout * 2).await;
        assert!(worker.step_reply().await.expect("the stream goes on").refusal.is_none());
        tokio::time::sleep(timeout * 2).await;
    }
}

#[tokio::test]
async fn with_no_timeout_replies_wait_for_ever() {
    let server = TestServer::with_limits(|limits| limits.reply_timeout = Duration::ZERO).await;
    let mut worker = talkative(&server).await;
    for _ in 0..STEPS {
        worker.send_step(large_step()).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for _ in 0..STEPS {
        assert!(worker.step_reply().await.expect("the stream goes on").refusal.is_none());
    }
}

/// Texts of millions of tokens are read as they arrive, even while the server checks whether their stream's replies are
/// read.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn who_opens_long_texts_holds_up_nobody() {
    let server = TestServer::with_limits(|limits| limits.reply_timeout = Duration::from_millis(400)).await;
    let (mut opening, mut other) = (server.worker().await, server.worker().await);
    other.step(open_step(vec![open(1, seeded(1))])).await;
    let no_repeat_ngram = Some(NoRepeatNgramParams { size: 8, prompt_size: 9, ..Default::default() });
    let params = SamplingParams { dry_multiplier: Some(1.0), no_repeat_ngram, ..seeded(2) };
    let text: Vec<u32> = (0..1_000_000u32).map(|at| at.wrapping_mul(2_654_435_761) >> 27).collect();
    let long = |id| OpenSequence { prompt_token_ids: text.clone(), ..open(id, params.clone()) };
    opening.send_step(open_step((0..8).map(long).collect())).await;
    // Opening them takes seconds.
    let opened = tokio::spawn(async move { opening.step_reply().await.map(|result| result.open) });
    for _ in 0..5 {
        other.step(sample_step(&[(1, logits(1, 0))])).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert!(!opened.is_finished(), "others waited for it");
    let opened = opened.await.expect("no panic").expect("they are opened");
    assert!(opened.len() == 8 && opened.iter().all(|opened| opened.status() == OpenStatus::Ok), "{opened:?}");
}
