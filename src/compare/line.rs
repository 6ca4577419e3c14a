//! The straight line that most logits of one row lie on, as a function of those of another row: `sent = scale * plain +
//! shift`. A temperature appears as a scale, log-probabilities as a shift, and rounding as noise around the line. The
//! line is fitted by medians, so that tokens with a bias or a penalty do not move it (Theil 1950, with pairs that lie
//! far apart).

use half::{bf16, f16};

/// Most logits that are used to fit the line, spread over the row.
const SAMPLE: usize = 4096;
/// With fewer logits than this, the slope cannot be determined.
const LEAST_SLOPED: usize = 4;
/// Logits below this are masked: no model's logits are so far from 0.
const MASKED: f32 = -1e3;
/// Number of standard deviations in the median distance of normally distributed numbers.
const DEVIATIONS: f64 = 1.4826;
/// How many standard deviations of noise a token may lie off the line.
const TOLERANCE: f64 = 10.0;
/// Bounds of the noise, as shares of the spread of the row's logits: up to the first, both are one row, and up to the
/// second, they are the same. 16-bit formats cause about a third of the second.
const ONE_ROW: f64 = 0.15;
const SAME: f64 = 0.05;

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
}

impl Pair<'_> {
    /// Tokens that neither row masks.
    pub(super) fn common(&self) -> impl Iterator<Item = usize> {
        (0..self.sent.len()).filter(|&token| !is_masked(self.sent[token]) && !is_masked(self.plain[token]))
    }
}

pub(super) fn is_masked(logit: f32) -> bool {
    logit <= MASKED
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

    /// Whether one row is the other, apart from changes.
    pub(super) fn is_one_row(&self) -> bool {
        self.scale > 0.0 && self.is_near(ONE_ROW)
    }

    /// Whether the noise is no more than rounding causes.
    pub(super) fn is_precise(&self) -> bool {
        self.is_near(SAME)
    }

    fn is_near(&self, part: f64) -> bool {
        // If all logits of a row are nearly equal, rounding is all that can be seen.
        let rounding = self.resolution * self.shift.abs();
        self.noise <= part * self.scale * self.spread + rounding
    }

    /// A token's logit with scale and shift undone.
    pub(super) fn undone(&self, sent: f32) -> f64 {
        (f64::from(sent) - self.shift) / self.scale
    }

    /// The largest allowed difference between that and the plain logit.
    pub(super) fn tolerance(&self, sent: f32, plain: f32) -> f64 {
        let (sent, plain) = (f64::from(sent.abs()), f64::from(plain.abs()) * self.scale);
        (TOLERANCE * self.noise + self.resolution * (sent + plain + self.shift.abs())) / self.scale
    }
}

/// The resolution of the shortest format that can represent all of these numbers.
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

/// The median. Of two numbers in the middle, it is the lower one. There must be at least one number, and no NaN.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    let middle = (numbers.len() - 1) / 2;
    *numbers.select_nth_unstable_by(middle, f64::total_cmp).1
}
