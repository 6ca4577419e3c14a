//! Parameters of the tools that work on a text's history: what may be repeated, and what may not. The formulas of each
//! tool are documented at its file in [`sequence`](crate::sequence). The ranges are checked here.

use super::check::{check_len, check_sequences, check_texts, in_range};
use super::grammar::GrammarParams;
use super::rare::Off;
use super::steering::{
    LengthPenalty, MAX_BAN_RANGES, MAX_BAN_RANGES_TOKENS, MAX_SEQUENCE_BIASES, NoRepeatNgram, RepetitionDetection,
    SequenceBias, ThinkingBudget, TokenBanRange,
};
use super::watermark::Watermark;
use super::{FieldError, MAX_REPETITION_PENALTY};
use std::sync::Arc;

/// Largest `dry_multiplier`.
pub const MAX_DRY_MULTIPLIER: f32 = 1e4;
/// Largest `dry_base`.
pub const MAX_DRY_BASE: f32 = 1e4;
/// Largest `dry_allowed_length`.
pub const MAX_DRY_ALLOWED_LENGTH: u32 = 1024;
/// Most tokens over which penalties fall off, together with the tokens before these. A place among them takes 16 bits.
pub const MAX_DECAY_WINDOW: u32 = (1 << 16) - 1;
/// Most sequence breakers of DRY that are given as tokens.
pub const MAX_DRY_BREAKERS: usize = 1024;
/// Most sequence breakers of DRY that are given as texts.
pub const MAX_DRY_BREAKER_TEXTS: usize = 64;
/// Most bytes of one of these texts.
pub const MAX_DRY_BREAKER_BYTES: usize = 64;
/// Largest `dry_max_occurrences`. Each token takes up to that many steps.
pub const MAX_DRY_OCCURRENCES: u32 = 1024;
/// Largest `dry_early_exit_match_len`. The lengths of repeats are distinguished up to this length.
pub const MAX_DRY_EXIT: u32 = 512;
/// Most `stop_token_sequences`.
pub const MAX_STOP_SEQUENCES: usize = 64;
/// Most tokens of one token sequence in this file, and of a bad word.
pub const MAX_PATTERN_TOKENS: usize = 64;
/// Longest window of penalties over the last tokens of a text.
pub const MAX_WINDOW: u32 = 1 << 20;
/// How far back DRY and n-gram bans look at most, whatever the parameters ask for. This bounds the cost of a token in a
/// text that only repeats one loop, and the size of what each row that looks ahead copies from it.
pub const MAX_LOOK_BACK: u32 = 1 << 15;

