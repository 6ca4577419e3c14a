//! `croupier compare`: compares the rows that a worker sends with those of a plain forward pass over the same text, and
//! says what was done to them in between. A server cannot detect most of that, because logits that a worker has divided
//! by the temperature are still logits.
//!
//! [`row_files`](crate::row_files) reads both, [`line`](mod@line) finds what was done to whole rows, [`changes`] what to some of their tokens,
//! [`places`] whose row it is, [`table`] shows it.

mod changes;
mod line;
mod places;
mod table;
#[cfg(test)]
mod tests;

use crate::output;
use crate::row_files::{RowFile, Rows};
use changes::Change;
use line::{Line, Pair};
use serde::Serialize;
use std::collections::HashMap;
use std::process::ExitCode;

/// The arguments of `croupier compare`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompareArgs {
    /// The rows as sent.
    pub sent: RowFile,
    /// The rows of a plain forward pass. There must be at least as many.
    pub plain: RowFile,
    /// The text's tokens. They help to recognise penalties.
    pub text: Vec<u32>,
    /// Print a JSON object instead of the table.
    pub json: bool,
}

/// Temperatures so near 1 are none.
const NEAR_ONE: f64 = 0.01;
/// A temperature moves logits by so many times the noise at least, or is part of it.
const CLEAR: f64 = 2.0;
/// A shift of less than this part of a logit is none.
const NEAR_ZERO: f64 = 1e-3;
/// The largest error of a sum of probabilities, in 16-bit formats.
const SUM: f64 = 0.05;
/// Exit codes, as those of diff: the rows are not those of the model, or could not be compared.
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// The comparison of all rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Comparison {
    sent: Side,
    plain: Side,
    /// The number of rows that are as the model gives them. Rounding, and one number added to all logits, do not
    /// matter.
    rows_as_plain: usize,
    rows: Vec<ComparedRow>,
}

/// Facts about one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Side {
    rows: usize,
    vocab_size: usize,
    dtype: &'static str,
}

/// The comparison of one row as sent.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ComparedRow {
    row: usize,
    #[serde(flatten)]
    is: Is,
    /// The most likely token of the row as sent, and that of the plain row with the same number.
    likeliest: u32,
    plain_likeliest: u32,
    /// Between the distributions of these two rows. It is the probability with which tokens drawn from them at
    /// temperature 1 differ.
    total_variation: f64,
}

/// What a row turned out to be.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
enum Is {
    /// The plain row, with the same numbers.
    Same,
    /// Made from a plain row, possibly with changes.
    Plain(Made),
    /// Probabilities of a plain row, where logits should be.
    Probabilities,
    /// Not a plain row. It may come from another text, another model, or another attention mask.
    Unknown,
    /// A logit is NaN or +infinity.
    NotFinite { token: u32 },
}

/// How a row was made from a plain row.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Made {
    /// The number of the plain row.
    plain_row: usize,
    /// The temperature by which it was divided. `None`: it was not divided.
    temperature: Option<f64>,
    /// The number that was added to all logits. `None`: nothing was added.
    shift: Option<f64>,
    /// The remaining difference for a typical token: a standard deviation, in logits.
    noise: f64,
    /// Whether that is no more than the rounding of 16-bit formats.
    precise: bool,
    changes: Vec<Change>,
}

impl ComparedRow {
    fn is_as_plain(&self) -> bool {
        match &self.is {
            Is::Same => true,
            Is::Plain(made) => {
                let untouched = made.precise && made.temperature.is_none() && made.changes.is_empty();
                made.plain_row == self.row && untouched
            }
            Is::Probabilities | Is::Unknown | Is::NotFinite { .. } => false,
        }
    }
}

/// The subcommand `compare`. The exit code is 0 if all rows are those of the model, 1 if not, and 2 if they cannot be
/// compared.
#[must_use]
pub fn main(args: &CompareArgs) -> ExitCode {
    let compared = compare(args).and_then(|compared| {
        let json = || serde_json::to_string_pretty(&compared).map(|json| json + "\n");
        let text = if args.json { json().map_err(|error| error.to_string())? } else { table::of(&compared) };
        Ok((compared.rows_as_plain == compared.rows.len(), text))
    });
    match compared {
        Ok((all_as_plain, text)) => match output::say(&text) {
            Ok(()) if all_as_plain => ExitCode::SUCCESS,
            Ok(()) => ExitCode::from(DIFFERENT),
            Err(_) => ExitCode::from(TROUBLE),
        },
        Err(problem) => {
            output::complain(&format!("croupier compare: {problem}"));
            ExitCode::from(TROUBLE)
        }
    }
}

