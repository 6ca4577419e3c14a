//! Every bad input has one exact answer, and nothing is lost: neighbours get the tokens that they would have had without it, the item at
//! fault works once it is corrected, and no state is left over.

use crate::support::*;
use croupier::proto::decode_request::Request;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;
use tonic::Code;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

#[tokio::test]
async fn a_bad_configuration_ends_the_stream_and_names_the_field() {
    let server = TestServer::start().await;
    let params = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        StreamConfig { default_params: Some(params), ..config() }
    };
    let cases = [
        (
            "config.default_params.acceptance.rule",
            params(|p| p.acceptance = Some(AcceptanceParams { rule: 77, ..Default::default() })),
        ),
        ("config.vocab_size", StreamConfig { vocab_size: 0, ..config() }),
        ("config.vocab_size", StreamConfig { vocab_size: (1 << 20) + 1, ..config() }),
        ("config.vocab_size", StreamConfig { vocab_size: 1 << 31, ..config() }),
        ("config.logits_dtype", StreamConfig { logits_dtype: 0, ..config() }),
        ("config.logits_dtype", StreamConfig { logits_dtype: 99, ..config() }),
        ("config.logits_dtype", StreamConfig { logits_dtype: -1, ..config() }),
        ("config.model", StreamConfig { model: "x".repeat(129), ..config() }),
        ("config.model", StreamConfig { model: "a\nb".into(), ..config() }),
        ("config.model", StreamConfig { model: "modèle".into(), ..config() }),
        ("config.eos_token_ids[1]", StreamConfig { eos_token_ids: vec![1, VOCAB], ..config() }),
        ("config.eos_token_ids", StreamConfig { eos_token_ids: vec![1; 65], ..config() }),
        ("config.default_params.temperature", params(|p| p.temperature = Some(-1.0))),
        (
            "config.default_params.bad_words[0].token_ids[0]",
            params(|p| p.bad_words = vec![TokenSequence { token_ids: vec![50] }]),
        ),
        (
            "config.default_params.logprobs.mode",
            params(|p| p.logprobs = Some(LogprobsParams { mode: 7, ..Default::default() })),
        ),
    ];
    for (field, config) in cases {
        let mut stream = server.stream().await.unwrap();
        stream.send(Request::Config(config)).await;
        let status = stream.reply().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status}");
        assert_eq!(violation(&status), (field.to_owned(), "INVALID_FIELD".to_owned()));
    }
}

#[tokio::test]
async fn a_message_out_of_turn_ends_the_stream() {
    let server = TestServer::start().await;
    let empty = DecodeRequest { request: None };
    let step = DecodeRequest { request: Some(Request::Step(Step::default())) };
    let second = DecodeRequest { request: Some(Request::Config(config())) };
    for (field, request, configured) in
        [("request", empty.clone(), false), ("config", step, false), ("request", empty, true), ("config", second, true)]
    {
        let mut stream = if configured { server.worker().await } else { server.stream().await.unwrap() };
        stream.send_raw(request).await;
        let status = stream.reply().await.unwrap_err();
        assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, field));
    }
}

/// Steps whose shape is wrong, with the error code and the field that the error names.
fn misshapen() -> Vec<(Code, &'static str, Step)> {
    let of = |data: Vec<u8>, row_stride| Some(step::Logits::Inline(InlineLogits { data: data.into(), row_stride }));
    let with = |logits| Step { work: vec![sample_work(1)], logits, ..Default::default() };
    let bytes = VOCAB as usize * 4;
    let region = Some(step::Logits::Region(RegionLogits::default()));
    let kindless = Work { kind: None, ..sample_work(1) };
    let rows = Step { work: (0..4097).map(sample_work).collect(), logits: of(vec![0; bytes], 0), ..Default::default() };
    vec![
        (Code::InvalidArgument, "step.logits", with(None)),
        (Code::InvalidArgument, "step.inline.row_stride", with(of(vec![0; bytes], VOCAB - 1))),
        (Code::InvalidArgument, "step.inline.data", with(of(vec![0; bytes - 1], 0))),
        (Code::InvalidArgument, "step.inline.data", with(of(vec![0; bytes + 1], 0))),
        (Code::InvalidArgument, "step.inline.data", with(of(vec![0; 2 * bytes - 4], 0))),
        (Code::InvalidArgument, "step.inline.data", with(of(vec![0; bytes + 4], u32::MAX))),
        // Twice as many rows as expected: the values are half as long, or the rows closer together, than the worker thinks.
        (Code::InvalidArgument, "step.inline.data", with(of(vec![0; 2 * bytes], 0))),
        (Code::Unimplemented, "step.region", with(region)),
        (
            Code::InvalidArgument,
            "step.work[0].kind",
            Step { work: vec![kindless], logits: of(vec![0; bytes], 0), ..Default::default() },
        ),
        (Code::InvalidArgument, "step.work", rows),
    ]
}

