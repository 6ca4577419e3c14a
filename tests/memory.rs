//! The memory of sequences is bounded in bytes: what fits works, more is refused by the limit's name, and all room becomes free again.

use crate::support::*;
use croupier::proto::*;
use tonic::Code;

const TOKENS: &str = "croupier_tokens_total{model=\"default\"}";
const STATE: &str = "croupier_state_bytes";

/// Parameters that make a sequence remember every distinct token.
fn remembering(seed: u64) -> SamplingParams {
    SamplingParams { frequency_penalty: Some(0.5), repetition_penalty: Some(1.1), ..seeded(seed) }
}

#[tokio::test]
async fn memory_of_sequences() {
    let server = TestServer::with_limits(|limits| limits.max_state_bytes = 64 << 10).await;
    let vocab_size = 1 << 16;
    let wide = StreamConfig { vocab_size, ..config() };
    let (mut one, mut two) = (server.worker_with(wide.clone()).await, server.worker_with(wide).await);
    let empty = server.series(STATE);
    let long = |id, tokens| OpenSequence { prompt_token_ids: (0..tokens).collect(), ..open(id, remembering(1)) };
    // 16 bytes for each distinct token: two sequences fit, a third does not, and a small one still does.
    let result = one.step(open_step(vec![long(1, 1500), long(2, 1500), long(3, 1500), open(4, seeded(1))])).await;
    let statuses: Vec<_> = result.open.iter().map(|open| open.status()).collect();
    assert_eq!(statuses, [OpenStatus::Ok, OpenStatus::Ok, OpenStatus::ResourceExhausted, OpenStatus::Ok]);
    let error = result.open[2].error.as_ref().unwrap();
    assert!(error.message.contains("max_state_bytes"), "{}", error.message);
    assert!(server.series(STATE) > f64::from(2 * 1500 * 16));
    assert_eq!(server.not_opened("state_bytes"), 1.0);
    assert_eq!(error.field, "sequence_id", "it may fit later");
    // The error for a sequence that never fits says so, with the bytes that it takes.
    let result = one.step(open_step(vec![long(5, 6000)])).await;
    let never = result.open[0].error.as_ref().unwrap();
    assert_eq!((result.open[0].status(), never.field.as_str()), (OpenStatus::ResourceExhausted, "prompt_token_ids"));
    assert!(never.message.contains("max_state_bytes is 65536, so it never fits"), "{}", never.message);
    let biases = SamplingParams {
        logit_bias: (0..10_000).map(|token_id| LogitBias { token_id, bias: 0.5 }).collect(),
        ..seeded(1)
    };
    let never = one.step(open_step(vec![open(5, biases)])).await.open[0].error.clone().unwrap();
    assert_eq!(never.field, "params");
    assert!(never.message.contains("max_state_bytes is 65536, so it never fits"), "{}", never.message);
    assert_eq!(server.not_opened("state_bytes"), 3.0);
    // The same holds on another stream, and open sequences go on.
    let result = two.step(open_step(vec![long(1, 1500)])).await;
    assert_eq!(result.open[0].status(), OpenStatus::ResourceExhausted);
    let row = vec![0.0; vocab_size as usize];
    token(&one.step(sample_step(&[(1, row.clone())])).await.work[0]);
    one.step(Step { close_sequence_ids: vec![1], ..Default::default() }).await;
    assert_eq!(two.step(open_step(vec![long(1, 1500)])).await.open[0].status(), OpenStatus::Ok);
    // All room becomes free again: when a sequence closes, and when its stream ends.
    one.step(Step { close_sequence_ids: vec![2, 4], ..Default::default() }).await;
    two.step(Step { close_sequence_ids: vec![1], ..Default::default() }).await;
    assert_eq!(server.series(STATE), empty);
    one.step(open_step(vec![long(1, 1500)])).await;
    drop((one, two));
    server.expect_series(STATE, 0.0).await;
}

/// Parameters that would fit alone, but never beside those of their stream.
#[tokio::test]
async fn memory_of_parameters_beside_those_of_the_stream() {
    let server = TestServer::with_limits(|limits| limits.max_state_bytes = 64 << 10).await;
    let biases = |tokens| SamplingParams {
        logit_bias: (0..tokens).map(|token_id| LogitBias { token_id, bias: 0.5 }).collect(),
        ..SamplingParams::default()
    };
    let default_params = Some(biases(2000));
    let mut worker = server.worker_with(StreamConfig { vocab_size: 1 << 16, default_params, ..config() }).await;
    let never = worker.step(open_step(vec![open(1, biases(2500))])).await.open[0].error.clone().unwrap();
    assert_eq!(never.field, "params");
    assert!(never.message.contains("max_state_bytes is 65536, so it never fits"), "{}", never.message);
}

