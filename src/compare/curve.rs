//! Logits that went through a curve, above all a softcap: `cap * tanh(logit / cap)`. Near 0 it changes nothing, and the
//! further a logit lies from 0, the more it is moved. Through a line, that looks like a temperature and penalties.

use super::line::{Line, Pair, Points, is_masked, median};
use super::penalties::narrowed;
use serde::Serialize;

/// With fewer logits than this, a curve cannot be told from noise.
const LEAST: usize = 64;
/// Into how many parts of equal size the logits are cut to see a curve, each much wider than the steps of a number
/// format; and to see whether something is left of it. A part has so many logits at least.
const PARTS: usize = 8;
const MANY_PARTS: usize = 32;
const LEAST_PART: usize = 8;
/// If a curve leaves at most this part of what logits lie off the line, they may have gone through one; up to the second,
/// they probably have, and up to the third, nothing else can be said of them.
const PERHAPS_BENT: f64 = 0.98;
const BENT: f64 = 0.85;
const CLEARLY_BENT: f64 = 0.5;
/// In such measures, how many times the noise a logit may lie off.
const LIMIT: f64 = 10.0;
/// How unsure such a part would be, measured on one logit. The error falls with the root of their number.
const UNSURE: f64 = 2.0;
/// A softcap moves some logit by so many times the noise around the line at least.
const SEEN: f64 = 8.0;
/// At most this part of the logits may lie so many times the noise off a softcap: those with a penalty, and some that
/// rounding moves further than others.
const MAX_FAR: f64 = 0.1;
const FAR: f64 = 5.0;
/// A curve with fewer parameters is taken if it leaves at most so many times the noise of one with more.
const AS_GOOD: f64 = 1.1;
/// Caps that are tried, as parts of the largest logit (for a missing softcap, of what the cap is above it): the least,
/// the factor from one to the next, and how many.
const APPLIED: (f64, f64, i32) = (0.1, 1.2, 33);
const MISSING: (f64, f64, i32) = (1e-4, 1.5, 32);
/// How often an interval around the best cap is narrowed, each time to 0.62 of its width.
const NARROWED: usize = 16;
/// A missing softcap has no value for logits beyond the cap. They are taken as this part of it.
const LARGEST: f64 = 1.0 - 1e-6;

/// A softcap between the plain row and the row as sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(super) enum Softcap {
    /// The row as sent went through it, the plain row did not.
    Applied { cap: f64 },
    /// The plain row went through it, the row as sent did not.
    Missing { cap: f64 },
}

impl Softcap {
    /// A logit of the plain row, as it would be in the row as sent.
    fn of(self, logit: f64) -> f64 {
        match self {
            Self::Applied { cap } => cap * (logit / cap).tanh(),
            Self::Missing { cap } => cap * (logit / cap).clamp(-LARGEST, LARGEST).atanh(),
        }
    }

    /// A plain row, as it would be in the row as sent before the line.
    pub(super) fn of_row(self, pair: &Pair<'_>, line: &Line) -> Vec<f32> {
        let of = |(&sent, &plain): (&f32, &f32)| {
            let before = line.undone(sent);
            match self {
                _ if is_masked(plain) => plain,
                // Near the cap, the last place of a capped logit stands for much: take it from the other side.
                Self::Missing { cap } if line.rounds_to(Self::Applied { cap }.of(before), plain) => before as f32,
                _ => self.of(plain.into()) as f32,
            }
        };
        pair.sent.iter().zip(pair.plain).map(of).collect()
    }
}

/// The softcap that explains the sent logits much better than the line does, and the line behind it.
pub(super) fn softcap(points: &Points, line: &Line) -> Option<(Softcap, Line)> {
    if !is_bent(points, line, PARTS, PERHAPS_BENT) {
        return None;
    }
    let applied = |cap| Softcap::Applied { cap };
    let missing = |cap| Softcap::Missing { cap };
    let found = [best(points, line, 0.0, APPLIED, applied), best(points, line, 1.0, MISSING, missing)];
    let (left, softcap, behind) = found.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let is_better = is_less(points, line, left, BENT);
    let is_precise = behind.scale > 0.0 && behind.is_precise();
    // Another curve may look like a softcap, but then another curve than that is left.
    let is_whole = || !is_bent(&points.with(|x| softcap.of(x)), &behind, MANY_PARTS, BENT);
    let moved = points.all.iter().map(|&(x, _)| (softcap.of(x) - x).abs()).fold(0.0, f64::max) * behind.scale;
    let is_seen = moved >= SEEN * line.with_rounding(line.noise);
    let is_sure = is_better && is_precise && is_seen && is_whole() && explains_most(points, softcap, &behind);
    is_sure.then_some((softcap, behind))
}

