//! Tokens of a row that lie off its [line](super::line), and what makes such tokens: masks, filters, padding, penalties.

use super::line::{Line, Pair, is_masked, median};
use serde::Serialize;
use std::collections::HashMap;

/// Tokens that are named of many.
const NAMED: usize = 5;
/// So many columns at the end are padding, where all of them are others.
const LEAST_PADDING: usize = 2;
/// How much a penalty may differ from token to token, in parts of a logit.
const LOOSE: f64 = 0.002;

/// One thing that was done to some tokens of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(super) enum Change {
    /// All but the likeliest are masked: top-k, top-p or another filter ran.
    Filtered { tokens_left: usize },
    /// Some are masked.
    Masked { tokens: usize, first: Vec<u32> },
    /// Some that are masked in the plain row are not.
    Unmasked { tokens: usize, first: Vec<u32> },
    /// The columns at the end have other numbers: rows are longer than the vocabulary, and nobody wrote there.
    Padding { from: u32, columns: usize },
    /// Positive logits are divided by it, others multiplied.
    RepetitionPenalty { penalty: f64, tokens: usize, in_text: Option<usize> },
    /// Lower by a number, and by one for each time that a token stands in the text.
    CountPenalty { presence: f64, frequency: f64, tokens: usize },
    /// All higher by one number.
    Bias { bias: f64, tokens: usize, in_text: Option<usize>, first: Vec<u32> },
    /// None of these; `most`: how far the one that moved most did.
    Changed { tokens: usize, most: f64, in_text: Option<usize>, first: Vec<u32> },
}

/// A token off the line.
struct Off {
    token: u32,
    plain: f64,
    /// Without scale and shift.
    sent: f64,
    tolerance: f64,
}

/// What was done to tokens of a row. `counts`: how often each stands in the text, where that is known.
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
    let mut found: Vec<Change> = filtered(pair, &masked).into_iter().collect();
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

/// What masks say: a filter leaves the likeliest, whatever else masks does not.
fn filtered(pair: &Pair<'_>, masked: &[u32]) -> Option<Change> {
    let likeliest = masked.iter().map(|&token| pair.plain[token as usize]).reduce(f32::max)?;
    let (mut left, mut least) = (0, f32::INFINITY);
    pair.common().for_each(|token| (left, least) = (left + 1, least.min(pair.plain[token])));
    Some(if masked.len() > 1 && likeliest <= least {
        Change::Filtered { tokens_left: left }
    } else {
        Change::Masked { tokens: masked.len(), first: first(masked) }
    })
}

/// The column from which on all are others.
fn padding(columns: usize, off: &[Off], unmasked: &[u32]) -> Option<u32> {
    let mut others: Vec<u32> = off.iter().map(|off| off.token).chain(unmasked.iter().copied()).collect();
    others.sort_unstable_by(|a, b| b.cmp(a));
    let is_last = |(back, token): &(usize, &u32)| **token as usize + 1 + back == columns;
    let (tail, last) = others.iter().enumerate().take_while(is_last).last()?;
    // A row of which all is another one has no padding.
    (tail + 1 >= LEAST_PADDING && tail + 1 < columns / 2).then_some(*last)
}

/// What was done to tokens that are off the line: of the rules that give what was sent of every one, the one that does it best.
/// Of a single token nothing can be told but how far it moved, unless it stands in the text.
fn moved(off: &[Off], line: &Line, counts: &HashMap<u32, u32>) -> Option<Change> {
    if off.is_empty() {
        return None;
    }
    let tokens = off.len();
    let first: Vec<u32> = off.iter().take(NAMED).map(|off| off.token).collect();
    let in_text = (!counts.is_empty()).then(|| off.iter().filter(|off| counts.contains_key(&off.token)).count());
    let rules = if tokens == 1 && in_text != Some(1) { Vec::new() } else { rules(off, line, counts) };
    let fits = rules.into_iter().filter_map(|rule| Some((misfit(off, &rule, counts)?, rule)));
    // Of equals the first, which has the fewest numbers to fit by.
    let best = fits.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, rule)| rule);
    let most = || off.iter().map(|off| off.sent - off.plain).max_by(|a, b| a.abs().total_cmp(&b.abs()));
    Some(match best {
        Some(Rule::Bias(bias)) => Change::Bias { bias, tokens, in_text, first },
        Some(Rule::Repetition { penalty, .. }) => Change::RepetitionPenalty { penalty, tokens, in_text },
        Some(Rule::Counts { presence, frequency }) => Change::CountPenalty { presence, frequency, tokens },
        None => Change::Changed { tokens, most: most().unwrap_or_default(), in_text, first },
    })
}

/// What may have been done to tokens.
enum Rule {
    Bias(f64),
    /// By the sign of a logit to which `shift` was added before.
    Repetition {
        penalty: f64,
        shift: f64,
    },
    Counts {
        presence: f64,
        frequency: f64,
    },
}

/// Each with the numbers that fit these tokens best.
fn rules(off: &[Off], line: &Line, counts: &HashMap<u32, u32>) -> Vec<Rule> {
    let bias = Rule::Bias(median(off.iter().map(|off| off.sent - off.plain).collect()));
    // Log-probabilities are shifted before a penalty looks at them; a penalized row may be shifted behind it.
    let repetition = [0.0, line.shift / line.scale].into_iter().filter_map(|shift| {
        let penalties: Vec<f64> = off.iter().filter_map(|off| off.penalty(shift)).collect();
        (!penalties.is_empty()).then(|| Rule::Repetition { penalty: median(penalties), shift })
    });
    [bias].into_iter().chain(repetition).chain(counted(off, counts)).collect()
}

impl Off {
    /// The repetition penalty that makes what was sent; `None` near 0, where it cannot be seen.
    fn penalty(&self, shift: f64) -> Option<f64> {
        let (plain, sent) = (self.plain + shift, self.sent + shift);
        let is_seen = plain.abs() > 2.0 * self.tolerance && plain * sent > 0.0;
        is_seen.then_some(if plain > 0.0 { plain / sent } else { sent / plain })
    }

    /// What a rule makes of it.
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

/// How far a rule misses the tokens together; `None`: one of them too far.
fn misfit(off: &[Off], rule: &Rule, counts: &HashMap<u32, u32>) -> Option<f64> {
    let of = |off: &Off| {
        let missed = (off.sent - off.by(rule, counts)).abs();
        (missed <= 2.0 * off.tolerance + LOOSE * off.plain.abs()).then_some(missed)
    };
    off.iter().map(of).sum()
}

/// Penalties by how often a token stands in the text: the line through what each lost (least squares).
fn counted(off: &[Off], counts: &HashMap<u32, u32>) -> Option<Rule> {
    let points: Vec<(f64, f64)> = off.iter().map(|off| (count(off, counts), off.plain - off.sent)).collect();
    let of = points.len() as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / of, points.iter().map(|p| p.1).sum::<f64>() / of);
    let square: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let frequency = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / square;
    (square > 0.0).then_some(Rule::Counts { presence: y - frequency * x, frequency })
}
