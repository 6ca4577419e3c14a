//! Sampling parameters in files: which parameters `[defaults]` and presets may contain, and how each is read.

use super::parts::{Read, Wrong, boolean, float, sequences, signed, texts, token, tokens, whole};
use super::{composed, marks, named};
use crate::params::presets::CopyParameter;
use crate::params::{SamplerOrder, SamplingParams};
use toml::Value;

/// One parameter that a file may set.
pub(super) struct Parameter {
    pub(super) key: &'static str,
    pub(super) set: fn(&mut SamplingParams, &Value) -> Read<()>,
    show: fn(&SamplingParams) -> String,
    pub(super) copy: CopyParameter,
}

/// Parameters that a file cannot set, and why.
pub(super) const NEVER: [(&str, &str); 6] = [
    ("seed", "cannot be set in a file: all sequences would draw alike; each sequence gives its own"),
    ("preset", "cannot be set in a file: write its parameters instead"),
    ("sampler_state", "cannot be set in a file: it belongs to a single sequence"),
    ("stop", STOP),
    ("stop_strings", STOP),
    ("stop_sequences", STOP),
];
const STOP: &str =
    "is not supported: the server stops at tokens, not at text; use stop_token_ids or stop_token_sequences";

/// A parameter that is a number or a boolean.
macro_rules! parameter {
    ($($part:ident).+, $read:expr) => {
        Parameter {
            key: last!($($part).+),
            set: |params, value| {
                params.$($part).+ = $read(value).map_err(|wrongs| with_default(wrongs, params.$($part).+))?;
                Ok(())
            },
            show: |params| params.$($part).+.to_string(),
            copy: |from, to| to.$($part).+ = from.$($part).+,
        }
    };
}

/// A parameter whose default is decided elsewhere.
macro_rules! decided {
    ($part:ident.$field:ident, $read:expr, $by:literal) => {
        Parameter {
            key: stringify!($field),
            set: |params, value| {
                params.$part.$field = Some($read(value)?);
                Ok(())
            },
            show: |params| params.$part.$field.map_or($by.to_owned(), |value| value.to_string()),
            copy: |from, to| to.$part.$field = from.$part.$field,
        }
    };
}

/// A parameter that is empty by default: a list, or a table with parts. The third argument converts what was read.
macro_rules! nothing {
    ($($part:ident).+, $read:expr) => {
        nothing!($($part).+, $read, std::convert::identity)
    };
    ($($part:ident).+, $read:expr, $made:expr) => {
        Parameter {
            key: last!($($part).+),
            set: |params, value| {
                params.$($part).+ = $made($read(value)?);
                Ok(())
            },
            show: |_| "none".to_owned(),
            copy: |from, to| to.$($part).+.clone_from(&from.$($part).+),
        }
    };
}

/// The name of the field: the last part of a path.
macro_rules! last {
    ($field:ident) => {
        stringify!($field)
    };
    ($part:ident.$field:ident) => {
        stringify!($field)
    };
}

/// The same mistakes, each with a note on the default.
fn with_default(mut wrongs: Vec<Wrong>, default: impl ToString) -> Vec<Wrong> {
    wrongs.iter_mut().for_each(|wrong| wrong.what += &format!("; its default is {}", default.to_string()));
    wrongs
}

