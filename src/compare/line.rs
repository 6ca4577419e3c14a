//! The straight line that most logits of one row lie on, seen over those of another: `sent = scale * plain + shift`. A
//! temperature is a scale, log-probabilities are a shift, and rounding is the noise around the line. Found by medians, so
//! that tokens with a bias or penalty of their own do not move it (Theil 1950, by pairs that lie far apart).

use half::{bf16, f16};

/// Logits that the line is found by, spread over the row.
const SAMPLE: usize = 4096;
/// Fewer do not say how steep it is.
const LEAST_SLOPED: usize = 4;
/// Lower ones are masks, as far from 0 as no model's logits are.
const MASKED: f32 = -1e3;
/// Standard deviations in a median of distances, of numbers that are normally distributed.
const DEVIATIONS: f64 = 1.4826;
/// How many standard deviations of noise a token may lie off the line.
const TOLERANCE: f64 = 10.0;
/// The noise, in parts of how far the row's logits lie apart, up to which the two are one row, and up to which they are the same:
/// 16 bits make about a third of the latter.
const ONE_ROW: f64 = 0.15;
const SAME: f64 = 0.05;

/// A row as sent, and one that it may come of. As long as each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) sent: &'a [f32],
    pub(super) plain: &'a [f32],
}

/// The line, and how well it fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    pub(super) scale: f64,
    pub(super) shift: f64,
    /// Standard deviation of what is sent around the line, whatever a few tokens do.
    pub(super) noise: f64,
    /// How far the plain row's logits lie apart: about one standard deviation.
    pub(super) spread: f64,
    /// The last place of the coarser format of the two, in parts of a number.
    resolution: f64,
}

impl Pair<'_> {
    /// Tokens that neither masks.
    pub(super) fn common(&self) -> impl Iterator<Item = usize> {
        (0..self.sent.len()).filter(|&token| !is_masked(self.sent[token]) && !is_masked(self.plain[token]))
    }
}

pub(super) fn is_masked(logit: f32) -> bool {
    logit <= MASKED
}

impl Line {
    /// `None`: they have no token in common.
    pub(super) fn through(pair: &Pair<'_>) -> Option<Self> {
        let tokens: Vec<usize> = pair.common().collect();
        let step = tokens.len().div_ceil(SAMPLE).max(1);
        let of = |&token: &usize| (f64::from(pair.plain[token]), f64::from(pair.sent[token]));
        let mut points: Vec<(f64, f64)> = tokens.iter().step_by(step).map(of).collect();
        points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let last = points.len().checked_sub(1)?;
        let spread = (points[last * 84 / 100].0 - points[last * 16 / 100].0) / 2.0;
        let half = points.len() / 2;
        let steep = |at: usize| {
            let ((x, y), (far_x, far_y)) = (points[at], points[at + half]);
            (far_x > x).then(|| (far_y - y) / (far_x - x))
        };
        let slopes: Vec<f64> = (0..half).filter_map(steep).collect();
        let scale = if points.len() < LEAST_SLOPED || slopes.is_empty() { 1.0 } else { median(slopes) };
        let shift = median(points.iter().map(|(x, y)| y - scale * x).collect());
        let noise = DEVIATIONS * median(points.iter().map(|(x, y)| (y - scale * x - shift).abs()).collect());
        let resolution = resolution(pair.sent).max(resolution(pair.plain));
        Some(Self { scale, shift, noise, spread, resolution })
    }

    /// Whether the one row is the other, but for what was done to it.
    pub(super) fn is_one_row(&self) -> bool {
        self.scale > 0.0 && self.is_near(ONE_ROW)
    }

    /// Whether there is no more noise than rounding makes.
    pub(super) fn is_precise(&self) -> bool {
        self.is_near(SAME)
    }

    fn is_near(&self, part: f64) -> bool {
        // Of rows whose logits are nearly one number, rounding is all that there is to see.
        let rounding = self.resolution * self.shift.abs();
        self.noise <= part * self.scale * self.spread + rounding
    }

    /// A token's logit before it was scaled and shifted.
    pub(super) fn undone(&self, sent: f32) -> f64 {
        (f64::from(sent) - self.shift) / self.scale
    }

    /// How far that may lie from the plain one.
    pub(super) fn tolerance(&self, sent: f32, plain: f32) -> f64 {
        let (sent, plain) = (f64::from(sent.abs()), f64::from(plain.abs()) * self.scale);
        (TOLERANCE * self.noise + self.resolution * (sent + plain + self.shift.abs())) / self.scale
    }
}

/// The last place of the shortest format that has all of these numbers.
fn resolution(logits: &[f32]) -> f64 {
    let all = |is: fn(f32) -> bool| logits.iter().all(|&logit| is_masked(logit) || is(logit));
    if all(|logit| bf16::from_f32(logit).to_f32() == logit) {
        2f64.powi(-8)
    } else if all(|logit| f16::from_f32(logit).to_f32() == logit) {
        2f64.powi(-11)
    } else {
        2f64.powi(-22)
    }
}

/// The lower one of two in the middle. At least one number, none of them NaN.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    let middle = (numbers.len() - 1) / 2;
    *numbers.select_nth_unstable_by(middle, f64::total_cmp).1
}
