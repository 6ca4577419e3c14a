//! Upper tails of sums of a few independent whole numbers, all of the same distribution: exactly, which is to say by adding up products of
//! probabilities. All terms are positive, so that no digit is lost, however small the tail.
//!
//! The sum of `count` numbers is one of `a` and one of `b` of them, `a + b = count`, so distributions of half as many do: they are made one
//! after the other when they are first asked for, and kept.

use crate::locks::lock;
use std::sync::Mutex;

/// Products of two probabilities that may be added up to make all distributions: a fifth of a second of work.
const MOST_WORK: f64 = (1u64 << 28) as f64;
/// Most numbers, whatever they cost: by then a sum is as good as normal.
const MOST_NUMBERS: usize = 512;

/// Sums of numbers from 0 on.
#[derive(Debug)]
pub struct Sums {
    most: usize,
    /// At `i` the probabilities of the sums of `i` numbers, from 0 on.
    of: Mutex<Vec<Vec<f64>>>,
}

impl Sums {
    /// Of numbers that have the value `v` with the probability `one[v]`; there is at least one value.
    #[must_use]
    pub fn new(one: Vec<f64>) -> Self {
        // Making that of i numbers from that of i - 1 takes (i - 1) times the values, times the values.
        let values = one.len().max(1) as f64;
        let most = (2.0 * (2.0 * MOST_WORK).sqrt() / values) as usize;
        Self { most: most.clamp(1, MOST_NUMBERS), of: Mutex::new(vec![vec![1.0], one]) }
    }

    /// How many numbers may be added up at most.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// The probability that so many numbers have this sum, or more; `None`: they are too many.
    #[must_use]
    pub fn tail(&self, count: usize, sum: usize) -> Option<f64> {
        if count > self.most {
            return None;
        }
        let (fewer, more) = (count / 2, count.div_ceil(2));
        // What a panic left behind is a list that is shorter than it might be.
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

/// Of the sum of two.
fn convolved(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; one.len() + other.len() - 1];
    for (value, chance) in other.iter().enumerate().filter(|(_, chance)| **chance > 0.0) {
        sums[value..].iter_mut().zip(one).for_each(|(sum, also)| *sum += chance * also);
    }
    sums
}

/// Of each value, the probability of it or more.
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

    /// By going through all ways.
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
        // As many values as 64, 30 and 10 layers make.
        for (values, most) in [(22_177, 2), (4786, 9), (496, 93)] {
            let sums = Sums::new(vec![1.0 / values as f64; values]);
            assert_eq!((sums.most(), sums.tail(most + 1, 0)), (most, None), "{values}");
            let work: usize = (1..most.div_ceil(2)).map(|numbers| numbers * values * values).sum();
            assert!((work as f64) <= MOST_WORK, "{values}: {work}");
        }
    }
}
