//! Distributions in the form that verification compares: integer weights by token, and the few operations that turn
//! weights into probabilities and back.
//!
//! [`share`] makes a probability from a weight, in f64, so that it is the same number on every machine. Values that are
//! summed are turned into integers first ([`count`]), so that no result depends on the order of addition.

use crate::sampling::distribution::Distribution;
pub use crate::sampling::entropy::count;
use crate::sampling::mass::draw_point;

/// 1 as a summable integer: probabilities are summed in units of 2^-51. With this unit, what is left of a row of 2^20
/// tokens is off by at most 2^-32, and every weight is below 2^52, where adding a constant converts between u64 and
/// f64.
pub const ONE: f64 = (1u64 << 51) as f64;

/// The factor that turns weights with this total into probabilities.
#[must_use]
pub fn per_weight(total: u64) -> f64 {
    1.0 / total as f64
}

/// The probability of a token: its weight times [`per_weight`], each rounded once.
#[must_use]
pub fn share(weight: u64, total: u64) -> f64 {
    weight as f64 * per_weight(total)
}

/// The square of a token's probability, in units of [`ONE`]. `per` is [`per_weight`].
#[must_use]
pub fn squared(weight: u64, per: f64) -> u64 {
    let share = weight as f64 * per;
    count(share * share * ONE)
}

/// The cube of a token's probability, likewise.
#[must_use]
pub fn cubed(weight: u64, per: f64) -> u64 {
    let share = weight as f64 * per;
    count(share * share * share * ONE)
}

/// The probability that a drawn token has in the distribution it is drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnProbability {
    /// Its mean: the sum of the squares of all probabilities. This is also the probability that two draws give the same
    /// token.
    pub mean: f64,
    /// Its variance: the sum of the cubes less the square of the mean.
    pub variance: f64,
}

impl OwnProbability {
    /// From the sums of [`squared`] and of [`cubed`] shares.
    #[must_use]
    pub fn of(squares: u64, cubes: u64) -> Self {
        let mean = squares as f64 / ONE;
        // If all tokens are equally likely, rounding could make this negative.
        Self { mean, variance: (cubes as f64 / ONE - mean * mean).max(0.0) }
    }
}

/// The largest sum of rounding errors in a residual's weights. An overlap below this counts as none.
const ROUNDING: f64 = 1.0 / (1u64 << 32) as f64;

/// The overlap of a draft with a target that counts `factor` times: the sum of min(factor * target, draft). `beyond` is
/// the sum of max(factor * target - draft, 0). The target's probabilities sum to 1, so the overlap is what remains of
/// `factor`.
#[must_use]
pub fn common(factor: f64, beyond: f64) -> f64 {
    let common = factor - beyond;
    if common > ROUNDING { common } else { 0.0 }
}

/// The factors that turn weights into those of a residual: `max(weight * target - draft_weight * draft, 0)` in units of
/// [`ONE`].
#[derive(Debug, Clone, Copy)]
pub struct Residual {
    /// The factor for the target's weights.
    pub target: f64,
    /// The factor for the draft's weights.
    pub draft: f64,
}

impl Residual {
    /// The residual of a target that counts `factor` times, given the totals of target and draft.
    #[must_use]
    pub fn new(factor: f64, target_total: u64, draft_total: u64) -> Self {
        Self { target: factor * per_weight(target_total) * ONE, draft: per_weight(draft_total) * ONE }
    }

    /// A token's weight in the residual.
    #[must_use]
    #[inline]
    pub fn weight(&self, target: u64, draft: u64) -> u64 {
        count((target as f64 * self.target - draft as f64 * self.draft).max(0.0))
    }
}

/// Tokens with nonzero weights, by ascending id, and the sum of the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    entries: Vec<(u32, u64)>,
    total: u64,
}

impl Weights {
    /// Takes entries in ascending token order, each token once, and leaves out those of weight 0. The sum must fit u64.
    #[must_use]
    pub fn new(entries: impl Iterator<Item = (u32, u64)>) -> Self {
        let entries: Vec<_> = entries.filter(|&(_, weight)| weight > 0).collect();
        let total = entries.iter().map(|&(_, weight)| weight).sum();
        Self { entries, total }
    }

    /// All probability on one token.
    pub(super) fn certain(token: u32) -> Self {
        Self { entries: vec![(token, 1)], total: 1 }
    }

    /// The sum of all weights; 0 if there is no token.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The weight of a token.
    #[must_use]
    pub fn weight(&self, token: u32) -> u64 {
        let found = self.entries.binary_search_by_key(&token, |&(t, _)| t);
        found.map_or(0, |at| self.entries[at].1)
    }

    /// The probability of a token.
    #[must_use]
    pub fn share(&self, token: u32) -> f64 {
        share(self.weight(token), self.total)
    }

    /// Tokens and their weights, by ascending id.
    #[must_use]
    pub fn entries(&self) -> &[(u32, u64)] {
        &self.entries
    }