#[tokio::test]
async fn memory_of_a_sequence_that_grows() {
    let server = TestServer::with_limits(|limits| limits.max_state_bytes = 8 << 10).await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, remembering(1)), open(2, seeded(2))])).await;
    // Sequences that remember nothing take the rest of the room.
    let mut id = 10;
    while worker.step(open_step(vec![open(id, seeded(1))])).await.open[0].status() == OpenStatus::Ok {
        id += 1;
    }
    let only = |token: u32| (0..VOCAB).map(|id| if id == token { 0.0 } else { f32::NEG_INFINITY }).collect::<Vec<_>>();
    let mut drawn = 0;
    let failed = loop {
        let result = worker.step(sample_step(&[(1, only(drawn)), (2, only(drawn))])).await;
        assert_eq!(token(&result.work[1]), drawn, "a neighbour goes on");
        if result.work[0].status() != RowStatus::Ok {
            break result.work[0].clone();
        }
        drawn += 1;
    };
    assert_eq!(failed.status(), RowStatus::HistoryLimit);
    assert!(failed.message.contains("max_state_bytes"), "{}", failed.message);
    // The operator sees which limit it is, and so which one to raise.
    let counted =
        |reason| server.series(&format!("croupier_rows_invalid_total{{model=\"default\",reason=\"{reason}\"}}"));
    assert_eq!(["state_bytes", "history_limit"].map(counted), [1.0, 0.0]);
    assert_eq!(server.not_opened("state_bytes"), 1.0);
    // With room again the sequence goes on from where it was: position `drawn`.
    worker.step(Step { close_sequence_ids: vec![10, 11], ..Default::default() }).await;
    let now = token(&worker.step(sample_step(&[(1, logits(1, 0))])).await.work[0]);
    let tokens_so_far = OpenSequence { output_token_ids: (0..drawn).collect(), ..open(3, remembering(1)) };
    worker.step(Step { close_sequence_ids: vec![1], ..Default::default() }).await;
    worker.step(open_step(vec![tokens_so_far])).await;
    assert_eq!(token(&worker.step(sample_step(&[(3, logits(1, 0))])).await.work[0]), now, "nothing was committed");
    drop(worker);
    server.expect_series(STATE, 0.0).await;
}

#[tokio::test]
async fn memory_of_a_stateless_batch_and_of_default_parameters() {
    let server = TestServer::with_limits(|limits| limits.max_state_bytes = 64 << 10).await;
    let rows = |count, tokens| SampleRequest {
        vocab_size: 1 << 16,
        logits_dtype: LogitsDtype::F32.into(),
        rows: vec![
            SampleRow {
                row: Some(0),
                params: Some(remembering(1)),
                prompt_token_ids: (0..tokens).collect(),
                ..Default::default()
            };
            count
        ],
        logits: Some(InlineLogits { data: vec![0; 4 << 16].into(), row_stride: 0 }),
        ..Default::default()
    };
    let mut client = server.client().await;
    for _ in 0..2 {
        // The sequences of a stateless batch are dropped after its answer.
        server.expect_series(STATE, 0.0).await;
        let answer = client.sample(rows(2, 1500)).await.unwrap().into_inner();
        assert!(answer.rows.iter().all(|row| row.status() == RowStatus::Ok), "room to grow is taken with the rest");
        let drawn = server.series(TOKENS);
        let status = client.sample(rows(3, 1500)).await.unwrap_err();
        assert_eq!((status.code(), violation(&status).1.as_str()), (Code::ResourceExhausted, "STATE_BYTES"));
        assert_eq!(server.series(TOKENS), drawn, "all or nothing");
    }
    let refused = "croupier_rejected_total{reason=\"state_bytes\"}";
    assert_eq!((server.series(refused), server.not_opened("state_bytes")), (2.0, 0.0), "refused whole");
    server.expect_series(STATE, 0.0).await;
    let configured = async |tokens: u32| {
        let long = SamplingParams { allowed_token_ids: (0..tokens).collect(), ..Default::default() };
        let mut stream = server.stream().await.unwrap();
        let config = StreamConfig { vocab_size: 1 << 16, default_params: Some(long), ..config() };
        stream.send(decode_request::Request::Config(config)).await;
        let refused = stream.reply().await.err();
        (stream, refused)
    };
    let (first, refused) = configured(5000).await;
    assert!(refused.is_none(), "{refused:?}");
    let status = configured(5000).await.1.expect("no room beside the first");
    assert_eq!((status.code(), violation(&status).1.as_str()), (Code::ResourceExhausted, "STATE_BYTES"));
    // The error for parameters that never fit says so, so that a client does not try again.
    let status = configured(10_000).await.1.expect("no room at all");
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "config.default_params"));
    assert!(status.message().contains("max_state_bytes is 65536, so it never fits"), "{}", status.message());
    drop(first);
    server.expect_series(STATE, 0.0).await;
}

