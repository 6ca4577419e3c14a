//! Distributions as verification compares them: tokens in id order with integer weights.
//!
//! A probability is `weight / total` in f64, so it is the same number on every machine. What has to be
//! summed is turned into integers first, so that no result depends on the order of addition.

use crate::sampling::distribution::Distribution;
use crate::sampling::mass::draw_point;

/// 1 as a summable integer: sums of probabilities are counted in 2^-60.
const ONE: f64 = (1u64 << 60) as f64;

/// Tokens of nonzero weight, ascending ids, and the sum of their weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    entries: Vec<(u32, u64)>,
    total: u64,
}

impl Weights {
    /// From entries in ascending token order, each token once; those of weight 0 are left out. The sum must
    /// fit u64.
    pub(super) fn new(entries: impl Iterator<Item = (u32, u64)>) -> Self {
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

    /// [`Weights::total`] of a [residual](Weights::residual) as a real number.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.total as f64 / ONE
    }

    /// The probability of a token.
    #[must_use]
    pub fn share(&self, token: u32) -> f64 {
        let found = self.entries.binary_search_by_key(&token, |&(t, _)| t);
        found.map_or(0.0, |at| self.entries[at].1 as f64 / self.total as f64)
    }

    /// Tokens and their probabilities, ascending ids.
    pub fn shares(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.entries.iter().map(|&(token, weight)| (token, weight as f64 / self.total as f64))
    }

    /// Whether one token has all probability.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.entries.len() == 1
    }

    /// Inverse CDF in token-id order, as a plain row is drawn.
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

    /// `max(factor * self - draft, 0)`, not normalised: what the target gives to each token beyond the draft.
    /// With factor 1 it is what a rejected draft leaves (Leviathan et al. 2023, theorem 1), and its sum is the
    /// total variation between the two.
    #[must_use]
    pub fn residual(&self, factor: f64, draft: &Weights) -> Weights {
        Self::new(self.shares().map(|(token, share)| (token, count((factor * share - draft.share(token)).max(0.0)))))
    }

    /// The sum of `min(factor * self, draft)`: with factor 1, how often a token of that draft is accepted.
    #[must_use]
    pub fn overlap(&self, factor: f64, draft: &Weights) -> f64 {
        let common = self.shares().map(|(token, share)| (token, count((factor * share).min(draft.share(token)))));
        Self::new(common).sum()
    }

    /// The probability that a token passes `test`.
    #[must_use]
    pub fn chance(&self, mut test: impl FnMut(u32) -> bool) -> f64 {
        let passing: u64 = self.entries.iter().filter(|&&(token, _)| test(token)).map(|&(_, weight)| weight).sum();
        passing as f64 / self.total as f64
    }

    /// Shannon entropy in nats. Each term is turned into an integer before the sum, as everywhere; the
    /// logarithm is `libm`'s, since the platforms' own differ in last bits.
    #[must_use]
    pub fn entropy(&self) -> f64 {
        let terms = self.shares().map(|(token, share)| (token, entropy_term(share)));
        Self::new(terms).total as f64 / ENTROPY_ONE
    }
}

/// One nat as a summable integer. Coarser than [`ONE`]: 2^20 equally likely tokens have 13.9 nats.
const ENTROPY_ONE: f64 = (1u64 << 50) as f64;

fn entropy_term(share: f64) -> u64 {
    (-share * libm::log(share) * ENTROPY_ONE) as u64
}

/// A probability as a summable integer, rounded down.
fn count(probability: f64) -> u64 {
    (probability * ONE) as u64
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
    fn residual_and_overlap_by_hand() {
        let target = weights(&[(0, 2), (1, 1), (3, 1)]);
        let draft = weights(&[(0, 1), (2, 1), (3, 2)]);
        let left = target.residual(1.0, &draft);
        // 0: 1/2 - 1/4, 1: 1/4 - 0, 3: 1/4 - 1/2.
        assert_eq!(left.shares().collect::<Vec<_>>(), [(0, 0.5), (1, 0.5)]);
        assert_eq!((left.sum(), target.overlap(1.0, &draft)), (0.5, 0.5));
        assert_eq!((target.residual(0.5, &draft).sum(), target.overlap(0.5, &draft)), (0.125, 0.375));
        assert_eq!((target.residual(1.0, &target).total(), target.overlap(1.0, &target)), (0, 1.0));
        let elsewhere = weights(&[(7, 5)]);
        assert_eq!((target.residual(1.0, &elsewhere).sum(), target.overlap(1.0, &elsewhere)), (1.0, 0.0));
    }

    #[test]
    fn draw_is_inverse_cdf_in_id_order() {
        let weights = weights(&[(2, 1), (5, 0), (9, 3)]);
        let at = |quarter: u64| weights.draw(quarter << 62);
        assert_eq!([at(0), at(1), at(2), weights.draw(u64::MAX)], [2, 9, 9, 9]);
        assert_eq!(Weights::certain(4).draw(u64::MAX), 4);
    }

    #[test]
    fn entropy_of_known_distributions() {
        assert_eq!(Weights::certain(1).entropy(), 0.0);
        let flat = Weights::new((0..1 << 20).map(|token| (token, 3)));
        assert!((flat.entropy() - 20.0 * std::f64::consts::LN_2).abs() < 1e-6);
        assert!((weights(&[(0, 1), (1, 3)]).entropy() - 0.562_335_144_6).abs() < 1e-9);
    }

    #[test]
    fn chance_counts_what_passes() {
        assert_eq!(weights(&[(0, 1), (1, 2), (2, 1)]).chance(|token| token != 1), 0.5);
    }
}