/// The fields of the wire's `SamplingParams` with the same names. [`Default`] is everything off.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryParams {
    /// Factor of DRY's penalty. 0 ..= 1e4; 0: DRY is off.
    pub dry_multiplier: f32,
    /// Base of DRY's penalty. 1 ..= 1e4.
    pub dry_base: f32,
    /// The longest repeat that costs nothing, in tokens. DRY penalises a token that would extend it. 1 ..= 1024.
    pub dry_allowed_length: u32,
    /// How many of the last tokens DRY looks at. −1: the maximum, 32,768; 0: DRY is off.
    pub dry_penalty_last_n: i32,
    /// DRY's sequence breakers: no repeat reaches across one of these.
    pub dry_sequence_breakers: Vec<Vec<u32>>,
    /// More of them, given as texts. They need the texts of tokens.
    pub dry_sequence_breaker_texts: Vec<String>,
    /// DRY compares this many tokens before the last one. More than `dry_allowed_length`, at most 32,768. 0: all.
    pub dry_max_ngram: u32,
    /// DRY looks at this many earlier occurrences of the last token, the latest ones. At most 1024. 0: all.
    pub dry_max_occurrences: u32,
    /// DRY's search ends at a repeat of this many tokens. At most 512. 0: it looks at all repeats.
    pub dry_early_exit_match_len: u32,
    /// How many of the last tokens penalties see at full strength. At most 2^20. 0: all.
    pub penalty_last_n: u32,
    /// The number of tokens before these over which the penalties' strength falls off. Together at most 65,535. 0:
    /// none.
    pub penalty_decay_n: u32,
    /// The repetition penalty does not see this many tokens at the start of the prompt, and the other two penalties do
    /// not count them. 0: none are left out.
    pub prompt_ignore_length: u32,
    /// Whether frequency and presence penalties also count the part of the prompt that the repetition penalty sees.
    /// `None`: as the engine of the order does, see
    /// [`SamplingParams::counts_prompt`](super::SamplingParams::counts_prompt).
    pub penalties_count_prompt: Option<bool>,
    /// Whether frequency and presence penalties are subtracted before the repetition penalty divides. `None`: as the
    /// engine of the order does, see [`SamplingParams::penalties`](super::SamplingParams::penalties).
    pub subtract_penalties_first: Option<bool>,
    /// Whether `logit_bias` and `sequence_bias` are added after all penalties. `None`: as the engine of the order does,
    /// see [`SamplingParams::biases_late`](super::SamplingParams::biases_late).
    pub bias_after_penalties: Option<bool>,
    /// Multiplies positive logits of the prompt's tokens and divides their other logits. 1e-4 ..= 1e4; 1: off.
    pub encoder_repetition_penalty: f32,
    /// No n-gram appears twice. `None`: off.
    pub no_repeat_ngram: Option<Box<NoRepeatNgram>>,
    /// EOS becomes more likely with length. `None`: off.
    pub length_penalty: Option<LengthPenalty>,
    /// Biases on tokens that follow certain other tokens.
    pub sequence_bias: Vec<SequenceBias>,
    /// Tokens banned at some positions of the output.
    pub token_ban_ranges: Vec<TokenBanRange>,
    /// The first output token.
    pub forced_first_token: Option<u32>,
    /// The token at which `max_tokens` is reached. It needs `max_tokens`.
    pub forced_last_token: Option<u32>,
    /// The text ends when it only repeats itself. `None`: off.
    pub repetition_detection: Option<RepetitionDetection>,
    /// The text ends when its output ends with one of these token sequences.
    pub stop_token_sequences: Vec<Vec<u32>>,
    /// How long the text may think. `None`: any number of tokens.
    pub thinking_budget: Option<Box<ThinkingBudget>>,
    /// The grammar that the text has to match. `None`: any text. Sequences that inherit a grammar share one copy.
    pub grammar: Option<Arc<GrammarParams>>,
    /// The watermark of the text. `None`: no watermark. Sequences that inherit a watermark share one copy.
    pub watermark: Option<Arc<Watermark>>,
}

impl Default for HistoryParams {
    fn default() -> Self {
        Self::OFF.clone()
    }
}

impl Off for HistoryParams {
    const OFF: &'static Self = &Self {
        dry_multiplier: 0.0,
        dry_base: 1.75,
        dry_allowed_length: 2,
        dry_penalty_last_n: -1,
        dry_sequence_breakers: Vec::new(),
        dry_sequence_breaker_texts: Vec::new(),
        dry_max_ngram: 0,
        dry_max_occurrences: 0,
        dry_early_exit_match_len: 0,
        penalty_last_n: 0,
        penalty_decay_n: 0,
        prompt_ignore_length: 0,
        penalties_count_prompt: None,
        subtract_penalties_first: None,
        bias_after_penalties: None,
        encoder_repetition_penalty: 1.0,
        no_repeat_ngram: None,
        length_penalty: None,
        sequence_bias: Vec::new(),
        token_ban_ranges: Vec::new(),
        forced_first_token: None,
        forced_last_token: None,
        repetition_detection: None,
        stop_token_sequences: Vec::new(),
        thinking_budget: None,
        grammar: None,
        watermark: None,
    };
}

