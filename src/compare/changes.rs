//! Finds the tokens of a row that lie off its [line](super::line), and what caused that: masks, filters, padding,
//! [penalties].

use super::line::{Line, Pair, is_masked};
use super::penalties::{self, Rule, Text};
use serde::Serialize;
use std::collections::HashMap;

/// Most tokens that are named in a change.
const NAMED: usize = 5;
/// Least number of columns at the end that count as padding, if all of them differ.
const LEAST_PADDING: usize = 2;
/// For each column of padding, at most this many other tokens differ.
const MAX_BEFORE_PADDING: usize = 4;

/// One change to some tokens of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(super) enum Change {
    /// All tokens but the most likely ones are masked: top-k, top-p or another filter was applied.
    Filtered { tokens_left: usize },
    /// Some tokens are masked.
    Masked { tokens: usize, first: Vec<u32> },
    /// Some tokens are not masked, although the plain row masks them.
    Unmasked { tokens: usize, first: Vec<u32> },
    /// The columns at the end have other numbers: rows are longer than the vocabulary, and these columns were never
    /// written. `beyond`: the plain row does not have them.
    Padding { from: u32, columns: usize, beyond: bool },
    /// Positive logits were divided by the penalty, and others multiplied.
    RepetitionPenalty { penalty: f64, tokens: usize, in_text: Option<usize> },
    /// Logits are lower by one number, and by another one for each occurrence of the token in the text.
    /// `subtracted_first`: before a repetition penalty, not behind it.
    CountPenalty { presence: f64, frequency: f64, subtracted_first: bool, tokens: usize },
    /// All of these logits are higher by one number.
    Bias { bias: f64, tokens: usize, in_text: Option<usize>, first: Vec<u32> },
    /// None of the above. `most` is the largest difference.
    Changed { tokens: usize, most: f64, in_text: Option<usize>, first: Vec<u32> },
}

/// A token off the line.
pub(super) struct Off {
    pub(super) token: u32,
    pub(super) plain: f64,
    /// The sent logit with scale and shift undone.
    pub(super) sent: f64,
    pub(super) tolerance: f64,
}

/// The changes to tokens of a row. `counts` has the number of occurrences of each token in the text, if that is known.
pub(super) fn of(pair: &Pair<'_>, line: &Line, counts: &HashMap<u32, u32>) -> Vec<Change> {
    let mut off = off_the_line(pair, line);
    let (mut masked, mut unmasked) = (Vec::new(), Vec::new());
    for token in 0..pair.sent.len() {
        match (is_masked(pair.sent[token]), is_masked(pair.plain[token])) {
            (true, false) => masked.push(token as u32),
            (false, true) => unmasked.push(token as u32),
            _ => {}
        }
    }
    let mut found: Vec<Change> = filtered(pair, line, &masked).into_iter().collect();
    if let Some(&from) = unmasked.iter().find(|&&token| token as usize >= pair.width) {
        found.push(Change::Padding { from, columns: pair.sent.len() - from as usize, beyond: true });
        unmasked.retain(|&token| token < from);
    }
    if let Some(from) = padding(pair.width, &off, &unmasked) {
        found.push(Change::Padding { from, columns: pair.width - from as usize, beyond: false });
        off.retain(|token| token.token < from);
        unmasked.retain(|&token| token < from);
    }
    if !unmasked.is_empty() {
        found.push(Change::Unmasked { tokens: unmasked.len(), first: first(&unmasked) });
    }
    found.extend(moved(&off, line, pair, counts));
    found
}

fn first(tokens: &[u32]) -> Vec<u32> {
    tokens[..tokens.len().min(NAMED)].to_vec()
}

fn off_the_line(pair: &Pair<'_>, line: &Line) -> Vec<Off> {
    let of = |token: usize| Off {
        token: token as u32,
        plain: f64::from(pair.plain[token]),
        sent: line.undone(pair.sent[token]),
        tolerance: line.tolerance(pair.sent[token], pair.plain[token]),
    };
    pair.common().map(of).filter(|off| (off.sent - off.plain).abs() > off.tolerance).collect()
}

/// How many tokens a filter left, if it left fewer than `few` of the most likely ones.
pub(super) fn few_left(pair: &Pair<'_>, few: usize) -> Option<usize> {
    let (left, least) = left(pair);
    let removed = (0..pair.sent.len()).filter(|&token| is_masked(pair.sent[token]) && !is_masked(pair.plain[token]));
    // Noise may have changed the order of a few.
    let (all, likelier) =
        removed.fold((0, 0), |(all, likelier), token| (all + 1, likelier + usize::from(pair.plain[token] > least)));
    (left > 0 && left < few && all > left && likelier <= left).then_some(left)
}

