//! Which values of the parameters are valid: every range is checked here and nowhere else.

use super::history::MAX_PATTERN_TOKENS;
use super::*;
use std::fmt::Display;

impl SamplingParams {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to the parameters.
    pub fn validate(&self, vocab_size: u32, max_top_logprobs: u32) -> Result<(), FieldError> {
        self.validate_scalars()?;
        self.samplers.validate(vocab_size)?;
        self.validate_temperatures()?;
        self.validate_order()?;
        self.validate_lists(vocab_size)?;
        self.history.validate(vocab_size)?;
        self.acceptance.validate().map_err(|e| e.within("acceptance"))?;
        self.validate_watermark()?;
        if let Some(budget) = &self.history.thinking_budget {
            self.validate_thinking(&budget.filters, &self.samplers.xtc_ignore_token_ids)?;
        }
        if let Some(proposer) = &self.proposer {
            proposer.validate().map_err(|e| e.within("proposer"))?;
        }
        if let Some(draft_length) = &self.draft_length {
            draft_length.validate().map_err(|e| e.within("draft_length"))?;
        }
        match &self.logprobs {
            Some(logprobs) => logprobs.validate(vocab_size, max_top_logprobs).map_err(|e| e.within("logprobs")),
            None => Ok(()),
        }
    }

    fn validate_scalars(&self) -> Result<(), FieldError> {
        check_filters(self.temperature, self.top_p, self.min_p)?;
        // The least repetition penalty is the inverse of the largest.
        in_range(
            "repetition_penalty",
            self.repetition_penalty,
            MAX_REPETITION_PENALTY.recip(),
            MAX_REPETITION_PENALTY,
            "",
        )?;
        in_range("frequency_penalty", self.frequency_penalty, -MAX_ADDITIVE_PENALTY, MAX_ADDITIVE_PENALTY, "")?;
        in_range("presence_penalty", self.presence_penalty, -MAX_ADDITIVE_PENALTY, MAX_ADDITIVE_PENALTY, "")?;
        if self.max_tokens > 0 && self.min_tokens > self.max_tokens {
            let message = format!("is {}, above max_tokens {}; lower it", self.min_tokens, self.max_tokens);
            return Err(FieldError::new("min_tokens", message));
        }
        if self.history.forced_last_token.is_some() && self.max_tokens == 0 {
            return Err(FieldError::new(
                "forced_last_token",
                "needs max_tokens to know which token is the last; set it",
            ));
        }
        Ok(())
    }

    fn validate_lists(&self, vocab_size: u32) -> Result<(), FieldError> {
        let biased: Vec<u32> = self.logit_bias.iter().map(|&(token, _)| token).collect();
        check_tokens("logit_bias", &biased, vocab_size)?;
        for (i, &(_, bias)) in self.logit_bias.iter().enumerate() {
            in_range(
                &format!("logit_bias[{i}].bias"),
                bias,
                -MAX_LOGIT_BIAS,
                MAX_LOGIT_BIAS,
                " (to forbid a token use banned_token_ids)",
            )?;
        }
        if let Some(token) = first_duplicate(biased) {
            return Err(FieldError::new("logit_bias", format!("token {token} is given twice; give it once")));
        }
        check_tokens("allowed_token_ids", &self.allowed_token_ids, vocab_size)?;
        check_tokens("banned_token_ids", &self.banned_token_ids, vocab_size)?;
        check_len("allowed_token_ids", self.allowed_token_ids.len(), vocab_size as usize)?;
        check_len("banned_token_ids", self.banned_token_ids.len(), vocab_size as usize)?;
        check_tokens("stop_token_ids", &self.stop_token_ids, vocab_size)?;
        check_len("stop_token_ids", self.stop_token_ids.len(), MAX_STOP_TOKEN_IDS)?;
        check_sequences("bad_words", &self.bad_words, MAX_BAD_WORDS, vocab_size)
    }
}

