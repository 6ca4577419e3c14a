//! Sampling parameters: absent fields take their defaults, then everything is checked.

use super::{history, samplers};
use crate::params::acceptance::{AcceptanceRule, AcceptanceSettings, Relaxed, Typical};
use crate::params::presets::Presets;
use crate::params::{
    DraftLengthParams, FieldError, GivenFilters, LogprobsParams, Penalties, ProposerKind, ProposerParams,
    SamplingParams,
};
use crate::proto;
use crate::sampling::row::LogprobsMode;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes seeds for sequences without one: hashes a counter with a key from the system.
#[derive(Debug, Default)]
pub(in crate::rpc) struct SeedSource {
    key: RandomState,
    given: AtomicU64,
}

impl SeedSource {
    /// A seed that nobody can guess and that almost certainly was not given before: among 2^32 seeds, two may be the
    /// same.
    pub(in crate::rpc) fn next(&self) -> u64 {
        self.key.hash_one(self.given.fetch_add(1, Ordering::Relaxed))
    }
}

/// Merges `wire` over its preset, if it names one, and both over `defaults`. Leaves out the lists and logprobs of
/// `defaults`. Also leaves out its thinking, unless given filters have to go before those of that thinking. Ranges are
/// not checked yet.
pub(super) fn merged(
    wire: proto::SamplingParams,
    defaults: &SamplingParams,
    presets: &Presets,
) -> Result<SamplingParams, FieldError> {
    let (inherited, given) = (defaults.history.thinking_budget.as_deref(), given_filters(&wire));
    if wire.preset.is_empty() {
        let mut params = over(wire, defaults)?;
        params.give_way(inherited, given);
        return Ok(params);
    }
    let preset = presets.get(&wire.preset)?;
    // An empty message merged over the defaults gives the defaults without their lists.
    let mut base = over(proto::SamplingParams::default(), defaults)?;
    preset.apply(&mut base);
    base.give_way(inherited, preset.filters());
    let mut params = over(wire, &base)?;
    params.give_way(base.history.thinking_budget.as_deref().or(inherited), given);
    Ok(with_lists(params, &base))
}

fn given_filters(wire: &proto::SamplingParams) -> GivenFilters {
    GivenFilters {
        temperature: wire.temperature.is_some(),
        top_k: wire.top_k.is_some(),
        top_p: wire.top_p.is_some(),
        min_p: wire.min_p.is_some(),
    }
}

/// Fills in what `over` left out of `base`, where `params` has nothing of its own. `base` is a preset or the server's
/// defaults.
pub(super) fn with_lists(mut params: SamplingParams, base: &SamplingParams) -> SamplingParams {
    // Only absent fields are touched, because a changed field takes memory.
    macro_rules! fill {
        ($is_absent:ident: $($($field:ident).+),+) => {
            $(if params.$($field).+.$is_absent() && !base.$($field).+.$is_absent() {
                params.$($field).+.clone_from(&base.$($field).+);
            })+
        };
    }
    fill!(is_empty: logit_bias, allowed_token_ids, banned_token_ids, bad_words, stop_token_ids);
    fill!(is_empty: samplers.xtc_ignore_token_ids, samplers.top_p_reset_token_ids);
    fill!(is_empty: history.dry_sequence_breakers, history.sequence_bias, history.token_ban_ranges);
    fill!(is_empty: history.stop_token_sequences, history.dry_sequence_breaker_texts);
    fill!(is_none: logprobs, samplers.report, history.no_repeat_ngram, history.thinking_budget);
    params
}

/// Merges `wire` over `defaults`, without the lists and logprobs of `defaults`: these are the same for all and kept
/// once.
fn over(mut wire: proto::SamplingParams, defaults: &SamplingParams) -> Result<SamplingParams, FieldError> {
    let acceptance = wire.acceptance.as_ref().map_or(Ok(defaults.acceptance), acceptance);
    let acceptance = acceptance.map_err(|e| e.within("acceptance"))?;
    let logprobs = wire.logprobs.as_ref().map(logprobs).transpose();
    let logprobs = logprobs.map_err(|e| e.within("logprobs"))?;
    let proposer = wire.proposer.as_ref().map_or(Ok(defaults.proposer), proposer);
    let proposer = proposer.map_err(|e| e.within("proposer"))?;
    let draft_length = wire.draft_length.as_ref().map_or(defaults.draft_length, draft_length);
    let penalties = penalties(&wire, defaults);
    let samplers = samplers::merged(&mut wire, &defaults.samplers)?;
    let history = history::merged(&mut wire, &defaults.history)?;
    // An empty list counts as absent.
    let bias = wire.logit_bias.iter().map(|bias| (bias.token_id, bias.bias)).collect();
    let words = history::sequences(wire.bad_words);
    Ok(SamplingParams {
        temperature: wire.temperature.unwrap_or(defaults.temperature),
        top_k: wire.top_k.unwrap_or(defaults.top_k),
        top_p: wire.top_p.unwrap_or(defaults.top_p),
        min_p: wire.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: penalties.repetition,
        frequency_penalty: penalties.frequency,
        presence_penalty: penalties.presence,
        logit_bias: bias,
        allowed_token_ids: wire.allowed_token_ids,
        banned_token_ids: wire.banned_token_ids,
        bad_words: words,
        min_tokens: wire.min_tokens.unwrap_or(defaults.min_tokens),
        max_tokens: wire.max_tokens.unwrap_or(defaults.max_tokens),
        stop_token_ids: wire.stop_token_ids,
        ignore_eos: wire.ignore_eos.unwrap_or(defaults.ignore_eos),
        seed: wire.seed.or(defaults.seed),
        logprobs,
        acceptance,
        proposer,
        draft_length,
        samplers: samplers.into(),
        history: history.into(),
    })
}