static PARAMETERS: &[Parameter] = &[
    parameter!(temperature, float),
    parameter!(top_k, whole),
    parameter!(top_p, float),
    parameter!(min_p, float),
    parameter!(repetition_penalty, float),
    parameter!(frequency_penalty, float),
    parameter!(presence_penalty, float),
    nothing!(logit_bias, composed::logit_bias),
    nothing!(allowed_token_ids, tokens),
    nothing!(banned_token_ids, tokens),
    nothing!(bad_words, sequences),
    parameter!(min_tokens, whole),
    parameter!(max_tokens, whole),
    nothing!(stop_token_ids, tokens),
    nothing!(history.stop_token_sequences, sequences),
    parameter!(ignore_eos, boolean),
    nothing!(logprobs, composed::logprobs, Some),
    Parameter {
        key: "acceptance",
        set: |params, value| {
            params.acceptance = composed::acceptance(value)?;
            Ok(())
        },
        show: |_| "rejection".to_owned(),
        copy: |from, to| to.acceptance = from.acceptance,
    },
    nothing!(proposer, composed::proposer),
    nothing!(draft_length, composed::draft_length),
    parameter!(samplers.dynatemp_low, float),
    parameter!(samplers.dynatemp_high, float),
    parameter!(samplers.dynatemp_exponent, float),
    parameter!(samplers.temperature_end, float),
    parameter!(samplers.temperature_tokens, whole),
    parameter!(samplers.smoothing_factor, float),
    parameter!(samplers.smoothing_curve, float),
    parameter!(samplers.typical_p, float),
    parameter!(samplers.tfs, float),
    parameter!(samplers.top_a, float),
    parameter!(samplers.top_n_sigma, float),
    parameter!(samplers.min_k, boolean),
    parameter!(samplers.min_k_tau, float),
    parameter!(samplers.epsilon_cutoff, float),
    parameter!(samplers.eta_cutoff, float),
    parameter!(samplers.top_h, float),
    parameter!(samplers.xtc_probability, float),
    parameter!(samplers.xtc_threshold, float),
    decided!(samplers.xtc_expected, boolean, "set by engine_order"),
    nothing!(samplers.xtc_ignore_token_ids, tokens),
    parameter!(samplers.min_keep, whole),
    Parameter {
        key: "sampler_order",
        set: |params, value| named::sampler_order(&mut params.samplers.sampler_order, value),
        show: |_| "set by engine_order".to_owned(),
        // A list without an engine keeps the rules that are already set.
        copy: |from, to| {
            let (samplers, engine) = (from.samplers.sampler_order.samplers(), to.samplers.sampler_order.engine());
            to.samplers.sampler_order = SamplerOrder::Custom(samplers.to_vec(), engine);
        },
    },
    Parameter {
        key: "engine_order",
        set: |params, value| named::engine_order(&mut params.samplers.sampler_order, value),
        show: |_| "croupier".to_owned(),
        copy: |from, to| to.samplers.sampler_order.clone_from(&from.samplers.sampler_order),
    },
    parameter!(samplers.mirostat, whole),
    parameter!(samplers.mirostat_tau, float),
    parameter!(samplers.mirostat_eta, float),
    parameter!(samplers.adaptive_target, float),
    parameter!(samplers.adaptive_decay, float),
    parameter!(samplers.top_p_decay, float),
    parameter!(samplers.top_p_min, float),
    nothing!(samplers.top_p_reset_token_ids, tokens),
    parameter!(samplers.p_less, boolean),
    parameter!(samplers.p_less_norm, boolean),
    parameter!(samplers.infill, boolean),
    parameter!(samplers.min_eos_p, float),
    parameter!(samplers.skew, float),
    parameter!(samplers.return_sampler_state, boolean),
    nothing!(samplers.report, composed::report, Some),
    parameter!(history.dry_multiplier, float),
    parameter!(history.dry_base, float),
    parameter!(history.dry_allowed_length, whole),
    parameter!(history.dry_penalty_last_n, signed),
    nothing!(history.dry_sequence_breakers, sequences),
    nothing!(history.dry_sequence_breaker_texts, texts),
    parameter!(history.dry_max_ngram, whole),
    parameter!(history.dry_max_occurrences, whole),
    parameter!(history.dry_early_exit_match_len, whole),
    parameter!(history.penalty_last_n, whole),
    parameter!(history.penalty_decay_n, whole),
    parameter!(history.prompt_ignore_length, whole),
    decided!(history.penalties_count_prompt, boolean, "set by engine_order"),
    decided!(history.subtract_penalties_first, boolean, "set by engine_order"),
    decided!(history.bias_after_penalties, boolean, "set by engine_order"),
    parameter!(history.encoder_repetition_penalty, float),
    nothing!(history.no_repeat_ngram, composed::no_repeat_ngram, Some),
    nothing!(history.length_penalty, composed::length_penalty, Some),
    nothing!(history.sequence_bias, composed::sequence_bias),
    nothing!(history.token_ban_ranges, composed::token_ban_ranges),
    nothing!(history.forced_first_token, token, Some),
    nothing!(history.forced_last_token, token, Some),
    nothing!(history.repetition_detection, composed::repetition_detection, Some),
    nothing!(history.thinking_budget, composed::thinking_budget, Some),
    nothing!(history.grammar, composed::grammar),
    nothing!(history.watermark, marks::watermark),
];

/// The parameter with this key.
pub(super) fn parameter(key: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|p| p.key == key)
}

/// The keys of all parameters.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    PARAMETERS.iter().map(|p| p.key)
}

/// The table of `[defaults]` in `docs/configuration.md`.
#[must_use]
pub fn default_parameters_table() -> String {
    let mut table = "| key in `[defaults]` | default |\n|---|---|\n".to_owned();
    for p in PARAMETERS {
        table += &format!("| `{}` | `{}` |\n", p.key, (p.show)(&SamplingParams::default()));
    }
    table
}
