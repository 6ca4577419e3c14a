//! Parameters with one tool each, and with all of them.

use croupier::proto::*;

/// A sequence of tokens.
pub fn pattern(token_ids: &[u32]) -> TokenSequence {
    TokenSequence { token_ids: token_ids.to_vec() }
}

/// Each tool with settings that change short texts of few tokens.
pub fn tools() -> Vec<(&'static str, SamplingParams)> {
    let p = SamplingParams::default;
    vec![
        ("DRY", SamplingParams { dry_multiplier: Some(0.8), dry_allowed_length: Some(1), ..p() }),
        (
            "DRY in a window, with breakers",
            SamplingParams {
                dry_multiplier: Some(1.5),
                dry_base: Some(1.2),
                dry_penalty_last_n: Some(12),
                dry_sequence_breakers: vec![pattern(&[4]), pattern(&[1, 2, 5])],
                ..p()
            },
        ),
        (
            "DRY with bounds on its search",
            SamplingParams {
                dry_multiplier: Some(0.8),
                dry_allowed_length: Some(1),
                dry_max_ngram: Some(2),
                dry_max_occurrences: Some(2),
                dry_early_exit_match_len: Some(3),
                ..p()
            },
        ),
        (
            "DRY behind penalties",
            SamplingParams {
                dry_multiplier: Some(0.8),
                dry_allowed_length: Some(1),
                repetition_penalty: Some(1.4),
                frequency_penalty: Some(0.1),
                engine_order: EngineOrder::LlamaCpp.into(),
                ..p()
            },
        ),
        (
            "penalties of the last tokens",
            SamplingParams {
                repetition_penalty: Some(1.5),
                frequency_penalty: Some(0.4),
                presence_penalty: Some(0.2),
                penalty_last_n: Some(5),
                prompt_ignore_length: Some(3),
                ..p()
            },
        ),
        (
            "penalties that fall off",
            SamplingParams {
                repetition_penalty: Some(1.5),
                frequency_penalty: Some(0.4),
                penalty_last_n: Some(3),
                penalty_decay_n: Some(7),
                ..p()
            },
        ),
        (
            "penalties that count the prompt",
            SamplingParams {
                frequency_penalty: Some(0.3),
                presence_penalty: Some(0.2),
                penalty_last_n: Some(6),
                penalty_decay_n: Some(4),
                prompt_ignore_length: Some(2),
                penalties_count_prompt: Some(true),
                ..p()
            },
        ),
        ("encoder repetition penalty", SamplingParams { encoder_repetition_penalty: Some(1.7), ..p() }),
        (
            "no n-gram twice",
            SamplingParams {
                no_repeat_ngram: Some(NoRepeatNgramParams {
                    size: 3,
                    window: 20,
                    whitelist_token_ids: vec![5],
                    prompt_size: 2,
                }),
                ..p()
            },
        ),
        ("length", SamplingParams { length_penalty: Some(LengthPenaltyParams { start: 10, factor: 1.3 }), ..p() }),
        (
            "sequence bias",
            SamplingParams {
                sequence_bias: vec![
                    SequenceBias { token_ids: vec![1, 2], bias: 2.0 },
                    SequenceBias { token_ids: vec![2], bias: 0.5 },
                    SequenceBias { token_ids: vec![2, 3, 4], bias: -3.0 },
                ],
                ..p()
            },
        ),
        (
            "bans of positions",
            SamplingParams {
                token_ban_ranges: vec![
                    TokenBanRange { token_ids: vec![0, 1, 2], start: 0, length: 2 },
                    TokenBanRange { token_ids: vec![3, 4], start: 9, length: 20 },
                ],
                ..p()
            },
        ),
        (
            "forced ends",
            SamplingParams { forced_first_token: Some(30), forced_last_token: Some(31), max_tokens: Some(40), ..p() },
        ),
        (
            "the end of a loop",
            SamplingParams {
                repetition_detection: Some(RepetitionDetectionParams {
                    max_pattern_size: 4,
                    min_pattern_size: None,
                    min_count: 2,
                }),
                ..p()
            },
        ),
        (
            "a budget for thinking",
            SamplingParams {
                thinking_budget: Some(ThinkingBudgetParams {
                    start_token_ids: vec![3],
                    end_token_ids: vec![4],
                    budget: 3,
                    forced_token_ids: vec![40, 41, 4],
                    other_ends: vec![TokenSequence { token_ids: vec![5, 6] }],
                    ..Default::default()
                }),
                ..p()
            },
        ),
        (
            "thinking with filters of its own",
            SamplingParams {
                temperature: Some(0.4),
                thinking_budget: Some(ThinkingBudgetParams {
                    start_token_ids: vec![3],
                    end_token_ids: vec![4],
                    budget: 5,
                    temperature: Some(1.7),
                    top_k: Some(20),
                    top_p: Some(0.95),
                    min_p: Some(0.01),
                    ..Default::default()
                }),
                ..p()
            },
        ),
    ]
}

/// Each watermark scheme. Those without a bias need a temperature above 0.
pub fn marks() -> Vec<(&'static str, SamplingParams)> {
    use watermark_params::Scheme;
    let mark =
        |scheme| SamplingParams { watermark: Some(WatermarkParams { scheme: Some(scheme) }), ..Default::default() };
    let kgw = |scheme: SeedingScheme| {
        Scheme::Kgw(KgwParams { seeding_scheme: scheme.into(), context_width: Some(3), ..Default::default() })
    };
    vec![
        ("a greenlist by lefthash", mark(kgw(SeedingScheme::Lefthash))),
        ("a greenlist by selfhash", mark(kgw(SeedingScheme::Selfhash))),
        (
            "a tournament",
            mark(Scheme::Synthid(SynthidParams {
                keys: vec![654, 400, 836, 123, 340],
                ngram_len: Some(3),
                context_history_size: Some(9),
                ..Default::default()
            })),
        ),
        (
            "a race",
            mark(Scheme::Gumbel(GumbelParams { key: Some(42), context_width: Some(2), context_history_size: Some(9) })),
        ),
    ]
}

/// Whether the tool works at temperature 0, where no token is drawn.
pub fn is_for_greedy(params: &SamplingParams) -> bool {
    use watermark_params::Scheme;
    let scheme = params.watermark.as_ref().and_then(|mark| mark.scheme.as_ref());
    let thoughts = params.thinking_budget.as_ref().and_then(|thinking| thinking.temperature);
    !matches!(scheme, Some(Scheme::Synthid(_) | Scheme::Gumbel(_))) && thoughts.is_none()
}

/// All tools at once.
pub fn together() -> SamplingParams {
    let mut all = SamplingParams {
        temperature: Some(1.2),
        repetition_penalty: Some(1.1),
        frequency_penalty: Some(0.1),
        logit_bias: vec![LogitBias { token_id: 2, bias: 0.5 }],
        ..Default::default()
    };
    // Messages merge as in protobuf: a field that the later one sets wins, lists are concatenated.
    for (_, tool) in tools().into_iter().chain(marks().into_iter().take(1)) {
        let bytes = prost::Message::encode_to_vec(&tool);
        prost::Message::merge(&mut all, bytes.as_slice()).unwrap();
    }
    all
}
