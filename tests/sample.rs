//! The stateless call: the same tokens as on a stream, a status for every row, nothing left over.

use crate::call::Call;
use crate::support::*;
use croupier::proto::*;
use std::path::Path;
use tonic::Code;

fn request(rows: Vec<SampleRow>, logits: &[Vec<f32>]) -> SampleRequest {
    let Some(step::Logits::Inline(inline)) = inline(logits) else { unreachable!() };
    SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        rows,
        logits: Some(inline),
        ..Default::default()
    }
}

fn row(params: SamplingParams) -> SampleRow {
    SampleRow { params: Some(params), ..Default::default() }
}

#[tokio::test]
async fn a_row_gets_the_token_that_a_stream_would_give() {
    let server = TestServer::start().await;
    let params = SamplingParams {
        temperature: Some(1.3),
        frequency_penalty: Some(0.4),
        logprobs: Some(LogprobsParams { top_n: 2, mode: LogprobsMode::Processed.into(), token_ids: vec![1] }),
        ..seeded(77)
    };
    let mut worker = server.worker().await;
    let text = OpenSequence { prompt_token_ids: vec![4, 5], ..open(1, params.clone()) };
    worker.step(open_step(vec![text])).await;
    let mut client = server.client().await;
    let mut output = Vec::new();
    for position in 0..10 {
        let streamed = worker.step(sample_step(&[(1, logits(3, position))])).await;
        let row = SampleRow { prompt_token_ids: vec![4, 5], output_token_ids: output.clone(), ..row(params.clone()) };
        let answer = client.sample(request(vec![row], &[logits(3, position)])).await.unwrap().into_inner();
        assert_eq!(answer.rows[0].token.as_ref(), streamed.work[0].tokens.first());
        assert_eq!(answer.rows[0].seed, 77);
        output.push(token(&streamed.work[0]));
    }
    server.expect_sequences(1).await;
}

#[tokio::test]
async fn a_chosen_seed_is_reported_and_replays_the_row() {
    let server = TestServer::start().await;
    let mut client = server.client().await;
    let rows = vec![row(SamplingParams::default()); 20];
    let logits = vec![logits(1, 0); 20];
    let first = client.sample(request(rows, &logits)).await.unwrap().into_inner();
    let seeds: std::collections::HashSet<u64> = first.rows.iter().map(|row| row.seed).collect();
    assert_eq!(seeds.len(), 20, "every row has a seed of its own");
    let rows = first.rows.iter().map(|chosen| row(seeded(chosen.seed))).collect();
    let again = client.sample(request(rows, &logits)).await.unwrap().into_inner();
    assert_eq!(again, first);
}