impl HistoryParams {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to the parameters.
    pub fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        in_range("dry_multiplier", self.dry_multiplier, 0.0, MAX_DRY_MULTIPLIER, "")?;
        in_range("dry_base", self.dry_base, 1.0, MAX_DRY_BASE, "")?;
        in_range("dry_allowed_length", self.dry_allowed_length, 1, MAX_DRY_ALLOWED_LENGTH, "")?;
        let hint = " (-1: as many as allowed, 0: off)";
        in_range("dry_penalty_last_n", self.dry_penalty_last_n, -1, MAX_LOOK_BACK as i32, hint)?;
        check_sequences("dry_sequence_breakers", &self.dry_sequence_breakers, MAX_DRY_BREAKERS, vocab_size)?;
        let (texts, most) = (&self.dry_sequence_breaker_texts, MAX_DRY_BREAKER_TEXTS);
        check_texts("dry_sequence_breaker_texts", texts, most, MAX_DRY_BREAKER_BYTES)?;
        self.validate_search()?;
        self.validate_penalties()?;
        self.validate_steering(vocab_size)
    }

    fn validate_steering(&self, vocab_size: u32) -> Result<(), FieldError> {
        if let Some(ngram) = &self.no_repeat_ngram {
            ngram.validate(vocab_size).map_err(|e| e.within("no_repeat_ngram"))?;
        }
        if let Some(length) = &self.length_penalty {
            length.validate().map_err(|e| e.within("length_penalty"))?;
        }
        check_len("sequence_bias", self.sequence_bias.len(), MAX_SEQUENCE_BIASES)?;
        for (i, biased) in self.sequence_bias.iter().enumerate() {
            biased.validate(vocab_size).map_err(|e| e.within(&format!("sequence_bias[{i}]")))?;
        }
        self.validate_bans(vocab_size)?;
        if let Some(detection) = &self.repetition_detection {
            detection.validate().map_err(|e| e.within("repetition_detection"))?;
        }
        check_sequences("stop_token_sequences", &self.stop_token_sequences, MAX_STOP_SEQUENCES, vocab_size)?;
        if let Some(budget) = &self.thinking_budget {
            budget.validate(vocab_size).map_err(|e| e.within("thinking_budget"))?;
        }
        if let Some(grammar) = &self.grammar {
            grammar.validate(vocab_size).map_err(|e| e.within("grammar"))?;
        }
        match &self.watermark {
            Some(mark) => mark.validate().map_err(|e| e.within("watermark")),
            None => Ok(()),
        }
    }

    /// Checks the tokens that are banned, or forced, at some positions.
    fn validate_bans(&self, vocab_size: u32) -> Result<(), FieldError> {
        check_len("token_ban_ranges", self.token_ban_ranges.len(), MAX_BAN_RANGES)?;
        for (i, range) in self.token_ban_ranges.iter().enumerate() {
            range.validate(vocab_size).map_err(|e| e.within(&format!("token_ban_ranges[{i}]")))?;
        }
        let banned: usize = self.token_ban_ranges.iter().map(|range| range.token_ids.len()).sum();
        if banned > MAX_BAN_RANGES_TOKENS {
            let message = format!(
                "have {banned} token ids together, at most {MAX_BAN_RANGES_TOKENS} are allowed; use banned_token_ids for bans everywhere"
            );
            return Err(FieldError::new("token_ban_ranges", message));
        }
        for (field, token) in
            [("forced_first_token", self.forced_first_token), ("forced_last_token", self.forced_last_token)]
        {
            if let Some(token) = token.filter(|&token| token >= vocab_size) {
                let message = format!("token id {token} is outside the vocabulary of {vocab_size}");
                return Err(FieldError::new(field, message));
            }
        }
        Ok(())
    }

    /// Checks the bounds of DRY's search.
    fn validate_search(&self) -> Result<(), FieldError> {
        in_range("dry_max_ngram", self.dry_max_ngram, 0, MAX_LOOK_BACK, " (0: no limit)")?;
        in_range("dry_max_occurrences", self.dry_max_occurrences, 0, MAX_DRY_OCCURRENCES, " (0: all)")?;
        in_range("dry_early_exit_match_len", self.dry_early_exit_match_len, 0, MAX_DRY_EXIT, " (0: never)")?;
        let (most, allowed) = (self.dry_max_ngram, self.dry_allowed_length);
        if self.dry_window().is_some() && most > 0 && most <= allowed {
            let message = format!(
                "is {most}, must be above dry_allowed_length {allowed}, or DRY has no effect; raise it, or set 0 for no limit"
            );
            return Err(FieldError::new("dry_max_ngram", message));
        }
        Ok(())
    }

    fn validate_penalties(&self) -> Result<(), FieldError> {
        in_range("penalty_last_n", self.penalty_last_n, 0, MAX_WINDOW, " (0: the whole text)")?;
        if self.penalty_decay_n > 0 {
            if self.penalty_last_n == 0 {
                let message =
                    "is 0, but penalty_decay_n takes effect only beyond it; set it, or leave penalty_decay_n out";
                return Err(FieldError::new("penalty_last_n", message));
            }
            let most = MAX_DECAY_WINDOW.saturating_sub(self.penalty_last_n);
            let hint = format!(" ({MAX_DECAY_WINDOW} minus penalty_last_n)");
            in_range("penalty_decay_n", self.penalty_decay_n, 0, most, &hint)?;
        }
        let (least, most) = (MAX_REPETITION_PENALTY.recip(), MAX_REPETITION_PENALTY);
        in_range("encoder_repetition_penalty", self.encoder_repetition_penalty, least, most, "")
    }

    /// How many of the last tokens DRY looks at. `None`: DRY is off.
    #[must_use]
    pub fn dry_window(&self) -> Option<usize> {
        let window = u32::try_from(self.dry_penalty_last_n).unwrap_or(MAX_LOOK_BACK) as usize;
        (self.dry_multiplier > 0.0 && window > 0).then_some(window)
    }

    /// Bytes that the lists take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let (breakers, stops) = (&self.dry_sequence_breakers, &self.stop_token_sequences);
        let (biases, ranges) = (&self.sequence_bias, &self.token_ban_ranges);
        let texts = &self.dry_sequence_breaker_texts;
        let ngram = self.no_repeat_ngram.as_ref();
        let thinking = self.thinking_budget.as_ref();
        let lists = breakers
            .iter()
            .chain(stops)
            .chain(biases.iter().map(|b| &b.token_ids))
            .chain(ranges.iter().map(|r| &r.token_ids));
        let lists = lists.chain(ngram.map(|ngram| &ngram.whitelist));
        let lists = lists.chain(thinking.iter().flat_map(|thinking| thinking.lists()));
        lists.map(Vec::capacity).sum::<usize>() * size_of::<u32>()
            + (breakers.capacity() + stops.capacity()) * size_of::<Vec<u32>>()
            + texts.capacity() * size_of::<String>()
            + texts.iter().map(String::capacity).sum::<usize>()
            + biases.capacity() * size_of::<SequenceBias>()
            + ranges.capacity() * size_of::<TokenBanRange>()
            + ngram.map_or(0, |_| size_of::<NoRepeatNgram>())
            + thinking.map_or(0, |t| size_of::<ThinkingBudget>() + t.other_ends.capacity() * size_of::<Vec<u32>>())
            + self.grammar.as_ref().map_or(0, |grammar| grammar.bytes())
            + self.watermark.as_ref().map_or(0, |mark| mark.bytes())
    }

    /// Names of all fields, so that tests can check that they cover each one.
    #[cfg(test)]
    pub(crate) fn field_names() -> Vec<&'static str> {
        // The pattern below does not compile if a field is missing.
        macro_rules! names {
            ($($field:ident),* $(,)?) => {{
                let HistoryParams { $($field: _),* } = Self::default();
                vec![$(stringify!($field)),*]
            }};
        }
        names!(
            dry_multiplier,
            dry_base,
            dry_allowed_length,
            dry_penalty_last_n,
            dry_sequence_breakers,
            dry_sequence_breaker_texts,
            dry_max_ngram,
            dry_max_occurrences,
            dry_early_exit_match_len,
            penalty_last_n,
            penalty_decay_n,
            prompt_ignore_length,
            penalties_count_prompt,
            subtract_penalties_first,
            bias_after_penalties,
            encoder_repetition_penalty,
            no_repeat_ngram,
            length_penalty,
            sequence_bias,
            token_ban_ranges,
            forced_first_token,
            forced_last_token,
            repetition_detection,
            stop_token_sequences,
            thinking_budget,
            grammar,
            watermark,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(change: impl FnOnce(&mut HistoryParams)) -> Option<String> {
        let mut params = HistoryParams::default();
        change(&mut params);
        params.validate(100).err().map(|e| e.field)
    }

    #[test]
    fn each_range_is_checked_and_named() {
        assert_eq!(fault(|_| ()), None);
        type Change = fn(&mut HistoryParams);
        let bad: [(&str, Change); 28] = [
            ("dry_multiplier", |p| p.dry_multiplier = -0.1),
            ("dry_multiplier", |p| p.dry_multiplier = f32::NAN),
            ("dry_multiplier", |p| p.dry_multiplier = 1e5),
            ("dry_base", |p| p.dry_base = 0.99),
            ("dry_base", |p| p.dry_base = f32::NAN),
            ("dry_base", |p| p.dry_base = f32::INFINITY),
            ("dry_allowed_length", |p| p.dry_allowed_length = 0),
            ("dry_allowed_length", |p| p.dry_allowed_length = 1025),
            ("dry_penalty_last_n", |p| p.dry_penalty_last_n = -2),
            ("dry_penalty_last_n", |p| p.dry_penalty_last_n = (1 << 15) + 1),
            ("dry_sequence_breakers", |p| p.dry_sequence_breakers = vec![vec![1]; 1025]),
            ("dry_sequence_breaker_texts", |p| p.dry_sequence_breaker_texts = vec!["a".to_owned(); 65]),
            ("dry_sequence_breaker_texts[1]", |p| p.dry_sequence_breaker_texts = vec!["a".to_owned(), String::new()]),
            ("dry_sequence_breaker_texts[0]", |p| p.dry_sequence_breaker_texts = vec!["a".repeat(65)]),
            ("dry_sequence_breakers[1].token_ids", |p| p.dry_sequence_breakers = vec![vec![1], vec![]]),
            ("dry_sequence_breakers[0].token_ids", |p| p.dry_sequence_breakers = vec![vec![1; 65]]),
            ("dry_sequence_breakers[0].token_ids[1]", |p| p.dry_sequence_breakers = vec![vec![1, 100]]),
            ("dry_max_ngram", |p| p.dry_max_ngram = (1 << 15) + 1),
            ("dry_max_ngram", |p| (p.dry_multiplier, p.dry_allowed_length, p.dry_max_ngram) = (1.0, 3, 3)),
            ("dry_max_occurrences", |p| p.dry_max_occurrences = 1025),
            ("dry_early_exit_match_len", |p| p.dry_early_exit_match_len = 513),
            ("penalty_last_n", |p| p.penalty_last_n = (1 << 20) + 1),
            ("penalty_last_n", |p| p.penalty_decay_n = 1),
            ("penalty_decay_n", |p| (p.penalty_last_n, p.penalty_decay_n) = (1, 65_535)),
            ("penalty_decay_n", |p| (p.penalty_last_n, p.penalty_decay_n) = (1 << 20, 1)),
            ("encoder_repetition_penalty", |p| p.encoder_repetition_penalty = 0.0),
            ("encoder_repetition_penalty", |p| p.encoder_repetition_penalty = 1e5),
            ("encoder_repetition_penalty", |p| p.encoder_repetition_penalty = f32::NAN),
        ];
        for (field, change) in bad {
            assert_eq!(fault(change).as_deref(), Some(field));
        }
        let good: [Change; 6] = [
            |p| (p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n) = (1e4, 1.0, 1024, 1 << 15),
            |p| (p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n) = (1e4, 1, 0),
            |p| p.dry_sequence_breakers = vec![vec![99; 64]; 1024],
            |p| (p.dry_max_ngram, p.dry_max_occurrences, p.dry_early_exit_match_len) = (1, 1024, 512),
            |p| (p.dry_multiplier, p.dry_allowed_length, p.dry_max_ngram) = (1.0, 3, 4),
            |p| (p.penalty_last_n, p.penalty_decay_n, p.prompt_ignore_length) = (1, 65_534, u32::MAX),
        ];
        for (i, change) in good.into_iter().enumerate() {
            assert_eq!(fault(change), None, "{i}");
        }
    }

    #[test]
    fn dry_is_off_without_a_multiplier_or_a_window() {
        let window = |dry_multiplier, dry_penalty_last_n| {
            HistoryParams { dry_multiplier, dry_penalty_last_n, ..HistoryParams::default() }.dry_window()
        };
        assert_eq!((window(0.0, -1), window(1.0, 0)), (None, None));
        assert_eq!((window(1.0, -1), window(1.0, 7)), (Some(1 << 15), Some(7)));
    }
}