fn compare(args: &CompareArgs) -> Result<Comparison, String> {
    let (sent, plain) = (args.sent.read()?, args.plain.read()?);
    if plain.count() < sent.count() {
        return Err(format!(
            "{}: has {} rows, and {} has {}: save the plain rows of the same places of the text",
            args.plain.name(),
            plain.count(),
            args.sent.name(),
            sent.count()
        ));
    }
    let mut counts = HashMap::new();
    args.text.iter().for_each(|&token| *counts.entry(token).or_insert(0) += 1);
    let (columns, places) = (sent.vocab_size, places::Places::of(&plain, sent.vocab_size));
    let rows: Vec<ComparedRow> = (0..sent.count())
        .map(|row| {
            let (logits, plain_row) = (widened(&sent, row, columns), widened(&plain, row, columns));
            let is = what_it_is(row, &logits, &plain, &plain_row, &places, &counts);
            ComparedRow {
                row,
                is,
                likeliest: likeliest(&logits),
                plain_likeliest: likeliest(&plain_row),
                total_variation: total_variation(&logits, &plain_row),
            }
        })
        .collect();
    let rows_as_plain = rows.iter().filter(|row| row.is_as_plain()).count();
    Ok(Comparison { sent: Side::of(&sent), plain: Side::of(&plain), rows_as_plain, rows })
}

impl Side {
    fn of(rows: &Rows) -> Self {
        Self { rows: rows.count(), vocab_size: rows.vocab_size, dtype: rows.dtype.name() }
    }
}

/// A row with exactly `columns` columns: missing columns are masked, and columns beyond are left out.
fn widened(rows: &Rows, row: usize, columns: usize) -> Vec<f32> {
    let mut logits = rows.get(row).map(|logits| logits.widen()).unwrap_or_default();
    logits.resize(columns, f32::NEG_INFINITY);
    logits
}

/// Compares a row with the plain row of the same number, or else with the plain row that is most similar.
fn what_it_is(
    row: usize,
    sent: &[f32],
    plain: &Rows,
    own: &[f32],
    places: &places::Places,
    counts: &HashMap<u32, u32>,
) -> Is {
    if let Some(token) = sent.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return Is::NotFinite { token: token as u32 };
    }
    if sent == own {
        return Is::Same;
    }
    if are_probabilities(sent) {
        return Is::Probabilities;
    }
    let made = |plain_row, plain: &[f32]| made_of(plain_row, &Pair { sent, plain }, counts).map(Is::Plain);
    let elsewhere = || {
        let like = places.most_like(sent, row)?;
        made(like, &widened(plain, like, sent.len()))
    };
    made(row, own).or_else(elsewhere).unwrap_or(Is::Unknown)
}

/// How the one row was made from the other. `None`: it was not made from it.
fn made_of(plain_row: usize, pair: &Pair<'_>, counts: &HashMap<u32, u32>) -> Option<Made> {
    let line = Line::through(pair).filter(Line::is_one_row)?;
    let moved = (line.scale - 1.0).abs();
    let temperature = moved > NEAR_ONE && moved * line.spread > CLEAR * line.noise;
    let shift = line.shift.abs() > NEAR_ZERO.max(line.noise);
    Some(Made {
        plain_row,
        temperature: temperature.then_some(1.0 / line.scale),
        shift: shift.then_some(line.shift),
        noise: line.noise,
        precise: line.is_precise(),
        changes: changes::of(pair, &line, counts),
    })
}

fn are_probabilities(logits: &[f32]) -> bool {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit)).sum();
    logits.len() > 1 && logits.iter().all(|logit| (0.0..=1.0).contains(logit)) && (sum - 1.0).abs() < SUM
}

/// The most likely token. Of equal ones, it is the first, as everywhere.
fn likeliest(logits: &[f32]) -> u32 {
    let better = |best: usize, token: usize| if logits[token] > logits[best] { token } else { best };
    (0..logits.len()).reduce(better).unwrap_or_default() as u32
}

fn total_variation(sent: &[f32], plain: &[f32]) -> f64 {
    let (sent, plain) = (softmax(sent), softmax(plain));
    sent.iter().zip(&plain).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let masses: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - most).exp()).collect();
    let sum: f64 = masses.iter().sum();
    masses.into_iter().map(|mass| mass / sum).collect()
}
