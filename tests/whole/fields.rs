//! A random value for each parameter: within its range, with the range's edges, and mostly one that has an effect.

use crate::whole::draw::Draw;
use croupier::proto::*;

/// Sets a parameter.
type Set = fn(&mut SamplingParams, &mut Draw);

fn sequences(draw: &mut Draw, most: u32, longest: u32) -> Vec<TokenSequence> {
    let count = 1 + draw.below(most);
    (0..count).map(|_| TokenSequence { token_ids: draw.tokens(1, longest) }).collect()
}

fn biases(draw: &mut Draw) -> Vec<LogitBias> {
    let tokens = draw.once(1, 12);
    let bias = |draw: &mut Draw| draw.edge(&[0.0, 1e6, -1e6, 5.0, -5.0], (-6.0, 6.0));
    tokens.into_iter().map(|token_id| LogitBias { token_id, bias: bias(draw) }).collect()
}

fn acceptance(draw: &mut Draw) -> AcceptanceParams {
    let rule = 1 + draw.below(6) as i32;
    let is = |of: AcceptanceRule| rule == of as i32;
    AcceptanceParams {
        rule,
        typical_epsilon: is(AcceptanceRule::Typical).then(|| draw.share()),
        typical_alpha: is(AcceptanceRule::Typical).then(|| draw.between(0.01, 1.0)),
        relaxed_top_n: is(AcceptanceRule::Relaxed).then(|| 1 + draw.below(20)),
        relaxed_delta: is(AcceptanceRule::Relaxed).then(|| draw.share()),
        relaxed_in_thinking_only: is(AcceptanceRule::Relaxed).then(|| draw.happens(0.5)),
        synthetic_rate: is(AcceptanceRule::Synthetic).then(|| draw.share()),
    }
}

/// A grammar over the texts of tokens, which consist of a and b.
fn grammar(draw: &mut Draw) -> GrammarParams {
    use grammar_params::Kind;
    let kind = match draw.below(8) {
        0 => None,
        1 => Some(Kind::Lark("start: pair+\npair: \"a\" pair \"b\" | \"ba\" | \"aab\"\n".to_owned())),
        2 => Some(Kind::JsonSchema("{}".to_owned())),
        3 => Some(Kind::Gbnf("root ::= pair+\npair ::= \"a\" pair? [ab]* \"b\" | [ab]{2,}\n".to_owned())),
        4 => Some(Kind::Choices("abba\nabab\nbaab\nb".to_owned())),
        _ => Some(Kind::Regex(draw.one_of(&["[ab]*", "(ab|ba|b)+", "a{3,9}b*", "(a|b){6}"]).to_owned())),
    };
    let start_token_ids = if draw.happens(0.2) { draw.tokens(1, 3) } else { vec![] };
    let start_sequences = if draw.happens(0.2) { sequences(draw, 3, 2) } else { vec![] };
    // A grammar without a kind begins nowhere.
    let is_at = start_token_ids.is_empty() && start_sequences.is_empty() && draw.happens(0.2);
    let start_position = if is_at { draw.below(6) } else { 0 };
    if kind.is_none() {
        return GrammarParams::default();
    }
    GrammarParams { kind, start_token_ids, start_sequences, start_position }
}

fn watermark(draw: &mut Draw) -> WatermarkParams {
    use watermark_params::Scheme;
    let kgw = |draw: &mut Draw| KgwParams {
        hashing_key: Some(draw.number()),
        greenlist_ratio: Some(draw.between(0.1, 0.9)),
        bias: Some(draw.edge(&[0.0, 2.0, 100.0], (0.0, 6.0))),
        seeding_scheme: draw.below(3) as i32,
        context_width: Some(1 + draw.below(4)),
    };
    let synthid = |draw: &mut Draw| SynthidParams {
        keys: (0..1 + draw.below(6)).map(|key| 7 * u64::from(key) + 1).collect(),
        ngram_len: Some(2 + draw.below(4)),
        context_history_size: Some(draw.below(9)),
        sampling_table_size: Some(draw.one_of(&[2, 100, 1024, 65_536])),
        sampling_table_seed: Some(draw.below(9)),
        skip_first_ngram_calls: draw.happens(0.5),
    };
    let gumbel = |draw: &mut Draw| GumbelParams {
        key: Some(draw.number()),
        context_width: Some(1 + draw.below(4)),
        context_history_size: Some(draw.below(9)),
    };
    let scheme = match draw.below(4) {
        0 => None,
        1 => Some(Scheme::Kgw(kgw(draw))),
        2 => Some(Scheme::Synthid(synthid(draw))),
        _ => Some(Scheme::Gumbel(gumbel(draw))),
    };
    WatermarkParams { scheme }
}