#[tokio::test]
async fn default_lists_are_there_once() {
    let server = TestServer::start().await;
    let (vocab_size, ids) = (1 << 20, 100_000);
    let long = SamplingParams {
        allowed_token_ids: (0..ids).collect(),
        logit_bias: (0..ids).map(|token_id| LogitBias { token_id, bias: 1.0 }).collect(),
        ..Default::default()
    };
    let opens = |from: u64, count: u64, params: SamplingParams| {
        open_step((from..from + count).map(|id| open(id, params.clone())).collect())
    };
    let own = SamplingParams { temperature: Some(0.5), stop_token_ids: vec![3], min_tokens: Some(1), ..seeded(1) };
    let config = StreamConfig { vocab_size, default_params: Some(long), ..config() };
    let mut worker = server.worker_with(config.clone()).await;
    let before = server.series(STATE);
    assert!(before > f64::from(ids * 16));
    let result = worker.step(opens(0, 8000, own)).await;
    assert!(result.open.iter().all(|open| open.status() == OpenStatus::Ok));
    let result = worker.step(opens(8000, 8000, seeded(1))).await;
    assert!(result.open.iter().all(|open| open.status() == OpenStatus::Ok));
    let each = (server.series(STATE) - before) / 16_000.0;
    assert!(each <= 1024.0, "{each} bytes a sequence");
    // Each opening has a few bytes, but would copy the long list: the work that this takes is bounded.
    let bias = vec![LogitBias { token_id: 1, bias: 1.0 }];
    let merging = SamplingParams { banned_token_ids: vec![2], ..seeded(1) };
    let penalised = SamplingParams { presence_penalty: Some(1.0), logit_bias: bias, ..seeded(1) };
    let few = worker.step(opens(20_000, 2, penalised.clone())).await;
    assert!(few.open.iter().all(|open| open.status() == OpenStatus::Ok));
    let status = worker.failing_step(opens(30_000, 200, merging)).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.open"));
    assert!(status.message().contains("20000000 entries"), "{}", status.message());
    // Penalties from a preset count too.
    let mut worker = server.worker_with(config).await;
    let preset = SamplingParams { preset: "brainstorming".to_owned(), ..seeded(1) };
    let status = worker.failing_step(opens(0, 200, preset)).await;
    assert!(status.message().contains("20000000 entries"), "{}", status.message());
    server.expect_series(STATE, 0.0).await;
}

#[tokio::test]
async fn tables_of_marks_are_there_once_and_few_are_made() {
    let server = TestServer::start().await;
    let marked = |size: u32, seed: u32| {
        let (keys, sampling_table_size, sampling_table_seed) = (vec![1, 2], Some(size), Some(seed));
        let synthid = SynthidParams { keys, sampling_table_size, sampling_table_seed, ..Default::default() };
        let scheme = Some(watermark_params::Scheme::Synthid(synthid));
        SamplingParams { watermark: Some(WatermarkParams { scheme }), ..seeded(1) }
    };
    let config = StreamConfig { default_params: Some(marked(1 << 20, 1)), ..config() };
    let mut worker = server.worker_with(config).await;
    let before = server.series(STATE);
    let opens = |from: u64, count: u64, of: &dyn Fn(u64) -> SamplingParams| {
        open_step((0..count).map(|i| open(from + i, of(i))).collect())
    };
    // Sequences share the table of the stream's watermark, whether they leave it out or repeat it.
    for (from, count, params) in [(0, 17, seeded(2)), (100, 13, marked(1 << 20, 1))] {
        let result = worker.step(opens(from, count, &|_| params.clone())).await;
        assert!(result.open.iter().all(|open| open.status() == OpenStatus::Ok));
    }
    let each = (server.series(STATE) - before) / 30.0;
    assert!(each <= 2048.0, "{each} bytes a sequence, of a table of 131,072");
    let status = worker.failing_step(opens(200, 17, &|i| marked(1 << 20, 2 + i as u32))).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.open"));
    assert!(status.message().contains("tables of 17825792 entries"), "{}", status.message());
}

