//! The sampling parameters of one sequence. Their names, defaults and ranges are defined here and nowhere else.
//!
//! The fields of [`SamplingParams`] may hold any value. A sequence may be opened with them only if
//! [`SamplingParams::validate`] accepts them.

// Tokens must not depend on functions whose results differ between platforms. clippy.toml lists these functions.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod acceptance;
pub mod chain;
mod check;
mod engine_rules;
mod engines;
pub mod grammar;
pub mod history;
mod order;
mod penalties;
pub mod presets;
pub mod rare;
pub mod report;
mod samplers;
mod speculation;
pub mod state;
pub mod steering;
mod steps;
mod supported;
mod thinking;
pub mod watermark;

pub use check::check_tokens;
pub use engine_rules::{EngineRules, TfsRule, TypicalRule, XtcRule};
pub use engines::EngineOrder;
pub use order::SamplerOrder;
pub use penalties::{Decay, Penalties};
pub use samplers::{ChainStep, MirostatVersion, Sampler};
pub use speculation::{
    DraftLengthParams, MAX_DRAFT_COST, MAX_DRAFT_TOKENS, MAX_MATCH, MAX_VERIFY_COST, ProposerKind, ProposerParams,
};
pub use supported::SUPPORTED;
pub use thinking::{GivenFilters, ThinkingFilters};

use acceptance::AcceptanceRule;
use chain::SamplerParams;
use history::HistoryParams;
use rare::Rare;

/// Largest vocabulary: 2^20 masses of at most 2^40 sum below 2^64.
pub const MAX_VOCAB_SIZE: u32 = 1 << 20;
/// Least positive temperature. Below it the exponent scale would lose meaning. 0 is greedy.
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
/// Most draft tokens that a sequence may have at one time.
pub const MAX_TREE_TOKENS: u32 = 256;
/// Most bad words of a sequence.
pub const MAX_BAD_WORDS: usize = 1024;
/// Most token ids whose logprobs may be requested by id.
pub const MAX_LOGPROB_TOKEN_IDS: usize = 1024;

/// The filters that a row goes through between the adjusted logits and the draw, in this order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filters {
    /// 0: greedy.
    pub temperature: f32,
    /// 0: off.
    pub top_k: u32,
    /// 1: off.
    pub top_p: f32,
    /// 0: off.
    pub min_p: f32,
}

impl Filters {
    /// No filter: every token may be drawn.
    pub const OFF: Self = Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
}

/// Which distribution logprobs describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogprobsMode {
    /// The logits as sent, at temperature 1.
    Raw,
    /// The distribution that the token is drawn from. Greedy: all probability is on the greedy choice.
    Processed,
    /// The logits after masks, bias and penalties, at the sequence's temperature; for greedy sequences, at 1.
    Tempered,
}

/// A field, and what is wrong with it.
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

    /// The same error with the path as seen from the enclosing message: `outer.field`.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.field = format!("{outer}.{}", self.field);
        self
    }
}

/// Which logprobs to report for each token of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogprobsParams {
    /// How many of the most likely tokens to list.
    pub top_n: u32,
    /// Which distribution the logprobs describe.
    pub mode: LogprobsMode,
    /// More tokens whose logprobs to report.
    pub token_ids: Vec<u32>,
}

impl LogprobsParams {
    /// The most bytes that the reported lists take for one token.
    #[must_use]
    pub fn reported_bytes(&self) -> usize {
        self.top_n as usize * size_of::<(u32, f32)>() + size_of_val(&*self.token_ids)
    }
}