/// The penalties of `wire`, merged over `defaults`.
pub(super) fn penalties(wire: &proto::SamplingParams, defaults: &SamplingParams) -> Penalties {
    Penalties {
        repetition: wire.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        frequency: wire.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        presence: wire.presence_penalty.unwrap_or(defaults.presence_penalty),
        encoder: wire.encoder_repetition_penalty.unwrap_or(defaults.history.encoder_repetition_penalty),
        ..Penalties::OFF
    }
}

/// What to report about tokens. Ranges are not checked yet.
pub(super) fn logprobs(wire: &proto::LogprobsParams) -> Result<LogprobsParams, FieldError> {
    let mode = match proto::LogprobsMode::try_from(wire.mode) {
        Ok(proto::LogprobsMode::Unspecified | proto::LogprobsMode::Raw) => LogprobsMode::Raw,
        Ok(proto::LogprobsMode::Processed) => LogprobsMode::Processed,
        Ok(proto::LogprobsMode::Tempered) => LogprobsMode::Tempered,
        Err(_) => return Err(unknown_value("mode", wire.mode, proto::LogprobsMode::as_str_name)),
    };
    Ok(LogprobsParams { top_n: wire.top_n, mode, token_ids: wire.token_ids.clone() })
}

/// How draft tokens are accepted. Ranges are not checked yet.
fn acceptance(wire: &proto::AcceptanceParams) -> Result<AcceptanceRule, FieldError> {
    use proto::AcceptanceRule as Wire;
    let rule = match Wire::try_from(wire.rule).map_err(|_| unknown_value("rule", wire.rule, Wire::as_str_name))? {
        Wire::Unspecified | Wire::Rejection => AcceptanceRule::Rejection,
        Wire::Greedy => AcceptanceRule::Greedy,
        Wire::Block => AcceptanceRule::Block,
        Wire::Typical => AcceptanceRule::Typical(Typical::default()),
        Wire::Relaxed => AcceptanceRule::Relaxed(Relaxed::default()),
        Wire::Synthetic => AcceptanceRule::WITHOUT_RATE,
    };
    let &proto::AcceptanceParams {
        rule: _,
        typical_epsilon,
        typical_alpha,
        relaxed_top_n,
        relaxed_delta,
        relaxed_in_thinking_only,
        synthetic_rate,
    } = wire;
    rule.with(AcceptanceSettings {
        typical_epsilon,
        typical_alpha,
        relaxed_top_n,
        relaxed_delta,
        relaxed_in_thinking_only,
        synthetic_rate,
    })
}

/// A proposer inside the sidecar, with ranges not checked yet; `None` if an empty message turns off the stream's.
fn proposer(wire: &proto::ProposerParams) -> Result<Option<ProposerParams>, FieldError> {
    if *wire == proto::ProposerParams::default() {
        return Ok(None);
    }
    let kind = match proto::ProposerKind::try_from(wire.kind) {
        Ok(proto::ProposerKind::Ngram) => ProposerKind::Ngram,
        Ok(proto::ProposerKind::Suffix) => ProposerKind::Suffix,
        Ok(proto::ProposerKind::Grammar) => ProposerKind::Grammar,
        Ok(proto::ProposerKind::Unspecified) => {
            return Err(FieldError::new(
                "kind",
                format!(
                    "is required; use one of {}, or an empty message to turn the stream's proposer off",
                    known_values(proto::ProposerKind::as_str_name)
                ),
            ));
        }
        Err(_) => return Err(unknown_value("kind", wire.kind, proto::ProposerKind::as_str_name)),
    };
    let default = ProposerParams::new(kind);
    Ok(Some(ProposerParams {
        kind,
        max_draft_tokens: wire.max_draft_tokens.unwrap_or(default.max_draft_tokens),
        min_match: wire.min_match.unwrap_or(default.min_match),
        max_match: wire.max_match.unwrap_or(default.max_match),
        min_token_prob: wire.min_token_prob.unwrap_or(default.min_token_prob),
    }))
}

/// The input of the advice on draft lengths, with ranges not checked yet; `None` means no advice.
fn draft_length(wire: &proto::DraftLengthParams) -> Option<DraftLengthParams> {
    let default = DraftLengthParams::new(wire.draft_cost);
    let max_draft_tokens = wire.max_draft_tokens.unwrap_or(default.max_draft_tokens);
    DraftLengthParams { verify_cost: wire.verify_cost, max_draft_tokens, ..default }.or_none()
}