#[tokio::test]
async fn a_misshapen_step_ends_the_stream_after_the_replies_before_it() {
    let server = TestServer::start().await;
    let expected = inline_tokens(&server, 5, 1).await;
    for (code, field, step) in misshapen() {
        let mut worker = server.worker().await;
        let mut good = sample_step(&[(1, logits(5, 0))]);
        good.open = vec![open(1, seeded(5))];
        worker.send_step(good).await;
        worker.send_step(step).await;
        assert_eq!(token(&worker.step_reply().await.unwrap().work[0]), expected[0]);
        let status = worker.step_reply().await.unwrap_err();
        assert_eq!((status.code(), violation(&status).0.as_str()), (code, field), "{status}");
        drop(worker);
        server.expect_sequences(0).await;
    }
}

/// Invalid parameters, each with the field that the error names.
fn bad_params() -> Vec<(&'static str, SamplingParams)> {
    let p = SamplingParams::default;
    let bias = |token_id, bias| LogitBias { token_id, bias };
    let logprobs = |top_n, mode, token_ids| Some(LogprobsParams { top_n, mode, token_ids });
    let mut cases = Vec::new();
    for temperature in [-1.0, NAN, INF, 1e-45, 1e30] {
        cases.push(("params.temperature", SamplingParams { temperature: Some(temperature), ..p() }));
    }
    for bad in [-0.5, 1.5, NAN] {
        cases.push(("params.top_p", SamplingParams { top_p: Some(bad), ..p() }));
        cases.push(("params.min_p", SamplingParams { min_p: Some(bad), ..p() }));
    }
    for bad in [0.0, -1.0, NAN, INF] {
        cases.push(("params.repetition_penalty", SamplingParams { repetition_penalty: Some(bad), ..p() }));
    }
    for bad in [NAN, INF, -1e5] {
        cases.push(("params.frequency_penalty", SamplingParams { frequency_penalty: Some(bad), ..p() }));
        cases.push(("params.presence_penalty", SamplingParams { presence_penalty: Some(bad), ..p() }));
    }
    for bad in [NAN, INF, -INF] {
        cases.push(("params.logit_bias[0].bias", SamplingParams { logit_bias: vec![bias(1, bad)], ..p() }));
    }
    cases.extend(bad_chains());
    let word = |token_ids| vec![TokenSequence { token_ids }];
    cases.extend([
        ("params.logit_bias[0]", SamplingParams { logit_bias: vec![bias(VOCAB, 0.0)], ..p() }),
        ("params.logit_bias", SamplingParams { logit_bias: vec![bias(1, 0.0), bias(1, 1.0)], ..p() }),
        ("params.allowed_token_ids[0]", SamplingParams { allowed_token_ids: vec![VOCAB], ..p() }),
        ("params.banned_token_ids[0]", SamplingParams { banned_token_ids: vec![u32::MAX], ..p() }),
        ("params.stop_token_ids[0]", SamplingParams { stop_token_ids: vec![VOCAB], ..p() }),
        ("params.stop_token_ids", SamplingParams { stop_token_ids: vec![1; 65], ..p() }),
        ("params.bad_words[0].token_ids", SamplingParams { bad_words: word(vec![]), ..p() }),
        ("params.bad_words[0].token_ids", SamplingParams { bad_words: word(vec![1; 65]), ..p() }),
        ("params.bad_words[0].token_ids[1]", SamplingParams { bad_words: word(vec![1, VOCAB]), ..p() }),
        ("params.min_tokens", SamplingParams { min_tokens: Some(3), max_tokens: Some(2), ..p() }),
        ("params.logprobs.top_n", SamplingParams { logprobs: logprobs(21, 0, vec![]), ..p() }),
        ("params.logprobs.mode", SamplingParams { logprobs: logprobs(1, 99, vec![]), ..p() }),
        ("params.logprobs.token_ids[0]", SamplingParams { logprobs: logprobs(1, 0, vec![VOCAB]), ..p() }),
        (
            "params.acceptance.rule",
            SamplingParams { acceptance: Some(AcceptanceParams { rule: 77, ..Default::default() }), ..p() },
        ),
    ]);
    cases
}