#[tokio::test]
async fn every_row_has_its_own_status() {
    let server = TestServer::start().await;
    let shared = SampleRow { row: Some(0), ..row(seeded(1)) };
    let rows = vec![
        row(seeded(1)),
        row(SamplingParams { temperature: Some(-1.0), ..Default::default() }),
        row(seeded(2)),
        shared,
        row(SamplingParams { max_tokens: Some(1), ..seeded(1) }),
        SampleRow { row: Some(9), ..row(seeded(1)) },
        SampleRow { row: Some(0), output_token_ids: vec![VOCAB], ..row(seeded(1)) },
        SampleRow {
            row: Some(0),
            params: Some(SamplingParams {
                acceptance: Some(AcceptanceParams { rule: 6, ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        },
    ];
    let mut nan = logits(2, 0);
    nan[3] = f32::NAN;
    let answer = server.client().await.sample(request(rows, &[logits(1, 0), logits(1, 0), nan])).await.unwrap();
    let rows = answer.into_inner().rows;
    let statuses: Vec<_> = rows.iter().map(SampleRowResult::status).collect();
    assert_eq!(
        statuses,
        [
            RowStatus::Ok,
            RowStatus::InvalidWork,
            RowStatus::NanLogits,
            RowStatus::Ok,
            RowStatus::Ok,
            RowStatus::RowOutOfRange,
            RowStatus::InvalidWork,
            RowStatus::InvalidWork
        ]
    );
    assert!(rows[1].message.starts_with("params.temperature"), "{}", rows[1].message);
    assert!(rows[6].message.starts_with("output_token_ids[0]"), "{}", rows[6].message);
    assert!(rows[7].message.starts_with("params.acceptance.synthetic_rate"), "{}", rows[7].message);
    assert_eq!(rows[0].token, rows[3].token);
    assert_eq!(rows[4].finish_reason(), FinishReason::MaxTokens);
    server.expect_sequences(0).await;
}

#[tokio::test]
async fn a_misshapen_batch_is_refused_whole() {
    let server = TestServer::start().await;
    let good = || request(vec![row(seeded(1))], &[logits(1, 0)]);
    let data = |len: usize, row_stride| Some(InlineLogits { data: vec![0; len].into(), row_stride });
    let cases = [
        ("vocab_size", SampleRequest { vocab_size: 0, ..good() }),
        ("logits_dtype", SampleRequest { logits_dtype: 4, ..good() }),
        ("model", SampleRequest { model: "\u{7}".into(), ..good() }),
        ("eos_token_ids[0]", SampleRequest { eos_token_ids: vec![VOCAB], ..good() }),
        ("logits", SampleRequest { logits: None, ..good() }),
        ("logits.data", SampleRequest { logits: data(3, 0), ..good() }),
        ("logits.data", SampleRequest { logits_dtype: LogitsDtype::F16.into(), ..good() }),
        ("logits.row_stride", SampleRequest { logits: data(VOCAB as usize * 4, 1), ..good() }),
        ("rows", SampleRequest { rows: vec![row(seeded(1)); 4097], ..good() }),
        (
            "default_params.top_p",
            SampleRequest { default_params: Some(SamplingParams { top_p: Some(2.0), ..Default::default() }), ..good() },
        ),
    ];
    let mut client = server.client().await;
    for (field, request) in cases {
        let status = client.sample(request).await.unwrap_err();
        assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, field));
    }
    assert!(
        client
            .sample(SampleRequest { rows: vec![], logits: None, ..good() })
            .await
            .unwrap()
            .into_inner()
            .rows
            .is_empty()
    );
}

#[tokio::test]
async fn a_call_past_its_deadline_is_told_so_and_leaves_nothing() {
    let gate = Gate::default();
    let server = TestServer::with_backend(gate.clone(), |limits| limits.max_queued_steps = 1).await;
    let mut call = Call::within(&server, "Sample", "100m").await;
    call.send_alone(&request(vec![row(seeded(1))], &[logits(1, 0)]));
    let (status, _) = call.end().await;
    assert_eq!(
        (status.code(), violation(&status).1.as_str()),
        (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
        "{status}"
    );
    server.expect_series("croupier_requests_total{method=\"Sample\",code=\"DEADLINE_EXCEEDED\"}", 1.0).await;
    gate.open();
    server.expect_sequences(0).await;
    let mut client = server.client().await;
    let answer = client.sample(request(vec![row(seeded(1))], &[logits(1, 0)])).await.unwrap().into_inner();
    assert_eq!(answer.rows[0].status(), RowStatus::Ok);
}

#[tokio::test]
async fn a_message_that_does_not_come_by_the_deadline_is_not_awaited() {
    let server = TestServer::with_backend(Gate::default(), |limits| limits.receive_timeout = crate::call::LONG).await;
    let mut call = Call::within(&server, "Sample", "100000u").await;
    call.begin(1000, &[0; 10]);
    let (status, _) = call.end().await;
    assert_eq!(
        (status.code(), violation(&status).1.as_str()),
        (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
        "{status}"
    );
    server.expect_series("croupier_requests_total{method=\"Sample\",code=\"DEADLINE_EXCEEDED\"}", 1.0).await;
    server.expect_series("croupier_in_flight_bytes", 0.0).await;
}

/// The output of `croupier explain` for a row of logits, with the texts of tokens from this file.
fn explained(vocabulary: &Path, logits: &[f32], flags: &[&str]) -> serde_json::Value {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
    command.args(["explain", "--json", "--dtype", "f32"]).args(flags);
    // Settings for servers on this machine must not affect the test.
    let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CROUPIER_"));
    ours.for_each(|(name, _)| {
        command.env_remove(name);
    });
    command.env("CROUPIER_VOCABULARY", vocabulary);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{flags:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn explain_tells_the_token_of_a_server() {
    let server = TestServer::start().await;
    let mut client = server.client().await;
    let logprobs = LogprobsParams { top_n: 0, mode: LogprobsMode::Processed.into(), token_ids: Vec::new() };
    let with = |params: SamplingParams| SamplingParams { logprobs: Some(logprobs.clone()), ..params };
    let synthid = SynthidParams { keys: vec![1, 2, 3], ..Default::default() };
    let synthid = WatermarkParams { scheme: Some(watermark_params::Scheme::Synthid(synthid)) };
    let kind = Some(grammar_params::Kind::Regex("(b(ab)*){2}".to_owned()));
    let grammar = GrammarParams { kind, start_position: 2, ..Default::default() };
    let thinking = ThinkingBudgetParams {
        start_token_ids: vec![5, 7],
        end_token_ids: vec![8],
        budget: 9,
        temperature: Some(2.5),
        top_k: Some(9),
        ..Default::default()
    };
    let cases = [
        (with(SamplingParams::default()), vec![]),
        (
            with(SamplingParams {
                temperature: Some(0.7),
                top_p: Some(0.8),
                frequency_penalty: Some(0.5),
                ..Default::default()
            }),
            vec!["--set", "temperature=0.7", "--set", "top_p=0.8", "--set", "frequency_penalty=0.5"],
        ),
        (
            with(SamplingParams { temperature: Some(0.0), repetition_penalty: Some(8.0), ..Default::default() }),
            vec!["--set", "temperature=0", "--set", "repetition_penalty=8"],
        ),
        (
            with(SamplingParams { repetition_penalty: Some(3.0), top_k: Some(5), ..Default::default() }),
            vec!["--set", "repetition_penalty=3.0", "--set", "top_k=5"],
        ),
        (
            with(SamplingParams { preset: "creative".to_owned(), watermark: Some(synthid), ..Default::default() }),
            vec!["--preset=creative", "--set", "watermark={synthid={keys=[1,2,3]}}"],
        ),
        (
            with(SamplingParams { typical_p: Some(0.6), min_p: Some(0.1), ..Default::default() }),
            vec!["--set", "typical_p=0.6", "--set", "min_p=0.1"],
        ),
        (
            with(SamplingParams { xtc_probability: Some(0.5), xtc_threshold: Some(0.1), ..Default::default() }),
            vec!["--set", "xtc_probability=0.5", "--set", "xtc_threshold=0.1"],
        ),
        (
            with(SamplingParams { grammar: Some(grammar), stop_token_ids: vec![9], ..Default::default() }),
            vec!["--set", r#"grammar={regex="(b(ab)*){2}", start_position=2}"#, "--set", "stop_token_ids=[9]"],
        ),
        (
            with(SamplingParams { thinking_budget: Some(thinking), ..Default::default() }),
            vec![
                "--set",
                "thinking_budget={start_token_ids=[5,7], end_token_ids=[8], budget=9, temperature=2.5, top_k=9}",
            ],
        ),
    ];
    let texts: Vec<String> = (0..VOCAB).map(|token| String::from_utf8_lossy(vocabulary().text(token)).into()).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), serde_json::to_string(&texts).unwrap()).unwrap();
    for (params, flags) in cases {
        for seed in 0..6u32 {
            let (logits, text) = (logits(seed.into(), 2), seed.to_string());
            let params = SamplingParams { seed: Some(seed.into()), ..params.clone() };
            let row = SampleRow { prompt_token_ids: vec![4, 5], output_token_ids: vec![7, 7], ..row(params) };
            let answer = client.sample(request(vec![row], std::slice::from_ref(&logits))).await.unwrap().into_inner();
            let token = answer.rows[0].token.clone().unwrap();
            let told = explained(
                file.path(),
                &logits,
                &[&flags[..], &["--prompt=4,5", "--output=7,7", "--seed", &text]].concat(),
            );
            assert_eq!(told["token"], token.token_id, "{flags:?} {seed}");
            assert_eq!(told["logprob"].as_f64().unwrap() as f32, token.logprob.unwrap());
            assert_eq!(told["rank"], token.rank.unwrap());
        }
    }
}
