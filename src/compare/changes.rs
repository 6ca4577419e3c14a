//! Finds the tokens of a row that lie off its [line](super::line), and what caused that: masks, filters, padding,
//! penalties.

use super::line::{Line, Pair, is_masked, median};
use serde::Serialize;
use std::collections::HashMap;

/// Most tokens that are named in a change.
const NAMED: usize = 5;
/// Least number of columns at the end that count as padding, if all of them differ.
const LEAST_PADDING: usize = 2;
/// For each column of padding, at most this many other tokens differ.
const MAX_BEFORE_PADDING: usize = 4;
/// A penalty this close to 1 is none.
const NO_PENALTY: f64 = 0.01;
/// How much a penalty may differ from token to token, as a share of the logit.
const LOOSE: f64 = 0.002;

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
    /// written.
    Padding { from: u32, columns: usize },
    /// Positive logits were divided by the penalty, and others multiplied.
    RepetitionPenalty { penalty: f64, tokens: usize, in_text: Option<usize> },
    /// Logits are lower by one number, and by another one for each occurrence of the token in the text.
    CountPenalty { presence: f64, frequency: f64, tokens: usize },
    /// All of these logits are higher by one number.
    Bias { bias: f64, tokens: usize, in_text: Option<usize>, first: Vec<u32> },
    /// None of the above. `most` is the largest difference.
    Changed { tokens: usize, most: f64, in_text: Option<usize>, first: Vec<u32> },
}

/// A token off the line.
struct Off {
    token: u32,
    plain: f64,
    /// The sent logit with scale and shift undone.
    sent: f64,
    tolerance: f64,
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
    if let Some(from) = padding(pair.sent.len(), &off, &unmasked) {
        found.push(Change::Padding { from, columns: pair.sent.len() - from as usize });
        off.retain(|token| token.token < from);
        unmasked.retain(|&token| token < from);
    }
    if !unmasked.is_empty() {
        found.push(Change::Unmasked { tokens: unmasked.len(), first: first(&unmasked) });
    }
    found.extend(moved(&off, line, counts));
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

/// Explains tokens off the line. Of the rules that fit every token, the one with the smallest error is taken. For a
/// single token only its difference can be said, unless the token is in the text.
fn moved(off: &[Off], line: &Line, counts: &HashMap<u32, u32>) -> Option<Change> {
    if off.is_empty() {
        return None;
    }
    let tokens = off.len();
    let first: Vec<u32> = off.iter().take(NAMED).map(|off| off.token).collect();
    let in_text = (!counts.is_empty()).then(|| off.iter().filter(|off| counts.contains_key(&off.token)).count());
    // Behind much noise, the tokens that stand out are those with the most noise.
    let can_tell = line.is_precise() && (tokens > 1 || in_text == Some(1));
    let rules = if can_tell { rules(off, line, counts) } else { Vec::new() };
    let fits = rules.into_iter().filter_map(|rule| Some((misfit(off, &rule, counts)?, rule)));
    // Of equally good rules, take the first one, which has the fewest parameters.
    let best = fits.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, rule)| rule);
    let most = || off.iter().map(|off| off.sent - off.plain).max_by(|a, b| a.abs().total_cmp(&b.abs()));
    Some(match best {
        Some(Rule::Bias(bias)) => Change::Bias { bias, tokens, in_text, first },
        Some(Rule::Repetition { penalty, .. }) => Change::RepetitionPenalty { penalty, tokens, in_text },
        Some(Rule::Counts { presence, frequency }) => Change::CountPenalty { presence, frequency, tokens },
        None => Change::Changed { tokens, most: most().unwrap_or_default(), in_text, first },
    })
}

impl Change {
    /// How many tokens have another logit.
    pub(super) fn moved(&self) -> usize {
        match self {
            Self::Filtered { .. } | Self::Masked { .. } | Self::Unmasked { .. } => 0,
            Self::Padding { columns, .. } => *columns,
            Self::RepetitionPenalty { tokens, .. }
            | Self::CountPenalty { tokens, .. }
            | Self::Bias { tokens, .. }
            | Self::Changed { tokens, .. } => *tokens,
        }
    }
}

/// A rule that may have been applied to tokens.
enum Rule {
    Bias(f64),
    /// Depends on the sign of the logit. `shift` was added to the logit before.
    Repetition {
        penalty: f64,
        shift: f64,
    },
    Counts {
        presence: f64,
        frequency: f64,
    },
}

/// The rules, each with the parameters that fit these tokens best.
fn rules(off: &[Off], line: &Line, counts: &HashMap<u32, u32>) -> Vec<Rule> {
    let bias = Rule::Bias(median(off.iter().map(|off| off.sent - off.plain).collect()));
    // Log-probabilities are shifted before a penalty is applied. But a penalized row may also be shifted afterwards.
    let repetition = [0.0, line.shift / line.scale].into_iter().filter_map(|shift| {
        let penalties: Vec<f64> = off.iter().filter_map(|off| off.penalty(shift)).collect();
        let penalty = (!penalties.is_empty()).then(|| median(penalties))?;
        ((penalty - 1.0).abs() > NO_PENALTY).then_some(Rule::Repetition { penalty, shift })
    });
    [bias].into_iter().chain(repetition).chain(counted(off, counts)).collect()
}

impl Off {
    /// The repetition penalty that explains the sent logit. `None` if the logit is too close to 0.
    fn penalty(&self, shift: f64) -> Option<f64> {
        let (plain, sent) = (self.plain + shift, self.sent + shift);
        let is_seen = plain.abs() > 2.0 * self.tolerance && plain * sent > 0.0;
        is_seen.then_some(if plain > 0.0 { plain / sent } else { sent / plain })
    }

    /// The logit that a rule would give.
    fn by(&self, rule: &Rule, counts: &HashMap<u32, u32>) -> f64 {
        match *rule {
            Rule::Bias(bias) => self.plain + bias,
            Rule::Repetition { penalty, shift } => {
                let logit = self.plain + shift;
                (if logit > 0.0 { logit / penalty } else { logit * penalty }) - shift
            }
            Rule::Counts { presence, frequency } => self.plain - presence - frequency * count(self, counts),
        }
    }
}

fn count(off: &Off, counts: &HashMap<u32, u32>) -> f64 {
    f64::from(counts.get(&off.token).copied().unwrap_or_default())
}

/// The total error of a rule over all tokens. `None`: the error of some token is too large.
fn misfit(off: &[Off], rule: &Rule, counts: &HashMap<u32, u32>) -> Option<f64> {
    let of = |off: &Off| {
        let missed = (off.sent - off.by(rule, counts)).abs();
        (missed <= 2.0 * off.tolerance + LOOSE * off.plain.abs()).then_some(missed)
    };
    off.iter().map(of).sum()
}

/// Fits penalties by the number of occurrences in the text: a least-squares line through the differences of the tokens.
fn counted(off: &[Off], counts: &HashMap<u32, u32>) -> Option<Rule> {
    let points: Vec<(f64, f64)> = off.iter().map(|off| (count(off, counts), off.plain - off.sent)).collect();
    let of = points.len() as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / of, points.iter().map(|p| p.1).sum::<f64>() / of);
    let square: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let frequency = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / square;
    (square > 0.0).then_some(Rule::Counts { presence: y - frequency * x, frequency })
}