/// Samplers out of range, and invalid orders.
fn bad_chains() -> Vec<(&'static str, SamplingParams)> {
    let p = SamplingParams::default;
    let (top_k, twice) = (SamplerKind::TopK as i32, vec![SamplerKind::Tfs as i32; 2]);
    let vllm = EngineOrder::Vllm as i32;
    vec![
        ("params.min_eos_p", SamplingParams { min_eos_p: Some(1.5), ..p() }),
        ("params.min_eos_p", SamplingParams { min_eos_p: Some(0.5), ..p() }),
        ("params.typical_p", SamplingParams { typical_p: Some(NAN), ..p() }),
        ("params.tfs", SamplingParams { tfs: Some(-0.1), ..p() }),
        ("params.top_n_sigma", SamplingParams { top_n_sigma: Some(INF), ..p() }),
        ("params.min_k_tau", SamplingParams { min_k_tau: Some(INF), ..p() }),
        ("params.min_k_tau", SamplingParams { min_k_tau: Some(NAN), min_k: Some(true), ..p() }),
        ("params.min_k_tau", SamplingParams { min_k_tau: Some(-1.0), ..p() }),
        ("params.smoothing_curve", SamplingParams { smoothing_curve: Some(0.0), ..p() }),
        ("params.dynatemp_low", SamplingParams { dynatemp_low: Some(2.0), dynatemp_high: Some(1.0), ..p() }),
        ("params.dynatemp_high", SamplingParams { dynatemp_high: Some(NAN), ..p() }),
        ("params.temperature_end", SamplingParams { temperature_end: Some(0.0), ..p() }),
        ("params.temperature_tokens", SamplingParams { temperature: Some(0.0), temperature_tokens: Some(3), ..p() }),
        ("params.xtc_probability", SamplingParams { xtc_probability: Some(1.1), ..p() }),
        ("params.xtc_ignore_token_ids[0]", SamplingParams { xtc_ignore_token_ids: vec![VOCAB], ..p() }),
        ("params.xtc_ignore_token_ids", SamplingParams { xtc_ignore_token_ids: vec![1; 1025], ..p() }),
        ("params.min_keep", SamplingParams { min_keep: Some(0), ..p() }),
        ("params.mirostat", SamplingParams { mirostat: Some(3), ..p() }),
        ("params.mirostat_tau", SamplingParams { mirostat_tau: Some(INF), ..p() }),
        ("params.mirostat_eta", SamplingParams { mirostat_eta: Some(-0.1), ..p() }),
        ("params.adaptive_target", SamplingParams { adaptive_target: Some(-1.5), ..p() }),
        ("params.adaptive_decay", SamplingParams { adaptive_decay: Some(1.0), ..p() }),
        ("params.top_p_decay", SamplingParams { top_p_decay: Some(NAN), ..p() }),
        ("params.top_p_min", SamplingParams { top_p_min: Some(1.5), ..p() }),
        ("params.top_p_reset_token_ids[0]", SamplingParams { top_p_reset_token_ids: vec![VOCAB], ..p() }),
        ("params.top_p_reset_token_ids", SamplingParams { top_p_reset_token_ids: vec![1; 65], ..p() }),
        (
            "params.engine_order",
            SamplingParams { engine_order: EngineOrder::LlamaCpp as i32, mirostat: Some(1), top_k: Some(9), ..p() },
        ),
        ("params.sampler_order[1]", SamplingParams { sampler_order: twice, ..p() }),
        ("params.sampler_order[0]", SamplingParams { sampler_order: vec![0], ..p() }),
        ("params.sampler_order", SamplingParams { sampler_order: vec![1; 22], ..p() }),
        ("params.sampler_order[0]", SamplingParams { sampler_order: vec![99], ..p() }),
        ("params.sampler_order", SamplingParams { sampler_order: vec![top_k], top_p: Some(0.5), ..p() }),
        ("params.engine_order", SamplingParams { engine_order: 99, ..p() }),
        ("params.engine_order", SamplingParams { engine_order: vllm, min_k: Some(true), ..p() }),
        ("params.engine_order", SamplingParams { engine_order: vllm, tfs: Some(0.5), ..p() }),
    ]
}

