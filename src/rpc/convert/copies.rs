//! Bounds the work that few bytes on the wire can ask for: a sequence copies lists of its stream or of a preset, and
//! has some of them prepared.

use super::config::Config;
use super::params::penalties;
use crate::error::Error;
use crate::params::presets::Preset;
use crate::params::watermark::{MAX_TABLE_SIZE, SynthidParams};
use crate::proto;
use crate::proto::grammar_params::Kind;
use std::collections::HashSet;
use std::mem::discriminant;

/// Most entries of default lists, and of presets' lists, that the sequences of one message may copy.
const MAX_COPIED_ENTRIES: usize = 1 << 24;

/// Most places of SynthID tables that one message may have built: 16 of the largest tables, 60 ms of work.
const MAX_TABLE_PLACES: usize = 1 << 24;

/// Most different grammars that one message may have compiled. Each takes some tenths of a second at most.
const MAX_GRAMMARS: usize = 64;

/// Most tokens of presets' patterns that one message may have prepared.
const MAX_PRESET_PATTERN_TOKENS: usize = 1 << 20;

/// Checks how much work the sequences of a message ask for. A sequence that has bans or biases of its own merges them
/// with the stream's, and one with penalties counts into a copy of them, so a few bytes on the wire could ask for much
/// work. So could a sequence that names a preset with long lists. `max_state_bytes` bounds the memory.
///
/// # Errors
/// At `field`, when the message asks for more than [`MAX_COPIED_ENTRIES`], [`MAX_TABLE_PLACES`], [`MAX_GRAMMARS`] or
/// [`MAX_PRESET_PATTERN_TOKENS`].
pub(in crate::rpc) fn check_copies<'a>(
    params: impl Iterator<Item = Option<&'a proto::SamplingParams>> + Clone,
    field: &str,
    config: &Config,
) -> Result<(), Error> {
    check_tables(params.clone().flatten(), field, config)?;
    check_patterns(params.clone().flatten(), field, config)?;
    check_grammars(params.clone().flatten(), field)?;
    let (defaults, fixed) = (config.rules.params(), config.rules.fixed_entries());
    let copied = |params: Option<&proto::SamplingParams>| {
        let preset = params.and_then(|own| preset(own, config));
        let merges = params.is_some_and(|own| {
            let lists = [own.logit_bias.is_empty(), own.banned_token_ids.is_empty(), own.bad_words.is_empty()];
            lists.contains(&false) || own.length_penalty.is_some()
        });
        let merges = merges || preset.is_some_and(Preset::changes_tokens);
        let penalties = params.map_or(defaults.penalties(), |own| penalties(own, defaults));
        // A preset may switch penalties on.
        let copies = usize::from(merges) + usize::from(preset.is_some() || !penalties.is_off());
        copies * fixed + preset.map_or(0, Preset::entries)
    };
    let entries = params.map(copied).fold(0, usize::saturating_add);
    if entries > MAX_COPIED_ENTRIES {
        let message = format!(
            "sequences with penalties, or with bans or biases of their own or of a preset, would copy {entries} entries of the \
             stream's default bans and biases and of presets' lists, at most {MAX_COPIED_ENTRIES} are allowed in one message; split it"
        );
        return Err(Error::invalid(field, message));
    }
    Ok(())
}

/// The preset that parameters name. An unknown preset is reported when the sequence is opened.
fn preset<'c>(own: &proto::SamplingParams, config: &'c Config) -> Option<&'c Preset> {
    if own.preset.is_empty() { None } else { config.setup.presets.get(&own.preset).ok() }
}

/// Bounds SynthID tables: a sequence with a table of its own has it built, from a few bytes on the wire.
fn check_tables<'a>(
    params: impl Iterator<Item = &'a proto::SamplingParams>,
    field: &str,
    config: &Config,
) -> Result<(), Error> {
    use proto::watermark_params::Scheme;
    let usual = SynthidParams::new(Vec::new());
    let is_usual = |size, seed| size == usual.sampling_table_size && seed == usual.sampling_table_seed;
    // Larger tables are refused elsewhere.
    let places = |size: u32, seed| if is_usual(size, seed) { 0 } else { size.min(MAX_TABLE_SIZE) as usize };
    let of_preset = |own: &proto::SamplingParams| {
        let mark = preset(own, config).and_then(Preset::watermark);
        // The stream's table is already built.
        mark.filter(|mark| config.rules.params().watermark() != Some(mark))
            .and_then(|mark| mark.table())
            .map_or(0, |(size, seed)| places(size, seed))
    };
    let needed = |own: &proto::SamplingParams| match own.watermark.as_ref() {
        None => of_preset(own),
        Some(mark) => match &mark.scheme {
            Some(Scheme::Synthid(wire)) => {
                let size = wire.sampling_table_size.unwrap_or(usual.sampling_table_size);
                places(size, wire.sampling_table_seed.unwrap_or(usual.sampling_table_seed))
            }
            _ => 0,
        },
    };
    let needed: usize = params.map(needed).sum();
    if needed <= MAX_TABLE_PLACES {
        return Ok(());
    }
    let message = format!(
        "sequences with a watermark.synthid.sampling_table_size or _seed of their own would need tables of {needed} \
         entries, at most {MAX_TABLE_PLACES} are allowed in one message; split it, or make the watermark the stream's default"
    );
    Err(Error::invalid(field, message))
}

/// Bounds grammars: each one that is not known yet is compiled. A text that is given as two kinds is two grammars. Those of
/// presets do not count: the server has few, whatever a message says.
fn check_grammars<'a>(params: impl Iterator<Item = &'a proto::SamplingParams>, field: &str) -> Result<(), Error> {
    let grammars = params.filter_map(|own| own.grammar.as_ref()?.kind.as_ref());
    let different: HashSet<_> = grammars
        .map(|kind| match kind {
            Kind::JsonSchema(text) | Kind::Regex(text) | Kind::Lark(text) | Kind::Gbnf(text) | Kind::Choices(text) => {
                (discriminant(kind), text.as_str())
            }
        })
        .collect();
    if different.len() <= MAX_GRAMMARS {
        return Ok(());
    }
    let message = format!(
        "sequences have {} different grammars, at most {MAX_GRAMMARS} are allowed in one message; split it",
        different.len()
    );
    Err(Error::invalid(field, message))
}

/// Bounds patterns. A sequence has the sequence breakers, bad words or sequence biases of its preset prepared, or the
/// sequences after which its grammar begins, whatever other ones it brings.
fn check_patterns<'a>(
    params: impl Iterator<Item = &'a proto::SamplingParams>,
    field: &str,
    config: &Config,
) -> Result<(), Error> {
    let tokens: usize = params.map(|own| preset(own, config).map_or(0, Preset::pattern_tokens)).sum();
    if tokens <= MAX_PRESET_PATTERN_TOKENS {
        return Ok(());
    }
    let message = format!(
        "sequences with a preset that has dry_sequence_breakers, dry_sequence_breaker_texts, bad_words, sequence_bias or a \
         grammar's start_sequences would prepare {tokens} tokens and bytes of texts of them, at most {MAX_PRESET_PATTERN_TOKENS} are allowed in one message; split it, or \
         name the preset in the stream's default_params"
    );
    Err(Error::invalid(field, message))
}
