//! Rows that are one place off: a fault that the worker can be told to simulate, and the statistics that distinguish it
//! from a bad draft model.

use croupier::proto::DraftTest;
use croupier::top::{NOT_CHANCE, SHIFTED};

/// How rows are off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shift {
    /// Each row has the distribution of the position before it.
    Late,
    /// Each row has the distribution of the position after it; the last one is sent twice.
    Early,
}

/// All shifts.
pub(crate) const SHIFTS: [Shift; 2] = [Shift::Late, Shift::Early];

impl Shift {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Early => "early",
        }
    }
}

/// For each row that is sent: the number of tokens before it, in a text of `text` tokens with a draft of `drafted`
/// tokens. Rows without a draft are not shifted.
pub(crate) fn before_rows(shift: Option<Shift>, text: usize, drafted: usize) -> impl Iterator<Item = usize> {
    let end = text + drafted;
    (text..=end).map(move |before| match shift.filter(|_| drafted > 0) {
        None => before,
        Some(Shift::Late) => before - 1,
        Some(Shift::Early) => (before + 1).min(end),
    })
}

/// The overlap of draft distributions with the rows that they are compared with, and with the rows one place further
/// on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Overlap {
    pub(crate) tests: u64,
    own: f64,
    shifted: f64,
}

impl Overlap {
    /// Adds the first test of a verification.
    pub(crate) fn add(&mut self, shift: Shift, test: &DraftTest) {
        let own = 1.0 - f64::from(test.total_variation);
        let (shifted, own) = match shift {
            Shift::Late => (test.late_overlap, own.max(test.next_overlap.map_or(0.0, f64::from))),
            Shift::Early => (test.early_overlap, own),
        };
        let Some(shifted) = shifted else { return };
        self.tests += 1;
        self.own += own;
        self.shifted += f64::from(shifted);
    }

    /// The mean overlap with the rows as they are, and with the rows one place further on.
    pub(crate) fn means(&self) -> (f64, f64) {
        let tests = self.tests.max(1) as f64;
        (self.own / tests, self.shifted / tests)
    }

    /// By how many standard errors rows one place further on fit better. The difference of two numbers from 0 to 1 has
    /// a variance of at most their sum. 4 is added, so that a few of them are not taken for a fault.
    pub(crate) fn standard_errors(&self) -> f64 {
        (self.shifted - self.own) / (4.0 + self.shifted + self.own).sqrt()
    }

    /// Whether rows are shifted, by the criteria of `croupier top` and the alert, except for their least number of
    /// verifications: a lane of 200 tokens does not reach it.
    pub(crate) fn is_shifted(&self) -> bool {
        let (own, shifted) = self.means();
        self.standard_errors() > NOT_CHANCE && shifted - own > SHIFTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_off_by_one() {
        let before = |shift, drafted| before_rows(shift, 5, drafted).collect::<Vec<_>>();
        assert_eq!(before(None, 2), [5, 6, 7]);
        assert_eq!(before(Some(Shift::Late), 2), [4, 5, 6]);
        assert_eq!(before(Some(Shift::Early), 2), [6, 7, 7]);
        assert_eq!(before(Some(Shift::Late), 0), [5]);
    }

    #[test]
    fn by_hand() {
        let mut overlap = Overlap::default();
        let test = DraftTest { total_variation: 0.75, late_overlap: Some(0.75), ..Default::default() };
        (0..60).for_each(|_| overlap.add(Shift::Late, &test));
        overlap.add(Shift::Early, &test);
        // 30 is 45 less 15, and the variance is 4 + 60.
        assert_eq!((overlap.tests, overlap.means(), overlap.standard_errors()), (60, (0.25, 0.75), 3.75));
        assert!(!overlap.is_shifted());
    }
}
