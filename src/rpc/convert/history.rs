//! Parameters of the tools that work on the history.

use super::watermark;
use crate::params::grammar::{GrammarKind, GrammarParams, GrammarStart};
use crate::params::history::HistoryParams;
use crate::params::steering::{
    LengthPenalty, NoRepeatNgram, RepetitionDetection, SequenceBias, ThinkingBudget, TokenBanRange,
};
use crate::params::{FieldError, ThinkingFilters};
use crate::proto;
use std::mem::take;
use std::sync::Arc;

/// The fields of `wire` merged over `defaults`, without the lists of `defaults` and its messages with lists. The lists
/// of `wire` are moved out of it. Ranges are not checked yet.
pub(super) fn merged(wire: &mut proto::SamplingParams, defaults: &HistoryParams) -> Result<HistoryParams, FieldError> {
    let breakers = take(&mut wire.dry_sequence_breakers);
    let (biases, ranges) = (take(&mut wire.sequence_bias), take(&mut wire.token_ban_ranges));
    let stops = take(&mut wire.stop_token_sequences);
    Ok(HistoryParams {
        dry_multiplier: wire.dry_multiplier.unwrap_or(defaults.dry_multiplier),
        dry_base: wire.dry_base.unwrap_or(defaults.dry_base),
        dry_allowed_length: wire.dry_allowed_length.unwrap_or(defaults.dry_allowed_length),
        dry_penalty_last_n: wire.dry_penalty_last_n.unwrap_or(defaults.dry_penalty_last_n),
        dry_max_ngram: wire.dry_max_ngram.unwrap_or(defaults.dry_max_ngram),
        dry_max_occurrences: wire.dry_max_occurrences.unwrap_or(defaults.dry_max_occurrences),
        dry_early_exit_match_len: wire.dry_early_exit_match_len.unwrap_or(defaults.dry_early_exit_match_len),
        penalty_last_n: wire.penalty_last_n.unwrap_or(defaults.penalty_last_n),
        penalty_decay_n: wire.penalty_decay_n.unwrap_or(defaults.penalty_decay_n),
        prompt_ignore_length: wire.prompt_ignore_length.unwrap_or(defaults.prompt_ignore_length),
        penalties_count_prompt: wire.penalties_count_prompt.or(defaults.penalties_count_prompt),
        subtract_penalties_first: wire.subtract_penalties_first.or(defaults.subtract_penalties_first),
        bias_after_penalties: wire.bias_after_penalties.or(defaults.bias_after_penalties),
        encoder_repetition_penalty: wire.encoder_repetition_penalty.unwrap_or(defaults.encoder_repetition_penalty),
        dry_sequence_breakers: sequences(breakers),
        dry_sequence_breaker_texts: take(&mut wire.dry_sequence_breaker_texts),
        no_repeat_ngram: wire.no_repeat_ngram.take().map(no_repeat_ngram),
        length_penalty: wire.length_penalty.map(length_penalty).or(defaults.length_penalty),
        sequence_bias: biases.into_iter().map(sequence_bias).collect(),
        token_ban_ranges: ranges.into_iter().map(token_ban_range).collect(),
        forced_first_token: wire.forced_first_token.or(defaults.forced_first_token),
        forced_last_token: wire.forced_last_token.or(defaults.forced_last_token),
        repetition_detection: wire.repetition_detection.map(repetition_detection).or(defaults.repetition_detection),
        stop_token_sequences: sequences(stops),
        thinking_budget: wire.thinking_budget.take().map(thinking_budget),
        grammar: grammar(wire.grammar.take(), defaults.grammar.as_ref())?,
        watermark: watermark::merged(wire.watermark.take(), defaults.watermark.as_ref())?,
    })
}

fn no_repeat_ngram(wire: proto::NoRepeatNgramParams) -> Box<NoRepeatNgram> {
    let proto::NoRepeatNgramParams { size, window, whitelist_token_ids: whitelist, prompt_size } = wire;
    Box::new(NoRepeatNgram { size, window, whitelist, prompt_size })
}

fn length_penalty(wire: proto::LengthPenaltyParams) -> LengthPenalty {
    LengthPenalty { start: wire.start, factor: wire.factor }
}

fn sequence_bias(wire: proto::SequenceBias) -> SequenceBias {
    SequenceBias { token_ids: wire.token_ids, bias: wire.bias }
}

fn token_ban_range(wire: proto::TokenBanRange) -> TokenBanRange {
    TokenBanRange { token_ids: wire.token_ids, start: wire.start, length: wire.length }
}

fn repetition_detection(wire: proto::RepetitionDetectionParams) -> RepetitionDetection {
    RepetitionDetection {
        max_pattern_size: wire.max_pattern_size,
        min_pattern_size: wire.min_pattern_size.unwrap_or(1),
        min_count: wire.min_count,
    }
}

fn thinking_budget(wire: proto::ThinkingBudgetParams) -> Box<ThinkingBudget> {
    let proto::ThinkingBudgetParams { start_token_ids, end_token_ids, budget, forced_token_ids, other_ends, .. } = wire;
    let proto::ThinkingBudgetParams { temperature, top_k, top_p, min_p, .. } = wire;
    let filters = ThinkingFilters { temperature, top_k, top_p, min_p };
    let other_ends = sequences(other_ends);
    Box::new(ThinkingBudget { start_token_ids, end_token_ids, budget, forced_token_ids, other_ends, filters })
}

pub(super) fn sequences(wire: Vec<proto::TokenSequence>) -> Vec<Vec<u32>> {
    wire.into_iter().map(|sequence| sequence.token_ids).collect()
}

/// The grammar of `wire`; no grammar if `wire` turns it off; the default if `wire` says nothing.
fn grammar(
    wire: Option<proto::GrammarParams>,
    default: Option<&Arc<GrammarParams>>,
) -> Result<Option<Arc<GrammarParams>>, FieldError> {
    use proto::grammar_params::Kind;
    let Some(proto::GrammarParams { kind, start_token_ids, start_sequences, start_position }) = wire else {
        return Ok(default.cloned());
    };
    let sequences = sequences(start_sequences);
    let start = GrammarStart { token_ids: start_token_ids, sequences, position: start_position };
    let Some(kind) = kind else {
        return start.check_none().map(|()| None).map_err(|error| error.within("grammar"));
    };
    let (kind, text) = match kind {
        Kind::JsonSchema(text) => (GrammarKind::JsonSchema, text),
        Kind::Regex(text) => (GrammarKind::Regex, text),
        Kind::Lark(text) => (GrammarKind::Lark, text),
        Kind::Gbnf(text) => (GrammarKind::Gbnf, text),
        Kind::Choices(text) => (GrammarKind::Choices, text),
    };
    Ok(Some(Arc::new(GrammarParams { kind, text, start })))
}
