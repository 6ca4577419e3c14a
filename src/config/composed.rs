//! Parameters in files that have parts: tables, and lists of tables. Their keys are the field names of the wire's
//! messages. An absent part means what an absent field means on the wire.

use super::named::named;
use super::parts::{Parts, Read, boolean, float, list, sequences, table, text, token, tokens, whole};
use crate::params::acceptance::{AcceptanceRule, AcceptanceSettings};
use crate::params::grammar::{GrammarKind, GrammarParams, GrammarStart};
use crate::params::report::ReportParams;
use crate::params::steering::{
    LengthPenalty, NoRepeatNgram, RepetitionDetection, SequenceBias, ThinkingBudget, TokenBanRange,
};
use crate::params::{DraftLengthParams, LogprobsMode, LogprobsParams, ProposerKind, ProposerParams, ThinkingFilters};
use std::sync::Arc;
use toml::Value;

pub(super) fn logit_bias(value: &Value) -> Read<Vec<(u32, f32)>> {
    let bias = |parts: &mut Parts<'_>| (parts.needed("token_id", token), parts.or("bias", 0.0, float));
    let read = |value: &Value| table(value, bias).map(|(token, bias)| (token.unwrap_or_default(), bias));
    list(value, "biases, such as [{ token_id = 198, bias = -1.5 }]", read)
}

pub(super) fn sequence_bias(value: &Value) -> Read<Vec<SequenceBias>> {
    let bias = |parts: &mut Parts<'_>| SequenceBias {
        token_ids: parts.or("token_ids", Vec::new(), tokens),
        bias: parts.or("bias", 0.0, float),
    };
    list(value, "biases, such as [{ token_ids = [25, 220], bias = -1.5 }]", |value| table(value, bias))
}

pub(super) fn token_ban_ranges(value: &Value) -> Read<Vec<TokenBanRange>> {
    let range = |parts: &mut Parts<'_>| TokenBanRange {
        token_ids: parts.or("token_ids", Vec::new(), tokens),
        start: parts.or("start", 0, whole),
        length: parts.or("length", 0, whole),
    };
    list(value, "bans, such as [{ token_ids = [198], start = 0, length = 1 }]", |value| table(value, range))
}

pub(super) fn no_repeat_ngram(value: &Value) -> Read<Box<NoRepeatNgram>> {
    table(value, |parts| {
        Box::new(NoRepeatNgram {
            size: parts.or("size", 0, whole),
            window: parts.or("window", 0, whole),
            whitelist: parts.or("whitelist_token_ids", Vec::new(), tokens),
            prompt_size: parts.or("prompt_size", 0, whole),
        })
    })
}

pub(super) fn length_penalty(value: &Value) -> Read<LengthPenalty> {
    table(value, |parts| LengthPenalty {
        start: parts.or("start", 0, whole),
        factor: parts.needed("factor", float).unwrap_or_default(),
    })
}

pub(super) fn repetition_detection(value: &Value) -> Read<RepetitionDetection> {
    table(value, |parts| RepetitionDetection {
        max_pattern_size: parts.or("max_pattern_size", 0, whole),
        min_pattern_size: parts.or("min_pattern_size", 1, whole),
        min_count: parts.or("min_count", 0, whole),
    })
}

pub(super) fn thinking_budget(value: &Value) -> Read<Box<ThinkingBudget>> {
    table(value, |parts| {
        Box::new(ThinkingBudget {
            start_token_ids: parts.or("start_token_ids", Vec::new(), tokens),
            end_token_ids: parts.or("end_token_ids", Vec::new(), tokens),
            budget: parts.or("budget", 0, whole),
            forced_token_ids: parts.or("forced_token_ids", Vec::new(), tokens),
            other_ends: parts.or("other_ends", Vec::new(), sequences),
            filters: ThinkingFilters {
                temperature: parts.part("temperature", float),
                top_k: parts.part("top_k", whole),
                top_p: parts.part("top_p", float),
                min_p: parts.part("min_p", float),
            },
        })
    })
}