fn order(draw: &mut Draw) -> Vec<i32> {
    let mut kinds: Vec<i32> = (1..=21).collect();
    (1..kinds.len()).rev().for_each(|at| kinds.swap(at, draw.below(at as u32 + 1) as usize));
    // Mostly, every sampler has a place.
    if draw.happens(0.2) {
        kinds.truncate(draw.below(21) as usize);
    }
    kinds
}

/// Every parameter of the schema.
pub const FIELDS: [(&str, Set); 86] = [
    ("temperature", |p, d| p.temperature = Some(d.edge(&[0.0, 1.0, 1e-5, 1e5, 0.7, 0.005], (0.05, 3.0)))),
    ("top_k", |p, d| p.top_k = Some(if d.happens(0.4) { d.one_of(&[0, 1, 2, u32::MAX]) } else { d.below(60) })),
    ("top_p", |p, d| p.top_p = Some(d.share())),
    ("min_p", |p, d| p.min_p = Some(d.share())),
    ("repetition_penalty", |p, d| p.repetition_penalty = Some(d.edge(&[1.0, 1e-4, 1e4], (0.5, 2.0)))),
    ("frequency_penalty", |p, d| p.frequency_penalty = Some(d.edge(&[0.0, 1e4, -1e4], (-2.0, 2.0)))),
    ("presence_penalty", |p, d| p.presence_penalty = Some(d.edge(&[0.0, 1e4, -1e4], (-2.0, 2.0)))),
    ("logit_bias", |p, d| p.logit_bias = biases(d)),
    ("allowed_token_ids", |p, d| p.allowed_token_ids = d.once(1, 30)),
    ("banned_token_ids", |p, d| p.banned_token_ids = d.once(1, 6)),
    ("bad_words", |p, d| p.bad_words = sequences(d, 4, 3)),
    ("min_tokens", |p, d| p.min_tokens = Some(d.below(6))),
    ("max_tokens", |p, d| p.max_tokens = Some(if d.happens(0.3) { d.below(4) } else { 5 + d.below(30) })),
    ("stop_token_ids", |p, d| p.stop_token_ids = d.once(1, 3)),
    ("stop_token_sequences", |p, d| p.stop_token_sequences = sequences(d, 3, 3)),
    ("ignore_eos", |p, d| p.ignore_eos = Some(d.happens(0.5))),
    ("seed", |p, d| p.seed = Some(d.number())),
    ("logprobs", |p, d| {
        let mode = 1 + d.below(3) as i32;
        p.logprobs = Some(LogprobsParams { top_n: d.below(21), mode, token_ids: d.once(0, 5) });
    }),
    ("acceptance", |p, d| p.acceptance = Some(acceptance(d))),
    ("proposer", |p, d| {
        let kind = 1 + d.below(3) as i32;
        p.proposer = Some(ProposerParams { kind, max_draft_tokens: Some(1 + d.below(5)), ..Default::default() });
    }),
    ("draft_length", |p, d| {
        let (draft_cost, verify_cost) = (d.unit(), d.unit());
        p.draft_length = Some(DraftLengthParams { draft_cost, verify_cost, max_draft_tokens: None });
    }),
    ("dynatemp_low", |p, d| p.dynatemp_low = Some(d.edge(&[0.0, 1.0], (0.0, 1.0)))),
    ("dynatemp_high", |p, d| p.dynatemp_high = Some(d.edge(&[0.0, 1e-5, 1e5], (1.0, 3.0)))),
    ("dynatemp_exponent", |p, d| p.dynatemp_exponent = Some(d.edge(&[0.0, 1.0, 100.0], (0.0, 4.0)))),
    ("temperature_end", |p, d| p.temperature_end = Some(d.edge(&[1.0, 1e-5, 1e5], (0.1, 3.0)))),
    ("temperature_tokens", |p, d| p.temperature_tokens = Some(d.below(9))),
    ("smoothing_factor", |p, d| p.smoothing_factor = Some(d.edge(&[0.0, 100.0], (0.0, 2.0)))),
    ("smoothing_curve", |p, d| p.smoothing_curve = Some(d.edge(&[1.0, 3.0, 10.0], (1.0, 5.0)))),
    ("typical_p", |p, d| p.typical_p = Some(d.share())),
    ("tfs", |p, d| p.tfs = Some(d.share())),
    ("top_a", |p, d| p.top_a = Some(d.edge(&[0.0, 1e4], (0.0, 2.0)))),
    ("top_n_sigma", |p, d| p.top_n_sigma = Some(d.edge(&[0.0, 1e4], (0.1, 4.0)))),
    ("min_k", |p, d| p.min_k = Some(d.happens(0.7))),
    ("min_k_tau", |p, d| p.min_k_tau = Some(d.edge(&[0.0, 3.0, f32::MAX], (0.0, 60.0)))),
    ("epsilon_cutoff", |p, d| p.epsilon_cutoff = Some(d.share())),
    ("eta_cutoff", |p, d| p.eta_cutoff = Some(d.share())),
    ("top_h", |p, d| p.top_h = Some(d.share())),
    ("xtc_probability", |p, d| p.xtc_probability = Some(d.share())),
    ("xtc_threshold", |p, d| p.xtc_threshold = Some(d.share())),
    ("xtc_ignore_token_ids", |p, d| p.xtc_ignore_token_ids = d.once(1, 4)),
    ("min_keep", |p, d| p.min_keep = Some(if d.happens(0.5) { 1 + d.below(9) } else { d.one_of(&[1, 1 << 20]) })),
    ("sampler_order", |p, d| p.sampler_order = order(d)),
    ("engine_order", |p, d| p.engine_order = 1 + d.below(7) as i32),
    ("mirostat", |p, d| p.mirostat = Some(d.below(3))),
    ("mirostat_tau", |p, d| p.mirostat_tau = Some(d.edge(&[0.0, 100.0], (0.5, 6.0)))),
    ("mirostat_eta", |p, d| p.mirostat_eta = Some(d.edge(&[0.0, 100.0], (0.0, 1.0)))),
    ("adaptive_target", |p, d| p.adaptive_target = Some(d.edge(&[-1.0, 0.0, 1.0], (0.0, 1.0)))),
    ("adaptive_decay", |p, d| p.adaptive_decay = Some(d.edge(&[0.0, 0.99], (0.0, 0.99)))),
    ("top_p_decay", |p, d| p.top_p_decay = Some(d.share())),
    ("top_p_min", |p, d| p.top_p_min = Some(d.share())),
    ("top_p_reset_token_ids", |p, d| p.top_p_reset_token_ids = d.once(1, 4)),
    ("p_less", |p, d| p.p_less = Some(d.happens(0.7))),
    ("p_less_norm", |p, d| p.p_less_norm = Some(d.happens(0.7))),
    ("dry_multiplier", |p, d| p.dry_multiplier = Some(d.edge(&[0.0, 1e4], (0.1, 2.0)))),
    ("dry_base", |p, d| p.dry_base = Some(d.edge(&[1.0, 1e4], (1.0, 3.0)))),
    ("dry_allowed_length", |p, d| p.dry_allowed_length = Some(if d.happens(0.2) { 1024 } else { 1 + d.below(4) })),
    ("dry_penalty_last_n", |p, d| p.dry_penalty_last_n = Some(d.one_of(&[-1, 0, 3, 10, 32_768]))),
    ("dry_sequence_breakers", |p, d| p.dry_sequence_breakers = sequences(d, 3, 3)),
    ("dry_sequence_breaker_texts", |p, d| {
        p.dry_sequence_breaker_texts = (0..1 + d.below(3)).map(|_| d.below(200).to_string()).collect();
    }),
    ("penalty_last_n", |p, d| p.penalty_last_n = Some(d.one_of(&[0, 1, 5, 20, 1 << 20]))),
    ("penalty_decay_n", |p, d| p.penalty_decay_n = Some(d.one_of(&[0, 1, 7, 30]))),
    ("prompt_ignore_length", |p, d| p.prompt_ignore_length = Some(d.one_of(&[0, 1, 9, u32::MAX]))),
    ("encoder_repetition_penalty", |p, d| p.encoder_repetition_penalty = Some(d.edge(&[1.0, 1e-4, 1e4], (0.5, 2.0)))),
    ("no_repeat_ngram", |p, d| {
        let (size, prompt_size) = (d.one_of(&[0, 2, 3]), d.one_of(&[0, 0, 3]));
        let whitelist_token_ids = d.once(0, 3);
        p.no_repeat_ngram = Some(NoRepeatNgramParams { size, window: d.below(12), whitelist_token_ids, prompt_size });
    }),
    ("length_penalty", |p, d| {
        p.length_penalty = Some(LengthPenaltyParams { start: d.below(5), factor: d.between(0.5, 2.0) })
    }),
    ("sequence_bias", |p, d| {
        let one = |d: &mut Draw| SequenceBias { token_ids: d.tokens(1, 3), bias: d.between(-4.0, 4.0) };
        p.sequence_bias = vec![one(d), one(d)];
    }),
    ("token_ban_ranges", |p, d| {
        p.token_ban_ranges = vec![TokenBanRange { token_ids: d.once(1, 6), start: d.below(5), length: 1 + d.below(4) }]
    }),
    ("forced_first_token", |p, d| p.forced_first_token = Some(d.token())),
    ("forced_last_token", |p, d| p.forced_last_token = Some(d.token())),
    ("repetition_detection", |p, d| {
        let (max_pattern_size, min_count) = (1 + d.below(4), 2 + d.below(3));
        p.repetition_detection = Some(RepetitionDetectionParams { max_pattern_size, min_pattern_size: None, min_count })
    }),
    ("thinking_budget", |p, d| {
        let (start_token_ids, end_token_ids) = (d.tokens(1, 2), d.tokens(1, 2));
        let (budget, forced_token_ids) = (d.below(5), d.tokens(0, 2));
        p.thinking_budget = Some(ThinkingBudgetParams {
            start_token_ids,
            end_token_ids,
            budget,
            forced_token_ids,
            other_ends: sequences(d, 2, 2),
            temperature: d.happens(0.3).then(|| d.edge(&[0.0, 1e-5, 1e5, 1.0], (0.1, 2.0))),
            top_k: d.happens(0.3).then(|| d.below(30)),
            top_p: d.happens(0.3).then(|| d.share()),
            min_p: d.happens(0.3).then(|| d.share()),
        });
    }),
    ("return_sampler_state", |p, d| p.return_sampler_state = Some(d.happens(0.5))),
    ("report", |p, d| {
        p.report = Some(ReportParams {
            support_size: d.happens(0.5),
            max_surviving_token_ids: d.one_of(&[0, 3, 4096]),
            entropy: d.happens(0.5),
            why_not_token_ids: d.once(0, 4),
        })
    }),
    ("skew", |p, d| p.skew = Some(d.edge(&[0.0, 10.0, -10.0], (-2.0, 2.0)))),
    ("xtc_expected", |p, d| p.xtc_expected = Some(d.happens(0.7))),
    ("infill", |p, d| p.infill = Some(d.happens(0.8))),
    ("penalties_count_prompt", |p, d| p.penalties_count_prompt = Some(d.happens(0.7))),
    ("subtract_penalties_first", |p, d| p.subtract_penalties_first = Some(d.happens(0.7))),
    ("bias_after_penalties", |p, d| p.bias_after_penalties = Some(d.happens(0.7))),
    ("min_eos_p", |p, d| p.min_eos_p = Some(d.share())),
    ("dry_max_ngram", |p, d| p.dry_max_ngram = Some(d.one_of(&[0, 3, 5, 32_768]))),
    ("dry_max_occurrences", |p, d| p.dry_max_occurrences = Some(d.one_of(&[0, 1, 2, 1024]))),
    ("dry_early_exit_match_len", |p, d| p.dry_early_exit_match_len = Some(d.one_of(&[0, 1, 2, 4, 512]))),
    ("grammar", |p, d| p.grammar = Some(grammar(d))),
    ("preset", |p, d| p.preset = d.one_of(&["chat", "creative", "brainstorming", "extraction"]).to_owned()),
    ("watermark", |p, d| p.watermark = Some(watermark(d))),
];