/// How many tokens neither row masks, and the smallest of their plain logits.
fn left(pair: &Pair<'_>) -> (usize, f32) {
    pair.common().fold((0, f32::INFINITY), |(left, least), token| (left + 1, least.min(pair.plain[token])))
}

/// Explains masks. If the most likely tokens are left, up to noise, it was a filter.
fn filtered(pair: &Pair<'_>, line: &Line, masked: &[u32]) -> Option<Change> {
    let likeliest = masked.iter().map(|&token| pair.plain[token as usize]).reduce(f32::max)?;
    let (left, least) = left(pair);
    let slack = line.tolerance(0.0, least) as f32;
    Some(if masked.len() > left && likeliest <= least + slack {
        Change::Filtered { tokens_left: left }
    } else {
        Change::Masked { tokens: masked.len(), first: first(masked) }
    })
}

/// The first column of padding: from there on, all columns differ.
fn padding(columns: usize, off: &[Off], unmasked: &[u32]) -> Option<u32> {
    let mut others: Vec<u32> = off.iter().map(|off| off.token).chain(unmasked.iter().copied()).collect();
    others.sort_unstable_by(|a, b| b.cmp(a));
    let is_last = |(back, token): &(usize, &u32)| **token as usize + 1 + back == columns;
    let (tail, last) = others.iter().enumerate().take_while(is_last).last()?;
    let (tail, before) = (tail + 1, others.len() - tail - 1);
    // If most of what differs stands elsewhere, the end differs by chance.
    (tail >= LEAST_PADDING && tail < columns / 2 && before <= MAX_BEFORE_PADDING * tail).then_some(*last)
}

/// Explains tokens off the line.
fn moved(off: &[Off], line: &Line, pair: &Pair<'_>, counts: &HashMap<u32, u32>) -> Vec<Change> {
    if off.is_empty() {
        return Vec::new();
    }
    let tokens = off.len();
    let first: Vec<u32> = off.iter().take(NAMED).map(|off| off.token).collect();
    let in_text = (!counts.is_empty()).then(|| off.iter().filter(|off| counts.contains_key(&off.token)).count());
    // Behind much noise, the tokens that stand out are those with the most noise. For a single token only its
    // difference can be said, unless the token is in the text.
    let can_tell = line.is_precise() && (tokens > 1 || in_text == Some(1));
    let rule = can_tell.then(|| penalties::of(off, line, &Text::of(off, pair, counts))).flatten();
    let most = || off.iter().map(|off| off.sent - off.plain).max_by(|a, b| a.abs().total_cmp(&b.abs()));
    match rule {
        Some(Rule::Bias(bias)) => vec![Change::Bias { bias, tokens, in_text, first }],
        Some(Rule::Penalties(found)) => {
            let (presence, frequency, subtracted_first) =
                (found.presence, found.frequency, found.is_subtracted_first());
            let repetition = found.repetition().map(|penalty| Change::RepetitionPenalty { penalty, tokens, in_text });
            let counted = Change::CountPenalty { presence, frequency, subtracted_first, tokens };
            repetition.into_iter().chain(found.is_counted().then_some(counted)).collect()
        }
        None => vec![Change::Changed { tokens, most: most().unwrap_or_default(), in_text, first }],
    }
}

impl Change {
    /// How many tokens it is about, and the first of them, if it names some.
    pub(super) fn named(&self) -> Option<(usize, &[u32])> {
        match self {
            Self::Masked { tokens, first }
            | Self::Unmasked { tokens, first }
            | Self::Bias { tokens, first, .. }
            | Self::Changed { tokens, first, .. } => Some((*tokens, first)),
            Self::Filtered { .. }
            | Self::Padding { .. }
            | Self::RepetitionPenalty { .. }
            | Self::CountPenalty { .. } => None,
        }
    }

    /// How many tokens have another logit.
    pub(super) fn moved(&self) -> usize {
        match self {
            Self::Filtered { .. } | Self::Masked { .. } | Self::Unmasked { .. } => 0,
            Self::Padding { beyond: true, .. } => 0,
            Self::Padding { columns, .. } => *columns,
            Self::RepetitionPenalty { tokens, .. }
            | Self::CountPenalty { tokens, .. }
            | Self::Bias { tokens, .. }
            | Self::Changed { tokens, .. } => *tokens,
        }
    }
}
