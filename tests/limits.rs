//! Tests at the bound of every limit: what fits works, one more is refused by the limit's name, and room becomes free again.

mod in_flight;

use crate::support::*;
use crate::work::*;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;
use std::time::Duration;
use tonic::Code;
use tonic_types::StatusExt;

const TOKENS: &str = "croupier_tokens_total{model=\"default\"}";

#[tokio::test]
async fn streams_per_server() {
    let server = TestServer::with_limits(|limits| limits.max_streams = 2).await;
    let (first, _second) = (server.worker().await, server.worker().await);
    let status = server.stream().await.err().expect("a third stream is refused");
    assert_eq!((status.code(), violation(&status).1.as_str()), (Code::ResourceExhausted, "TOO_MANY_STREAMS"));
    let retry = status.get_error_details().retry_info().and_then(|info| info.retry_delay);
    assert_eq!(retry, Some(Duration::from_secs(1)));
    drop(first);
    for _ in 0..200 {
        if server.stream().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the place of a dropped stream never came back");
}

#[tokio::test]
async fn sequences_per_stream_and_per_server() {
    let server =
        TestServer::with_limits(|limits| (limits.max_sequences_per_stream, limits.max_sequences) = (2, 3)).await;
    let (mut one, mut two) = (server.worker().await, server.worker().await);
    let opens = |ids: &[u64]| open_step(ids.iter().map(|&id| open(id, seeded(id))).collect());
    let statuses = |result: StepResult| result.open.iter().map(|o| o.status()).collect::<Vec<_>>();
    use OpenStatus::{Ok, ResourceExhausted};
    assert_eq!(statuses(one.step(opens(&[1])).await), [Ok]);
    let result = one.step(opens(&[2, 3])).await;
    assert!(result.open[1].error.as_ref().unwrap().message.contains("max_sequences_per_stream"));
    assert_eq!(statuses(result), [Ok, ResourceExhausted]);
    let result = two.step(opens(&[1, 2])).await;
    assert!(result.open[1].error.as_ref().unwrap().message.contains("max_sequences"));
    assert_eq!(statuses(result), [Ok, ResourceExhausted]);
    let counted = ["too_many_sequences_per_stream", "too_many_sequences"].map(|reason| server.not_opened(reason));
    assert_eq!(counted, [1.0, 1.0], "each by the limit to raise");
    // A step closes sequences before it opens others.
    let result = one.step(Step { close_sequence_ids: vec![1], ..open_step(vec![open(3, seeded(3))]) }).await;
    assert_eq!(statuses(result), [Ok]);
    drop(one);
    server.expect_sequences(1).await;
    assert_eq!(two.step(open_step(vec![open(2, seeded(2))])).await.open[0].status(), Ok);
    // Opening more sequences than a stream may ever have is an error: they could never all be open.
    let status = two.failing_step(opens(&[5, 6, 7])).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.open"));
    assert!(status.message().contains("max_sequences_per_stream is 2"), "{}", status.message());
    let mut three = server.worker().await;
    three.step(Step { close_sequence_ids: vec![1; 3], ..Default::default() }).await;
    let status = three.failing_step(Step { close_sequence_ids: vec![1; 4], ..Default::default() }).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.close_sequence_ids"));
}

#[tokio::test]
async fn sequences_of_a_stateless_batch() {
    let server = TestServer::with_limits(|limits| {
        (limits.max_sequences_per_stream, limits.max_sequences, limits.max_rows_per_step) = (1, 3, 4);
    })
    .await;
    let sample = |rows| SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        rows: vec![SampleRow { row: Some(0), ..Default::default() }; rows],
        logits: Some(InlineLogits { data: vec![0; VOCAB as usize * 4].into(), row_stride: 0 }),
        ..Default::default()
    };
    let mut client = server.client().await;
    let answer = client.sample(sample(3)).await.unwrap().into_inner();
    assert!(answer.rows.iter().all(|row| row.status() == RowStatus::Ok), "what one stream may open is no bound");
    server.expect_sequences(0).await;
    // If no waiting could make a request fit, the answer does not ask for waiting.
    for (rows, limit) in [(4, "max_sequences"), (5, "max_rows_per_step")] {
        let status = client.sample(sample(rows)).await.unwrap_err();
        assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "rows"));
        assert!(status.message().contains(limit), "{status}");
    }
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    let drawn = server.series(TOKENS);
    let status = client.sample(sample(3)).await.unwrap_err();
    assert_eq!((status.code(), violation(&status).1.as_str()), (Code::ResourceExhausted, "TOO_MANY_SEQUENCES"));
    assert_eq!(server.series(TOKENS), drawn, "all or nothing: the rows that would fit are not drawn");
    drop(worker);
    server.expect_sequences(0).await;
    client.sample(sample(3)).await.expect("there is room again");
    assert_eq!(server.series(TOKENS), drawn + 3.0);
}

