//! Exact upper tails of sums of a few independent whole numbers that all have the same distribution. The tails are made
//! by adding up products of probabilities. All terms are positive, so no digits are lost, however small the tail is.
//!
//! The sum of `count` numbers is the sum of `a` of them and `b` others, with `a + b = count`. So distributions of half
//! as many numbers are enough. They are made one after the other when they are first needed, and kept.

use crate::locks::lock;
use std::sync::Mutex;

/// Most products of two probabilities that may be computed to make all distributions. They take a fifth of a second.
const MAX_WORK: f64 = (1u64 << 28) as f64;
/// Most numbers, whatever they cost: the sum of this many is as good as normal.
const MAX_NUMBERS: usize = 512;

/// Distributions of sums. The numbers start at 0.
#[derive(Debug)]
pub struct Sums {
    most: usize,
    /// At index `i`: the probabilities of the sums of `i` numbers, from 0 on.
    of: Mutex<Vec<Vec<f64>>>,
}

impl Sums {
    /// Sums of numbers that have the value `v` with the probability `one[v]`. There is at least one value.
    #[must_use]
    pub fn new(one: Vec<f64>) -> Self {
        // The distribution for i numbers is made from the one for i - 1, with (i - 1) * values * values products.
        let values = one.len().max(1) as f64;
        let most = (2.0 * (2.0 * MAX_WORK).sqrt() / values) as usize;
        Self { most: most.clamp(1, MAX_NUMBERS), of: Mutex::new(vec![vec![1.0], one]) }
    }

    /// Most numbers that may be summed.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// The probability that the sum of `count` numbers is at least `sum`. `None`: there are too many numbers.
    #[must_use]
    pub fn tail(&self, count: usize, sum: usize) -> Option<f64> {
        if count > self.most {
            return None;
        }
        let (fewer, more) = (count / 2, count.div_ceil(2));
        // If a panic interrupted the code below, the list is only shorter than it might be, so it is safe to use.
        let mut of = lock(&self.of);
        while of.len() <= more {
            let next = convolved(&of[of.len() - 1], &of[1]);
            of.push(next);
        }
        let tails = tails(&of[more]);
        let at_least = |sum: usize| tails.get(sum).copied().unwrap_or(0.0);
        let pairs = of[fewer].iter().enumerate().map(|(value, chance)| chance * at_least(sum.saturating_sub(value)));
        Some(pairs.fold(0.0, |all, pair| all + pair).min(1.0))
    }
}

/// The distribution of the sum of two independent numbers.
fn convolved(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; one.len() + other.len() - 1];
    for (value, chance) in other.iter().enumerate().filter(|(_, chance)| **chance > 0.0) {
        sums[value..].iter_mut().zip(one).for_each(|(sum, also)| *sum += chance * also);
    }
    sums
}

/// For each value, the probability of that value or more.
fn tails(chances: &[f64]) -> Vec<f64> {
    let mut tails = chances.to_vec();
    for i in (1..tails.len()).rev() {
        tails[i - 1] += tails[i];
    }
    tails
}

#[cfg(test)]
mod tests {
    use super::super::tails::binomial;
    use super::*;

    /// The tail by enumerating all outcomes.
    fn by_hand(one: &[f64], count: usize, sum: usize) -> f64 {
        if count == 0 {
            return if sum == 0 { 1.0 } else { 0.0 };
        }
        let rest = |value: usize| by_hand(one, count - 1, sum.saturating_sub(value));
        one.iter().enumerate().map(|(value, chance)| chance * rest(value)).sum()
    }

    #[test]
    fn tails_are_those_of_all_ways() {
        let cases = [vec![0.5, 0.5], vec![0.25, 0.0, 0.0, 0.75], vec![0.125, 0.25, 0.0, 0.5, 0.125], vec![1.0]];
        for one in cases {
            let sums = Sums::new(one.clone());
            for count in [0, 1, 5, 2, 4, 3, 6] {
                for sum in 0..=count * (one.len() - 1) + 1 {
                    let (found, expected) = (sums.tail(count, sum).expect("few"), by_hand(&one, count, sum));
                    assert!((found - expected).abs() <= 1e-14 * expected, "{one:?} {count} {sum}: {found} {expected}");
                }
            }
        }
    }

    #[test]
    fn a_bit_is_binomial_however_small_the_tail() {
        let sums = Sums::new(vec![0.75, 0.25]);
        assert_eq!((sums.most(), sums.tail(513, 1)), (512, None));
        for (count, sum) in [(512, 512), (512, 300), (512, 128), (301, 20), (7, 7), (512, 1)] {
            let (found, expected) = (sums.tail(count, sum).expect("few"), binomial(sum, count, 0.25));
            assert!((found / expected - 1.0).abs() < 1e-9, "{count} {sum}: {found:e} {expected:e}");
        }
    }

    #[test]
    fn the_work_is_bounded() {
        // The numbers of values of 64, 30 and 10 layers.
        for (values, most) in [(22_177, 2), (4786, 9), (496, 93)] {
            let sums = Sums::new(vec![1.0 / values as f64; values]);
            assert_eq!((sums.most(), sums.tail(most + 1, 0)), (most, None), "{values}");
            let work: usize = (1..most.div_ceil(2)).map(|numbers| numbers * values * values).sum();
            assert!((work as f64) <= MAX_WORK, "{values}: {work}");
        }
    }
}
