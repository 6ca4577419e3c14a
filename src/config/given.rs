//! Reads the sampling parameters of a table in a file. They are read one by one and then checked together, against the
//! same ranges as those on the wire. After a mistake, reading goes on, so that one mistake does not hide the next.

use super::defaults::{self, NEVER, Parameter};
use super::file::{MAX_TOLD, at_most, is_setting, unknown_key};
use super::meant;
use super::parts::Wrong;
use crate::limits::Limits;
use crate::params::presets::CopyParameter;
use crate::params::{FieldError, SamplingParams};
use toml::{Table, Value};

/// The parameter that contains secrets.
const WATERMARK: &str = "watermark";

/// The parameters that a table sets.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// All parameters. Those that the table does not set have their defaults.
    pub(super) params: SamplingParams,
    /// Functions that copy the parameters that the table sets.
    pub(super) copies: Vec<CopyParameter>,
}

/// Reads the table called `name`, checks its values and adds the mistakes to `problems`.
pub(super) fn read(name: &str, table: &Table, limits: &Limits, problems: &mut Vec<String>) -> Given {
    read_over(&SamplingParams::default(), (name, table), limits, problems)
}

/// As `read`, but starts from existing parameters: those of the server's file, and of a preset.
pub(super) fn read_over(
    base: &SamplingParams,
    (name, table): (&str, &Table),
    limits: &Limits,
    problems: &mut Vec<String>,
) -> Given {
    let mut reading =
        Reading { name, base, entries: Vec::new(), wrong: Vec::new(), told: Vec::new(), problems: Vec::new() };
    for (key, value) in table {
        if reading.problems.len() <= MAX_TOLD {
            reading.take(key, value);
        }
    }
    let given = loop {
        let mut given = Given { params: base.clone(), copies: Vec::new() };
        for entry in &reading.entries {
            // `take` has already checked that this value can be set.
            _ = (entry.parameter.set)(&mut given.params, &entry.value);
            given.copies.push(entry.parameter.copy);
        }
        match given.params.validate(limits.max_vocab_size, limits.max_top_logprobs) {
            Err(e) if reading.problems.len() <= MAX_TOLD && reading.goes_on_without(&e) => {}
            _ => break given,
        }
    };
    problems.extend(at_most(name, reading.problems));
    given
}

/// A table as text for clients: one parameter per line. The watermark is left out, because its keys are secrets.
pub(super) fn written(table: &Table) -> String {
    let told = table.iter().filter(|(key, _)| key.as_str() != WATERMARK);
    told.map(|(key, value)| format!("{key} = {value}\n")).collect()
}

/// One parameter, without the parts that have mistakes.
struct Entry {
    parameter: &'static Parameter,
    value: Value,
    /// For a list: the original places of its entries in the file, since entries with mistakes are removed.
    places: Vec<usize>,
}

/// The state while a table is read.
struct Reading<'n> {
    name: &'n str,
    /// The parameters that the table is read over.
    base: &'n SamplingParams,
    entries: Vec<Entry>,
    /// Parameters with mistakes.
    wrong: Vec<&'static str>,
    /// Places of the mistakes found when all values were checked together.
    told: Vec<String>,
    problems: Vec<String>,
}