/// A number that no enum value of the schema reaches.
const MAX_VALUES: i32 = 100;
/// How many values an error message lists.
const LISTED: usize = 16;

/// The error for an enum value that this server does not know. `name` gives the names of the enum's values.
pub(super) fn unknown_value<E: TryFrom<i32>>(field: &str, value: i32, name: fn(&E) -> &'static str) -> FieldError {
    FieldError::new(field, format!("has the unknown enum value {value}; known: {}", known_values(name)))
}

/// The names of an enum's values, without the unspecified one.
pub(super) fn known_values<E: TryFrom<i32>>(name: fn(&E) -> &'static str) -> String {
    let mut names = (1..=MAX_VALUES).filter_map(|number| E::try_from(number).ok()).map(|value| name(&value));
    let first: Vec<&str> = names.by_ref().take(LISTED).collect();
    let more = names.next().map_or("", |_| " and more");
    format!("{}{more}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Command};
    use crate::params::ThinkingFilters;
    use crate::params::presets::{CopyParameter, Preset};
    use crate::params::steering::ThinkingBudget;

    /// Together, `merged` and `with_lists` cover everything that a preset or the server's defaults can say.
    #[test]
    fn nothing_of_a_preset_or_of_the_servers_defaults_is_left_out() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/tests/every_parameter.toml");
        let texts = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/tests/texts.json");
        let args =
            ["croupier", "--presets", path, "--grammars=true", "--vocabulary", texts].map(std::ffi::OsString::from);
        let Ok(Command::Serve(config)) = config::parse(args, &|_| None) else { panic!("no mistakes") };
        assert!(config.presets.iter().count() > 5, "several");
        for preset in config.presets.iter() {
            let mut expected = SamplingParams::default();
            preset.apply(&mut expected);
            let wire = proto::SamplingParams { preset: preset.name.clone(), ..Default::default() };
            let named = merged(wire, &SamplingParams::default(), &config.presets);
            assert_eq!(named.as_ref(), Ok(&expected), "{}", preset.name);
            let defaults = merged(proto::SamplingParams::default(), &expected, &config.presets);
            assert_eq!(defaults.map(|params| with_lists(params, &expected)), Ok(expected), "{}", preset.name);
        }
    }

    #[test]
    fn a_filter_that_is_given_goes_before_that_of_its_presets_thinking() {
        let thinking = |budget, temperature| {
            let filters = ThinkingFilters { temperature, top_k: Some(5), ..ThinkingFilters::default() };
            Some(Box::new(ThinkingBudget { budget, filters, ..ThinkingBudget::default() }))
        };
        let (mut defaults, mut params) = (SamplingParams::default(), SamplingParams::default());
        defaults.history.thinking_budget = thinking(9, Some(2.0));
        params.history.thinking_budget = thinking(7, Some(3.0));
        let copies: Vec<CopyParameter> =
            vec![|from, to| to.history.thinking_budget.clone_from(&from.history.thinking_budget)];
        let preset = Preset::new(("thinks".to_owned(), String::new(), String::new()), params, copies);
        let wire = proto::SamplingParams {
            preset: "thinks".to_owned(),
            temperature: Some(1.0),
            ..proto::SamplingParams::default()
        };
        let merged = merged(wire, &defaults, &Presets::new(vec![preset])).expect("no mistake");
        assert_eq!(merged.history.thinking_budget, thinking(7, None));
    }

    /// Sets each filter alone, over a thinking that has all four.
    #[test]
    fn a_filter_that_is_given_goes_before_that_of_an_inherited_thinking() {
        let filters = ThinkingFilters { temperature: Some(2.0), top_k: Some(5), top_p: Some(0.5), min_p: Some(0.1) };
        let thinking = ThinkingBudget { budget: 9, filters, ..ThinkingBudget::default() };
        let mut defaults = SamplingParams::default();
        defaults.history.thinking_budget = Some(Box::new(thinking));
        let left = |set: fn(&mut proto::SamplingParams)| {
            let mut wire = proto::SamplingParams::default();
            set(&mut wire);
            let merged = merged(wire, &defaults, &Presets::default()).expect("no mistake");
            merged.history.thinking_budget.as_ref().map(|thinking| thinking.filters)
        };
        assert_eq!(left(|_| ()), None, "that of the defaults");
        assert_eq!(left(|wire| wire.temperature = Some(1.0)), Some(ThinkingFilters { temperature: None, ..filters }));
        assert_eq!(left(|wire| wire.top_k = Some(0)), Some(ThinkingFilters { top_k: None, ..filters }));
        assert_eq!(left(|wire| wire.top_p = Some(1.0)), Some(ThinkingFilters { top_p: None, ..filters }));
        assert_eq!(left(|wire| wire.min_p = Some(0.0)), Some(ThinkingFilters { min_p: None, ..filters }));
    }
}