/// Such as `{ json_schema = "{}" }`. An empty table means no grammar.
pub(super) fn grammar(value: &Value) -> Read<Option<Arc<GrammarParams>>> {
    let grammar = |parts: &mut Parts<'_>| {
        let given = GrammarKind::ALL.map(|kind| Some((kind, parts.part(kind.name(), text)?)));
        let start = GrammarStart {
            token_ids: parts.or("start_token_ids", Vec::new(), tokens),
            sequences: parts.or("start_sequences", Vec::new(), sequences),
            position: parts.or("start_position", 0, whole),
        };
        let (mut given, names) = (given.into_iter().flatten(), GrammarKind::ALL.map(GrammarKind::name).join(", "));
        let first = given.next();
        match (first, given.next()) {
            (Some((kind, text)), None) => Some(Arc::new(GrammarParams { kind, text, start })),
            (Some(_), Some((second, _))) => {
                parts.wrong(second.name(), format!("is a second grammar; keep only one of {names}"));
                None
            }
            _ => {
                if let Err(error) = start.check_none() {
                    parts.wrong(&error.field, error.message);
                }
                None
            }
        }
    };
    table(value, grammar)
}

pub(super) fn logprobs(value: &Value) -> Read<LogprobsParams> {
    let modes =
        [("raw", LogprobsMode::Raw), ("processed", LogprobsMode::Processed), ("tempered", LogprobsMode::Tempered)];
    table(value, |parts| LogprobsParams {
        top_n: parts.or("top_n", 0, whole),
        mode: parts.or("mode", LogprobsMode::Raw, |value| named("a distribution", value, &modes)),
        token_ids: parts.or("token_ids", Vec::new(), tokens),
    })
}

pub(super) fn report(value: &Value) -> Read<Box<ReportParams>> {
    table(value, |parts| {
        Box::new(ReportParams {
            support_size: parts.or("support_size", false, boolean),
            max_surviving_token_ids: parts.or("max_surviving_token_ids", 0, whole),
            entropy: parts.or("entropy", false, boolean),
            why_not_token_ids: parts.or("why_not_token_ids", Vec::new(), tokens),
        })
    })
}

pub(super) fn acceptance(value: &Value) -> Read<AcceptanceRule> {
    table(value, |parts| {
        let rule = parts.or("rule", AcceptanceRule::default(), |value| named("a rule", value, &AcceptanceRule::NAMED));
        let settings = AcceptanceSettings {
            typical_epsilon: parts.part("typical_epsilon", float),
            typical_alpha: parts.part("typical_alpha", float),
            relaxed_top_n: parts.part("relaxed_top_n", whole),
            relaxed_delta: parts.part("relaxed_delta", float),
            relaxed_in_thinking_only: parts.part("relaxed_in_thinking_only", boolean),
            synthetic_rate: parts.part("synthetic_rate", float),
        };
        rule.with(settings).unwrap_or_else(|e| {
            parts.wrong(&e.field, e.message);
            rule
        })
    })
}

pub(super) fn proposer(value: &Value) -> Read<Option<ProposerParams>> {
    let kinds = ProposerKind::ALL.map(|kind| (kind.label(), kind));
    let proposer = |parts: &mut Parts<'_>| {
        let kind = parts.needed("kind", |value| named("a proposer", value, &kinds));
        let default = ProposerParams::new(kind.unwrap_or(ProposerKind::Ngram));
        ProposerParams {
            max_draft_tokens: parts.or("max_draft_tokens", default.max_draft_tokens, whole),
            min_match: parts.or("min_match", default.min_match, whole),
            max_match: parts.or("max_match", default.max_match, whole),
            min_token_prob: parts.or("min_token_prob", default.min_token_prob, float),
            ..default
        }
    };
    match value {
        // As on the wire, an empty table means no proposer, whatever the stream's default is.
        Value::Table(table) if table.is_empty() => Ok(None),
        value => table(value, proposer).map(Some),
    }
}

pub(super) fn draft_length(value: &Value) -> Read<Option<DraftLengthParams>> {
    table(value, |parts| {
        let default = DraftLengthParams::new(parts.or("draft_cost", 0.0, float));
        let verify_cost = parts.or("verify_cost", default.verify_cost, float);
        let max_draft_tokens = parts.or("max_draft_tokens", default.max_draft_tokens, whole);
        DraftLengthParams { verify_cost, max_draft_tokens, ..default }.or_none()
    })
}
