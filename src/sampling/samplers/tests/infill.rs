//! Infill: cases by hand, and the walk through texts compared with the loop over all pairs that it replaces.

use super::*;
use crate::sampling::samplers::infill::{Infill, Stay, Sums};
use crate::vocabulary::Vocabulary;
use proptest::prelude::*;
use std::cmp::Reverse;

/// Tokens 0, 1, ... with these texts; "" for a token without a text.
fn vocabulary(texts: &[&str]) -> Vocabulary {
    Vocabulary::new(&texts.iter().map(|text| Some(text.as_bytes().to_vec())).collect::<Vec<_>>(), b"")
}

/// Which of tokens 0, 1, ... with these masses stay. They are put in order here.
fn stay(texts: &[&str], ends: &[u32], masses: &[u64]) -> Option<Vec<u32>> {
    let mut candidates: Vec<(u32, u64)> = (0..).zip(masses.iter().copied()).collect();
    candidates.sort_by_key(|&(_, mass)| std::cmp::Reverse(mass));
    match (Infill { vocabulary: &vocabulary(texts), ends }).stay(&candidates) {
        Stay::End => None,
        Stay::These(stay) => {
            let mut left: Vec<u32> = candidates.iter().zip(stay).filter(|(_, stay)| *stay).map(|(c, _)| c.0).collect();
            left.sort_unstable();
            Some(left)
        }
    }
}

#[test]
fn what_ends_the_text_stays_alone_where_it_is_likely_enough() {
    // Three candidates: only the end stays if 3 * 3 * E is above T.
    let of = |end| stay(&["a", "b", ""], &[2], &[50, 40, end]);
    assert_eq!(of(10), Some(vec![0, 1, 2]), "9 * 10 is not above 90");
    assert_eq!(of(11), Some(vec![2]));
    // Two tokens that end the text count together, and both stay.
    assert_eq!(stay(&["a", "b", "", ""], &[3, 2], &[60, 34, 3, 5]), Some(vec![2, 3]), "12 * 8 is above 94");
    assert_eq!(stay(&["a", "b", "", ""], &[3, 2], &[60, 36, 3, 5]), Some(vec![0, 1, 2, 3]), "and not above 96");
}

#[test]
fn texts_that_begin_others_count_together() {
    let none = [9];
    // 15 and 10 make 25 of 100, and "fo" is the more likely one; the four others have 18.75 each.
    assert_eq!(stay(&["fo", "foo", "a", "b", "c", "d"], &none, &[60, 40, 75, 75, 75, 75]), Some(vec![0]));
    // The longer one stays if it is more likely.
    assert_eq!(stay(&["fo", "foo", "a", "b", "c", "d"], &none, &[40, 60, 75, 75, 75, 75]), Some(vec![1]));
    // If they are equally likely, the shorter one stays, because its turn comes first.
    assert_eq!(stay(&["foo", "fo", "a", "b", "c", "d"], &none, &[50, 50, 75, 75, 75, 75]), Some(vec![1]));
    // With the same text twice, the first one stays.
    assert_eq!(stay(&["x", "x", "a", "b", "c", "d"], &none, &[50, 50, 75, 75, 75, 75]), Some(vec![0]));
    // A token without a text is a prefix of nothing.
    assert_eq!(stay(&["", "foo", "a", "b", "c", "d"], &none, &[50, 50, 75, 75, 75, 75]), None);
    // "f" is merged into "foo", so no prefix of "fa" is left.
    assert_eq!(stay(&["foo", "f", "fa", "a", "b"], &none, &[30, 20, 18, 16, 16]), Some(vec![0]));
    // "f" takes both: the masses are then 38, 21, 21, 20.
    assert_eq!(stay(&["f", "foo", "fa", "a", "b", "c"], &none, &[20, 9, 9, 21, 21, 20]), Some(vec![0, 3, 4, 5]));
    // Tokens that end the text are not merged, whatever their texts.
    assert_eq!(stay(&["a", "ab", "b"], &[1], &[50, 10, 40]), Some(vec![0, 1, 2]));
}

