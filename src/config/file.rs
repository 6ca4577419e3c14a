//! The TOML file: one key for each setting, and `[defaults]`.

use super::settings::{SETTINGS, Setting};
use crate::files;
use std::collections::BTreeMap;
use std::path::Path;
use toml::de::DeTable;
use toml::{Table, Value};

/// The key of the table of default sampling parameters.
pub(super) const DEFAULTS: &str = "defaults";
/// Largest file. A Kubernetes ConfigMap has the same limit.
const LARGEST: u64 = 1 << 20;
/// Most mistakes of one file that are reported at a time.
pub(super) const MAX_TOLD: usize = 64;

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Settings by key: the value as text, or its place and what is wrong with its type.
    pub(super) values: BTreeMap<String, Result<String, String>>,
    /// The table `[defaults]`.
    pub(super) defaults: Table,
}

/// Reads a file and adds its mistakes to `problems`.
pub(super) fn read(path: &Path, problems: &mut Vec<String>) -> Said {
    let (Some(text), name) = (text(path, problems), path.display().to_string()) else { return Said::default() };
    let mut found = Vec::new();
    let file = parse(&text, &name, &mut found);
    problems.extend(at_most(&name, found));
    file
}

/// At most [`MAX_TOLD`] mistakes of the file or table called `name`. If there are more, a note says so.
pub(super) fn at_most(name: &str, mut found: Vec<String>) -> Vec<String> {
    if found.len() > MAX_TOLD {
        found.truncate(MAX_TOLD);
        found.push(format!("{name}: has more mistakes; at most {MAX_TOLD} are reported at a time"));
    }
    found
}

/// The text of a file, or a mistake.
pub(super) fn text(path: &Path, problems: &mut Vec<String>) -> Option<String> {
    let read = files::read(path, LARGEST);
    let text =
        read.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "cannot be read: it is not UTF-8".to_owned()));
    text.map_err(|problem| problems.push(format!("{}: {problem}", path.display()))).ok()
}

/// The text of the file called `name` as a table, or every mistake in its form.
pub(super) fn table(text: &str, name: &str) -> Result<Table, Vec<String>> {
    let told = |e: &toml::de::Error| {
        let (at, hint) = (place(text, e.span()), hint(text, e.span()));
        format!("{name}: is not TOML: {at}{}{hint}", without_numbers(e.message()))
    };
    // After a mistake, the recovering parser goes on and finds further ones.
    text.parse().map_err(|first| match DeTable::parse_recoverable(text).1 {
        found if found.is_empty() => vec![told(&first)],
        found => found.iter().take(MAX_TOLD + 1).map(told).collect(),
    })
}

/// The place in a text, as line and column. It does not quote the text there, which may be a secret key.
fn place(text: &str, span: Option<std::ops::Range<usize>>) -> String {
    let Some(before) = span.and_then(|span| text.get(..span.start)) else { return String::new() };
    let line = before.rsplit('\n').next().unwrap_or_default();
    format!("line {}, column {}: ", before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// A hint where a mistake has a usual cause that the parser does not name.
fn hint(text: &str, span: Option<std::ops::Range<usize>>) -> &'static str {
    let rest = span.and_then(|span| text.get(span.start..)).unwrap_or_default();
    let is_fraction = rest.strip_prefix('.').is_some_and(|digits| digits.starts_with(|c: char| c.is_ascii_digit()));
    if is_fraction { "; a number begins with a digit, as in 0.5" } else { "" }
}

/// A message without the numbers that it quotes: they may be secret keys, too.
fn without_numbers(message: &str) -> String {
    let is_number = |part: &str| part.contains(|c: char| c.is_ascii_digit());
    // Quoted parts are every second part.
    let parts = message.split('`').enumerate();
    let parts: Vec<&str> = parts.map(|(at, part)| if at % 2 == 1 && is_number(part) { "..." } else { part }).collect();
    parts.join("`")
}

fn parse(text: &str, path: &str, problems: &mut Vec<String>) -> Said {
    let mut file = Said::default();
    let table = match table(text, path) {
        Ok(table) => table,
        Err(found) => {
            problems.extend(found);
            return file;
        }
    };
    for (key, value) in table {
        match value {
            Value::Table(defaults) if key == DEFAULTS => file.defaults = defaults,
            _ if key == DEFAULTS => {
                problems.push(format!("{path}: {DEFAULTS}: must be a table of sampling parameters"))
            }
            value => match SETTINGS.iter().find(|s| s.key() == key).map(|setting| written(setting, &value)) {
                Some(written) => {
                    let written = written.map_err(|problem| format!("{}{problem}", place_of(text, &key)));
                    file.values.insert(key, written);
                }
                None if super::defaults::parameter(&key).is_some() => {
                    problems.push(format!("{path}: {key}: is a sampling parameter; write it under [{DEFAULTS}]"));
                }
                None => {
                    let known = known_keys();
                    problems.push(format!("{path}: {}", unknown_key(&key, &key, known.iter().map(String::as_str))));
                }
            },
        }
    }
    file
}

fn known_keys() -> Vec<String> {
    SETTINGS.iter().map(Setting::key).chain([DEFAULTS.to_owned()]).collect()
}

/// Whether a top-level key of a file is a setting.
pub(super) fn is_setting(key: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.key() == key)
}

/// A value as the text that its flag would have, or what is wrong with its type.
fn written(setting: &Setting, value: &Value) -> Result<String, String> {
    let text = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Integer(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Boolean(is) => is.to_string(),
        _ => return Err("must be a single value, not a list or table".to_owned()),
    };
    if setting.is_text() { Err(format!("{text} is not a string; {}", setting.hint())) } else { Ok(text) }
}

/// The place in a text of the value of a top-level key.
fn place_of(text: &str, key: &str) -> String {
    let (table, _) = DeTable::parse_recoverable(text);
    place(text, table.get_ref().get(key).map(toml::Spanned::span))
}

/// The message for an unknown key, with the known name that is nearest.
pub(super) fn unknown_key<'a>(path: &str, key: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(key, known) {
        Some(near) => format!("{path}: unknown key; did you mean {near}?"),
        None => {
            format!("{path}: unknown key; docs/configuration.md lists all keys, and croupier serve --help the settings")
        }
    }
}

/// The same message for a table with few keys, which lists them all.
pub(super) fn no_such_key(key: &str, known: &[&str]) -> String {
    match nearest(key, known.iter().copied()) {
        Some(near) => format!("unknown key; did you mean {near}?"),
        None => format!("unknown key; known: {}", known.join(", ")),
    }
}

/// The known name most similar to `name`, if any is similar enough.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |k: &str| strsim::jaro_winkler(name, k);
    known.filter(|k| likeness(k) > 0.8).max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
}
