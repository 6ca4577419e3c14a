//! Min-k of a row or a list. Mostly the cliff is among the first few logits, and the distance to the last logit shows
//! that there is none after them.

use super::listing::{Cut, RowOperation, WholeRow};
use super::{CandidateList, ChainStore};
use crate::backend::cpu::keys;
use crate::backend::cpu::select;
use crate::sampling::samplers::min_k::{at_least, fall};
use crate::sampling::samplers::top_n_sigma::least_finite;

/// How many of the first logits are looked at, and how many if these do not decide.
const LOOKED_AT: [usize; 2] = [64, 512];

/// As [`cliff`](crate::sampling::samplers::min_k::cliff), from the first logits in order and the last one of all.
/// `None`: those between may decide.
///
/// From any place on, no fall is larger than the distance from there to the last logit, and none is divided by a
/// smaller number. Differences and quotients keep that order when they are rounded. So once this bound is not above the
/// largest fall so far, no later fall is.
fn cliff(first: &[f32], last: f32) -> Option<usize> {
    let (mut cliff, mut most) = (1, f64::NEG_INFINITY);
    for (pair, place) in first.windows(2).zip(1..) {
        let here = fall(place, pair[0], pair[1]);
        if here > most {
            (cliff, most) = (place, here);
        }
        if fall(place + 1, pair[1], last) <= most {
            return Some(cliff);
        }
    }
    // A single one, or equal ones of which only the first is here.
    (first.last() == Some(&last)).then_some(cliff)
}

impl WholeRow<'_, '_> {
    /// Min-k.
    pub(super) fn min_k(&self, tau: f32) -> RowOperation<'static> {
        let (last, vocab_size) = (self.view.least(), self.view.vocab_size());
        // A number above that of the candidates means all of them.
        let at_least = at_least(tau, self.view.max, last, vocab_size);
        if at_least >= vocab_size {
            return RowOperation::Nothing;
        }
        let mut keys = vec![];
        let cliff = LOOKED_AT.into_iter().find_map(|count| {
            select::top(self.view, count, &mut keys);
            cliff(&keys.iter().map(|&key| keys::logit(key)).collect::<Vec<_>>(), last)
        });
        cliff
            .map_or(RowOperation::OnList, |cliff| RowOperation::Cut(Cut::First(cliff.max(at_least).max(self.min_keep))))
    }
}

impl CandidateList<'_> {
    /// Min-k.
    pub(super) fn min_k(&mut self, tau: f32) {
        let ChainStore { values, sorter, sorted: (sorted, _), .. } = &mut *self.store;
        let last = least_finite(&values.logits);
        sorter.sort(&values.logits, sorted);
        sorted.truncate(sorted.partition_point(|&logit| logit > f32::NEG_INFINITY));
        let cliff = cliff(sorted, last).expect("the last one is among them; this is a bug");
        let kept = cliff.max(at_least(tau, sorted[0], last, sorted.len()));
        self.keep_first(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::samplers::min_k;

    /// Logits in order: narrow, wide, equal, of few values, as far apart as possible, neighbouring floats, with growing falls, and with a
    /// cliff in the middle.
    fn logits(shape: u64, len: usize, mut random: impl FnMut() -> u64) -> Vec<f32> {
        let mut unit = move || (random() % (1 << 24)) as f32 / (1 << 24) as f32;
        let mut one = |at: usize| match shape {
            0 => unit(),
            1 => 40.0 * unit() * unit() * unit(),
            2 => 2.5,
            3 => (unit() * 4.0).floor(),
            4 => (unit() - 0.5) * f32::MAX,
            5 => f32::from_bits(0x4120_0000 + (unit() * 4.0) as u32),
            6 => -((at * at) as f32) - unit(),
            _ => (if at < len / 2 { 1e3 * len as f32 } else { 0.0 }) + unit(),
        };
        let mut logits: Vec<f32> = (0..len).map(&mut one).collect();
        logits.sort_by(|a, b| b.total_cmp(a));
        logits
    }

    #[test]
    fn of_equal_falls_the_first_counts() {
        // Falls 2 3 6 8: divided by their places, all are 2 except the second.
        assert_eq!(cliff(&[20.0, 18.0, 15.0, 9.0, 1.0], 1.0), Some(1));
        // Behind the first two a fall is at most (18 - 14) / 2, which is no more than the first.
        assert_eq!([14.0, 13.5].map(|last| cliff(&[20.0, 18.0], last)), [Some(1), None]);
    }

    #[test]
    fn the_first_logits_tell_the_cliff_of_the_specification_or_nothing() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 24
        };
        let (mut told, mut untold) = (0, 0);
        for len in [1usize, 2, 3, 4, 10, 63, 64, 65, 200, 511, 513, 1000] {
            for shape in (0..8).cycle().take(80) {
                let logits = logits(shape, len, &mut random);
                let (expected, last) = (min_k::cliff(&logits), logits[len - 1]);
                assert_eq!(cliff(&logits, last), Some(expected), "all of {len}, shape {shape}");
                for count in [1, 2, 3, 8, 64, 512].into_iter().filter(|&count| count < len) {
                    let got = cliff(&logits[..count], last);
                    assert!(got.is_none_or(|got| got == expected), "{count} of {len}, shape {shape}: {got:?}");
                    (told, untold) = (told + usize::from(got.is_some()), untold + usize::from(got.is_none()));
                }
            }
        }
        assert!(told > 500 && untold > 500, "{told} times told, {untold} times not");
    }
}