    /// Whether one token has all probability.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.entries.len() == 1
    }

    /// How likely a token drawn from this distribution is in it.
    #[must_use]
    pub fn own_probability(&self) -> OwnProbability {
        let per = per_weight(self.total);
        let sum = |of: fn(u64, f64) -> u64| self.entries.iter().map(|&(_, weight)| of(weight, per)).sum::<u64>();
        OwnProbability::of(sum(squared), sum(cubed))
    }

    /// Draws by inverse CDF in token-id order, as a plain row does.
    ///
    /// # Panics
    /// If the total is 0, which callers rule out.
    #[must_use]
    pub fn draw(&self, uniform: u64) -> u32 {
        let point = draw_point(uniform, self.total);
        let mut sum = 0;
        let drawn = self.entries.iter().find(|&&(_, weight)| {
            sum += weight;
            sum > point
        });
        drawn.expect("a distribution with a total has a token at every point below it; this is a bug").0
    }

    /// The residual `max(factor * self - draft, 0)`, in units of [`ONE`]: what the target gives to each token beyond
    /// the draft. `draft` gives the draft's weights, and `total` is their sum. With factor 1 this is the distribution
    /// after a rejected draft token (Leviathan et al. 2023, theorem 1), and its sum is the total variation between
    /// target and draft.
    #[must_use]
    pub fn residual(&self, factor: f64, total: u64, mut draft: impl FnMut(u32) -> u64) -> Weights {
        let residual = Residual::new(factor, self.total, total);
        Self::new(self.entries.iter().map(|&(token, weight)| (token, residual.weight(weight, draft(token)))))
    }
}

impl From<&Distribution> for Weights {
    fn from(distribution: &Distribution) -> Self {
        let mut entries: Vec<_> = distribution.kept().iter().map(|w| (w.candidate.token, w.mass)).collect();
        entries.sort_unstable();
        Self::new(entries.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(entries: &[(u32, u64)]) -> Weights {
        Weights::new(entries.iter().copied())
    }

    #[test]
    fn residual_by_hand() {
        let left =
            |target: &Weights, factor, draft: &Weights| target.residual(factor, draft.total(), |t| draft.weight(t));
        let sum = |left: &Weights| left.total() as f64 / ONE;
        let target = weights(&[(0, 2), (1, 1), (3, 1)]);
        let draft = weights(&[(0, 1), (2, 1), (3, 2)]);
        // 0: 1/2 - 1/4, 1: 1/4 - 0, 3: 1/4 - 1/2.
        assert_eq!(left(&target, 1.0, &draft).entries(), [(0, 1 << 49), (1, 1 << 49)]);
        assert_eq!(sum(&left(&target, 1.0, &draft)), 0.5);
        assert_eq!(sum(&left(&target, 0.5, &draft)), 0.125);
        assert_eq!(left(&target, 1.0, &target).total(), 0);
        assert_eq!(sum(&left(&target, 1.0, &weights(&[(7, 5)]))), 1.0);
    }

    #[test]
    fn what_rounding_leaves_is_nothing_in_common() {
        let part = |bits: i32| 2f64.powi(-bits);
        assert_eq!([common(1.0, 0.25), common(0.5, 0.5), common(0.5, 0.125)], [0.75, 0.0, 0.375]);
        assert_eq!([31, 32, 33].map(|bits| common(1.0, 1.0 - part(bits))), [part(31), 0.0, 0.0]);
        assert_eq!(common(0.5, 0.5 + part(40)), 0.0, "and never less than nothing");
    }

    #[test]
    fn own_probabilities_by_hand() {
        let of = |entries| weights(entries).own_probability();
        // 1/16 + 9/16, and 1/64 + 27/64 less the square of that.
        assert_eq!(of(&[(0, 1), (3, 3)]), OwnProbability { mean: 0.625, variance: 0.4375 - 0.390_625 });
        assert_eq!(of(&[(7, 9)]), OwnProbability { mean: 1.0, variance: 0.0 });
        let alike = of(&[(1, 5), (2, 5), (3, 5)]);
        assert!((alike.mean - 1.0 / 3.0).abs() < 1e-12 && (0.0..1e-12).contains(&alike.variance), "{alike:?}");
    }

    #[test]
    fn counting_rounds_to_even() {
        let cases = [(0.0, 0), (0.5, 0), (0.75, 1), (1.5, 2), (2.5, 2), (ONE, 1 << 51), (ONE * 2.0, 1 << 52)];
        for (real, expected) in cases {
            assert_eq!(count(real), expected, "{real}");
        }
    }

    #[test]
    fn draw_is_inverse_cdf_in_id_order() {
        let weights = weights(&[(2, 1), (5, 0), (9, 3)]);
        let at = |quarter: u64| weights.draw(quarter << 62);
        assert_eq!([at(0), at(1), at(2), weights.draw(u64::MAX)], [2, 9, 9, 9]);
        assert_eq!(Weights::certain(4).draw(u64::MAX), 4);
    }
}
