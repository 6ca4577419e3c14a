//! What to do about each kind of difference.

use super::changes::Change;
use super::diagnosis::{Is, Made};
use super::reshaped::Reshape;
use super::{ComparedRow, Comparison, MAX_LEFT_OUT, MAX_VARIATION};
use std::collections::BTreeMap;

const PLACES: &str = "Row i of both files must be for the same position: check which positions the worker gathers, and where each \
                      file begins. In a verification, row i comes after the first i draft tokens.";
const BEYOND: &str = "A row at the edge that matches no plain row goes with that: its position lies before the first plain row or \
                      behind the last.";
const TEMPERATURE: &str = "Send logits before the temperature: the sidecar divides by it, so it counts twice.";
const PENALTIES: &str =
    "Send logits before penalties and biases: the sidecar applies the sequence's own, so they count twice.";
const FILTER: &str = "Send the whole row: a filter that runs before the sidecar's own sees the wrong distribution.";
const CHANGED: &str =
    "Check what changes the logits of these tokens before rows are sent: a bias, a penalty, a word list.";
const MASKS: &str = "Masked tokens are fine if intended; a mask can also be sent beside the row (Work.token_masks).";
const PADDING: &str =
    "Columns that stand for no token must be -infinity or lie beyond vocab_size (InlineLogits.row_stride).";
const SHIFT: &str =
    "Log-probabilities are as good as logits, except for repetition_penalty, which depends on the sign of a logit.";
const NOISE: &str = "This is more noise than rounding makes: look for another precision, a quantized model or cache, or a slightly \
                     different text. Compare with a plain pass of the same model, on texts that differ from the start.";
const PROBABILITIES: &str = "Send logits or log-probabilities, not probabilities.";
const BLOCKS: &str = "Check the order in which the columns of tensor-parallel ranks are gathered.";
const RESHAPED: &str =
    "Check the number format (f16 read as bf16?) and the model's last steps: final_logit_softcapping, a scale, a norm.";
const FORMAT: &str = "Both 16-bit formats have the same size: check the dtype that rows are sent with, or --sent-dtype and \
                      --plain-dtype of this comparison.";
const SOFTCAP: &str = "Check the model's last step: its final_logit_softcapping has to be applied once, in the worker and in \
                       the plain pass.";
const UNKNOWN: &str = "A row that matches no plain row comes from another text, another model or another attention mask, or its \
                       columns are mixed up. In a tree, check whether a node attends to the siblings before it; after a \
                       rejection, check whether the KV cache was truncated.";
const FAILS: &str =
    "The sidecar cannot draw a token from such a row, so its work fails (docs/errors.md, row statuses).";
const NOT_FINITE: &str = "A NaN or +infinity comes from an overflow in 16 bits, a broken weight, or a buffer that the model has not \
                          written.";
const LEFT_OUT: &str = "Send all columns: the missing ones hold part of the probability.";
const FAR: &str = "A row with a total variation above 0.1 does not count as the model's, whatever the cause.";

/// The advice for all rows, each sentence once.
pub(super) fn of(compared: &Comparison) -> Vec<&'static str> {
    let by = usual_offset(compared);
    let is_beyond = |row: &&ComparedRow| by.is_some_and(|by| lies_beyond(row, by, compared.plain.rows));
    let (beyond, rows): (Vec<&ComparedRow>, Vec<&ComparedRow>) = compared.rows.iter().partition(is_beyond);
    let mut all: Vec<&'static str> = Vec::new();
    for advice in rows.into_iter().flat_map(of_row).chain(beyond.first().map(|_| BEYOND)) {
        if !all.contains(&advice) {
            all.push(advice);
        }
    }
    all
}

/// By how many places at least half of the rows are off, all in one direction. `None`: most are in their places.
fn usual_offset(compared: &Comparison) -> Option<isize> {
    let mut counts: BTreeMap<isize, usize> = BTreeMap::new();
    for row in &compared.rows {
        if let Is::Plain(made) = &row.is {
            *counts.entry(made.plain_row as isize - row.row as isize).or_default() += 1;
        }
    }
    counts.into_iter().find(|(by, count)| *by != 0 && 2 * count >= compared.rows.len()).map(|(by, _)| by)
}

/// Whether a row that matches no plain row is off by as much as the others, and its plain row is not in the file.
fn lies_beyond(row: &ComparedRow, by: isize, plain_rows: usize) -> bool {
    let place = row.row.checked_add_signed(by);
    matches!(row.is, Is::Unknown) && place.is_none_or(|place| place >= plain_rows)
}

fn of_row(row: &ComparedRow) -> Vec<&'static str> {
    let mut advice = match &row.is {
        Is::Same => Vec::new(),
        Is::Plain(made) => of_made(row.row, made),
        Is::Probabilities => vec![PROBABILITIES],
        Is::Blocks { .. } => vec![BLOCKS],
        Is::Alike => vec![NOISE],
        Is::Reshaped { by: Reshape::Format { .. } } => vec![FORMAT],
        Is::Reshaped { by: Reshape::Curve } => vec![RESHAPED],
        Is::Unknown => vec![UNKNOWN],
        Is::AllMasked => vec![FAILS],
        Is::NotFinite { .. } => vec![FAILS, NOT_FINITE],
    };
    if row.left_out > MAX_LEFT_OUT {
        advice.push(LEFT_OUT);
    }
    if row.is.is_plain_row(row.row) && row.total_variation > MAX_VARIATION {
        advice.push(FAR);
    }
    advice
}

fn of_made(row: usize, made: &Made) -> Vec<&'static str> {
    let of_change = |change: &Change| match change {
        Change::Filtered { .. } => FILTER,
        Change::Masked { .. } | Change::Unmasked { .. } => MASKS,
        Change::Padding { .. } => PADDING,
        Change::RepetitionPenalty { .. } | Change::CountPenalty { .. } | Change::Bias { .. } => PENALTIES,
        Change::Changed { .. } => CHANGED,
    };
    let noted = [
        (made.plain_row != row).then_some(PLACES),
        made.softcap.map(|_| SOFTCAP),
        made.temperature.map(|_| TEMPERATURE),
        made.shift.map(|_| SHIFT),
        (!made.precise).then_some(NOISE),
    ];
    noted.into_iter().flatten().chain(made.changes.iter().map(of_change)).collect()
}
