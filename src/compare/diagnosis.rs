//! Decides what a row is, beginning with what changes it least.

use super::changes::{self, Change};
use super::curve::{self, Softcap};
use super::few;
use super::line::{Line, Pair, Points};
use super::places::Places;
use super::reshaped::{self, Reshape};
use super::{likeliest, softmax, total_variation, widened};
use crate::row_files::Rows;
use serde::Serialize;
use std::collections::HashMap;

/// How far the sum of probabilities may be off, in 16-bit formats.
const SUM: f64 = 0.05;
/// With fewer tokens left by a filter, noise cannot be measured.
const FEW: usize = 8;
/// A row with the same likeliest token and a smaller total variation does not come from another text.
const ALIKE: f64 = 0.01;
/// If more than one token in this many changed, the columns may be in another order.
const MANY: usize = 128;
/// How many rows are searched for among other plain rows. The search takes time for each plain row.
const MAX_SOUGHT: usize = 512;

/// What a row turned out to be.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub(super) enum Is {
    /// The plain row, with the same numbers.
    Same,
    /// Made from a plain row, possibly with changes.
    Plain(Made),
    /// Probabilities of a plain row, where logits should be.
    Probabilities,
    /// The plain row's columns in blocks of equal size, in another order: block i of the row is block `order[i]`.
    Blocks { order: Vec<usize> },
    /// About the distribution of the plain row, with other logits where little of it is.
    Alike,
    /// Logits in about the order of the plain row's, with other distances: a curve, or another number format.
    Reshaped { by: Reshape },
    /// Not a plain row. It may come from another text, another model, or another attention mask.
    Unknown,
    /// Every logit is -infinity.
    AllMasked,
    /// A logit is NaN or +infinity.
    NotFinite { token: u32 },
}

/// How a row was made from a plain row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Made {
    /// The number of the plain row.
    pub(super) plain_row: usize,
    /// The temperature by which it was divided. `None`: it was not divided.
    pub(super) temperature: Option<f64>,
    /// The softcap that the rest was done to. `None`: there is no softcap, or both rows have it.
    pub(super) softcap: Option<Softcap>,
    /// The number that was added to all logits. `None`: nothing was added.
    pub(super) shift: Option<f64>,
    /// The remaining difference for a typical token: a standard deviation, in logits.
    pub(super) noise: f64,
    /// Whether that is no more than the rounding of 16-bit formats.
    pub(super) precise: bool,
    pub(super) changes: Vec<Change>,
}

impl Is {
    /// Whether this is the plain row of the same number, apart from rounding and a shift.
    pub(super) fn is_plain_row(&self, row: usize) -> bool {
        match self {
            Self::Same => true,
            Self::Plain(made) => {
                let is_straight = made.temperature.is_none() && made.softcap.is_none();
                made.plain_row == row && made.precise && is_straight && made.changes.is_empty()
            }
            _ => false,
        }
    }
}

/// The plain rows, as rows as sent are compared with them.
pub(super) struct Reference<'a> {
    plain: &'a Rows,
    columns: usize,
    places: Places,
    /// How often each token stands in the text, if that is known.
    counts: HashMap<u32, u32>,
    sought: usize,
}

impl<'a> Reference<'a> {
    /// For rows with this number of columns.
    pub(super) fn new(plain: &'a Rows, columns: usize, counts: HashMap<u32, u32>) -> Self {
        Self { plain, columns, places: Places::of(plain, columns), counts, sought: 0 }
    }

