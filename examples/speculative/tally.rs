//! Compares what happened with what was expected.
//!
//! Each test succeeds with a probability that is known before it is made. So the sum of outcomes minus probabilities is
//! a martingale, however the tests depend on each other, and its variance is the sum of `p (1 - p)`. With some dozens
//! of tests the difference in standard errors is normally distributed. More than [`MAX_STANDARD_ERRORS`] of them is not
//! chance.

/// Most standard errors that can be chance. Chance exceeds this once in 16,000 runs.
pub(crate) const MAX_STANDARD_ERRORS: f64 = 4.0;

/// The outcomes of one kind of test.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) tests: u64,
    pub(crate) observed: f64,
    expected: f64,
    variance: f64,
}

impl Tally {
    /// Adds a test that had the probability `p` of success.
    pub(crate) fn add(&mut self, p: f64, came_true: bool) {
        self.add_share(p, f64::from(u8::from(came_true)));
    }

    /// Adds a number from 0 to 1 with the mean `expected`. Its variance is at most that of a test.
    pub(crate) fn add_share(&mut self, expected: f64, share: f64) {
        self.tests += 1;
        self.observed += share;
        self.expected += expected;
        self.variance += expected * (1.0 - expected);
    }

    pub(crate) fn merge(self, other: Self) -> Self {
        Self {
            tests: self.tests + other.tests,
            observed: self.observed + other.observed,
            expected: self.expected + other.expected,
            variance: self.variance + other.variance,
        }
    }

    /// The observed and the expected share of successes.
    pub(crate) fn shares(&self) -> (f64, f64) {
        let tests = self.tests.max(1) as f64;
        (self.observed / tests, self.expected / tests)
    }

    /// Observed minus expected, in standard errors.
    pub(crate) fn standard_errors(&self) -> f64 {
        let difference = self.observed - self.expected;
        // Tests with a certain outcome prove nothing, unless one of them had the other outcome.
        if self.variance > 0.0 { difference / self.variance.sqrt() } else { difference * f64::MAX.sqrt() }
    }

    /// Whether the difference can be chance.
    pub(crate) fn is_honest(&self) -> bool {
        self.standard_errors().abs() <= MAX_STANDARD_ERRORS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(p: f64, tests: u64, observed: u64) -> Tally {
        let mut tally = Tally::default();
        (0..tests).for_each(|i| tally.add(p, i < observed));
        tally
    }

    #[test]
    fn by_hand() {
        // 100 fair coins: expected 50, standard error 5.
        let coins = tally(0.5, 100, 35);
        assert_eq!((coins.shares(), coins.standard_errors()), ((0.35, 0.5), -3.0));
        assert!(coins.is_honest() && !tally(0.5, 100, 29).is_honest() && !tally(0.5, 100, 71).is_honest());
        let both = coins.merge(tally(0.5, 300, 150));
        assert_eq!((both.tests, both.observed, both.standard_errors()), (400, 185.0, -1.5));
    }

    #[test]
    fn the_certain_and_the_impossible() {
        assert_eq!(Tally::default().standard_errors(), 0.0);
        assert!(tally(1.0, 9, 9).is_honest() && tally(0.0, 9, 0).is_honest());
        assert!(!tally(1.0, 9, 8).is_honest() && !tally(0.0, 9, 1).is_honest());
    }
}
