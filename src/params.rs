//! One sequence's sampling parameters: names, defaults and ranges, in this one place.
//!
//! [`SamplingParams`] as the fields stand may hold anything; [`SamplingParams::validate`] says whether a
//! sequence may be opened with it.

use crate::sampling::adjust::Penalties;
use crate::sampling::row::{Filters, LogprobsMode};

/// Largest vocabulary: 2^20 masses of at most 2^40 sum below 2^64.
pub const MAX_VOCAB_SIZE: u32 = 1 << 20;
/// Least positive temperature; below it the exponent scale would lose meaning. 0 is greedy.
pub const MIN_TEMPERATURE: f32 = 1e-5;
/// Largest temperature.
pub const MAX_TEMPERATURE: f32 = 1e5;
/// Largest repetition penalty.
pub const MAX_REPETITION_PENALTY: f32 = 1e4;
/// Largest absolute frequency or presence penalty.
pub const MAX_ADDITIVE_PENALTY: f32 = 1e4;
/// Largest absolute logit bias.
pub const MAX_LOGIT_BIAS: f32 = 1e6;
/// Most EOS token ids of a stream, and most stop token ids of a sequence.
pub const MAX_STOP_TOKEN_IDS: usize = 64;
/// Most bad words of a sequence.
pub const MAX_BAD_WORDS: usize = 1024;
/// Most tokens of one bad word.
pub const MAX_BAD_WORD_TOKENS: usize = 64;
/// Most token ids whose logprobs may be asked for by id.
pub const MAX_LOGPROB_TOKEN_IDS: usize = 1024;

/// Names of the implemented fields of the wire's `SamplingParams`, for `GetServerInfo`.
pub const SUPPORTED: [&str; 17] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "allowed_token_ids",
    "banned_token_ids",
    "bad_words",
    "min_tokens",
    "max_tokens",
    "stop_token_ids",
    "ignore_eos",
    "seed",
    "logprobs",
];

/// A field and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Path of the field, such as `params.temperature`.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl FieldError {
    /// An error at `field`.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    /// The same error seen from outside: `outer.field`.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.field = format!("{outer}.{}", self.field);
        self
    }
}

/// What to report about each token of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogprobsParams {
    /// How many of the most likely tokens to list.
    pub top_n: u32,
    /// Which distribution.
    pub mode: LogprobsMode,
    /// Tokens whose logprobs are wanted too.
    pub token_ids: Vec<u32>,
}

/// One sequence's parameters. [`Default`] is everything off at temperature 1: plain sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0: greedy, or 1e-5 ..= 1e5.
    pub temperature: f32,
    /// Keep exactly this many tokens. 0: off.
    pub top_k: u32,
    /// Keep the smallest prefix with this probability. 0 ..= 1; 1: off.
    pub top_p: f32,
    /// Keep tokens with this share of the largest probability. 0 ..= 1; 0: off.
    pub min_p: f32,
    /// 1e-4 ..= 1e4; 1: off.
    pub repetition_penalty: f32,
    /// −1e4 ..= 1e4; 0: off.
    pub frequency_penalty: f32,
    /// −1e4 ..= 1e4; 0: off.
    pub presence_penalty: f32,
    /// Token and bias, −1e6 ..= 1e6; no token twice.
    pub logit_bias: Vec<(u32, f32)>,
    /// Only these tokens; empty: all.
    pub allowed_token_ids: Vec<u32>,
    /// Not these tokens.
    pub banned_token_ids: Vec<u32>,
    /// Token sequences that may not be completed.
    pub bad_words: Vec<Vec<u32>>,
    /// EOS and stop tokens are banned until the output has this many tokens.
    pub min_tokens: u32,
    /// The sequence ends when its output has this many tokens. 0: no limit.
    pub max_tokens: u32,
    /// Tokens that end the sequence.
    pub stop_token_ids: Vec<u32>,
    /// EOS tokens do not end the sequence.
    pub ignore_eos: bool,
    /// Seed of every random decision; `None`: the server chooses.
    pub seed: Option<u64>,
    /// What to report; `None`: only tokens.
    pub logprobs: Option<LogprobsParams>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed_token_ids: Vec::new(),
            banned_token_ids: Vec::new(),
            bad_words: Vec::new(),
            min_tokens: 0,
            max_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            seed: None,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Temperature and truncation.
    #[must_use]
    pub fn filters(&self) -> Filters {
        Filters { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p, min_p: self.min_p }
    }

    /// Repetition, frequency and presence penalty.
    #[must_use]
    pub fn penalties(&self) -> Penalties {
        Penalties {
            repetition: self.repetition_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
        }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to the parameters.
    pub fn validate(&self, vocab_size: u32, max_top_logprobs: u32) -> Result<(), FieldError> {
        self.validate_scalars()?;
        self.validate_lists(vocab_size)?;
        match &self.logprobs {
            Some(logprobs) => logprobs.validate(vocab_size, max_top_logprobs).map_err(|e| e.within("logprobs")),
            None => Ok(()),
        }
    }

    fn validate_scalars(&self) -> Result<(), FieldError> {
        if self.temperature != 0.0 {
            in_range("temperature", self.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE, " (or 0 for greedy)")?;
        }
        in_range("top_p", self.top_p, 0.0, 1.0, "")?;
        in_range("min_p", self.min_p, 0.0, 1.0, "")?;
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
        check_len("bad_words", self.bad_words.len(), MAX_BAD_WORDS)?;
        for (i, word) in self.bad_words.iter().enumerate() {
            let field = format!("bad_words[{i}].token_ids");
            if word.is_empty() {
                return Err(FieldError::new(field, "is empty; leave the word out or give its tokens"));
            }
            check_len(&field, word.len(), MAX_BAD_WORD_TOKENS)?;
            check_tokens(&field, word, vocab_size)?;
        }
        Ok(())
    }
}

impl LogprobsParams {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to the logprobs parameters.
    pub fn validate(&self, vocab_size: u32, max_top_logprobs: u32) -> Result<(), FieldError> {
        if self.top_n > max_top_logprobs {
            let message = format!("is {}, the server's max_top_logprobs is {max_top_logprobs}", self.top_n);
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

fn check_len(field: &str, len: usize, most: usize) -> Result<(), FieldError> {
    if len > most {
        return Err(FieldError::new(field, format!("has {len} entries, at most {most} are allowed")));
    }
    Ok(())
}

fn in_range(field: &str, value: f32, low: f32, high: f32, hint: &str) -> Result<(), FieldError> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