/// Whether nearly all logits lie near the curve. Of a row that is flat from somewhere on, for example, only most do.
fn explains_most(points: &Points, softcap: Softcap, line: &Line) -> bool {
    let off = |&(x, y): &(f64, f64)| (y - line.scale * softcap.of(x) - line.shift).abs();
    let far = points.all.iter().filter(|point| off(point) > FAR * line.with_rounding(line.noise)).count();
    (far as f64) < MAX_FAR * points.all.len() as f64
}

/// Whether the sent logits lie on some curve, and not on the line.
pub(super) fn is_clearly_bent(pair: &Pair<'_>) -> bool {
    let points = Points::of(pair);
    points.is_some_and(|points| is_bent(&points, &Line::through(&points), PARTS, CLEARLY_BENT))
}

/// The best softcap with `cap = largest * (base + tried)`: what logits lie off it, and the line behind it.
fn best(
    points: &Points,
    straight: &Line,
    base: f64,
    tried: (f64, f64, i32),
    of: impl Fn(f64) -> Softcap,
) -> (f64, Softcap, Line) {
    let largest = points.all.iter().fold(0.0, |most, (x, _)| x.abs().max(most));
    let (least, factor, count) = tried;
    let behind = |step: f64, line: &dyn Fn(&Points) -> Line| {
        let softcap = of(largest * (base + least * factor.powf(step)));
        (softcap, line(&points.with(|x| softcap.of(x))))
    };
    let left = |limit: &Line, (softcap, line): (Softcap, Line)| {
        distance(points, limit, |&(x, y)| y - line.scale * softcap.of(x) - line.shift)
    };
    let found = |line: &dyn Fn(&Points) -> Line| {
        let steps = (0..count).map(f64::from).map(|step| (left(straight, behind(step, line)), step));
        let mut best = steps.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0.0, |(_, step)| step);
        // The better the curve, the less do logits count that lie far off it for another reason.
        let mut limit = *straight;
        for wide in [1.0, 0.1, 1e-2, 1e-3, 1e-4] {
            best = narrowed((best - wide, best + wide), NARROWED, |step| left(&limit, behind(step, line)));
            limit = behind(best, line).1;
        }
        behind(best, line)
    };
    let any = found(&Line::through);
    // A softcap alone, without a temperature and a shift behind it, is likelier than all three.
    let alone = found(&|points| Line::given(points, 1.0, 0.0));
    let is_as_good = left(&any.1, alone) <= AS_GOOD * any.1.with_rounding(left(&any.1, any));
    let (softcap, line) = if is_as_good { alone } else { any };
    (left(straight, (softcap, line)), softcap, line)
}

/// Whether a curve through the middles of parts of the row leaves at most `part` of the noise around the line.
fn is_bent(points: &Points, line: &Line, parts: usize, part: f64) -> bool {
    if points.all.len() < LEAST {
        return false;
    }
    let size = points.all.len().div_ceil(parts).max(LEAST_PART);
    let off = |&(x, y): &(f64, f64)| y - line.scale * x - line.shift;
    let middle = |part: &[(f64, f64)]| (part[part.len() / 2].0, median(part.iter().map(off).collect()));
    let knots: Vec<(f64, f64)> = points.all.chunks(size).map(middle).collect();
    let curve = |x: f64| {
        let next = knots.partition_point(|knot| knot.0 <= x).clamp(1, knots.len() - 1);
        let (from, to) = (knots[next - 1], knots[next]);
        if to.0 > from.0 { from.1 + (to.1 - from.1) * (x - from.0) / (to.0 - from.0) } else { from.1 }
    };
    let left = |point: &(f64, f64)| off(point) - curve(point.0);
    is_less(points, line, distance(points, line, left), part)
}

/// Whether logits lie off something by at most this part of what they lie off the line, and not only because there are
/// so few of them.
fn is_less(points: &Points, line: &Line, left: f64, part: f64) -> bool {
    let off = distance(points, line, |&(x, y)| y - line.scale * x - line.shift);
    let rounding = line.with_rounding(0.0);
    left.max(rounding) <= (part - UNSURE / (points.all.len() as f64).sqrt()) * off.max(rounding)
}

/// How far logits lie off something: a root mean square, as a curve shows most in the largest logits. Those that lie
/// very far off, as penalties and biases make them, count as others at the limit.
fn distance(points: &Points, line: &Line, off: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let limit = LIMIT * line.with_rounding(line.noise);
    let squares: f64 = points.all.iter().map(|point| off(point).clamp(-limit, limit).powi(2)).sum();
    (squares / points.all.len() as f64).sqrt()
}