impl LogprobsParams {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to the logprobs parameters.
    pub fn validate(&self, vocab_size: u32, max_top_logprobs: u32) -> Result<(), FieldError> {
        if self.top_n > max_top_logprobs {
            let message =
                format!("is {}, above the server's max_top_logprobs {max_top_logprobs}; lower it", self.top_n);
            return Err(FieldError::new("top_n", message));
        }
        check_len("token_ids", self.token_ids.len(), MAX_LOGPROB_TOKEN_IDS)?;
        check_tokens("token_ids", &self.token_ids, vocab_size)
    }
}

/// Checks that every id is a token of the vocabulary.
///
/// # Errors
/// The first id that is not.
pub fn check_tokens(field: &str, tokens: &[u32], vocab_size: u32) -> Result<(), FieldError> {
    match tokens.iter().position(|&token| token >= vocab_size) {
        Some(i) => {
            let message = format!("token id {} is outside the vocabulary of {vocab_size}", tokens[i]);
            Err(FieldError::new(format!("{field}[{i}]"), message))
        }
        None => Ok(()),
    }
}

/// Checks temperature and truncation. Top-k is not checked, because every value is valid.
pub(super) fn check_filters(temperature: f32, top_p: f32, min_p: f32) -> Result<(), FieldError> {
    if temperature != 0.0 {
        in_range("temperature", temperature, MIN_TEMPERATURE, MAX_TEMPERATURE, " (or 0 for greedy)")?;
    }
    in_range("top_p", top_p, 0.0, 1.0, "")?;
    in_range("min_p", min_p, 0.0, 1.0, "")
}

pub(super) fn check_len(field: &str, len: usize, most: usize) -> Result<(), FieldError> {
    if len > most {
        return Err(FieldError::new(field, format!("has {len} entries, at most {most} are allowed")));
    }
    Ok(())
}

pub(super) fn in_range<T: PartialOrd + Copy + Display>(
    field: &str,
    value: T,
    low: T,
    high: T,
    hint: &str,
) -> Result<(), FieldError> {
    // NaN is in no range.
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(FieldError::new(field, format!("is {value}, must be in {low} ..= {high}{hint}")))
}

