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

/// A temperature is named if its logarithm is larger than this, which is what one factor rounded to bf16 can make.
const NEAR_ONE: f64 = 1.0 / 256.0;
/// A temperature moves a typical logit by so many times the noise at least.
const CLEAR: f64 = 2.0;
/// The noise that rounding alone makes, as a part of the last place. A median of differences that are mostly 0 hides it.
const ROUNDING: f64 = 0.5;
/// A shift smaller than this part of a logit does not count.
const NEAR_ZERO: f64 = 1e-3;

/// A row as sent, and a plain row that it may have been made from. They have the same length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) sent: &'a [f32],
    pub(super) plain: &'a [f32],
    /// Columns that the plain row really has. Those beyond are masked in `plain`.
    pub(super) width: usize,
}

/// Some logits of a pair, `(plain, sent)`, in the order of the plain ones. There is at least one.
#[derive(Debug, Clone)]
pub(super) struct Points {
    pub(super) all: Vec<(f64, f64)>,
    /// The last place of the coarser format of the two, in parts of a number.
    resolution: f64,
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

impl Points {
    /// `None`: no token is unmasked in both rows.
    pub(super) fn of(pair: &Pair<'_>) -> Option<Self> {
        let tokens: Vec<usize> = pair.common().collect();
        let step = tokens.len().div_ceil(SAMPLE).max(1);
        let of = |&token: &usize| (f64::from(pair.plain[token]), f64::from(pair.sent[token]));
        let mut all: Vec<(f64, f64)> = tokens.iter().step_by(step).map(of).collect();
        all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let resolution = resolution(pair.sent).max(resolution(pair.plain));
        (!all.is_empty()).then_some(Self { all, resolution })
    }

    /// The same with other plain logits, which are in the same order.
    pub(super) fn with(&self, plain: impl Fn(f64) -> f64) -> Self {
        Self { all: self.all.iter().map(|&(x, y)| (plain(x), y)).collect(), resolution: self.resolution }
    }
}

impl Line {
    /// Fits the line.
    pub(super) fn through(points: &Points) -> Self {
        let half = points.all.len() / 2;
        let steep = |at: usize| {
            let ((x, y), (far_x, far_y)) = (points.all[at], points.all[at + half]);
            (far_x > x).then(|| (far_y - y) / (far_x - x))
        };
        let slopes: Vec<f64> = (0..half).filter_map(steep).collect();
        let scale = if points.all.len() < LEAST_SLOPED || slopes.is_empty() { 1.0 } else { median(slopes) };
        let shift = median(points.all.iter().map(|(x, y)| y - scale * x).collect());
        Self::given(points, scale, shift)
    }

    /// The line with this scale and shift.
    pub(super) fn given(points: &Points, scale: f64, shift: f64) -> Self {
        let (all, resolution) = (&points.all, points.resolution);
        let last = all.len() - 1;
        let middle = (all[last * 84 / 100].0 - all[last * 16 / 100].0) / 2.0;
        // Rows with one value for nearly all tokens still have a range.
        let spread = if middle > 0.0 { middle } else { (all[last].0 - all[0].0) / 2.0 };
        let noise = noise(all.iter().map(|(x, y)| y - scale * x - shift));
        let quantum = resolution * median(all.iter().map(|(_, y)| y.abs()).collect());
        Self { scale, shift, noise, spread, resolution, quantum }
    }

    /// Whether one row is the other, apart from changes.
    pub(super) fn is_one_row(&self) -> bool {
        self.scale > 0.0 && self.is_near(ONE_ROW)
    }

    /// Whether the noise is no more than rounding causes.
    pub(super) fn is_precise(&self) -> bool {
        self.is_near(SAME)
    }

    /// Whether the scale is a temperature: it moves logits by more than noise and rounding do.
    pub(super) fn has_temperature(&self) -> bool {
        is_temperature(self.scale) && (self.scale - 1.0).abs() * self.spread >= CLEAR * self.with_rounding(self.noise)
    }

    /// A noise, or that of rounding if it is larger.
    pub(super) fn with_rounding(&self, noise: f64) -> f64 {
        noise.max(ROUNDING * self.quantum)
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

    /// Whether a logit may have been rounded to another one.
    pub(super) fn rounds_to(&self, logit: f64, rounded: f32) -> bool {
        (logit - f64::from(rounded)).abs() <= self.resolution * logit.abs()
    }

    /// The largest allowed difference between that and the plain logit.
    pub(super) fn tolerance(&self, sent: f32, plain: f32) -> f64 {
        let (sent, plain) = (f64::from(sent.abs()), f64::from(plain.abs()) * self.scale);
        (TOLERANCE * self.noise.max(self.quantum) + self.resolution * (sent + plain + self.shift.abs())) / self.scale
    }
}

/// Whether a scale is one that somebody may have wanted.
pub(super) fn is_temperature(scale: f64) -> bool {
    scale > 0.0 && scale.ln().abs() > NEAR_ONE
}

/// A standard deviation that a few outliers do not affect. There must be at least one number.
fn noise(differences: impl Iterator<Item = f64>) -> f64 {
    DEVIATIONS * median(differences.map(f64::abs).collect())
}

/// The resolution of the shortest format that can represent most of these numbers.
pub(super) fn resolution(logits: &[f32]) -> f64 {
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