#[tokio::test]
async fn memory_of_kept_drafts() {
    let vocab_size = 1 << 12;
    let server = TestServer::with_limits(|limits| limits.max_state_bytes = 96 << 10).await;
    let mut worker = server.worker_with(StreamConfig { vocab_size, ..config() }).await;
    worker.step(open_step(vec![open(1, seeded(1)), open(2, SamplingParams { top_k: Some(5), ..seeded(2) })])).await;
    let (empty, row) = (server.series(STATE), vec![0.0; vocab_size as usize]);
    let draft = |id| Work {
        sequence_id: Some(id),
        first_row: Some(0),
        kind: Some(work::Kind::Draft(DraftWork::default())),
        ..Default::default()
    };
    // A row of 16 KiB is kept for each draft token: five fit with everything else.
    let mut tokens = Vec::new();
    let failed = loop {
        let step = Step { work: vec![draft(1)], logits: inline(std::slice::from_ref(&row)), ..Default::default() };
        let result = worker.step(step).await.work.remove(0);
        if result.status() != RowStatus::Ok {
            break result;
        }
        tokens.push(token(&result));
        assert!(server.series(STATE) > empty + f64::from(tokens.len() as u32 * (16 << 10)));
    };
    assert_eq!((failed.status(), tokens.len()), (RowStatus::HistoryLimit, 5));
    assert!(failed.message.contains("max_state_bytes"), "{}", failed.message);
    // The rows that were kept can be verified, and their room becomes free.
    let verify = VerifyWork { draft_token_ids: tokens.clone(), ..Default::default() };
    let work = vec![Work {
        sequence_id: Some(1),
        first_row: None,
        kind: Some(work::Kind::Verify(verify)),
        ..Default::default()
    }];
    let rows = vec![row.clone(); tokens.len() + 1];
    let result = worker.step(Step { work, logits: inline(&rows), ..Default::default() }).await;
    let verified = result.work[0].verify.as_ref().expect("it was verified");
    assert_eq!(verified.accepted_count, 5, "drawn from these very rows");
    assert_eq!(server.series(STATE), empty);
    // If the distribution is a list, only the list is kept.
    for _ in 0..20 {
        let step = Step { work: vec![draft(2)], logits: inline(std::slice::from_ref(&row)), ..Default::default() };
        token(&worker.step(step).await.work[0]);
    }
    worker.step(Step { close_sequence_ids: vec![2], ..Default::default() }).await;
    drop(worker);
    server.expect_series(STATE, 0.0).await;
}

#[tokio::test]
async fn memory_of_a_proposer() {
    let server = TestServer::with_limits(|limits| limits.max_state_bytes = 256 << 10).await;
    let mut worker = server.worker().await;
    let proposer = |kind: ProposerKind| Some(ProposerParams { kind: kind.into(), ..Default::default() });
    let text = |id, tokens: u32, kind| OpenSequence {
        prompt_token_ids: (0..tokens).map(|i| i * i % VOCAB).collect(),
        ..open(id, SamplingParams { proposer: proposer(kind), ..seeded(1) })
    };
    // A sequence's text and index take some 40 bytes a token.
    let opens = vec![text(1, 20_000, ProposerKind::Suffix), text(2, 1000, ProposerKind::Suffix)];
    let result = worker.step(open_step(opens)).await;
    let statuses: Vec<_> = result.open.iter().map(OpenResult::status).collect();
    assert_eq!(statuses, [OpenStatus::ResourceExhausted, OpenStatus::Ok]);
    let taken = server.series(STATE);
    assert!(taken > 20_000.0, "{taken}");
    token(&worker.step(sample_step(&[(2, logits(1, 0))])).await.work[0]);
    // A verification may add 257 tokens at once: the room for all of them is taken beforehand.
    let long = |id| VerifyWork {
        draft_token_ids: vec![id as u32 % VOCAB; 256],
        draft_distribution: Some(verify_work::DraftDistribution::Deterministic(DeterministicDraft {})),
        ..Default::default()
    };
    let only = |token: u32| (0..VOCAB).map(|id| if id == token { 0.0 } else { f32::NEG_INFINITY }).collect::<Vec<_>>();
    let opens = (10..40).map(|id| text(id, 0, ProposerKind::Suffix)).collect();
    assert!(worker.step(open_step(opens)).await.open.iter().all(|open| open.status() == OpenStatus::Ok));
    let (mut id, mut refused) = (10, 0);
    while refused == 0 && id < 40 {
        let work = vec![Work {
            sequence_id: Some(id),
            first_row: None,
            kind: Some(work::Kind::Verify(long(id))),
            ..Default::default()
        }];
        let rows = vec![only(id as u32 % VOCAB); 257];
        let result = worker.step(Step { work, logits: inline(&rows), ..Default::default() }).await.work.remove(0);
        match result.status() {
            RowStatus::Ok => assert_eq!(result.tokens.len(), 257),
            status => {
                assert_eq!(status, RowStatus::HistoryLimit);
                assert!(result.message.contains("max_state_bytes"), "{}", result.message);
                refused += 1;
            }
        }
        assert!(server.series(STATE) <= f64::from(256 << 10), "{}", server.series(STATE));
        id += 1;
    }
    assert!(refused == 1 && id > 12, "{id}");
    drop(worker);
    server.expect_series(STATE, 0.0).await;
}
