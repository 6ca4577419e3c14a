//! Parameters that a table of a file gives: read one by one, then checked together, by the same ranges as the wire's. One mistake
//! does not hide the next.

use super::defaults::{self, NEVER, Parameter};
use super::file::{MOST_TOLD, at_most, is_setting, unknown_key};
use super::parts::Wrong;
use crate::limits::Limits;
use crate::params::presets::CopyParameter;
use crate::params::{FieldError, SamplingParams};
use toml::{Table, Value};

/// The parameter that has secrets.
const WATERMARK: &str = "watermark";

/// Parameters that a table gives.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// All parameters, those that are not given at their defaults.
    pub(super) params: SamplingParams,
    /// Copy those that are given.
    pub(super) copies: Vec<CopyParameter>,
}

/// Reads the table called `name` and checks the values, adding its mistakes to `problems`.
pub(super) fn read(name: &str, table: &Table, limits: &Limits, problems: &mut Vec<String>) -> Given {
    read_over(&SamplingParams::default(), (name, table), limits, problems)
}

/// The same over parameters that are there already.
pub(super) fn read_over(
    base: &SamplingParams,
    (name, table): (&str, &Table),
    limits: &Limits,
    problems: &mut Vec<String>,
) -> Given {
    let mut reading = Reading { name, entries: Vec::new(), wrong: Vec::new(), told: Vec::new(), problems: Vec::new() };
    for (key, value) in table {
        if reading.problems.len() <= MOST_TOLD {
            reading.take(key, value);
        }
    }
    let given = loop {
        let mut given = Given { params: base.clone(), copies: Vec::new() };
        for entry in &reading.entries {
            // It was read before.
            _ = (entry.parameter.set)(&mut given.params, &entry.value);
            given.copies.push(entry.parameter.copy);
        }
        match given.params.validate(limits.max_vocab_size, limits.max_top_logprobs) {
            Err(e) if reading.problems.len() <= MOST_TOLD && reading.goes_on_without(&e) => {}
            _ => break given,
        }
    };
    problems.extend(at_most(name, reading.problems));
    given
}

/// A table as clients are told it: a parameter a line. Not the watermark, whose keys are secrets.
pub(super) fn written(table: &Table) -> String {
    let told = table.iter().filter(|(key, _)| key.as_str() != WATERMARK);
    told.map(|(key, value)| format!("{key} = {value}\n")).collect()
}

/// One parameter, as far as it is right.
struct Entry {
    parameter: &'static Parameter,
    value: Value,
    /// Of a list, where its entries stood in the file: those that are wrong are taken out.
    places: Vec<usize>,
}

/// A table that is being read.
struct Reading<'n> {
    name: &'n str,
    entries: Vec<Entry>,
    /// Parameters of which something is wrong.
    wrong: Vec<&'static str>,
    /// Places of mistakes in the values together.
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
                    format!("{path}: is a setting of the server; it stands at the top of its file")
                }
                None => unknown_key(&path, key, defaults::keys()),
            });
            return;
        };
        let places = (0..value.as_array().map_or(0, Vec::len)).collect();
        let mut entry = Entry { parameter, value: value.clone(), places };
        if let Err(wrongs) = (parameter.set)(&mut SamplingParams::default(), value) {
            self.wrong.push(parameter.key);
            // An order without one of its samplers would lack a place for it.
            let is_useful = key != "sampler_order" && wrongs.iter().all(|wrong| entry.cut(&wrong.at));
            let told = wrongs.into_iter().take(MOST_TOLD + 1);
            self.problems.extend(told.map(|Wrong { at, what }| format!("{}.{key}{at}: {what}", self.name)));
            if !is_useful || !entry.is_readable() {
                return;
            }
        }
        self.entries.push(entry);
    }

    /// Tells a mistake in the values together and takes out what it is about, so that the next can be seen. `false`: nothing
    /// can be taken out.
    fn goes_on_without(&mut self, e: &FieldError) -> bool {
        let (key, at) = e.field.split_at(e.field.find(['.', '[']).unwrap_or(e.field.len()));
        let found = self.entries.iter().position(|entry| entry.parameter.key == key);
        let at = found.map_or(at.to_owned(), |i| self.entries[i].at_in_file(at));
        // What is missing may be there, and wrong.
        let needs = |key: &&str| e.message.starts_with(&format!("needs {key}"));
        let follows = found.is_none() && self.wrong.contains(&key);
        let place = format!("{key}{at}");
        // What was told and taken out is lacking now, which is no other mistake.
        let is_told = self.told.contains(&place);
        if !is_told && !follows && !self.wrong.iter().any(needs) {
            self.problems.push(format!("{}.{place}: {}", self.name, e.message));
        }
        match found {
            Some(i) => {
                let mut entry = self.entries.remove(i);
                self.wrong.push(entry.parameter.key);
                self.told.push(place);
                // What is lacking cannot be taken out: without a change the same mistake would be found for ever.
                let before = entry.value.clone();
                if !is_told && entry.cut(&at) && entry.value != before && entry.is_readable() {
                    self.entries.push(entry);
                }
                true
            }
            // It is about one that is not given, because of others.
            None => {
                let before = self.entries.len();
                self.entries.retain(|entry| !names(&e.message, entry.parameter.key));
                self.entries.len() < before
            }
        }
    }
}

impl Entry {
    /// The place of a mistake, `[1].bias`, as it stands in the file.
    fn at_in_file(&self, at: &str) -> String {
        match index(at).and_then(|(i, rest)| Some((self.places.get(i)?, rest))) {
            Some((place, rest)) => format!("[{place}]{rest}"),
            None => at.to_owned(),
        }
    }

    /// Takes out the part, or the entry of its list, that a mistake at this place in the file is about. `false`: it is about all of
    /// it.
    fn cut(&mut self, at: &str) -> bool {
        match (&mut self.value, index(at)) {
            (Value::Array(list), Some((place, _))) => {
                // Else it is gone, for another mistake.
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

/// `[1].bias` is 1 and `.bias`.
fn index(at: &str) -> Option<(usize, &str)> {
    let (i, rest) = at.strip_prefix('[')?.split_once(']')?;
    Some((i.parse().ok()?, rest))
}

/// Whether a text has this word.
fn names(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|part| part == word)
}
