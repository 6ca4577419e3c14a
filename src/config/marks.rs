//! Reads a watermark from a file, or for `croupier detect` from flags. It is a table under the name of its scheme, with
//! the parameters under their names in the schema. Large keys may be texts, as in JSON and in flags, or may be kept in
//! separate files. A message never repeats a key.

use super::parts::{Parts, Read, boolean, shown, table, wrong};
use crate::params::watermark::{GumbelParams, KgwParams, SeedingScheme, SynthidParams, Watermark};
use crate::reload::read_one;
use std::borrow::Cow;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use toml::{Table, Value};

/// The names of the schemes.
pub(super) const SCHEMES: [&str; 3] = ["kgw", "synthid", "gumbel"];

/// Such as `{ kgw = { hashing_key = 5 } }`. An empty table means no watermark.
pub(super) fn watermark(value: &Value) -> Read<Option<Arc<Watermark>>> {
    let mark = table(value, |parts| {
        let marks = SCHEMES.map(|scheme| parts.part(scheme, |value| of_scheme(scheme, value)));
        marks.into_iter().flatten().next()
    })?;
    match value.as_table().map_or(0, Table::len) {
        0 | 1 => Ok(mark.map(Arc::new)),
        _ => wrong(format!("has more than one scheme; keep only one of {}", SCHEMES.join(", "))),
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

/// A number, or a number written as text.
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

/// The prefix of a text that names the file which holds a key.
const FILE: &str = "file:";

/// The value itself, or the content of the file that it names. Keys are secrets: a file lets them be kept apart from
/// the configuration.
fn secret(value: &Value) -> Read<Cow<'_, Value>> {
    let Some(path) = value.as_str().and_then(|text| text.strip_prefix(FILE)) else { return Ok(Cow::Borrowed(value)) };
    let text = read_one(Path::new(path))
        .and_then(|bytes| String::from_utf8(bytes).map_err(|_| format!("{path}: is not text")));
    text.map_or_else(wrong, |text| Ok(Cow::Owned(Value::String(text.trim().to_owned()))))
}

fn key(value: &Value) -> Read<u64> {
    let value = secret(value)?;
    number(&value).map_or_else(
        || wrong("is not a key, a whole number below 2^64 (in a file, from 2^63 on as a string)".to_owned()),
        Ok,
    )
}

/// Such as `[1, 2]`, or `"1, 2"`. In a file, keys may also stand one per line.
fn keys(value: &Value) -> Read<Vec<u64>> {
    let list = match secret(value)?.as_ref() {
        Value::String(text) => text.split([',', '\n']).map(|key| Value::String(key.to_owned())).collect(),
        Value::Array(list) => list.clone(),
        _ => return wrong("is not a list of keys, such as [654, 400]".to_owned()),
    };
    super::parts::list(&Value::Array(list), "keys", key)
}

fn seeding_scheme(value: &Value) -> Read<SeedingScheme> {
    // Accepts the name as on the command line and as in the schema.
    let name = value.as_str().map(|name| name.trim_start_matches("SEEDING_SCHEME_").to_ascii_lowercase());
    match name.as_deref() {
        Some("lefthash") => Ok(SeedingScheme::Lefthash),
        Some("selfhash") => Ok(SeedingScheme::Selfhash),
        _ => wrong(format!("{} is not a seeding scheme; known: lefthash, selfhash", shown(value))),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The watermark that a text describes, or the error.
    fn read(text: &str) -> Result<Watermark, String> {
        let table: Table = text.parse().expect("it is TOML");
        match watermark(&Value::Table(table)) {
            Ok(mark) => Ok(mark.expect("there is one").as_ref().clone()),
            Err(wrongs) => Err(wrongs.iter().map(|wrong| format!("{}: {}", wrong.at, wrong.what)).collect()),
        }
    }

    #[test]
    fn keys_lie_in_files_of_their_own_where_they_are_to() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = |name: &str, holds: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, holds).expect("it is written");
            path.display().to_string()
        };
        let one = file("one", b"18446744073709551615\n");
        let kgw = KgwParams { hashing_key: u64::MAX, ..KgwParams::default() };
        assert_eq!(read(&format!("kgw = {{ hashing_key = 'file:{one}' }}")), Ok(Watermark::Kgw(kgw)));
        let gumbel = Watermark::Gumbel(GumbelParams::new(u64::MAX));
        assert_eq!(read(&format!("gumbel = {{ key = 'file:{one}' }}")), Ok(gumbel));
        let synthid = Watermark::Synthid(SynthidParams::new(vec![654, 400, 836]));
        for holds in ["654, 400,836", "654\n400\r\n836\n"] {
            let many = file("many", holds.as_bytes());
            assert_eq!(read(&format!("synthid = {{ keys = 'file:{many}' }}")), Ok(synthid.clone()), "{holds:?}");
        }
        for holds in [&b"secret123"[..], b"", b"5 6", b"\xff123"] {
            let said =
                read(&format!("kgw = {{ hashing_key = 'file:{}' }}", file("wrong", holds))).expect_err("it is wrong");
            assert!(said.starts_with(".kgw.hashing_key: ") && !said.contains("123"), "{said}");
        }
        let said = read("gumbel = { key = 'file:/nowhere' }").expect_err("it is not there");
        assert!(said.starts_with(".gumbel.key: /nowhere: cannot be read: "), "{said}");
    }
}
