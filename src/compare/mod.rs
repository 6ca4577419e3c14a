//! `croupier compare`: compares the rows that a worker sends with those of a plain forward pass over the same text, and
//! says what was done to them in between. A server cannot detect most of that, because logits that a worker has divided
//! by the temperature are still logits.
//!
//! [`row_files`](crate::row_files) reads both files. [`diagnosis`] decides what a row is: [`line`](mod@line) finds what
//! was done to all of its logits ([`curve`]: with a softcap, [`few`]: if only a few are left), [`changes`] what was done
//! to some of them ([`penalties`]: by which rule), [`reshaped`] columns in another order and numbers of another format,
//! [`places`] the plain row that a row comes from. [`table`] shows the result.

mod advice;
mod changes;
mod curve;
mod diagnosis;
mod few;
mod line;
mod penalties;
mod places;
mod reshaped;
mod table;
#[cfg(test)]
mod tests;

use crate::output;
use crate::row_files::{RowFile, Rows};
use diagnosis::{Is, Reference};
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

/// A row that differs by more from its plain row is not the model's.
const MAX_VARIATION: f64 = 0.1;
/// Nor is a row that lacks columns with more of the probability.
const MAX_LEFT_OUT: f64 = 1e-3;
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
    /// temperature 1 differ; 1 if the row as sent has no distribution.
    total_variation: f64,
    /// The probability of the plain row's columns that the row as sent does not have.
    left_out: f64,
}

impl ComparedRow {
    fn is_as_plain(&self) -> bool {
        // Whatever made the row: with such a difference, it is not what the model gives.
        let is_near = self.total_variation <= MAX_VARIATION && self.left_out <= MAX_LEFT_OUT;
        is_near && self.is.is_plain_row(self.row)
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
        Ok((all_as_plain, text)) => match output::said("croupier compare", &text) {
            true if all_as_plain => ExitCode::SUCCESS,
            true => ExitCode::from(DIFFERENT),
            false => ExitCode::from(TROUBLE),
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
            "{}: has {}, but {} has {}; save the plain rows for the same positions of the text",
            args.plain.name(),
            table::rows(plain.count()),
            args.sent.name(),
            sent.count()
        ));
    }
    check_numbers(&args.plain, &plain)?;
    let columns = sent.vocab_size.max(plain.vocab_size);
    check_text(&args.text, columns)?;
    let mut counts = HashMap::new();
    args.text.iter().for_each(|&token| *counts.entry(token).or_insert(0) += 1);
    let mut reference = Reference::new(&plain, sent.vocab_size, counts);
    let mut compared = |row| {
        let is = reference.compare(row, &widened(&sent, row, sent.vocab_size));
        let (logits, own) = (widened(&sent, row, columns), widened(&plain, row, columns));
        let masses = softmax(&own);
        ComparedRow {
            row,
            is,
            likeliest: likeliest(&logits),
            plain_likeliest: likeliest(&own),
            total_variation: total_variation(&softmax(&logits), &masses),
            left_out: masses.iter().skip(sent.vocab_size).fold(0.0, |sum, mass| sum + mass),
        }
    };
    let rows: Vec<ComparedRow> = (0..sent.count()).map(&mut compared).collect();
    let rows_as_plain = rows.iter().filter(|row| row.is_as_plain()).count();
    Ok(Comparison { sent: Side::of(&sent), plain: Side::of(&plain), rows_as_plain, rows })
}

/// Checks that each plain row has a distribution. Otherwise, there is nothing to compare with.
fn check_numbers(file: &RowFile, plain: &Rows) -> Result<(), String> {
    for row in 0..plain.count() {
        let logits = widened(plain, row, plain.vocab_size);
        if let Some(token) = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Err(of_plain(file, &format!("row {row} has {} for token {token}", logits[token])));
        }
        if logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
            return Err(of_plain(file, &format!("row {row} has -infinity for every token")));
        }
    }
    Ok(())
}

/// An error about a plain row, and what to look at.
fn of_plain(file: &RowFile, problem: &str) -> String {
    let format = if file.dtype.is_some() { ", or --plain-dtype" } else { "" };
    format!("{}: {problem}, so there is nothing to compare with; check the plain pass{format}", file.name())
}

/// Checks that rows have a column for each token of the text. Another tokenizer's tokens would tell of no penalty.
fn check_text(text: &[u32], columns: usize) -> Result<(), String> {
    match text.iter().find(|&&token| token as usize >= columns) {
        Some(token) => Err(format!("--text: token {token} must be below {columns}, the number of logits in a row")),
        None => Ok(()),
    }
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

/// The most likely token. Of equal ones, it is the first, as everywhere.
fn likeliest(logits: &[f32]) -> u32 {
    let better = |best: usize, token: usize| if logits[token] > logits[best] { token } else { best };
    (0..logits.len()).reduce(better).unwrap_or_default() as u32
}

/// Between two distributions. A row without a distribution has nothing in common with any.
fn total_variation(sent: &[f64], plain: &[f64]) -> f64 {
    let variation = sent.iter().zip(plain).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0;
    if variation.is_nan() { 1.0 } else { variation }
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let masses: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - most).exp()).collect();
    let sum: f64 = masses.iter().sum();
    masses.into_iter().map(|mass| mass / sum).collect()
}