#[tokio::test]
async fn a_bad_parameter_fails_its_sequence_alone() {
    let server = TestServer::start().await;
    let cases = bad_params();
    let expected = inline_tokens(&server, 5, cases.len() as u64).await;
    server.expect_sequences(0).await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    for ((field, params), (position, expected)) in cases.into_iter().zip((0..).zip(expected)) {
        let mut step = sample_step(&[(2, logits(0, 0)), (1, logits(5, position))]);
        step.open = vec![open(2, params)];
        let result = worker.step(step).await;
        assert_eq!(result.open[0].status(), OpenStatus::InvalidArgument, "{field}");
        assert_eq!(result.open[0].error.as_ref().unwrap().field, field);
        assert_eq!(result.work[0].status(), RowStatus::UnknownSequence);
        assert_eq!(token(&result.work[1]), expected);
        server.expect_sequences(1).await;
    }
}

#[tokio::test]
async fn odd_but_right_parameters_are_taken() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let p = SamplingParams::default;
    let lossless = |rule| Some(AcceptanceParams { rule, ..Default::default() });
    let good = [
        SamplingParams { temperature: Some(0.0), top_p: Some(0.0), ..p() },
        SamplingParams { temperature: Some(-0.0), ..p() },
        SamplingParams { top_k: Some(u32::MAX), ..p() },
        SamplingParams { top_k: Some(1), min_p: Some(1.0), top_p: Some(0.0), ..p() },
        SamplingParams { seed: Some(u64::MAX), ..p() },
        SamplingParams { seed: Some(0), ..p() },
        SamplingParams { allowed_token_ids: vec![1, 1], banned_token_ids: vec![2, 2], ..p() },
        SamplingParams { bad_words: vec![TokenSequence { token_ids: vec![1; 64] }], ..p() },
        SamplingParams { acceptance: lossless(0), ..p() },
        SamplingParams { acceptance: lossless(1), ..p() },
    ];
    for (id, params) in (1..).zip(good) {
        let mut step = sample_step(&[(id, logits(id, 0))]);
        step.open = vec![open(id, params.clone())];
        let result = worker.step(step).await;
        assert_eq!(result.open[0].status(), OpenStatus::Ok, "{params:?}");
        token(&result.work[0]);
    }
}

#[tokio::test]
async fn a_bad_opening_says_what_is_wrong_with_it() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let expected = inline_tokens(&server, 5, 2).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    assert_eq!(token(&worker.step(sample_step(&[(1, logits(5, 0))])).await.work[0]), expected[0]);
    let result = worker
        .step(open_step(vec![
            open(1, seeded(6)),
            OpenSequence { prompt_token_ids: vec![0, VOCAB], ..open(2, seeded(6)) },
            OpenSequence { output_token_ids: vec![u32::MAX], ..open(3, seeded(6)) },
            OpenSequence { output_token_ids: vec![1, 2, 3], ..open(4, SamplingParams::default()) },
            open(4, seeded(6)),
        ]))
        .await;
    let outcome: Vec<_> =
        result.open.iter().map(|o| (o.status(), o.error.as_ref().map_or("", |e| e.field.as_str()))).collect();
    assert_eq!(
        outcome,
        [
            (OpenStatus::AlreadyExists, "sequence_id"),
            (OpenStatus::InvalidArgument, "prompt_token_ids[1]"),
            (OpenStatus::InvalidArgument, "output_token_ids[0]"),
            (OpenStatus::Ok, ""),
            (OpenStatus::AlreadyExists, "sequence_id"),
        ]
    );
    assert_eq!(result.open[3].position, 3);
    // The sequence that was already open is unaffected.
    assert_eq!(token(&worker.step(sample_step(&[(1, logits(5, 1))])).await.work[0]), expected[1]);
    server.expect_sequences(2).await;
}

#[tokio::test]
async fn a_bad_row_fails_alone_and_its_sequence_goes_on() {
    let server = TestServer::start().await;
    let (expected, neighbour) = (inline_tokens(&server, 5, 1).await, inline_tokens(&server, 6, 8).await);
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(5)), open(2, seeded(6))])).await;
    let all = |value| vec![value; VOCAB as usize];
    let one = |value| {
        let mut row = logits(0, 0);
        row[VOCAB as usize - 1] = value;
        row
    };
    let bad = [
        (one(NAN), RowStatus::NanLogits),
        (all(NAN), RowStatus::NanLogits),
        (one(INF), RowStatus::PositiveInfinity),
        (all(INF), RowStatus::PositiveInfinity),
        (all(-INF), RowStatus::AllMasked),
        (one(f32::from_bits(0xFFC0_0001)), RowStatus::NanLogits),
        (one(f32::from_bits(0x7F80_0001)), RowStatus::NanLogits),
    ];
    for (position, (row, status)) in (0..).zip(bad) {
        let result = worker.step(sample_step(&[(1, row), (2, logits(6, position))])).await;
        assert_eq!(result.work[0].status(), status);
        assert!(result.work[0].tokens.is_empty() && !result.work[0].message.is_empty());
        assert_eq!(token(&result.work[1]), neighbour[position as usize]);
    }
    let result = worker.step(sample_step(&[(1, logits(5, 0))])).await;
    assert_eq!(token(&result.work[0]), expected[0], "no bad row was counted as a token");
}