impl Reading<'_> {
    /// Reads one parameter.
    fn take(&mut self, key: &str, value: &Value) {
        let Some(parameter) = defaults::parameter(key) else {
            let path = format!("{}.{key}", self.name);
            self.problems.push(match NEVER.iter().find(|(never, _)| *never == key) {
                Some((_, why)) => format!("{path}: {why}"),
                None if is_setting(key) => {
                    format!("{path}: is a setting of the server; it belongs at the top level of its file")
                }
                None => match meant::parameter(key) {
                    Some(hint) => format!("{path}: unknown key; {hint}"),
                    None => unknown_key(&path, key, defaults::keys()),
                },
            });
            return;
        };
        let places = (0..value.as_array().map_or(0, Vec::len)).collect();
        let mut entry = Entry { parameter, value: value.clone(), places };
        if let Err(wrongs) = (parameter.set)(&mut SamplingParams::default(), value) {
            self.wrong.push(parameter.key);
            // An order from which a sampler is removed would lead to another mistake: the sampler has no place.
            let is_useful = key != "sampler_order" && wrongs.iter().all(|wrong| entry.cut(&wrong.at));
            let told = wrongs.into_iter().take(MAX_TOLD + 1);
            self.problems.extend(told.map(|Wrong { at, what }| format!("{}.{key}{at}: {what}", self.name)));
            if !is_useful || !entry.is_readable() {
                return;
            }
        }
        self.entries.push(entry);
    }

    /// Reports a mistake that was found when all values were checked together, and removes the value that it is about,
    /// so that the next mistake can be found. `false`: nothing can be removed.
    fn goes_on_without(&mut self, e: &FieldError) -> bool {
        let (key, at) = e.field.split_at(e.field.find(['.', '[']).unwrap_or(e.field.len()));
        let found = self.entries.iter().position(|entry| entry.parameter.key == key);
        let at = found.map_or(at.to_owned(), |i| self.entries[i].at_in_file(at));
        // A parameter that seems to be missing may have been given, with a mistake that was already reported.
        let needs = |key: &&str| e.message.starts_with(&format!("needs {key}"));
        let follows = found.is_none() && self.wrong.contains(&key);
        let place = format!("{key}{at}");
        // A value that was reported and removed is missing now. That is no further mistake.
        let is_told = self.told.contains(&place);
        if !is_told && !follows && !self.wrong.iter().any(needs) {
            self.problems.push(if found.is_none() && self.is_inherited(key) {
                format!("{place} of the server's file or the preset: {}", e.message)
            } else {
                format!("{}.{place}: {}", self.name, e.message)
            });
        }
        match found {
            Some(i) => {
                let mut entry = self.entries.remove(i);
                self.wrong.push(entry.parameter.key);
                self.told.push(place);
                // If nothing was removed, keep the entry out: otherwise the same mistake would be found forever.
                let before = entry.value.clone();
                if !is_told && entry.cut(&at) && entry.value != before && entry.is_readable() {
                    self.entries.push(entry);
                }
                true
            }
            // The mistake is about a parameter that is not given. It comes from others, which the message names: remove
            // those.
            None => {
                let before = self.entries.len();
                self.entries.retain(|entry| !names(&e.message, entry.parameter.key));
                self.entries.len() < before
            }
        }
    }

    /// Whether the parameters that the table is read over set this one.
    fn is_inherited(&self, key: &str) -> bool {
        defaults::parameter(key).is_some_and(|parameter| {
            let mut copied = SamplingParams::default();
            (parameter.copy)(self.base, &mut copied);
            copied != SamplingParams::default()
        })
    }
}

impl Entry {
    /// The place of a mistake, such as `[1].bias`, as numbered in the file.
    fn at_in_file(&self, at: &str) -> String {
        match index(at).and_then(|(i, rest)| Some((self.places.get(i)?, rest))) {
            Some((place, rest)) => format!("[{place}]{rest}"),
            None => at.to_owned(),
        }
    }

    /// Removes the part, or the list entry, that a mistake at this place in the file is about. `false`: the mistake is
    /// about the whole value.
    fn cut(&mut self, at: &str) -> bool {
        match (&mut self.value, index(at)) {
            (Value::Array(list), Some((place, _))) => {
                // If it is not found, it was already removed because of another mistake.
                if let Ok(i) = self.places.binary_search(&place) {
                    list.remove(i);
                    self.places.remove(i);
                }
                true
            }
            (Value::Table(table), None) if at.starts_with('.') => {
                let part = &at[1..];
                table.remove(&part[..part.find(['.', '[']).unwrap_or(part.len())]);
                true
            }
            _ => false,
        }
    }

    fn is_readable(&self) -> bool {
        (self.parameter.set)(&mut SamplingParams::default(), &self.value).is_ok()
    }
}

/// Splits `[1].bias` into 1 and `.bias`.
fn index(at: &str) -> Option<(usize, &str)> {
    let (i, rest) = at.strip_prefix('[')?.split_once(']')?;
    Some((i.parse().ok()?, rest))
}

/// Whether a text contains this word.
fn names(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|part| part == word)
}
