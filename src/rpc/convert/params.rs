//! Sampling parameters: absent fields take the defaults, then everything is checked.

use crate::params::{FieldError, LogprobsParams, SamplingParams};
use crate::proto;
use crate::sampling::row::LogprobsMode;
use crate::sequence::OpenError;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds for sequences that bring none: the count of them, hashed with a key from the system.
#[derive(Debug, Default)]
pub(in crate::rpc) struct SeedSource {
    key: RandomState,
    given: AtomicU64,
}

impl SeedSource {
    /// A seed that was not given before.
    pub(in crate::rpc) fn next(&self) -> u64 {
        self.key.hash_one(self.given.fetch_add(1, Ordering::Relaxed))
    }
}

/// `wire` over `defaults`; not yet checked against ranges.
pub(super) fn merged(wire: proto::SamplingParams, defaults: &SamplingParams) -> Result<SamplingParams, OpenError> {
    if let Some(acceptance) = &wire.acceptance {
        check_acceptance(acceptance)?;
    }
    let logprobs = match &wire.logprobs {
        Some(wire) => Some(logprobs(wire).map_err(|e| OpenError::Invalid(e.within("logprobs")))?),
        None => defaults.logprobs.clone(),
    };
    let bias = wire.logit_bias.iter().map(|bias| (bias.token_id, bias.bias)).collect();
    let words = wire.bad_words.into_iter().map(|word| word.token_ids).collect();
    Ok(SamplingParams {
        temperature: wire.temperature.unwrap_or(defaults.temperature),
        top_k: wire.top_k.unwrap_or(defaults.top_k),
        top_p: wire.top_p.unwrap_or(defaults.top_p),
        min_p: wire.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: wire.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        frequency_penalty: wire.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        presence_penalty: wire.presence_penalty.unwrap_or(defaults.presence_penalty),
        logit_bias: given(bias, &defaults.logit_bias),
        allowed_token_ids: given(wire.allowed_token_ids, &defaults.allowed_token_ids),
        banned_token_ids: given(wire.banned_token_ids, &defaults.banned_token_ids),
        bad_words: given(words, &defaults.bad_words),
        min_tokens: wire.min_tokens.unwrap_or(defaults.min_tokens),
        max_tokens: wire.max_tokens.unwrap_or(defaults.max_tokens),
        stop_token_ids: given(wire.stop_token_ids, &defaults.stop_token_ids),
        ignore_eos: wire.ignore_eos.unwrap_or(defaults.ignore_eos),
        seed: wire.seed.or(defaults.seed),
        logprobs,
    })
}

/// An empty list is an absent one.
fn given<T: Clone>(list: Vec<T>, default: &[T]) -> Vec<T> {
    if list.is_empty() { default.to_vec() } else { list }
}

/// What to report about tokens; not yet checked against ranges.
pub(super) fn logprobs(wire: &proto::LogprobsParams) -> Result<LogprobsParams, FieldError> {
    let mode = match proto::LogprobsMode::try_from(wire.mode) {
        Ok(proto::LogprobsMode::Unspecified | proto::LogprobsMode::Raw) => LogprobsMode::Raw,
        Ok(proto::LogprobsMode::Processed) => LogprobsMode::Processed,
        Err(_) => return Err(unknown_value("mode", wire.mode)),
    };
    Ok(LogprobsParams { top_n: wire.top_n, mode, token_ids: wire.token_ids.clone() })
}

/// Only the lossless default is there yet.
fn check_acceptance(wire: &proto::AcceptanceParams) -> Result<(), OpenError> {
    use proto::AcceptanceRule::{Rejection, Unspecified};
    match proto::AcceptanceRule::try_from(wire.rule) {
        Err(_) => return Err(OpenError::Invalid(unknown_value("acceptance.rule", wire.rule))),
        Ok(Unspecified | Rejection) => {}
        Ok(_) => return Err(unimplemented_acceptance("rule")),
    }
    let settings = [
        ("typical_epsilon", wire.typical_epsilon.is_some()),
        ("typical_alpha", wire.typical_alpha.is_some()),
        ("relaxed_top_n", wire.relaxed_top_n.is_some()),
        ("relaxed_delta", wire.relaxed_delta.is_some()),
        ("synthetic_rate", wire.synthetic_rate.is_some()),
    ];
    match settings.iter().find(|(_, present)| *present) {
        Some((field, _)) => Err(unimplemented_acceptance(field)),
        None => Ok(()),
    }
}

fn unimplemented_acceptance(field: &str) -> OpenError {
    let message = "is not implemented by this server; leave acceptance out, or set rule REJECTION alone";
    OpenError::Unimplemented(FieldError::new(format!("acceptance.{field}"), message))
}

/// An enum value that this server does not know.
pub(super) fn unknown_value(field: &str, value: i32) -> FieldError {
    FieldError::new(field, format!("has the unknown enum value {value}"))
}
