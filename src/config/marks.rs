//! A mark in files, and of `croupier detect` in flags: a table called as its scheme, with the parameters by their names in the
//! schema. Large keys may be texts, as JSON writes them and as flags are; a mistake never repeats a key.

use super::parts::{Parts, Read, boolean, shown, table, wrong};
use crate::params::watermark::{GumbelParams, KgwParams, SeedingScheme, SynthidParams, Watermark};
use std::str::FromStr;
use std::sync::Arc;
use toml::{Table, Value};

/// The schemes by name.
pub(super) const SCHEMES: [&str; 3] = ["kgw", "synthid", "gumbel"];

/// `{ kgw = { hashing_key = 5 } }`; an empty table is no mark.
pub(super) fn watermark(value: &Value) -> Read<Option<Arc<Watermark>>> {
    let mark = table(value, |parts| {
        let marks = SCHEMES.map(|scheme| parts.part(scheme, |value| of_scheme(scheme, value)));
        marks.into_iter().flatten().next()
    })?;
    match value.as_table().map_or(0, Table::len) {
        0 | 1 => Ok(mark.map(Arc::new)),
        _ => wrong(format!("has more than one scheme; leave one of {}", SCHEMES.join(", "))),
    }
}

/// The parameters of a scheme; not yet checked against ranges.
pub(super) fn of_scheme(scheme: &str, value: &Value) -> Read<Watermark> {
    table(value, |parts| match scheme {
        "kgw" => Watermark::Kgw(kgw(parts)),
        "synthid" => Watermark::Synthid(synthid(parts)),
        _ => Watermark::Gumbel(gumbel(parts)),
    })
}

/// A number, or its text.
fn number<T: FromStr>(value: &Value) -> Option<T> {
    match value {
        Value::Integer(n) => n.to_string().parse().ok(),
        Value::Float(x) => x.to_string().parse().ok(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn whole(value: &Value) -> Read<u32> {
    number(value).map_or_else(|| wrong(format!("{} is not a whole number, 0 or more", shown(value))), Ok)
}

fn float(value: &Value) -> Read<f32> {
    number(value).map_or_else(|| wrong(format!("{} is not a number", shown(value))), Ok)
}

fn key(value: &Value) -> Read<u64> {
    number(value).map_or_else(|| wrong("is no key, a whole number below 2^64 (as a text from 2^63 on)".to_owned()), Ok)
}

/// `[1, 2]`, or `"1, 2"`.
fn keys(value: &Value) -> Read<Vec<u64>> {
    let list = match value {
        Value::String(text) => text.split(',').map(|key| Value::String(key.to_owned())).collect(),
        Value::Array(list) => list.clone(),
        _ => return wrong("is no list of keys, such as [654, 400]".to_owned()),
    };
    super::parts::list(&Value::Array(list), "keys", key)
}

fn seeding_scheme(value: &Value) -> Read<SeedingScheme> {
    // As on the command line, or as in the schema.
    let name = value.as_str().map(|name| name.trim_start_matches("SEEDING_SCHEME_").to_ascii_lowercase());
    match name.as_deref() {
        Some("lefthash") => Ok(SeedingScheme::Lefthash),
        Some("selfhash") => Ok(SeedingScheme::Selfhash),
        _ => wrong(format!("{} is not a seeding scheme; there are lefthash, selfhash", shown(value))),
    }
}

fn kgw(parts: &mut Parts<'_>) -> KgwParams {
    let default = KgwParams::with_scheme(parts.or("seeding_scheme", SeedingScheme::Lefthash, seeding_scheme));
    KgwParams {
        hashing_key: parts.or("hashing_key", default.hashing_key, key),
        greenlist_ratio: parts.or("greenlist_ratio", default.greenlist_ratio, float),
        bias: parts.or("bias", default.bias, float),
        context_width: parts.or("context_width", default.context_width, whole),
        ..default
    }
}

fn synthid(parts: &mut Parts<'_>) -> SynthidParams {
    let default = SynthidParams::new(parts.needed("keys", keys).unwrap_or_default());
    SynthidParams {
        ngram_len: parts.or("ngram_len", default.ngram_len, whole),
        context_history_size: parts.or("context_history_size", default.context_history_size, whole),
        sampling_table_size: parts.or("sampling_table_size", default.sampling_table_size, whole),
        sampling_table_seed: parts.or("sampling_table_seed", default.sampling_table_seed, whole),
        skip_first_ngram_calls: parts.or("skip_first_ngram_calls", default.skip_first_ngram_calls, boolean),
        ..default
    }
}

fn gumbel(parts: &mut Parts<'_>) -> GumbelParams {
    let default = GumbelParams::new(parts.needed("key", key).unwrap_or_default());
    GumbelParams {
        context_width: parts.or("context_width", default.context_width, whole),
        context_history_size: parts.or("context_history_size", default.context_history_size, whole),
        ..default
    }
}