    /// Compares a row with the plain row of the same number, or else with the plain row that is most similar.
    pub(super) fn compare(&mut self, row: usize, sent: &[f32]) -> Is {
        let own = widened(self.plain, row, self.columns);
        if sent == own {
            return Is::Same;
        }
        if sent.iter().all(|&logit| logit == f32::NEG_INFINITY) {
            return Is::AllMasked;
        }
        let pair = self.pair(sent, &own);
        // Before numbers are looked at: what is -infinity in one format is NaN in another.
        if let Some(by) = reshaped::misread(&pair) {
            return Is::Reshaped { by };
        }
        if let Some(token) = sent.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Is::NotFinite { token: token as u32 };
        }
        if are_probabilities(sent) {
            return Is::Probabilities;
        }
        if let Some(tokens_left) = changes::few_left(&pair, FEW) {
            return Is::Plain(Made::filtered(row, &pair, tokens_left));
        }
        self.compare_lines(row, &pair)
    }

    /// For a row of many logits.
    fn compare_lines(&mut self, row: usize, pair: &Pair<'_>) -> Is {
        let made = made_of(row, pair, &self.counts);
        let is_doubtful = made.as_ref().is_none_or(|made| made.changed() * MANY > pair.sent.len());
        let order = is_doubtful.then(|| reshaped::order_of_blocks(pair)).flatten();
        match (order, made) {
            (Some(order), _) => Is::Blocks { order },
            (None, Some(made)) if made.softcap.is_none() && is_curved(pair) => Is::Reshaped { by: Reshape::Curve },
            (None, Some(made)) => Is::Plain(made),
            (None, None) => self.elsewhere(row, pair).unwrap_or(Is::Unknown),
        }
    }

    fn pair<'b>(&self, sent: &'b [f32], plain: &'b [f32]) -> Pair<'b> {
        Pair { sent, plain, width: self.plain.vocab_size.min(self.columns) }
    }

    /// For a row that does not fit its own plain row.
    fn elsewhere(&mut self, row: usize, pair: &Pair<'_>) -> Option<Is> {
        let variation = || total_variation(&softmax(pair.sent), &softmax(pair.plain));
        let is_alike = likeliest(pair.sent) == likeliest(pair.plain) && variation() < ALIKE;
        if reshaped::is_in_order(pair) {
            return Some(Is::Reshaped { by: Reshape::Curve });
        }
        if is_alike {
            return Some(Is::Alike);
        }
        self.sought += 1;
        let like = (self.sought <= MAX_SOUGHT).then(|| self.places.most_like(pair.sent, row)).flatten()?;
        let plain = widened(self.plain, like, self.columns);
        let made = made_of(like, &self.pair(pair.sent, &plain), &self.counts)?;
        made.precise.then_some(Is::Plain(made))
    }
}

impl Made {
    /// A plain row of which a filter left only so few tokens.
    fn filtered(plain_row: usize, pair: &Pair<'_>, tokens_left: usize) -> Self {
        let (scale, shift) = few::scale_and_shift(pair);
        Self {
            plain_row,
            temperature: (scale != 1.0).then_some(1.0 / scale),
            softcap: None,
            shift: (shift != 0.0).then_some(shift),
            noise: 0.0,
            precise: true,
            changes: vec![Change::Filtered { tokens_left }],
        }
    }

    /// How many tokens were changed, apart from masks.
    fn changed(&self) -> usize {
        self.changes.iter().map(Change::moved).sum()
    }
}

/// How the one row was made from the other. `None`: it was not made from it.
fn made_of(plain_row: usize, pair: &Pair<'_>, counts: &HashMap<u32, u32>) -> Option<Made> {
    let points = Points::of(pair)?;
    let straight = Line::through(&points);
    let bent = curve::softcap(&points, &straight);
    let line = bent.map_or(straight, |(_, line)| line);
    if !line.is_one_row() {
        return None;
    }
    let softcap = bent.map(|(softcap, _)| softcap);
    let plain = softcap.map(|softcap| softcap.of_row(pair, &line));
    let pair = Pair { plain: plain.as_deref().unwrap_or(pair.plain), ..*pair };
    Some(Made {
        plain_row,
        temperature: line.has_temperature().then_some(1.0 / line.scale),
        softcap,
        shift: line.is_shifted().then_some(line.shift),
        noise: line.noise,
        precise: line.is_precise(),
        changes: changes::of(&pair, &line, counts),
    })
}

/// Whether the row went through a curve that is no softcap.
fn is_curved(pair: &Pair<'_>) -> bool {
    curve::is_clearly_bent(pair) && reshaped::is_in_order(pair)
}

fn are_probabilities(logits: &[f32]) -> bool {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit)).sum();
    logits.len() > 1 && logits.iter().all(|logit| (0.0..=1.0).contains(logit)) && (sum - 1.0).abs() < SUM
}
