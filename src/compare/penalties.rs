//! Penalties and biases: finds the rule that explains the tokens off the [line](super::line).

use super::changes::Off;
use super::line::{Line, Pair, is_masked, median};
use std::collections::HashMap;

/// A penalty this close to 1 is none.
const NO_PENALTY: f64 = 0.01;
/// How much a penalty may differ from token to token, as a share of the logit.
const LOOSE: f64 = 0.002;
/// How many tolerances a token may lie off a rule. Rules with several parts fit more easily by chance.
const OFF_ONE: f64 = 2.0;
const OFF_SEVERAL: f64 = 0.5;
/// By how many tolerances in all another parameter must improve a rule.
const WORTH: f64 = 0.6;
/// A smaller presence or frequency penalty beside another penalty is noise.
const LEAST: f64 = 0.02;
/// Repetition penalties that are tried together with others: the least, the step, and how many.
const TRIED: (f64, f64, usize) = (0.3, 0.02, 160);
/// How far the median of the penalties of single tokens may be off.
const WIDE: f64 = 0.1;
/// How often the interval around the best of them is narrowed, each time to 0.62 of its width.
const NARROWED: usize = 40;

/// A rule that may have been applied to tokens.
pub(super) enum Rule {
    /// One number was added to all logits.
    Bias(f64),
    Penalties(Penalties),
}

/// Penalties, in one of the orders in which engines apply them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Penalties {
    repeated: Repeated,
    pub(super) presence: f64,
    pub(super) frequency: f64,
    parameters: usize,
}

/// A repetition penalty, and where it stands.
#[derive(Debug, Clone, Copy)]
struct Repeated {
    /// 1 if there is none.
    penalty: f64,
    /// Added to the logit before, since the penalty depends on the sign.
    shift: f64,
    /// Whether the other penalties are subtracted before this one.
    is_last: bool,
}

/// What is known about the text.
pub(super) struct Text<'a> {
    /// The number of occurrences of each token.
    counts: &'a HashMap<u32, u32>,
    /// Whether all tokens off the line are in the text, and occur in different numbers.
    tells_counts: bool,
    /// Whether these are all the tokens of the text.
    is_complete: bool,
}

impl<'a> Text<'a> {
    pub(super) fn of(off: &[Off], pair: &Pair<'_>, counts: &'a HashMap<u32, u32>) -> Self {
        let is_seen = |row: &[f32], token: u32| row.get(token as usize).is_some_and(|&logit| !is_masked(logit));
        let in_text = off.iter().filter_map(|off| counts.get(&off.token)).count();
        let seen = counts.keys().filter(|&&token| is_seen(pair.sent, token) && is_seen(pair.plain, token)).count();
        let differ = off.windows(2).any(|two| counts.get(&two[0].token) != counts.get(&two[1].token));
        Self { counts, tells_counts: in_text == off.len() && differ, is_complete: in_text == seen }
    }

    fn count(&self, off: &Off) -> f64 {
        f64::from(self.counts.get(&off.token).copied().unwrap_or_default())
    }
}

/// Of the rules that fit every token, the one with the smallest error, unless it needs more parameters for that than it
/// is worth.
pub(super) fn of(off: &[Off], line: &Line, text: &Text<'_>) -> Option<Rule> {
    let each = WORTH * off.iter().map(|off| off.tolerance).sum::<f64>() / off.len() as f64;
    let fits = rules(off, line, text).into_iter().filter_map(|rule| {
        let misfit = misfit(off, &rule, text)?;
        Some((misfit + each * rule.parameters() as f64, rule))
    });
    // Of equally good rules, take the first one.
    fits.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, rule)| rule)
}

/// The rules, each with the parameters that fit these tokens best.
fn rules(off: &[Off], line: &Line, text: &Text<'_>) -> Vec<Rule> {
    let bias = Rule::Bias(median(off.iter().map(|off| off.sent - off.plain).collect()));
    // Log-probabilities are shifted before a penalty is applied. But a penalized row may also be shifted afterwards.
    let shifts = [0.0, line.shift / line.scale];
    let repetition = shifts.into_iter().filter_map(|shift| {
        let penalties: Vec<f64> = off.iter().filter_map(|off| off.penalty(shift)).collect();
        let about = (!penalties.is_empty()).then(|| median(penalties))?;
        let alone = |penalty| Penalties::repeated(Repeated { penalty, shift, is_last: false });
        // Logits near 0 say little about a penalty, and large ones much.
        let error = |penalty| off.iter().map(|off| (alone(penalty).by(off, 0.0) - off.sent).powi(2)).sum();
        let found = alone(narrowed((about - WIDE, about + WIDE), NARROWED, error));
        found.repetition().is_some().then_some(Rule::Penalties(found))
    });
    let counted: Vec<Rule> = if text.tells_counts { counted(off, shifts, text) } else { Vec::new() };
    // A bias on just the tokens of the text is a presence penalty, where one can be told from a frequency penalty.
    let bias = (!text.tells_counts || !text.is_complete).then_some(bias);
    counted.into_iter().chain(bias).chain(repetition).collect()
}

/// Rules with penalties by the number of occurrences in the text, alone, and behind and before a repetition penalty.
fn counted(off: &[Off], shifts: [f64; 2], text: &Text<'_>) -> Vec<Rule> {
    let mut found = Vec::new();
    for terms in [(true, false), (false, true), (true, true)] {
        if terms == (true, false) && !text.is_complete {
            continue;
        }
        found.push(fitted(off, Repeated { penalty: 1.0, shift: 0.0, is_last: false }, terms, text).0);
        for is_last in [false, true] {
            found.extend(shifts.map(|shift| with_repetition(off, (shift, is_last), terms, text)));
        }
    }
    found.retain(|rule| rule.parameters < off.len() && (rule.parameters == 1 || rule.is_plausible()));
    found.into_iter().map(Rule::Penalties).collect()
}

