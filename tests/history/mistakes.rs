//! Bad values: the error names the field, the sequence is not opened, neighbours go on.

use crate::history::tools::pattern;
use crate::support::*;
use croupier::backend::cpu::CpuBackend;
use croupier::limits::Limits;
use croupier::proto::decode_request::Request;
use croupier::proto::*;
use croupier::rpc::ServerSetup;

fn bad() -> Vec<(&'static str, SamplingParams)> {
    let p = SamplingParams::default;
    let mut cases = Vec::new();
    for bad in [-0.5, 1e5, f32::NAN, f32::INFINITY] {
        cases.push(("params.dry_multiplier", SamplingParams { dry_multiplier: Some(bad), ..p() }));
        cases.push(("params.dry_base", SamplingParams { dry_base: Some(bad), ..p() }));
    }
    for bad in [0.0, -1.0, 1e5, f32::NAN] {
        let params = SamplingParams { encoder_repetition_penalty: Some(bad), ..p() };
        cases.push(("params.encoder_repetition_penalty", params));
    }
    let window = |last_n, decay_n| SamplingParams { penalty_last_n: last_n, penalty_decay_n: decay_n, ..p() };
    cases.extend([
        ("params.penalty_last_n", window(Some((1 << 20) + 1), None)),
        ("params.penalty_last_n", window(None, Some(1))),
        ("params.penalty_decay_n", window(Some(1), Some(65_535))),
        ("params.penalty_decay_n", window(Some(u32::MAX >> 12), Some(u32::MAX))),
    ]);
    steering(&mut cases);
    marks(&mut cases);
    let texts = |texts: Vec<String>| SamplingParams { dry_sequence_breaker_texts: texts, ..p() };
    cases.extend([
        ("params.dry_sequence_breaker_texts", texts(vec!["a".to_owned(); 65])),
        ("params.dry_sequence_breaker_texts[1]", texts(vec!["a".to_owned(), String::new()])),
        ("params.dry_sequence_breaker_texts[0]", texts(vec!["é".repeat(33)])),
    ]);
    let breakers = |token_ids: &[u32]| vec![pattern(token_ids)];
    cases.extend([
        ("params.dry_allowed_length", SamplingParams { dry_allowed_length: Some(0), ..p() }),
        ("params.dry_allowed_length", SamplingParams { dry_allowed_length: Some(u32::MAX), ..p() }),
        ("params.dry_max_ngram", SamplingParams { dry_max_ngram: Some(32_769), ..p() }),
        ("params.dry_max_ngram", SamplingParams { dry_multiplier: Some(1.0), dry_max_ngram: Some(2), ..p() }),
        ("params.dry_max_occurrences", SamplingParams { dry_max_occurrences: Some(1025), ..p() }),
        ("params.dry_early_exit_match_len", SamplingParams { dry_early_exit_match_len: Some(513), ..p() }),
        ("params.dry_penalty_last_n", SamplingParams { dry_penalty_last_n: Some(-2), ..p() }),
        ("params.dry_penalty_last_n", SamplingParams { dry_penalty_last_n: Some(i32::MAX), ..p() }),
        ("params.dry_sequence_breakers[0].token_ids", SamplingParams { dry_sequence_breakers: breakers(&[]), ..p() }),
        (
            "params.dry_sequence_breakers[0].token_ids[1]",
            SamplingParams { dry_sequence_breakers: breakers(&[1, VOCAB]), ..p() },
        ),
        ("params.dry_sequence_breakers", SamplingParams { dry_sequence_breakers: vec![pattern(&[1]); 1025], ..p() }),
    ]);
    cases
}