fn first_duplicate(mut tokens: Vec<u32>) -> Option<u32> {
    tokens.sort_unstable();
    tokens.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// Checks one token sequence: 1 ..= [`MAX_PATTERN_TOKENS`] tokens, all in the vocabulary.
pub(super) fn check_pattern(field: &str, tokens: &[u32], vocab_size: u32) -> Result<(), FieldError> {
    if tokens.is_empty() {
        return Err(FieldError::new(field, "is empty; leave it out or give its tokens"));
    }
    check_len(field, tokens.len(), MAX_PATTERN_TOKENS)?;
    check_tokens(field, tokens, vocab_size)
}

/// Checks a list of token sequences, each of which is a message of its own. There may be at most `most`.
pub(super) fn check_sequences(field: &str, all: &[Vec<u32>], most: usize, vocab_size: u32) -> Result<(), FieldError> {
    check_len(field, all.len(), most)?;
    let each = |(i, tokens): (usize, &Vec<u32>)| check_pattern(&format!("{field}[{i}].token_ids"), tokens, vocab_size);
    all.iter().enumerate().try_for_each(each)
}

/// Checks a list of texts, at most `most`, each of 1 ..= `most_bytes` bytes.
pub(super) fn check_texts(field: &str, texts: &[String], most: usize, most_bytes: usize) -> Result<(), FieldError> {
    check_len(field, texts.len(), most)?;
    for (i, text) in texts.iter().enumerate() {
        let at = format!("{field}[{i}]");
        if text.is_empty() {
            return Err(FieldError::new(at, "is empty; leave it out or give a text"));
        }
        if text.len() > most_bytes {
            let message = format!("has {} bytes, at most {most_bytes} are allowed", text.len());
            return Err(FieldError::new(at, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::acceptance::Synthetic;
    use super::grammar::{GrammarKind, GrammarParams, GrammarStart};
    use super::report::ReportParams;
    use super::steering::{
        LengthPenalty, NoRepeatNgram, RepetitionDetection, SequenceBias, ThinkingBudget, TokenBanRange,
    };
    use super::watermark::{SynthidParams, Watermark};
    use super::*;
    use std::sync::Arc;

    fn field_at_fault(change: impl FnOnce(&mut SamplingParams)) -> Option<String> {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.validate(100, 20).err().map(|e| e.field)
    }

    #[test]
    fn each_range_is_checked_and_named() {
        assert_eq!(field_at_fault(|_| ()), None);
        for bad in [-1.0, f32::NAN, f32::INFINITY, 1e-45, 1e-6, 1e6] {
            assert_eq!(field_at_fault(|p| p.temperature = bad).as_deref(), Some("temperature"), "{bad}");
        }
        for good in [0.0, -0.0, 1e-5, 1e5] {
            assert_eq!(field_at_fault(|p| p.temperature = good), None, "{good}");
        }
        for bad in [-0.1, 1.1, f32::NAN] {
            assert_eq!(field_at_fault(|p| p.top_p = bad).as_deref(), Some("top_p"));
            assert_eq!(field_at_fault(|p| p.min_p = bad).as_deref(), Some("min_p"));
        }
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(field_at_fault(|p| p.repetition_penalty = bad).as_deref(), Some("repetition_penalty"));
        }
        for bad in [f32::NAN, 1e5, -1e5] {
            assert_eq!(field_at_fault(|p| p.frequency_penalty = bad).as_deref(), Some("frequency_penalty"));
            assert_eq!(field_at_fault(|p| p.presence_penalty = bad).as_deref(), Some("presence_penalty"));
        }
        assert_eq!(field_at_fault(|p| (p.min_tokens, p.max_tokens) = (3, 2)).as_deref(), Some("min_tokens"));
    }

    /// Fields for which every value is valid.
    const ANY_VALUE: [&str; 14] = [
        "top_k",
        "max_tokens",
        "ignore_eos",
        "seed",
        "prompt_ignore_length",
        "penalties_count_prompt",
        "subtract_penalties_first",
        "bias_after_penalties",
        "p_less",
        "p_less_norm",
        "min_k",
        "infill",
        "return_sampler_state",
        "xtc_expected",
    ];

    #[test]
    fn every_field_has_a_range_or_is_known_to_have_none() {
        let logprobs = Some(LogprobsParams { top_n: 21, mode: LogprobsMode::Raw, token_ids: vec![] });
        type Change = fn(&mut SamplingParams);
        let out_of_range: [(&str, Change); 69] = [
            ("temperature", |p| p.temperature = -1.0),
            ("top_p", |p| p.top_p = 2.0),
            ("min_p", |p| p.min_p = 2.0),
            ("repetition_penalty", |p| p.repetition_penalty = 0.0),
            ("frequency_penalty", |p| p.frequency_penalty = 1e5),
            ("presence_penalty", |p| p.presence_penalty = 1e5),
            ("logit_bias", |p| p.logit_bias = vec![(100, 0.0)]),
            ("allowed_token_ids", |p| p.allowed_token_ids = vec![100]),
            ("banned_token_ids", |p| p.banned_token_ids = vec![100]),
            ("bad_words", |p| p.bad_words = vec![vec![100]]),
            ("min_tokens", |p| (p.min_tokens, p.max_tokens) = (2, 1)),
            ("stop_token_ids", |p| p.stop_token_ids = vec![100]),
            ("proposer", |p| {
                p.proposer = Some(ProposerParams { min_match: 0, ..ProposerParams::new(ProposerKind::Ngram) })
            }),
            ("draft_length", |p| p.draft_length = Some(DraftLengthParams::new(-1.0))),
            ("acceptance", |p| p.acceptance = AcceptanceRule::Synthetic(Synthetic { rate: 2.0 })),
            ("dynatemp_low", |p| (p.samplers.dynatemp_low, p.samplers.dynatemp_high) = (2.0, 1.0)),
            ("dynatemp_high", |p| p.samplers.dynatemp_high = 1e6),
            ("dynatemp_exponent", |p| p.samplers.dynatemp_exponent = -1.0),
            ("temperature_end", |p| p.samplers.temperature_end = 0.0),
            ("temperature_tokens", |p| (p.temperature, p.samplers.temperature_tokens) = (0.0, 1)),
            ("smoothing_factor", |p| p.samplers.smoothing_factor = -1.0),
            ("smoothing_curve", |p| p.samplers.smoothing_curve = 0.5),
            ("typical_p", |p| p.samplers.typical_p = f32::NAN),
            ("tfs", |p| p.samplers.tfs = 1.5),
            ("top_a", |p| p.samplers.top_a = -0.1),
            ("top_n_sigma", |p| p.samplers.top_n_sigma = f32::INFINITY),
            ("min_k_tau", |p| p.samplers.min_k_tau = f32::INFINITY),
            ("epsilon_cutoff", |p| p.samplers.epsilon_cutoff = 3.0),
            ("eta_cutoff", |p| p.samplers.eta_cutoff = -1.0),
            ("top_h", |p| p.samplers.top_h = 1.01),
            ("xtc_probability", |p| p.samplers.xtc_probability = 2.0),
            ("xtc_threshold", |p| p.samplers.xtc_threshold = -2.0),
            ("xtc_ignore_token_ids", |p| p.samplers.xtc_ignore_token_ids = vec![100]),
            ("min_keep", |p| p.samplers.min_keep = 0),
            ("mirostat", |p| p.samplers.mirostat = 3),
            ("mirostat_tau", |p| p.samplers.mirostat_tau = -1.0),
            ("mirostat_eta", |p| p.samplers.mirostat_eta = f32::NAN),
            ("adaptive_target", |p| p.samplers.adaptive_target = -1.5),
            ("adaptive_decay", |p| p.samplers.adaptive_decay = 1.0),
            ("top_p_decay", |p| p.samplers.top_p_decay = 1.1),
            ("top_p_min", |p| p.samplers.top_p_min = -0.1),
            ("top_p_reset_token_ids", |p| p.samplers.top_p_reset_token_ids = vec![100]),
            ("min_eos_p", |p| p.samplers.min_eos_p = 1.5),
            ("skew", |p| p.samplers.skew = 10.5),
            ("report", |p| {
                let report = ReportParams { why_not_token_ids: vec![100], ..ReportParams::default() };
                p.samplers.report = Some(Box::new(report));
            }),
            ("sampler_order", |p| {
                p.samplers.sampler_order = SamplerOrder::Custom(vec![Sampler::TopK; 2], EngineOrder::Croupier)
            }),
            ("dry_multiplier", |p| p.history.dry_multiplier = -1.0),
            ("dry_base", |p| p.history.dry_base = 0.5),
            ("dry_allowed_length", |p| p.history.dry_allowed_length = 0),
            ("dry_penalty_last_n", |p| p.history.dry_penalty_last_n = -2),
            ("dry_sequence_breakers", |p| p.history.dry_sequence_breakers = vec![vec![100]]),
            ("dry_sequence_breaker_texts", |p| p.history.dry_sequence_breaker_texts = vec![String::new()]),
            ("dry_max_ngram", |p| p.history.dry_max_ngram = u32::MAX),
            ("dry_max_occurrences", |p| p.history.dry_max_occurrences = u32::MAX),
            ("dry_early_exit_match_len", |p| p.history.dry_early_exit_match_len = u32::MAX),
            ("penalty_last_n", |p| p.history.penalty_last_n = u32::MAX),
            ("penalty_decay_n", |p| (p.history.penalty_last_n, p.history.penalty_decay_n) = (1, 65_535)),
            ("encoder_repetition_penalty", |p| p.history.encoder_repetition_penalty = 0.0),
            ("no_repeat_ngram", |p| {
                p.history.no_repeat_ngram = Some(Box::new(NoRepeatNgram { size: 65, ..Default::default() }))
            }),
            ("length_penalty", |p| p.history.length_penalty = Some(LengthPenalty { start: 0, factor: 0.0 })),
            ("sequence_bias", |p| p.history.sequence_bias = vec![SequenceBias::default()]),
            ("token_ban_ranges", |p| p.history.token_ban_ranges = vec![TokenBanRange::default()]),
            ("forced_first_token", |p| p.history.forced_first_token = Some(100)),
            ("forced_last_token", |p| p.history.forced_last_token = Some(1)),
            ("repetition_detection", |p| {
                p.history.repetition_detection =
                    Some(RepetitionDetection { max_pattern_size: 1, min_pattern_size: 2, min_count: 2 })
            }),
            ("stop_token_sequences", |p| p.history.stop_token_sequences = vec![vec![100]]),
            ("thinking_budget", |p| {
                p.history.thinking_budget = Some(Box::new(ThinkingBudget { budget: 1, ..Default::default() }))
            }),
            ("grammar", |p| {
                let (kind, start) = (GrammarKind::Lark, GrammarStart::default());
                let grammar = GrammarParams { kind, text: String::new(), start };
                p.history.grammar = Some(Arc::new(grammar));
            }),
            ("watermark", |p| p.history.watermark = Some(Arc::new(Watermark::Synthid(SynthidParams::new(vec![]))))),
        ];
        for (field, change) in out_of_range {
            assert!(field_at_fault(change).expect("a mistake").starts_with(field), "{field}");
        }
        assert_eq!(field_at_fault(|p| p.logprobs = logprobs).as_deref(), Some("logprobs.top_n"));
        let checked = out_of_range.iter().map(|(field, _)| *field).chain(["logprobs"]).chain(ANY_VALUE);
        let (mut checked, mut all): (Vec<_>, _) = (checked.collect(), SamplingParams::field_names());
        checked.sort_unstable();
        all.sort_unstable();
        assert_eq!(checked, all, "a field without a range belongs in ANY_VALUE");
    }

    #[test]
    fn each_list_is_checked_and_named() {
        let logprobs = |top_n, token_ids| Some(LogprobsParams { top_n, mode: LogprobsMode::Raw, token_ids });
        type Change = fn(&mut SamplingParams);
        let cases: [(&str, Change); 8] = [
            ("logit_bias[1]", |p| p.logit_bias = vec![(1, 0.0), (100, 0.0)]),
            ("logit_bias[0].bias", |p| p.logit_bias = vec![(1, f32::NEG_INFINITY)]),
            ("logit_bias", |p| p.logit_bias = vec![(1, 0.0), (1, 1.0)]),
            ("allowed_token_ids[0]", |p| p.allowed_token_ids = vec![u32::MAX]),
            ("banned_token_ids[0]", |p| p.banned_token_ids = vec![100]),
            ("stop_token_ids[0]", |p| p.stop_token_ids = vec![100]),
            ("bad_words[0].token_ids", |p| p.bad_words = vec![vec![]]),
            ("bad_words[1].token_ids[1]", |p| p.bad_words = vec![vec![1], vec![1, 100]]),
        ];
        for (field, change) in cases {
            assert_eq!(field_at_fault(change).as_deref(), Some(field));
        }
        assert_eq!(field_at_fault(|p| p.logprobs = logprobs(21, vec![])).as_deref(), Some("logprobs.top_n"));
        assert_eq!(field_at_fault(|p| p.logprobs = logprobs(1, vec![100])).as_deref(), Some("logprobs.token_ids[0]"));
    }
}