#[tokio::test]
async fn history_of_a_sequence() {
    let server = TestServer::with_limits(|limits| limits.max_history_tokens = 4).await;
    let mut worker = server.worker().await;
    let long = OpenSequence { prompt_token_ids: vec![1; 3], output_token_ids: vec![1; 2], ..open(1, seeded(1)) };
    let fits = OpenSequence { prompt_token_ids: vec![1; 3], ..open(2, seeded(1)) };
    let result = worker.step(open_step(vec![long, fits])).await;
    assert_eq!(result.open[0].status(), OpenStatus::ResourceExhausted);
    assert_eq!(result.open[1].status(), OpenStatus::Ok);
    assert_eq!(server.not_opened("history_limit"), 1.0);
    token(&worker.step(sample_step(&[(2, logits(1, 0))])).await.work[0]);
    let result = worker.step(sample_step(&[(2, logits(1, 1))])).await;
    assert_eq!(result.work[0].status(), RowStatus::HistoryLimit);
    let failed = |reason| format!("croupier_rows_invalid_total{{model=\"default\",reason=\"{reason}\"}}");
    assert_eq!(["history_limit", "state_bytes"].map(|reason| server.series(&failed(reason))), [1.0, 0.0]);
    // A draft token needs room for itself and for those before it, however little is emitted yet.
    worker.step(open_step(vec![OpenSequence { prompt_token_ids: vec![1; 2], ..open(3, seeded(1)) }])).await;
    let draft = || step_of(draft_work(3, DraftWork::default()), &[logits(1, 0)]);
    for status in [RowStatus::Ok, RowStatus::Ok, RowStatus::HistoryLimit] {
        assert_eq!(worker.step(draft()).await.work[0].status(), status);
    }
    // Text of the greatest length is no longer than that.
    let whole = OpenSequence { prompt_token_ids: vec![1; 3], output_token_ids: vec![1], ..open(4, seeded(1)) };
    assert_eq!(worker.step(open_step(vec![whole])).await.open[0].status(), OpenStatus::Ok);
}