#[tokio::test]
async fn strange_but_right_rows_are_sampled() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let greedy = SamplingParams { temperature: Some(0.0), ..Default::default() };
    worker.step(open_step(vec![open(1, greedy), open(2, seeded(1))])).await;
    let row = |fill: f32, at: usize, value: f32| {
        let mut row = vec![fill; VOCAB as usize];
        row[at] = value;
        row
    };
    let cases = [
        (row(-INF, 7, 0.0), 7),
        (row(1.0, 3, 1.0), 0),
        (row(f32::MIN, 9, f32::MAX), 9),
        (row(0.0, 5, f32::from_bits(1)), 5),
        (row(-0.0, 5, 0.0), 0),
        (row(-INF, 8, f32::MIN), 8),
    ];
    for (row, best) in cases {
        let result = worker.step(sample_step(&[(1, row.clone()), (2, row)])).await;
        assert_eq!(token(&result.work[0]), best);
        token(&result.work[1]);
    }
    // Half-precision formats have their own infinities.
    for (dtype, format) in [(Dtype::F16, LogitsDtype::F16), (Dtype::Bf16, LogitsDtype::Bf16)] {
        let mut worker = server.worker_with(StreamConfig { logits_dtype: format.into(), ..config() }).await;
        worker.step(open_step(vec![open(1, seeded(1))])).await;
        let data = dtype.encode(&row(0.0, 1, f32::MAX)).into();
        let logits = Some(step::Logits::Inline(InlineLogits { data, row_stride: 0 }));
        let result = worker.step(Step { work: vec![sample_work(1)], logits, ..Default::default() }).await;
        assert_eq!(result.work[0].status(), RowStatus::PositiveInfinity);
    }
}

#[tokio::test]
async fn bad_work_fails_alone() {
    let server = TestServer::start().await;
    let score = |token_ids, logprobs| ScoreWork { token_ids, logprobs };
    let wanted = |top_n, mode| Some(LogprobsParams { top_n, mode, token_ids: vec![] });
    let at = |first_row, work| Work { first_row: Some(first_row), ..work };
    let cases = vec![
        (RowStatus::UnknownSequence, at(0, sample_work(99))),
        (RowStatus::UnknownSequence, at(0, score_work(Some(99), score(vec![1], None)))),
        (RowStatus::InvalidWork, Work { sequence_id: None, ..at(0, sample_work(0)) }),
        (RowStatus::RowOutOfRange, at(1, sample_work(3))),
        (RowStatus::RowOutOfRange, at(u32::MAX, sample_work(3))),
        (RowStatus::RowOutOfRange, at(0, score_work(None, score(vec![1, 2], None)))),
        (RowStatus::InvalidWork, at(0, score_work(None, score(vec![], None)))),
        (RowStatus::InvalidWork, at(0, score_work(None, score(vec![VOCAB], None)))),
        (RowStatus::InvalidWork, at(0, score_work(None, score(vec![1], wanted(21, 0))))),
        (RowStatus::InvalidWork, at(0, score_work(None, score(vec![1], wanted(1, 9))))),
        (RowStatus::InvalidWork, at(0, score_work(None, score(vec![1], wanted(1, 2))))),
    ];
    let (expected, own) = (inline_tokens(&server, 5, cases.len() as u64).await, inline_tokens(&server, 6, 1).await);
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(5)), open(3, seeded(6))])).await;
    for ((status, work), (position, expected)) in cases.into_iter().zip((0..).zip(expected)) {
        let mut step = sample_step(&[(1, logits(5, position))]);
        step.work = vec![work, at(0, sample_work(1)), at(0, sample_work(1))];
        let result = worker.step(step).await;
        assert_eq!(result.work[0].status(), status, "{}", result.work[0].message);
        assert!(!result.work[0].message.is_empty());
        assert_eq!(token(&result.work[1]), expected);
        assert_eq!(result.work[2].status(), RowStatus::DuplicateSequence);
    }
    assert_eq!(token(&worker.step(sample_step(&[(3, logits(6, 0))])).await.work[0]), own[0]);
    server.expect_sequences(2).await;
}