#[test]
fn the_thresholds_are_a_fifth_and_one_in_one_more_than_are_left() {
    let texts = ["a", "b", "c", "d", "e", "f"];
    let none = [9];
    // Exactly a fifth stays at first. Five with a fifth each are then above a sixth of what is left.
    assert_eq!(stay(&texts, &none, &[20, 20, 20, 20, 20]), Some(vec![0, 1, 2, 3, 4]));
    assert_eq!(stay(&texts, &none, &[20, 20, 20, 20, 19, 1]), Some(vec![0, 1, 2, 3]));
    // A third of 500 + 250 is 250. A token with slightly less goes.
    assert_eq!(stay(&texts, &none, &[500, 250, 150, 100]), Some(vec![0, 1]));
    assert_eq!(stay(&texts, &none, &[501, 249, 150, 100]), Some(vec![0]));
    // With a mass of 27 that ends the text, a third is 263.67, then 263.33.
    assert_eq!(stay(&["a", "b", "c", "d", ""], &[4], &[500, 264, 150, 86, 27]), Some(vec![0, 1, 4]));
    assert_eq!(stay(&["a", "b", "c", "d", ""], &[4], &[500, 263, 150, 87, 27]), Some(vec![0, 4]));
    // No token has a fifth.
    assert_eq!(stay(&texts, &none, &[17, 17, 17, 17, 16, 16]), None);
    assert_eq!(stay(&["a", "b", "c", "d", "e", "f", ""], &[6], &[170, 170, 170, 170, 160, 159, 1]), None);
}

/// The loop over all pairs, with each threshold as a fraction of masses, as described in the module's documentation.
fn in_pairs(vocabulary: &Vocabulary, ends: &[u32], candidates: &[(u32, u64)]) -> Stay {
    let is_end = |at: usize| ends.contains(&candidates[at].0);
    let sum = |masses: &[Option<u64>], which: &dyn Fn(usize) -> bool| -> u128 {
        (0..masses.len()).filter(|&at| which(at)).map(|at| u128::from(masses[at].unwrap_or(0))).sum()
    };
    let mut masses: Vec<Option<u64>> = candidates.iter().map(|c| Some(c.1)).collect();
    let (total, count) = (sum(&masses, &|_| true), candidates.len());
    if 3 * count as u128 * sum(&masses, &is_end) > sum(&masses, &|at| !is_end(at)) {
        return Stay::These((0..count).map(is_end).collect());
    }
    for i in 0..count {
        for j in 0..count {
            let (Some(a), Some(b)) = (masses[i], masses[j]) else { continue };
            if i != j && !is_end(i) && !is_end(j) && vocabulary.begins(candidates[i].0, candidates[j].0) {
                let (to, from) = if b > a { (j, i) } else { (i, j) };
                (masses[to], masses[from]) = (Some(a + b), None);
            }
        }
    }
    for (at, left) in masses.iter_mut().enumerate() {
        *left = left.filter(|&mass| is_end(at) || 5 * u128::from(mass) >= total);
    }
    let left = (0..count).filter(|&at| !is_end(at) && masses[at].is_some()).count();
    if left == 0 {
        return Stay::End;
    }
    let sum = sum(&masses, &|_| true);
    let stays = |at: usize| masses[at].is_some_and(|m| is_end(at) || (left as u128 + 1) * u128::from(m) >= sum);
    Stay::These((0..count).map(stays).collect())
}

