//! `croupier compare`: rows as a worker sends them beside those of a plain forward pass over the same text, and what was done
//! to them on the way. A server cannot tell most of that: logits that a worker has divided by the temperature are logits.
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

/// What `croupier compare` is to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompareArgs {
    /// Rows as they are sent.
    pub sent: RowFile,
    /// Those of a plain forward pass, at least as many.
    pub plain: RowFile,
    /// The text's tokens, by which penalties are known.
    pub text: Vec<u32>,
    /// A JSON object instead of the table.
    pub json: bool,
}

/// Temperatures so near 1 are none.
const NEAR_ONE: f64 = 0.01;
/// A temperature moves logits by so many times the noise at least, or is part of it.
const CLEAR: f64 = 2.0;
/// A shift of less than this part of a logit is none.
const NEAR_ZERO: f64 = 1e-3;
/// How far the sum of probabilities may be off, in 16 bits.
const SUM: f64 = 0.05;
/// Exit codes: the rows are not those of the model, or could not be compared. As those of diff.
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// All rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Comparison {
    sent: Side,
    plain: Side,
    /// Rows that the model gives, whatever rounding and one number added to all logits do to them.
    rows_as_plain: usize,
    rows: Vec<ComparedRow>,
}

/// What is known of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Side {
    rows: usize,
    vocab_size: usize,
    dtype: &'static str,
}

/// One row as sent.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ComparedRow {
    row: usize,
    #[serde(flatten)]
    is: Is,
    /// The likeliest token as sent, and of the plain row with the same number.
    likeliest: u32,
    plain_likeliest: u32,
    /// Between the distributions of these two: the probability with which a token drawn at temperature 1 is another one.
    total_variation: f64,
}

/// What a row is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
enum Is {
    /// The plain row, number for number.
    Same,
    /// A plain row to which something may have been done.
    Plain(Made),
    /// A plain row's probabilities, where logits should be.
    Probabilities,
    /// No plain row: of another text, another model, or another mask of attention.
    Unknown,
    /// A logit is NaN or +infinity.
    NotFinite { token: u32 },
}

/// How a row was made of a plain one.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Made {
    /// Which one.
    plain_row: usize,
    /// By which it was divided; `None`: by none.
    temperature: Option<f64>,
    /// A number that was added to all logits.
    shift: Option<f64>,
    /// What is left of the difference, of a token in the middle: a standard deviation, in logits.
    noise: f64,
    /// Whether that is no more than 16 bits make.
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

/// The subcommand `compare`. Exit code 0 when all rows are those of the model, 1 when not, 2 when they cannot be compared.
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

/// A row with so many columns: those that it lacks are masked, those that it has beyond are left out.
fn widened(rows: &Rows, row: usize, columns: usize) -> Vec<f32> {
    let mut logits = rows.get(row).map(|logits| logits.widen()).unwrap_or_default();
    logits.resize(columns, f32::NEG_INFINITY);
    logits
}

/// What a row is of its plain row, or else of the one that it is most like.
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

/// How the one row is made of the other, if it is.
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

/// Of equals the first, as everywhere.
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