/// Watermarks, and what they cannot be combined with.
fn marks(cases: &mut Vec<(&'static str, SamplingParams)>) {
    use watermark_params::Scheme;
    let p = SamplingParams::default;
    let with = |scheme, params| SamplingParams { watermark: Some(WatermarkParams { scheme: Some(scheme) }), ..params };
    let kgw = KgwParams::default;
    let (synthid, gumbel) = (
        || SynthidParams { keys: vec![1, 2], ..Default::default() },
        || GumbelParams { key: Some(1), ..Default::default() },
    );
    for bad in [0.0, 1.0, -0.5, f32::NAN] {
        let mark = Scheme::Kgw(KgwParams { greenlist_ratio: Some(bad), ..kgw() });
        cases.push(("params.watermark.kgw.greenlist_ratio", with(mark, p())));
    }
    let greedy = || SamplingParams { temperature: Some(0.0), ..p() };
    let typical = AcceptanceParams { rule: AcceptanceRule::Typical.into(), ..Default::default() };
    cases.extend([
        ("params.watermark.kgw.bias", with(Scheme::Kgw(KgwParams { bias: Some(f32::INFINITY), ..kgw() }), p())),
        ("params.watermark.kgw.seeding_scheme", with(Scheme::Kgw(KgwParams { seeding_scheme: 9, ..kgw() }), p())),
        ("params.watermark.kgw.context_width", with(Scheme::Kgw(KgwParams { context_width: Some(9), ..kgw() }), p())),
        ("params.watermark.synthid.keys", with(Scheme::Synthid(SynthidParams::default()), p())),
        ("params.watermark.synthid.keys", with(Scheme::Synthid(SynthidParams { keys: vec![1; 65], ..synthid() }), p())),
        (
            "params.watermark.synthid.ngram_len",
            with(Scheme::Synthid(SynthidParams { ngram_len: Some(1), ..synthid() }), p()),
        ),
        (
            "params.watermark.synthid.sampling_table_size",
            with(Scheme::Synthid(SynthidParams { sampling_table_size: Some(u32::MAX), ..synthid() }), p()),
        ),
        (
            "params.watermark.synthid.context_history_size",
            with(Scheme::Synthid(SynthidParams { context_history_size: Some(u32::MAX), ..synthid() }), p()),
        ),
        ("params.watermark.synthid", with(Scheme::Synthid(synthid()), greedy())),
        ("params.watermark.synthid", with(Scheme::Synthid(synthid()), SamplingParams { mirostat: Some(1), ..p() })),
        ("params.watermark.gumbel.key", with(Scheme::Gumbel(GumbelParams::default()), p())),
        (
            "params.watermark.gumbel.context_width",
            with(Scheme::Gumbel(GumbelParams { context_width: Some(0), ..gumbel() }), p()),
        ),
        ("params.watermark.gumbel", with(Scheme::Gumbel(gumbel()), greedy())),
        (
            "params.watermark.gumbel",
            with(Scheme::Gumbel(gumbel()), SamplingParams { acceptance: Some(typical), ..p() }),
        ),
    ]);
}

/// Parameters that forbid, favour or force tokens.
fn steering(cases: &mut Vec<(&'static str, SamplingParams)>) {
    let p = SamplingParams::default;
    let ngram = |size, window, whitelist_token_ids| SamplingParams {
        no_repeat_ngram: Some(NoRepeatNgramParams { size, window, whitelist_token_ids, prompt_size: 0 }),
        ..p()
    };
    let length = |factor| SamplingParams { length_penalty: Some(LengthPenaltyParams { start: 1, factor }), ..p() };
    let bias = |token_ids, bias| SamplingParams { sequence_bias: vec![SequenceBias { token_ids, bias }], ..p() };
    let range = |token_ids, length| SamplingParams {
        token_ban_ranges: vec![TokenBanRange { token_ids, start: 0, length }],
        ..p()
    };
    let detection = |max_pattern_size, min_pattern_size, min_count| SamplingParams {
        repetition_detection: Some(RepetitionDetectionParams { max_pattern_size, min_pattern_size, min_count }),
        ..p()
    };
    let stop = |token_ids| SamplingParams { stop_token_sequences: vec![TokenSequence { token_ids }], ..p() };
    let thinking = |start_token_ids, end_token_ids, forced_token_ids| SamplingParams {
        thinking_budget: Some(ThinkingBudgetParams {
            start_token_ids,
            end_token_ids,
            budget: 1,
            forced_token_ids,
            other_ends: vec![],
            ..Default::default()
        }),
        ..p()
    };
    let others = |ends: Vec<Vec<u32>>| {
        let mut params = thinking(vec![1], vec![2], vec![]);
        let other_ends = ends.into_iter().map(|token_ids| TokenSequence { token_ids });
        params.thinking_budget.as_mut().unwrap().other_ends = other_ends.collect();
        params
    };
    let drawn = |budget, filters: ThinkingBudgetParams, params| SamplingParams {
        thinking_budget: Some(ThinkingBudgetParams {
            start_token_ids: vec![1],
            end_token_ids: vec![2],
            budget,
            ..filters
        }),
        ..params
    };
    let t = ThinkingBudgetParams::default;
    let (cold, hot) = (
        || ThinkingBudgetParams { temperature: Some(0.0), ..t() },
        || ThinkingBudgetParams { temperature: Some(2.0), ..t() },
    );
    let cut = |top_p| ThinkingBudgetParams { top_p: Some(top_p), ..t() };
    let ordered = SamplingParams { sampler_order: vec![SamplerKind::Temperature.into()], ..p() };
    cases.extend([
        ("params.thinking_budget.temperature", drawn(9, ThinkingBudgetParams { temperature: Some(-1.0), ..t() }, p())),
        ("params.thinking_budget.top_p", drawn(9, cut(f32::NAN), p())),
        ("params.thinking_budget.min_p", drawn(9, ThinkingBudgetParams { min_p: Some(1.5), ..t() }, p())),
        ("params.thinking_budget.budget", drawn(0, cut(0.5), p())),
        ("params.thinking_budget.temperature", drawn(9, hot(), SamplingParams { temperature_tokens: Some(3), ..p() })),
        ("params.thinking_budget.top_p", drawn(9, cut(0.5), SamplingParams { top_p_decay: Some(0.5), ..p() })),
        ("params.thinking_budget.temperature", drawn(9, cold(), SamplingParams { mirostat: Some(2), ..p() })),
        ("params.thinking_budget", drawn(9, cut(0.5), ordered)),
        ("params.no_repeat_ngram.size", ngram(66, 0, vec![])),
        ("params.no_repeat_ngram.size", ngram(65, 0, vec![])),
        ("params.no_repeat_ngram.window", ngram(2, u32::MAX, vec![])),
        ("params.no_repeat_ngram.whitelist_token_ids[0]", ngram(2, 0, vec![VOCAB])),
        ("params.length_penalty.factor", length(0.0)),
        ("params.length_penalty.factor", length(f32::NAN)),
        ("params.sequence_bias[0].token_ids", bias(vec![], 1.0)),
        ("params.sequence_bias[0].token_ids[1]", bias(vec![1, VOCAB], 1.0)),
        ("params.sequence_bias[0].bias", bias(vec![1], f32::NEG_INFINITY)),
        ("params.token_ban_ranges[0].length", range(vec![1], 0)),
        ("params.token_ban_ranges[0].token_ids[0]", range(vec![u32::MAX], 1)),
        ("params.forced_first_token", SamplingParams { forced_first_token: Some(VOCAB), ..p() }),
        ("params.forced_last_token", SamplingParams { forced_last_token: Some(1), ..p() }),
        ("params.forced_last_token", SamplingParams { forced_last_token: Some(VOCAB), max_tokens: Some(3), ..p() }),
        ("params.repetition_detection.max_pattern_size", detection(257, None, 2)),
        ("params.repetition_detection.min_pattern_size", detection(3, Some(4), 2)),
        ("params.repetition_detection.min_count", detection(3, None, 1)),
        ("params.repetition_detection.min_count", detection(256, None, u32::MAX)),
        ("params.stop_token_sequences[0].token_ids", stop(vec![])),
        ("params.stop_token_sequences[0].token_ids", stop(vec![1; 65])),
        ("params.stop_token_sequences[0].token_ids[1]", stop(vec![1, VOCAB])),
        (
            "params.stop_token_sequences",
            SamplingParams { stop_token_sequences: vec![TokenSequence { token_ids: vec![1] }; 65], ..p() },
        ),
        ("params.thinking_budget.start_token_ids", thinking(vec![], vec![1], vec![])),
        ("params.thinking_budget.end_token_ids", thinking(vec![1], vec![], vec![])),
        ("params.thinking_budget.forced_token_ids[0]", thinking(vec![1], vec![1], vec![VOCAB])),
        ("params.thinking_budget.other_ends", others(vec![vec![1]; 9])),
        ("params.thinking_budget.other_ends[1].token_ids", others(vec![vec![1], vec![]])),
        ("params.thinking_budget.other_ends[0].token_ids[1]", others(vec![vec![1, VOCAB]])),
    ]);
}

#[tokio::test]
async fn a_bad_value_is_named_and_its_neighbour_goes_on() {
    let server = TestServer::start().await;
    let (mut alone, mut worker) = (server.worker().await, server.worker().await);
    alone.step(open_step(vec![open(1, seeded(5))])).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    for (position, (field, params)) in (0..).zip(bad()) {
        let mut step = sample_step(&[(2, logits(0, 0)), (1, logits(5, position))]);
        step.open = vec![open(2, params)];
        let result = worker.step(step).await;
        assert_eq!(result.open[0].status(), OpenStatus::InvalidArgument, "{field}");
        let error = result.open[0].error.as_ref().unwrap();
        assert_eq!(error.field, field, "{}", error.message);
        assert!(error.message.len() > 10);
        assert_eq!(result.work[0].status(), RowStatus::UnknownSequence);
        let expected = token(&alone.step(sample_step(&[(1, logits(5, position))])).await.work[0]);
        assert_eq!(token(&result.work[1]), expected);
        server.expect_sequences(2).await;
    }
}

#[tokio::test]
async fn breakers_that_are_texts_need_the_texts_of_tokens() {
    let known = TestServer::start().await;
    let setup = ServerSetup::default();
    let bare = TestServer::with_setup(Transport::Tcp, Limits::default(), Box::new(CpuBackend::new(1)), setup).await;
    let dry = |dry_multiplier| SamplingParams {
        dry_multiplier: Some(dry_multiplier),
        dry_sequence_breaker_texts: vec!["\n".to_owned()],
        ..seeded(1)
    };
    for (server, params, is_refused) in [(&bare, dry(0.8), true), (&bare, dry(0.0), false), (&known, dry(0.8), false)] {
        let opened = server.worker().await.step(open_step(vec![open(1, params.clone())])).await.open.remove(0);
        let error = opened.error.clone().unwrap_or_default();
        assert_eq!(opened.status() == OpenStatus::InvalidArgument, is_refused, "{opened:?}");
        assert_eq!(error.field == "params.dry_sequence_breaker_texts", is_refused);
        assert_eq!(error.message.contains("start it with vocabulary"), is_refused, "{}", error.message);
        let mut stream = server.stream().await.unwrap();
        stream.send(Request::Config(StreamConfig { default_params: Some(params), ..config() })).await;
        let told = stream.reply().await.map_err(|status| violation(&status).0);
        assert_eq!(told.err(), is_refused.then(|| "config.default_params.dry_sequence_breaker_texts".to_owned()));
    }
}
