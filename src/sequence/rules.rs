//! What never changes in a sequence: its parameters, prepared once for the rows to come. Shared by all
//! sequences of a stream that have the same ones.

use super::FinishReason;
use super::history::{Ahead, History, merge};
use super::speculation::Speculation;
use crate::params::SamplingParams;
use crate::params::acceptance::AcceptanceRule;
use crate::sampling::adjust::{Adjusts, TokenAdjust};
use crate::sampling::row::{Action, LogprobsSpec, RowSpec};

/// Checked parameters and what follows from them.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    params: SamplingParams,
    /// Bans and biases, in the order rows take them.
    pub(super) fixed: Vec<TokenAdjust>,
    allowed: Option<Vec<u32>>,
    /// Bad words of two or more tokens; shorter ones are bans.
    pub(super) bad_words: Vec<Vec<u32>>,
    /// Tokens that end the sequence as EOS; none with `ignore_eos`.
    eos: Vec<u32>,
    /// EOS and stop tokens, in order: what `min_tokens` bans.
    pub(super) ends: Vec<u32>,
}

impl Rules {
    /// Prepares parameters that were [checked](SamplingParams::validate).
    #[must_use]
    pub fn new(mut params: SamplingParams, eos_token_ids: &[u32]) -> Self {
        let (words, bad_words) =
            std::mem::take(&mut params.bad_words).into_iter().partition::<Vec<_>, _>(|word| word.len() == 1);
        // Prepared below; the originals would only take memory in every sequence.
        let banned = std::mem::take(&mut params.banned_token_ids);
        let bans = banned.into_iter().chain(words.into_iter().flatten());
        let bans = bans.map(|token| TokenAdjust { token, flags: TokenAdjust::BANNED, ..TokenAdjust::default() });
        let biases = std::mem::take(&mut params.logit_bias);
        let biases = biases.into_iter().map(|(token, bias)| TokenAdjust { token, bias, ..TokenAdjust::default() });
        let fixed = merge(bans.chain(biases).collect());
        let allowed = Some(in_order(std::mem::take(&mut params.allowed_token_ids))).filter(|ids| !ids.is_empty());
        let eos = if params.ignore_eos { Vec::new() } else { eos_token_ids.to_vec() };
        let ends = in_order([eos.as_slice(), &params.stop_token_ids].concat());
        Self { params, fixed, allowed, bad_words, eos, ends }
    }

    /// How draft tokens are accepted.
    pub(super) fn acceptance(&self) -> AcceptanceRule {
        self.params.acceptance
    }

    /// What the sequence remembers to propose draft tokens.
    pub(super) fn speculation(&self, prompt: &[u32], output: &[u32]) -> Option<Box<Speculation>> {
        Speculation::new(&self.params, prompt, output)
    }

    /// Whether tokens of the prompt change later rows.
    pub(super) fn remembers_prompt(&self) -> bool {
        self.params.repetition_penalty != 1.0
    }

    /// Whether emitted tokens change the logits of later rows.
    pub(super) fn remembers_output(&self) -> bool {
        !self.params.penalties().is_off()
    }

    /// How many of the last output tokens the longest bad word needs.
    pub(super) fn tail_len(&self) -> usize {
        self.bad_words.iter().map(|word| word.len() - 1).max().unwrap_or(0)
    }

    /// Whether EOS and stop tokens are banned at this position.
    pub(super) fn bans_ends_at(&self, position: u64) -> bool {
        position < u64::from(self.params.min_tokens)
    }

    /// Why the sequence ends with `token`, its output then being `len` long. A stop token goes before
    /// EOS, since it was asked for by this sequence and stays in force with `ignore_eos`; both go before
    /// the length, since a text that ended by itself was not cut off.
    pub(super) fn finish(&self, token: u32, len: u64) -> Option<FinishReason> {
        if self.params.stop_token_ids.contains(&token) {
            return Some(FinishReason::StopToken);
        }
        if self.eos.contains(&token) {
            return Some(FinishReason::Eos);
        }
        let max = u64::from(self.params.max_tokens);
        (max > 0 && len >= max).then_some(FinishReason::MaxTokens)
    }

    /// What to ask of a row that follows `history`.
    pub(super) fn spec<'a>(&'a self, history: &'a History, action: Action) -> RowSpec<'a> {
        self.row(history, &[], history.banned(), action)
    }

    /// What to ask of a row that follows `ahead`, which grew from `history`.
    pub(super) fn spec_ahead<'a>(&'a self, history: &'a History, ahead: &'a Ahead, action: Action) -> RowSpec<'a> {
        self.row(history, ahead.over(), ahead.banned(), action)
    }

    fn row<'a>(
        &'a self,
        history: &'a History,
        over: &'a [TokenAdjust],
        banned: &'a [u32],
        action: Action,
    ) -> RowSpec<'a> {
        RowSpec {
            filters: self.params.filters(),
            penalties: self.params.penalties(),
            adjusts: Adjusts::new(if self.remembers_output() { history.adjusts() } else { &self.fixed }, over),
            banned,
            allowed: self.allowed.as_deref(),
            action,
            logprobs: self.params.logprobs.as_ref().map(|wanted| LogprobsSpec {
                top_n: wanted.top_n,
                mode: wanted.mode,
                tokens: &wanted.token_ids,
            }),
        }
    }
}

/// Ascending, each once.
fn in_order(mut tokens: Vec<u32>) -> Vec<u32> {
    tokens.sort_unstable();
    tokens.dedup();
    tokens.shrink_to_fit();
    tokens
}