/// The best repetition penalty with these terms.
fn with_repetition(off: &[Off], (shift, is_last): (f64, bool), terms: (bool, bool), text: &Text<'_>) -> Penalties {
    let fitted = |penalty: f64| fitted(off, Repeated { penalty, shift, is_last }, terms, text);
    let error = |penalty: f64| fitted(penalty).1;
    let (least, step, count) = TRIED;
    let tried = (0..count).map(|at| least + step * at as f64).map(|penalty| (error(penalty), penalty));
    let best = tried.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(1.0, |(_, penalty)| penalty);
    fitted(narrowed((best - step, best + step), NARROWED, error)).0
}

/// The place of the minimum in an interval, by the golden section.
pub(super) fn narrowed((mut from, mut to): (f64, f64), times: usize, error: impl Fn(f64) -> f64) -> f64 {
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    for _ in 0..times {
        let (low, high) = (to - golden * (to - from), from + golden * (to - from));
        if error(low) <= error(high) { to = high } else { from = low }
    }
    (from + to) / 2.0
}

/// Presence and frequency penalties by least squares, for a given repetition penalty, and the sum of squares that is
/// left.
fn fitted(off: &[Off], repeated: Repeated, terms: (bool, bool), text: &Text<'_>) -> (Penalties, f64) {
    let mut found = Penalties::repeated(repeated);
    // Where all logits have one sign, both orders fit, with other numbers. So the rarer one has to be worth something.
    found.parameters += usize::from(repeated.penalty != 1.0) + usize::from(repeated.is_last);
    let points: Vec<(f64, f64)> = off.iter().map(|off| (text.count(off), repeated.subtracted(off))).collect();
    let of = points.len() as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / of, points.iter().map(|p| p.1).sum::<f64>() / of);
    let products = |x: f64, y: f64| points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>();
    let squares = |x: f64| points.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>();
    match terms {
        (true, true) => {
            found.frequency = products(x, y) / squares(x);
            found.presence = y - found.frequency * x;
            found.parameters += 1;
        }
        (false, _) => found.frequency = products(0.0, 0.0) / squares(0.0),
        (true, false) => found.presence = y,
    }
    (found, off.iter().map(|off| (found.by(off, text.count(off)) - off.sent).powi(2)).sum())
}

impl Rule {
    fn parameters(&self) -> usize {
        match self {
            Self::Bias(_) => 1,
            Self::Penalties(penalties) => penalties.parameters,
        }
    }
}

impl Penalties {
    /// A repetition penalty alone.
    fn repeated(repeated: Repeated) -> Self {
        Self { repeated, presence: 0.0, frequency: 0.0, parameters: 1 }
    }

    /// The repetition penalty, if there is one.
    pub(super) fn repetition(&self) -> Option<f64> {
        let penalty = self.repeated.penalty;
        ((penalty - 1.0).abs() > NO_PENALTY).then_some(penalty)
    }

    /// Whether there is a presence or frequency penalty.
    pub(super) fn is_counted(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0
    }

    /// Whether presence and frequency penalties were subtracted before the repetition penalty.
    pub(super) fn is_subtracted_first(&self) -> bool {
        self.repeated.is_last
    }

    /// Whether each part of the rule does something.
    fn is_plausible(&self) -> bool {
        let does_something = |penalty: f64| penalty == 0.0 || penalty.abs() >= LEAST;
        let repeats = self.repeated.penalty == 1.0 || self.repetition().is_some();
        repeats && does_something(self.presence) && does_something(self.frequency)
    }

    /// The logit that the penalties make of a token that is so often in the text.
    fn by(&self, off: &Off, count: f64) -> f64 {
        let counted = self.presence + self.frequency * count;
        if self.repeated.is_last {
            self.repeated.of(off.plain - counted)
        } else {
            self.repeated.of(off.plain) - counted
        }
    }
}

impl Repeated {
    fn of(&self, logit: f64) -> f64 {
        let logit = logit + self.shift;
        (if logit > 0.0 { logit / self.penalty } else { logit * self.penalty }) - self.shift
    }

    /// What the other penalties must have subtracted, to make the sent logit of the plain one.
    fn subtracted(&self, off: &Off) -> f64 {
        if self.is_last {
            off.plain - Self { penalty: 1.0 / self.penalty, ..*self }.of(off.sent)
        } else {
            self.of(off.plain) - off.sent
        }
    }
}

impl Off {
    /// The repetition penalty that explains the sent logit. `None` if the logit is too close to 0.
    fn penalty(&self, shift: f64) -> Option<f64> {
        let (plain, sent) = (self.plain + shift, self.sent + shift);
        let is_seen = plain.abs() > 2.0 * self.tolerance && plain * sent > 0.0;
        is_seen.then_some(if plain > 0.0 { plain / sent } else { sent / plain })
    }
}

/// The total error of a rule over all tokens. `None`: the error of some token is too large.
fn misfit(off: &[Off], rule: &Rule, text: &Text<'_>) -> Option<f64> {
    let allowed = if rule.parameters() > 1 { OFF_SEVERAL } else { OFF_ONE };
    let of = |off: &Off| {
        let expected = match rule {
            Rule::Bias(bias) => off.plain + bias,
            Rule::Penalties(penalties) => penalties.by(off, text.count(off)),
        };
        let missed = (off.sent - expected).abs();
        (missed <= allowed * off.tolerance + LOOSE * off.plain.abs()).then_some(missed)
    };
    off.iter().map(of).sum()
}
