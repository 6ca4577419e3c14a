//! Presets: those in `presets.toml`, or those in a file that replaces it.

use super::file::{self, MAX_TOLD};
use super::given;
use crate::limits::Limits;
use crate::params::presets::{Preset, Presets};
use std::path::Path;
use toml::{Table, Value};

/// The presets that come with the program.
const SHIPPED: &str = include_str!("presets.toml");
/// The name of [`SHIPPED`] in messages.
const SHIPPED_NAME: &str = "presets.toml";
/// The one key of a preset that is not a parameter.
const DESCRIPTION: &str = "description";
const LONGEST_NAME: usize = 64;
const LONGEST_DESCRIPTION: usize = 256;

/// The presets of the file at `path`, or the shipped ones. Mistakes are added to `problems`.
pub(super) fn read(path: Option<&Path>, limits: &Limits, problems: &mut Vec<String>) -> Presets {
    let (text, name) = match path {
        None => (SHIPPED.to_owned(), SHIPPED_NAME.to_owned()),
        Some(path) => (file::text(path, problems).unwrap_or_default(), path.display().to_string()),
    };
    let table: Table = match file::table(&text, &name) {
        Ok(table) => table,
        Err(found) => {
            problems.extend(file::at_most(&name, found));
            return Presets::default();
        }
    };
    let mut found = Vec::new();
    if table.len() > Presets::MAX {
        found.push(format!("{name}: has {} presets, at most {} are allowed", table.len(), Presets::MAX));
    }
    let mut presets = Vec::new();
    for (key, value) in table.into_iter().take(Presets::MAX) {
        if found.len() <= MAX_TOLD {
            presets.extend(preset(&name, key, value, limits, &mut found));
        }
    }
    problems.extend(file::at_most(&name, found));
    Presets::new(presets)
}

/// The shipped presets. The test `presets_are_read` shows that they have no mistakes.
pub(super) fn shipped() -> Presets {
    read(None, &Limits::default(), &mut Vec::new())
}

fn preset(file: &str, name: String, value: Value, limits: &Limits, problems: &mut Vec<String>) -> Option<Preset> {
    let at = format!("{file}: {name}");
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_valid) {
        problems.push(format!("{at}: a name must have 1 to {LONGEST_NAME} characters of a-z, 0-9, _ and -"));
    }
    let Value::Table(mut table) = value else {
        problems.push(format!("{at}: must be a table of parameters, [{name}]"));
        return None;
    };
    let description = match table.remove(DESCRIPTION) {
        Some(Value::String(text)) if (1..=LONGEST_DESCRIPTION).contains(&text.len()) => text,
        wrong => {
            let wrong = if wrong.is_none() { "is missing; say" } else { "must be a string; say" };
            problems.push(format!(
                "{at}.{DESCRIPTION}: {wrong} in 1 to {LONGEST_DESCRIPTION} bytes what the preset is for"
            ));
            String::new()
        }
    };
    let given = given::read(&at, &table, limits, problems);
    Some(Preset::new((name, description, given::written(&table)), given.params, given.copies))
}

/// The table of presets in `docs/configuration.md`.
#[must_use]
pub fn presets_table() -> String {
    let mut table = "| preset | for | parameters |\n|---|---|---|\n".to_owned();
    for (name, preset) in SHIPPED.parse::<Table>().unwrap_or_default() {
        let Value::Table(values) = preset else { continue };
        let description = values.get(DESCRIPTION).and_then(Value::as_str).unwrap_or_default();
        let given = values.iter().filter(|(key, _)| key.as_str() != DESCRIPTION);
        let given: Vec<String> = given.map(|(key, value)| format!("`{key} = {value}`")).collect();
        table += &format!("| `{name}` | {description} | {} |\n", given.join(", "));
    }
    table
}
