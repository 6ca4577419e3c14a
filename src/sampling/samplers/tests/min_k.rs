//! Min-k, calculated by hand.

use super::super::min_k::{at_least, cliff, fall, kept};
use super::{FILTERS, chained};
use crate::params::XtcRule;
use crate::sampling::chain::{self, Chain, ChainStep};
use crate::sampling::order::Candidate;
use crate::sampling::row::Filters;

/// The tokens that a row's steps leave, in order.
fn left(logits: &[f32], steps: &[ChainStep], min_keep: u32) -> Vec<u32> {
    let candidate = |(token, &logit): (usize, &f32)| Candidate { token: token as u32, logit };
    let candidates = logits.iter().enumerate().map(candidate).collect();
    let filters = Filters { temperature: 50.0, top_k: 2, ..FILTERS };
    let left = chain::run(candidates, logits.len(), &filters, &Chain { min_keep, ..chained(steps) });
    left.kept().iter().map(|w| w.candidate.token).collect()
}

#[test]
fn the_cliff_is_the_largest_fall_over_its_place() {
    // Falls 1 1 6 1, over their places 1 1/2 2 1/4.
    assert_eq!(cliff(&[10.0, 9.0, 8.0, 2.0, 1.0]), 3);
    // Falls 2 3 6 8: divided by their places, all are 2 except the second, and the first of these counts.
    assert_eq!(cliff(&[20.0, 18.0, 15.0, 9.0, 1.0]), 1);
    assert_eq!(cliff(&[20.0, 18.0, 13.75, 7.75, -0.25]), 2);
    // The last possible place.
    assert_eq!(cliff(&[3.0, 3.0, 3.0, 3.0, 0.0]), 4);
    assert_eq!([fall(1, 4.0, 3.0), fall(3, 2.0, -1.0), fall(2, f32::MAX, f32::MIN)], [1.0, 1.0, f64::from(f32::MAX)]);
}

#[test]
fn the_falls_are_those_of_the_logits_own_bits() {
    // Neighbouring f32 values: their differences are exact, and one more bit decides.
    let up = |x: f32, by: u32| f32::from_bits(x.to_bits() + by);
    assert_eq!(cliff(&[up(8.0, 7), up(8.0, 6), up(8.0, 4), 8.0]), 3, "1, 2 / 2 and 4 / 3 bits");
    assert_eq!(cliff(&[up(8.0, 7), up(8.0, 6), up(8.0, 3), 8.0]), 2, "1, 3 / 2 and 3 / 3 bits");
}

#[test]
fn narrow_rows_keep_many_and_wide_ones_what_is_before_the_cliff() {
    let spread = |range: f32| at_least(3.0, range, 0.0, 100);
    // R is 1e-8 more than the range, so that 3 over a range of 3 is below 1.
    assert_eq!([spread(30.0), spread(3.5), spread(3.0), spread(2.0), spread(0.75), spread(0.1)], [0, 0, 0, 1, 3, 29]);
    assert_eq!(at_least(3.5, 1.0, -0.5, 9), 2);
    let row = [1.0, 0.5, 0.25, 0.125, 0.0];
    assert_eq!([0.0, 1.5, 2.5, 4.5, 99.0].map(|tau| kept(&row, tau)), [1, 1, 2, 4, 5]);
}

#[test]
fn edges() {
    // Equal logits: R is 1e-8, so any tau of at least V * 1e-8 keeps all.
    assert_eq!([3.0, 1e-7, 2.5e-8, 1e-8, 0.0].map(|tau| kept(&[7.0; 5], tau)), [5, 5, 2, 1, 1]);
    assert_eq!([0.0, 3.0, f32::MAX].map(|tau| kept(&[-4.0], tau)), [1, 1, 1], "a single one stays");
    assert_eq!(kept(&[], 3.0), 0);
    assert_eq!(kept(&[f32::MAX, f32::MIN], 3.0), 1, "a range that no f32 holds");
    assert_eq!(at_least(f32::MAX, 0.0, 0.0, 1 << 20), 1 << 20, "a quotient that no integer holds");
    assert_eq!(at_least(-0.0, 1.0, 0.0, 9), 0);
}

#[test]
fn equal_logits_go_by_their_ids_and_masked_ones_are_no_candidates() {
    // Sorted 5 5 5 0: falls 0 0 5.
    assert_eq!(left(&[5.0, 0.0, 5.0, 5.0], &[ChainStep::MinK(0.0)], 1), [0, 2, 3]);
    // Two stay. The second of them is one of three equal tokens.
    assert_eq!(left(&[0.0, 0.5, 0.5, 1.5, 0.5], &[ChainStep::MinK(3.5)], 1), [3, 1]);
    // Without an earlier step, a masked logit does not reach this step. With one, it is neither the last logit nor a
    // cliff.
    let far = [f32::MAX, f32::MAX, f32::MIN];
    let lowered = ChainStep::Xtc { rule: XtcRule::EXPECTED, probability: 0.5, threshold: 0.4 };
    assert_eq!(left(&far, &[lowered, ChainStep::MinK(0.0)], 1).len(), 1);
}

#[test]
fn temperature_does_not_change_what_is_kept() {
    let row = [3.0, 2.75, 2.5, 0.5, 0.25, 0.0];
    // Falls .25 .25 2 .25 .25, over their places .25 .125 .67; R is 3, and 3 / 50 with the temperature.
    for tau in [0.0, 3.0, 14.0] {
        let alone = left(&row, &[ChainStep::MinK(tau)], 1);
        assert_eq!(left(&row, &[ChainStep::Temperature, ChainStep::MinK(tau)], 1), alone, "{tau}");
        assert_eq!(left(&row, &[ChainStep::MinK(tau), ChainStep::Temperature], 1), alone, "{tau}");
    }
    assert_eq!([0.0, 14.0].map(|tau| left(&row, &[ChainStep::MinK(tau)], 1).len()), [3, 4]);
}

#[test]
fn it_sees_what_steps_before_it_left() {
    let row = [9.0, 8.0, 0.0, 4.0, 3.0];
    assert_eq!(left(&row, &[ChainStep::MinK(0.0)], 1), [0, 1], "falls 1 4 1 3");
    assert_eq!(left(&row, &[ChainStep::TopK, ChainStep::MinK(0.0)], 1), [0], "of two, the first");
    assert_eq!(left(&row, &[ChainStep::TopK, ChainStep::MinK(2.5)], 1), [0, 1], "and both where they are near");
    assert_eq!(left(&row, &[ChainStep::MinK(0.0)], 4), [0, 1, 3, 4], "min_keep");
    assert_eq!(left(&row, &[ChainStep::MinK(0.0)], 99), [0, 1, 3, 4, 2], "more than there are");
}