/// Texts, and candidates in the order of their masses. Some are heavy, some equal.
fn some_candidates() -> impl Strategy<Value = (Vec<Option<Vec<u8>>>, Vec<(u32, u64)>)> {
    let tokens = prop::collection::vec((prop::option::of("[ab]{0,5}"), 0..60u64), 1..60);
    let heavy = prop::collection::vec((0..60usize, prop_oneof![100..2000u64, Just(300), Just(1000)]), 0..5);
    (tokens, heavy, any::<u64>()).prop_map(|(tokens, heavy, ids)| {
        let texts = tokens.iter().map(|(text, _)| text.clone().map(String::into_bytes)).collect();
        let mut candidates: Vec<(u32, u64)> = (0..).zip(tokens.iter().map(|token| token.1)).collect();
        heavy.into_iter().for_each(|(at, mass)| candidates[at % tokens.len()].1 = mass);
        candidates[0].1 += 1;
        // Tokens with equal mass come in any order, like those with equal logits.
        candidates.sort_by_key(|&(token, mass)| (Reverse(mass), uniform(ids, u64::from(token), Purpose::Sample)));
        (texts, candidates)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_walk_is_the_loop_over_all_pairs(
        (texts, candidates) in some_candidates(),
        ends in prop::collection::vec(0..80u32, 0..3),
    ) {
        let vocabulary = Vocabulary::new(&texts, b"");
        let expected = in_pairs(&vocabulary, &ends, &candidates);
        prop_assert_eq!(Infill { vocabulary: &vocabulary, ends: &ends }.stay(&candidates), expected);
    }

    #[test]
    fn the_first_candidates_tell_what_all_do_or_nothing(
        (texts, candidates) in some_candidates(),
        ends in prop::collection::vec(0..80u32, 0..3),
        least in 1..400u64,
    ) {
        let vocabulary = Vocabulary::new(&texts, b"");
        let infill = Infill { vocabulary: &vocabulary, ends: &ends };
        let mass_of = |is: bool| candidates.iter().filter(|c| ends.contains(&c.0) == is).map(|c| c.1).sum();
        let sums = Sums { candidates: candidates.len(), ends: mass_of(true), texts: mass_of(false) };
        if sums.end_it() {
            return Ok(());
        }
        let first: Vec<_> = candidates.iter().copied().filter(|c| c.1 >= least || ends.contains(&c.0)).collect();
        if let Some(told) = infill.stay_of_all(&first, &sums) {
            let tokens = |stay, of: &[(u32, u64)]| match stay {
                Stay::End => None,
                Stay::These(stay) => Some(of.iter().zip(stay).filter(|(_, stay)| *stay).map(|(c, _)| c.0).collect::<Vec<_>>()),
            };
            prop_assert_eq!(tokens(told, &first), tokens(infill.stay(&candidates), &candidates));
        }
    }
}

#[test]
fn the_first_candidates_tell_it_where_the_others_cannot_change_it() {
    let texts: Vec<String> = ["fo", "foo", "a", "b", "c", "d"].map(str::to_owned).into();
    let vocabulary = vocabulary(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let infill = Infill { vocabulary: &vocabulary, ends: &[] };
    let of = |first: &[(u32, u64)], texts| infill.stay_of_all(first, &Sums { candidates: 6, ends: 0, texts });
    assert_eq!(of(&[(0, 600), (1, 400)], 1049), Some(Stay::These(vec![true, false])));
    assert_eq!(of(&[(0, 600), (2, 180)], 880), None, "another 100 would make a fifth of 180");
    assert_eq!(of(&[(0, 500), (2, 240)], 760), None, "another 20 would make it a third");
    assert_eq!(of(&[(0, 60), (2, 50)], 140), None, "the others are a fifth");
    assert_eq!(of(&[(1, 500), (0, 500)], 1001), None, "equal ones");
}

/// The tokens that are left of 0, 1, ... with these probabilities, and their new probabilities.
fn left(texts: &[&str], ends: &[u32], probs: &[f64], steps: &[ChainStep], min_keep: u32) -> Vec<(u32, f64)> {
    let vocabulary = vocabulary(texts);
    let infill = Some(Infill { vocabulary: &vocabulary, ends });
    let filters = Filters { top_k: 6, ..FILTERS };
    let left = after(probs, filters, Chain { infill, min_keep, ..chained(steps) });
    left.into_iter().map(|(token, p)| (token, (p * 1e4).round() / 1e4)).collect()
}

#[test]
fn what_stays_keeps_its_own_probability() {
    // "a" is judged by .4, but drawn with weight .25 against .3 and .05.
    let texts = ["a", "ab", "b", "c", ""];
    let got = left(&texts, &[4], &[0.25, 0.15, 0.3, 0.28, 0.02], &[ChainStep::Infill], 1);
    assert_eq!(got, [(0, 0.2941), (2, 0.3529), (3, 0.3294), (4, 0.0235)]);
}

#[test]
fn a_text_ends_with_the_first_token_that_may() {
    let texts = ["a", "b", "c", "d", "e", "f", ""];
    let of = |last: f64, ends: &[u32], min_keep| {
        let probs = [0.17, 0.17, 0.16, 0.16, 0.16, 0.16, last];
        let kept = left(&texts, ends, &probs, &[ChainStep::TopK, ChainStep::Infill], min_keep);
        kept.into_iter().map(|(token, _)| token).collect::<Vec<_>>()
    };
    assert_eq!(of(0.02, &[6], 1), [6], "it comes back");
    assert_eq!(of(0.02, &[9, 6, 2], 1), [2], "9 is no candidate, and 2 is likely enough by itself");
    assert_eq!(of(0.02, &[9, 6], 1), [6], "9 is no candidate");
    assert_eq!(of(0.0, &[6], 1), [0, 1, 2, 3, 4, 5], "nothing may end it, so nothing happens");
    assert_eq!(of(0.02, &[6], 2), [0, 1, 2, 3, 4, 5], "one would be fewer than two");
    assert_eq!(
        left(&texts, &[6], &[0.99 / 6.0; 7], &[ChainStep::TopK, ChainStep::Infill], 1),
        [(6, 1.0)],
        "what is alone is certain"
    );
}

#[test]
fn without_texts_it_does_nothing() {
    assert_eq!(after(&FOUR, FILTERS, chained(&[ChainStep::Infill])).len(), 4);
}