/// The parameters of one sequence. [`Default`] is plain sampling: temperature 1, and everything else off.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0: greedy, or 1e-5 ..= 1e5.
    pub temperature: f32,
    /// Keep exactly this many tokens. 0: off.
    pub top_k: u32,
    /// Keep the smallest prefix that has this probability. 0 ..= 1; 1: off.
    pub top_p: f32,
    /// Keep tokens with at least this share of the largest probability. 0 ..= 1; 0: off.
    pub min_p: f32,
    /// 1e-4 ..= 1e4; 1: off.
    pub repetition_penalty: f32,
    /// −1e4 ..= 1e4; 0: off.
    pub frequency_penalty: f32,
    /// −1e4 ..= 1e4; 0: off.
    pub presence_penalty: f32,
    /// Tokens and their biases, −1e6 ..= 1e6. No token appears twice.
    pub logit_bias: Vec<(u32, f32)>,
    /// Only these tokens may be emitted. Empty: all.
    pub allowed_token_ids: Vec<u32>,
    /// These tokens may not be emitted.
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
    /// Seed of every random decision. `None`: the server chooses one.
    pub seed: Option<u64>,
    /// Which logprobs to report. `None`: only the token.
    pub logprobs: Option<LogprobsParams>,
    /// How draft tokens are accepted.
    pub acceptance: AcceptanceRule,
    /// A proposer inside the sidecar. `None`: no proposer.
    pub proposer: Option<ProposerParams>,
    /// What the advice on draft length needs to know. `None`: no advice.
    pub draft_length: Option<DraftLengthParams>,
    /// The samplers other than temperature, top-k, top-p and min-p, and the order of all samplers.
    pub samplers: Rare<SamplerParams>,
    /// The tools that work on the text's history.
    pub history: Rare<HistoryParams>,
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
            acceptance: AcceptanceRule::default(),
            proposer: None,
            draft_length: None,
            samplers: Rare::default(),
            history: Rare::default(),
        }
    }
}

impl SamplingParams {
    /// Bytes that the lists take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let logprobs = self.logprobs.as_ref().map(|logprobs| &logprobs.token_ids);
        let own = [&self.samplers.xtc_ignore_token_ids, &self.stop_token_ids];
        let ids = [&self.allowed_token_ids, &self.banned_token_ids].into_iter().chain(own);
        let ids = ids.chain(&self.bad_words).chain(logprobs).map(Vec::capacity).sum::<usize>();
        ids * size_of::<u32>()
            + self.logit_bias.capacity() * size_of::<(u32, f32)>()
            + self.bad_words.capacity() * size_of::<Vec<u32>>()
            + Rare::bytes(&self.samplers)
            + self.samplers.bytes()
            + Rare::bytes(&self.history)
            + HistoryParams::bytes(&self.history)
    }

    /// Whether these parameters ban or bias single tokens, or favour tokens that end the text.
    #[must_use]
    pub fn changes_tokens(&self) -> bool {
        let lists = self.logit_bias.is_empty() && self.banned_token_ids.is_empty() && self.bad_words.is_empty();
        !lists || self.history.length_penalty.is_some()
    }

    /// Temperature and truncation at a position of the output. Min-p is off where the engine's rules make no
    /// [step](Self::steps) of it.
    #[must_use]
    pub fn filters(&self, position: u64) -> Filters {
        let temperature = self.temperature_at(position);
        let min_p = self.samplers.sampler_order.rules().min_p(self.min_p).map_or(0.0, |_| self.min_p);
        Filters { temperature, top_k: self.top_k, top_p: self.top_p, min_p }
    }

    /// Whether every row takes its most likely token.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.filters(0).temperature == 0.0
    }

    /// The temperature at a position of the output. It moves in a straight line from `temperature` at position 0 to
    /// `temperature_end` at position `temperature_tokens`, and stays there.
    fn temperature_at(&self, position: u64) -> f32 {
        let (tokens, rules) = (u64::from(self.samplers.temperature_tokens), self.samplers.sampler_order.rules());
        if tokens == 0 {
            return rules.temperature(self.temperature);
        }
        let (start, end) = (f64::from(self.temperature), f64::from(self.samplers.temperature_end));
        let share = position.min(tokens) as f64 / tokens as f64;
        rules.raised((start + (end - start) * share) as f32)
    }

    /// Names of all fields, so that tests can check that they cover each one.
    #[cfg(test)]
    pub(crate) fn field_names() -> Vec<&'static str> {
        // The pattern below does not compile if a field is missing.
        macro_rules! names {
            ($($field:ident),* $(,)?) => {{
                let SamplingParams { $($field: _),*, samplers: _, history: _ } = Self::default();
                vec![$(stringify!($field)),*]
            }};
        }
        let own = names!(
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logit_bias,
            allowed_token_ids,
            banned_token_ids,
            bad_words,
            min_tokens,
            max_tokens,
            stop_token_ids,
            ignore_eos,
            seed,
            logprobs,
            acceptance,
            proposer,
            draft_length,
        );
        [own, SamplerParams::field_names(), HistoryParams::field_names()].concat()
    }
}
