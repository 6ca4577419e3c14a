//! Counts a sequence's draft tokens that acceptance reached, and how many of those were accepted.

use super::Sequence;

/// Small, since every sequence has one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AcceptanceTally {
    all: u16,
    accepted: u16,
}

impl AcceptanceTally {
    /// Fewer tested tokens than this say little about a sequence.
    const ENOUGH: u16 = 16;

    fn add(&mut self, accepted: u16, rejected: bool) {
        if self.all.checked_add(accepted).is_none_or(|all| all == u16::MAX) {
            // Halving both counts keeps their ratio and makes recent outcomes count for more.
            (self.all, self.accepted) = (self.all / 2, self.accepted / 2);
        }
        self.all = self.all.saturating_add(accepted).saturating_add(rejected.into());
        self.accepted = self.accepted.saturating_add(accepted);
    }

    fn share(self) -> Option<f64> {
        (self.all >= Self::ENOUGH).then(|| f64::from(self.accepted) / f64::from(self.all))
    }
}

impl Sequence {
    /// Records that so many draft tokens were accepted, and whether one was rejected after them.
    pub fn tested(&mut self, accepted: usize, rejected: bool) {
        self.acceptance.add(u16::try_from(accepted).unwrap_or(u16::MAX), rejected);
    }

    /// The share of draft tokens that were accepted, if enough were tested.
    #[must_use]
    pub fn accepted_share(&self) -> Option<f64> {
        self.acceptance.share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_tokens_tested_however_many() {
        let mut tested = AcceptanceTally::default();
        tested.add(12, true);
        assert_eq!(tested.share(), None);
        tested.add(2, true);
        assert_eq!(tested.share(), Some(14.0 / 16.0));
        for _ in 0..100_000 {
            tested.add(3, true);
        }
        assert!((tested.share().expect("many") - 0.75).abs() < 1e-3, "{tested:?}");
        tested.add(u16::MAX, true);
        assert!(tested.share().is_some_and(|share| (0.9..=1.0).contains(&share)), "{tested:?}");
    }
}