/// The bytes that rows may report count before the report exists: they could be many while a worker does not read.
#[tokio::test]
async fn bytes_of_what_rows_may_report() {
    let server = TestServer::with_limits(|limits| limits.max_bytes_in_flight = 1 << 20).await;
    let mut worker = server.worker().await;
    let report = Some(ReportParams { max_surviving_token_ids: 4096, ..Default::default() });
    let asks_much = |id| open(id, SamplingParams { report: report.clone(), ..seeded(id) });
    worker.step(open_step((0..100).map(asks_much).collect())).await;
    let rows: Vec<_> = (0..100).map(|id| (id, logits(id, 0))).collect();
    let mut work = worker.step(sample_step(&rows)).await.work;
    // Each row may report 16 KiB. As this is the only reply, it may use all that is left of the limit.
    let done = work.iter().filter(|work| work.status() == RowStatus::Ok).count();
    assert!((50..64).contains(&done), "{done}");
    let failed: Vec<u64> = (0..100).filter(|&id| work[id as usize].status() == RowStatus::ReplyBytes).collect();
    assert_eq!(done + failed.len(), 100);
    assert!(work[failed[0] as usize].message.contains("max_bytes_in_flight"));
    let counted = server.series("croupier_rows_invalid_total{model=\"default\",reason=\"reply_bytes\"}");
    assert_eq!(counted, failed.len() as f64);
    server.expect_series("croupier_in_flight_bytes", 0.0).await;
    // Nothing was committed: rows that are sent again get the tokens that they would have got.
    for failed in failed.chunks(40) {
        let again: Vec<_> = failed.iter().map(|&id| (id, logits(id, 0))).collect();
        for (&id, result) in failed.iter().zip(worker.step(sample_step(&again)).await.work) {
            work[id as usize] = result;
        }
    }
    let roomy = TestServer::start().await;
    let mut other = roomy.worker().await;
    other.step(open_step((0..100).map(asks_much).collect())).await;
    let expected = other.step(sample_step(&rows)).await.work;
    assert!(work == expected && work.iter().all(|work| work.status() == RowStatus::Ok));
}

/// The same for rows that are scored, even if they belong to no sequence.
#[tokio::test]
async fn bytes_of_what_scores_may_report() {
    let server = TestServer::with_limits(|limits| limits.max_bytes_in_flight = 64 << 10).await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    let logprobs = || Some(LogprobsParams { token_ids: (0..1000).map(|i| i % VOCAB).collect(), ..Default::default() });
    for sequence in [None, Some(1)] {
        // 4,000 bytes for each token; the rows take 200 each.
        for (tokens, status) in [(40, RowStatus::ReplyBytes), (10, RowStatus::Ok)] {
            let score = ScoreWork { token_ids: vec![3; tokens], logprobs: logprobs() };
            let rows: Vec<_> = (0..tokens as u64).map(|at| logits(1, at)).collect();
            let work = vec![score_work(sequence, score)];
            let result = worker.step(Step { work, logits: inline(&rows), ..Default::default() }).await;
            assert_eq!(result.work[0].status(), status, "{sequence:?}, {tokens} tokens");
        }
    }
    server.expect_series("croupier_in_flight_bytes", 0.0).await;
}

#[tokio::test]
async fn openings_that_are_mistakes_are_counted_for_both_calls() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let wrong = || SamplingParams { top_p: Some(2.0), ..seeded(1) };
    let openings = vec![open(1, seeded(1)), open(1, seeded(1)), open(2, wrong()), open(3, wrong())];
    let rows = sample_step(&[(2, logits(1, 0)), (9, logits(1, 0))]);
    let result = worker.step(Step { open: openings, ..rows }).await;
    assert_eq!(["already_exists", "invalid_argument"].map(|reason| server.not_opened(reason)), [1.0, 2.0]);
    // To the worker both are rows without a sequence. The operator can tell a worker that lost its sequences from one whose failed openings
    // are counted already.
    assert!(result.work.iter().all(|work| work.status() == RowStatus::UnknownSequence), "{result:?}");
    let failed = |reason| format!("croupier_rows_invalid_total{{model=\"default\",reason=\"{reason}\"}}");
    assert_eq!(["not_opened", "unknown_sequence"].map(|reason| server.series(&failed(reason))), [1.0, 1.0]);
    let sample = SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        rows: vec![SampleRow { params: Some(wrong()), ..Default::default() }],
        logits: Some(InlineLogits { data: vec![0; VOCAB as usize * 4].into(), row_stride: 0 }),
        ..Default::default()
    };
    let answer = server.client().await.sample(sample).await.unwrap().into_inner();
    assert_eq!(answer.rows[0].status(), RowStatus::InvalidWork);
    assert_eq!((server.not_opened("invalid_argument"), server.series(&failed("not_opened"))), (3.0, 2.0));
}

