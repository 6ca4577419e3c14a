//! Sampling parameters in files: `[defaults]`, and those of presets.

use super::named;
use crate::limits::Limits;
use crate::params::presets::CopyParameter;
use crate::params::{SamplerOrder, SamplingParams};
use toml::{Table, Value};

/// One parameter that may have a server default. A seed may not, since one for all would make all sequences alike; nor may lists,
/// which mean something for one sequence mostly, but for orders and sequence breakers.
struct Parameter {
    key: &'static str,
    /// `Err(None)`: it is no value for it, and there is no more to be said.
    set: fn(&mut SamplingParams, &Value) -> Result<(), Option<String>>,
    show: fn(&SamplingParams) -> String,
    copy: CopyParameter,
}

macro_rules! parameter {
    ($field:ident, $read:expr) => {
        Parameter {
            key: stringify!($field),
            set: |params, value| {
                params.$field = $read(value).ok_or(None)?;
                Ok(())
            },
            show: |params| params.$field.to_string(),
            copy: |from, to| to.$field = from.$field,
        }
    };
    ($part:ident.$field:ident, $read:expr) => {
        Parameter {
            key: stringify!($field),
            set: |params, value| {
                params.$part.$field = $read(value).ok_or(None)?;
                Ok(())
            },
            show: |params| params.$part.$field.to_string(),
            copy: |from, to| to.$part.$field = from.$part.$field,
        }
    };
}

/// One that is decided elsewhere where it is not given.
macro_rules! decided {
    ($part:ident.$field:ident, $read:expr, $by:literal) => {
        Parameter {
            key: stringify!($field),
            set: |params, value| {
                params.$part.$field = Some($read(value).ok_or(None)?);
                Ok(())
            },
            show: |params| params.$part.$field.map_or($by.to_owned(), |value| value.to_string()),
            copy: |from, to| to.$part.$field = from.$part.$field,
        }
    };
}

/// One that is a list or a word, by default shown as said.
macro_rules! listed {
    ($key:literal, $part:ident.$field:ident, $read:expr, $default:literal) => {
        Parameter {
            key: $key,
            set: |params, value| {
                params.$part.$field = $read(value).map_err(Some)?;
                Ok(())
            },
            show: |_| $default.to_owned(),
            copy: |from, to| to.$part.$field.clone_from(&from.$part.$field),
        }
    };
}

static PARAMETERS: &[Parameter] = &[
    parameter!(temperature, float),
    parameter!(top_k, whole),
    parameter!(top_p, float),
    parameter!(min_p, float),
    parameter!(repetition_penalty, float),
    parameter!(frequency_penalty, float),
    parameter!(presence_penalty, float),
    parameter!(min_tokens, whole),
    parameter!(max_tokens, whole),
    parameter!(ignore_eos, Value::as_bool),
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
    parameter!(samplers.epsilon_cutoff, float),
    parameter!(samplers.eta_cutoff, float),
    parameter!(samplers.top_h, float),
    parameter!(samplers.xtc_probability, float),
    parameter!(samplers.xtc_threshold, float),
    decided!(samplers.xtc_expected, Value::as_bool, "that of engine_order"),
    parameter!(samplers.min_keep, whole),
    Parameter {
        key: "sampler_order",
        set: |params, value| named::sampler_order(&mut params.samplers.sampler_order, value).map_err(Some),
        show: |_| "that of engine_order".to_owned(),
        // A list alone has the rules that are there.
        copy: |from, to| {
            let (samplers, engine) = (from.samplers.sampler_order.samplers(), to.samplers.sampler_order.engine());
            to.samplers.sampler_order = SamplerOrder::Custom(samplers.to_vec(), engine);
        },
    },
    Parameter {
        key: "engine_order",
        set: |params, value| named::engine_order(&mut params.samplers.sampler_order, value).map_err(Some),
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
    parameter!(samplers.p_less, Value::as_bool),
    parameter!(samplers.infill, Value::as_bool),
    parameter!(samplers.min_eos_p, float),
    parameter!(samplers.skew, float),
    parameter!(samplers.return_sampler_state, Value::as_bool),
    parameter!(history.dry_multiplier, float),
    parameter!(history.dry_base, float),
    parameter!(history.dry_allowed_length, whole),
    parameter!(history.dry_penalty_last_n, signed),
    listed!("dry_sequence_breakers", history.dry_sequence_breakers, named::breakers, "none"),
    parameter!(history.dry_max_ngram, whole),
    parameter!(history.dry_max_occurrences, whole),
    parameter!(history.dry_early_exit_match_len, whole),
    parameter!(history.penalty_last_n, whole),
    parameter!(history.penalty_decay_n, whole),
    parameter!(history.prompt_ignore_length, whole),
    decided!(history.penalties_count_prompt, Value::as_bool, "that of engine_order"),
    parameter!(history.encoder_repetition_penalty, float),
];

fn float(value: &Value) -> Option<f32> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64)).map(|x| x as f32)
}

fn whole(value: &Value) -> Option<u32> {
    value.as_integer().and_then(|n| u32::try_from(n).ok())
}

fn signed(value: &Value) -> Option<i32> {
    value.as_integer().and_then(|n| i32::try_from(n).ok())
}

/// Names of the parameters.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    PARAMETERS.iter().map(|p| p.key)
}

/// Parameters that a table gives.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// All parameters, those that are not given at their defaults.
    pub(super) params: SamplingParams,
    /// Copy those that are given.
    pub(super) copies: Vec<CopyParameter>,
}

/// Reads the table called `name` and checks the values, adding every mistake to `problems`.
pub(super) fn read(name: &str, table: &Table, limits: &Limits, problems: &mut Vec<String>) -> Given {
    let before = problems.len();
    let mut given = Given::default();
    for (key, value) in table {
        let Some(parameter) = PARAMETERS.iter().find(|p| p.key == key) else {
            problems.push(super::file::unknown_key(&format!("{name}.{key}"), key, keys()));
            continue;
        };
        // Checked alone, so that one mistake does not hide the next.
        let mut alone = SamplingParams::default();
        if let Err(wrong) = (parameter.set)(&mut alone, value) {
            let off = || (parameter.show)(&SamplingParams::default());
            let wrong = wrong.unwrap_or_else(|| format!("{value} is not a value for it; its default is {}", off()));
            problems.push(format!("{name}.{key}: {wrong}"));
            continue;
        }
        if let Err(e) = alone.validate(limits.max_vocab_size, limits.max_top_logprobs)
            && e.field.split('[').next() == Some(key.as_str())
        {
            problems.push(e.within(name).to_string());
        }
        _ = (parameter.set)(&mut given.params, value);
        given.copies.push(parameter.copy);
    }
    if problems.len() == before
        && let Err(e) = given.params.validate(limits.max_vocab_size, limits.max_top_logprobs)
    {
        problems.push(e.within(name).to_string());
    }
    given
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
