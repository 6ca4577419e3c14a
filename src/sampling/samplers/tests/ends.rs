//! Likely ends, calculated by hand.

use super::*;
use crate::sampling::samplers::min_eos_p;

/// The tokens that are left of .1 .2 .3 .4, and their probabilities.
fn left(p: f32, eos: &[u32], min_keep: u32) -> Vec<(u32, f64)> {
    after(&FOUR, FILTERS, Chain { eos, min_keep, ..chained(&[ChainStep::MinEosP(p)]) })
}

fn tokens_left(p: f32, eos: &[u32], min_keep: u32) -> Vec<u32> {
    left(p, eos, min_keep).into_iter().map(|(token, _)| token).collect()
}

#[test]
fn one_likely_end_leaves_ends_alone() {
    let all = [0, 1, 2, 3];
    for (p, eos, expected) in [
        (0.15, &[1][..], &[1][..]),
        (0.25, &[1], &all),
        // Tokens are judged one by one: .1 and .2 are .3 together.
        (0.25, &[0, 1], &all),
        // If one of several is likely, the unlikely one stays too.
        (0.15, &[1, 0], &[0, 1]),
        (0.35, &[3, 0], &[0, 3]),
        // The most likely token need not be an end.
        (0.05, &[0], &[0]),
        (0.45, &[3], &all),
        // Tokens that do not exist, the same token twice, all tokens, none.
        (0.15, &[9, 1, 1, u32::MAX], &[1]),
        (1e-30, &[9], &all),
        (0.35, &all, &all),
        (0.05, &[], &all),
        (1.0, &[3], &all),
    ] {
        assert_eq!(tokens_left(p, eos, 1), expected, "{p} {eos:?}");
    }
    let shares = left(0.15, &[1, 0], 1);
    assert!((shares[0].1 - 1.0 / 3.0).abs() < 1e-6 && (shares[1].1 - 2.0 / 3.0).abs() < 1e-6, "{shares:?}");
}

#[test]
fn it_is_above_and_not_equal() {
    // A half exactly.
    let half = |p| after(&[1.0, 1.0], FILTERS, Chain { eos: &[1], ..chained(&[ChainStep::MinEosP(p)]) }).len();
    assert_eq!((half(0.5), half(0.5f32.next_down())), (2, 1));
    for (p, total, need) in [(0.5, 10, 6), (0.25, 10, 3), (0.0, 10, 1), (1.0, 10, 11), (1e-30, 10, 1)] {
        assert_eq!(min_eos_p::need(p, total), need, "{p} of {total}");
    }
}

#[test]
fn it_does_nothing_where_fewer_than_min_keep_would_be_left() {
    assert_eq!(tokens_left(0.15, &[1], 2), [0, 1, 2, 3]);
    assert_eq!(tokens_left(0.15, &[1, 0], 2), [0, 1]);
    assert_eq!(tokens_left(0.15, &[1, 9], 2), [0, 1, 2, 3], "one that is not there does not count");
}

#[test]
fn the_probability_is_that_of_its_place_in_the_order() {
    let filters = Filters { temperature: 0.5, top_k: 2, ..FILTERS };
    let kept = |steps: &[ChainStep]| {
        let left = after(&FOUR, filters, Chain { eos: &[2], ..chained(steps) });
        left.into_iter().map(|(token, _)| token).collect::<Vec<_>>()
    };
    let end = ChainStep::MinEosP(0.32);
    assert_eq!(kept(&[end]), [0, 1, 2, 3], "0.3");
    assert_eq!(kept(&[ChainStep::TopK, end]), [2], "3 of 7");
    assert_eq!(kept(&[end, ChainStep::TopK]), [2, 3]);
    // At temperature .5 its share is .09 of .3.
    assert_eq!(kept(&[ChainStep::Temperature, ChainStep::MinEosP(0.29)]), [2]);
    assert_eq!(kept(&[ChainStep::Temperature, ChainStep::MinEosP(0.301)]), [0, 1, 2, 3]);
}