#[tokio::test]
async fn rows_vocabulary_and_top_logprobs() {
    let server = TestServer::with_limits(|limits| {
        (limits.max_rows_per_step, limits.max_vocab_size, limits.max_top_logprobs) = (2, VOCAB, 1);
    })
    .await;
    let mut worker = server.worker().await;
    let top = |top_n| {
        let logprobs = Some(LogprobsParams { top_n, ..Default::default() });
        SamplingParams { logprobs, ..seeded(1) }
    };
    let result = worker.step(open_step(vec![open(1, top(1)), open(2, top(2)), open(3, seeded(3))])).await;
    assert_eq!(result.open[1].error.as_ref().unwrap().field, "params.logprobs.top_n");
    let rows = |count| Step {
        work: (0..count)
            .map(|_| Work { first_row: Some(0), ..score_work(None, ScoreWork { token_ids: vec![1], logprobs: None }) })
            .collect(),
        logits: inline(&[logits(1, 0)]),
        ..Default::default()
    };
    assert_eq!(worker.step(rows(2)).await.work.len(), 2);
    let status = worker.failing_step(rows(3)).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.work"));
    let mut stream = server.stream().await.unwrap();
    stream.send(decode_request::Request::Config(StreamConfig { vocab_size: VOCAB + 1, ..config() })).await;
    assert_eq!(violation(&stream.reply().await.unwrap_err()).0, "config.vocab_size");
}

#[tokio::test]
async fn bytes_of_the_rows_of_a_step() {
    let row = VOCAB as usize * 4;
    let server = TestServer::with_limits(|limits| limits.max_row_bytes_per_step = 3 * row + 3).await;
    let (mut worker, mut neighbour) = (server.worker().await, server.worker().await);
    // A row that several works use counts for each of them.
    let shared = |count: u64| Step {
        open: (0..count).map(|id| open(id, seeded(id))).collect(),
        work: (0..count).map(|id| Work { first_row: Some(0), ..sample_work(id) }).collect(),
        logits: inline(&[logits(1, 0)]),
        ..Default::default()
    };
    worker.step(shared(3)).await.work.iter().for_each(|done| assert_eq!(done.status(), RowStatus::Ok));
    let status = worker.failing_step(shared(4)).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.work"));
    for part in ["max_row_bytes_per_step", "800 bytes", "split the step"] {
        assert!(status.message().contains(part), "{part} is missing in {}", status.message());
    }
    // Half the bytes per value, twice the rows.
    let mut half = server.worker_with(StreamConfig { logits_dtype: LogitsDtype::Bf16.into(), ..config() }).await;
    let of_bf16 = |count| {
        let data = Dtype::Bf16.encode(&logits(1, 0)).into();
        Step { logits: Some(step::Logits::Inline(InlineLogits { data, row_stride: 0 })), ..shared(count) }
    };
    assert_eq!(half.step(of_bf16(6)).await.work.len(), 6);
    assert_eq!(violation(&half.failing_step(of_bf16(7)).await).0, "step.work");
    let sample = |rows| SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        rows: vec![SampleRow { row: Some(0), ..Default::default() }; rows],
        logits: Some(InlineLogits { data: vec![0; row].into(), row_stride: 0 }),
        ..Default::default()
    };
    let mut client = server.client().await;
    assert_eq!(client.sample(sample(3)).await.unwrap().into_inner().rows.len(), 3);
    let status = client.sample(sample(4)).await.unwrap_err();
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "rows"));
    assert!(status.message().contains("max_row_bytes_per_step"), "{}", status.message());
    assert_eq!(neighbour.step(shared(3)).await.work.len(), 3, "others go on");
}

#[tokio::test]
async fn bytes_of_a_message() {
    let row = VOCAB as usize * 4;
    let server = TestServer::with_limits(|limits| limits.max_message_bytes = 10 * row).await;
    let mut worker = server.worker().await;
    let of = |rows: usize| Step { logits: inline(&vec![logits(1, 0); rows]), ..Default::default() };
    worker.step(of(9)).await;
    assert_eq!(worker.failing_step(of(10)).await.code(), Code::OutOfRange);
}
