//! The straight line that most logits of one row lie on, as a function of those of another row: `sent = scale * plain +
//! shift`. A temperature appears as a scale, log-probabilities as a shift, and rounding as noise around the line. The
//! line is fitted by medians, so that tokens with a bias or a penalty do not move it (Theil 1950, with pairs that lie
//! far apart).

use crate::sampling::fingerprint::MASKED;
use half::{bf16, f16};

/// Most logits that are used to fit the line, spread over the row.
const SAMPLE: usize = 4096;
/// With fewer logits than this, the slope cannot be determined.
const LEAST_SLOPED: usize = 4;
/// Number of standard deviations in the median distance of normally distributed numbers.
const DEVIATIONS: f64 = 1.4826;
/// How many standard deviations of noise a token may lie off the line.
const TOLERANCE: f64 = 10.0;
/// Bounds of the noise, as shares of the spread of the row's logits: up to the first, both are one row, and up to the
/// second, they are the same. Rounding to bf16 causes 0.001 to 0.004, and a model that computes in bf16 up to 0.016.
const ONE_ROW: f64 = 0.15;
const SAME: f64 = 0.03;
/// The share of a row's numbers that tells its format. Penalties in f32 on some tokens of a row of bf16 do not hide it.
const MIN_FORMAT_SHARE: f64 = 0.9;

/// Temperatures this close to 1 are none.
const NEAR_ONE: f64 = 0.01;
/// A temperature moves logits by so many times the noise at least.
const CLEAR: f64 = 2.0;
/// A shift smaller than this part of a logit does not count.
const NEAR_ZERO: f64 = 1e-3;

/// A row as sent, and a plain row that it may have been made from. They have the same length.
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
    /// Standard deviation of the sent logits around the line. A few outliers do not affect it.
    pub(super) noise: f64,
    /// How far the plain row's logits lie apart: about one standard deviation.
    pub(super) spread: f64,
    /// The last place of the coarser format of the two, in parts of a number.
    resolution: f64,
    /// The last place of a typical logit. If both rows were rounded, most logits can be equal and yet others differ by
    /// this much.
    quantum: f64,
}

impl Pair<'_> {
    /// Tokens that neither row masks.
    pub(super) fn common(&self) -> impl Iterator<Item = usize> {
        (0..self.sent.len()).filter(|&token| !is_masked(self.sent[token]) && !is_masked(self.plain[token]))
    }
}

pub(super) fn is_masked(logit: f32) -> bool {
    logit <= -MASKED
}

impl Line {
    /// Fits the line. `None`: no token is unmasked in both rows.
    pub(super) fn through(pair: &Pair<'_>) -> Option<Self> {
        let tokens: Vec<usize> = pair.common().collect();
        let step = tokens.len().div_ceil(SAMPLE).max(1);
        let of = |&token: &usize| (f64::from(pair.plain[token]), f64::from(pair.sent[token]));
        let mut points: Vec<(f64, f64)> = tokens.iter().step_by(step).map(of).collect();
        points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let last = points.len().checked_sub(1)?;
        let middle = (points[last * 84 / 100].0 - points[last * 16 / 100].0) / 2.0;
        // Rows with one value for nearly all tokens still have a range.
        let spread = if middle > 0.0 { middle } else { (points[last].0 - points[0].0) / 2.0 };
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
        let quantum = resolution * median(points.iter().map(|(_, y)| y.abs()).collect());
        Some(Self { scale, shift, noise, spread, resolution, quantum })
    }

    /// Whether one row is the other, apart from changes.
    pub(super) fn is_one_row(&self) -> bool {
        self.scale > 0.0 && self.is_near(ONE_ROW)
    }

    /// Whether the noise is no more than rounding causes.
    pub(super) fn is_precise(&self) -> bool {
        self.is_near(SAME)
    }

    /// Whether the scale is a temperature: it moves logits by more than the noise does.
    pub(super) fn has_temperature(&self) -> bool {
        let moved = (self.scale - 1.0).abs();
        moved > NEAR_ONE && moved * self.spread >= CLEAR * self.noise
    }

    /// Whether the shift is more than noise.
    pub(super) fn is_shifted(&self) -> bool {
        self.shift.abs() > NEAR_ZERO.max(self.noise).max(self.quantum)
    }

    fn is_near(&self, part: f64) -> bool {
        // If all logits of a row are nearly equal, rounding is all that can be seen.
        let rounding = self.quantum.max(self.resolution * self.shift.abs());
        self.noise <= part * self.scale * self.spread + rounding
    }

    /// A token's logit with scale and shift undone.
    pub(super) fn undone(&self, sent: f32) -> f64 {
        (f64::from(sent) - self.shift) / self.scale
    }

    /// The largest allowed difference between that and the plain logit.
    pub(super) fn tolerance(&self, sent: f32, plain: f32) -> f64 {
        let (sent, plain) = (f64::from(sent.abs()), f64::from(plain.abs()) * self.scale);
        (TOLERANCE * self.noise.max(self.quantum) + self.resolution * (sent + plain + self.shift.abs())) / self.scale
    }
}

/// The resolution of the shortest format that can represent most of these numbers.
fn resolution(logits: &[f32]) -> f64 {
    let numbers = logits.iter().filter(|&&logit| !is_masked(logit));
    let most = |fits: fn(f32) -> bool| {
        let (count, fitting) =
            numbers.clone().fold((0, 0), |(all, some), &logit| (all + 1, some + usize::from(fits(logit))));
        fitting as f64 >= MIN_FORMAT_SHARE * f64::from(count)
    };
    if most(|logit| bf16::from_f32(logit).to_f32() == logit) {
        2f64.powi(-8)
    } else if most(|logit| f16::from_f32(logit).to_f32() == logit) {
        2f64.powi(-11)
    } else {
        2f64.powi(-22)
    }
}

/// The median. Of two numbers in the middle, it is the lower one. There must be at least one number, and no NaN.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    let middle = (numbers.len() - 1) / 2;
    *numbers.select_nth_unstable_by(middle, f64::total_cmp).1
}
