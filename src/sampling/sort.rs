//! Sorts by token ids and by the [order](super::order). Most lists are in order already, and one look at them is enough. Long ones that
//! are not are sorted digit by digit, which takes a few nanoseconds a token where comparisons take tens.

use super::order::Candidate;

/// Shorter lists are sorted by comparisons: counting digits costs something however short a list is.
const FEW: usize = 96;
/// Values of a digit.
const VALUES: usize = 1 << u8::BITS;

/// Sorts by token ids, ascending.
pub(super) fn by_token<T: Copy>(items: &mut [T], token: impl Fn(&T) -> u32) {
    if items.is_sorted_by_key(&token) {
        return;
    }
    if items.len() < FEW {
        items.sort_unstable_by_key(token);
    } else {
        by_digits(items, token);
    }
}

/// Puts items, no two of one token, in order.
pub(super) fn in_order<T: Copy>(items: &mut [T], candidate: impl Fn(&T) -> Candidate) {
    let place = |item: &T| candidate(item).place();
    if items.is_sorted_by_key(place) {
        return;
    }
    if items.len() < FEW {
        items.sort_unstable_by_key(place);
    } else {
        // Digits leave equal ones as they stand.
        by_token(items, |item| candidate(item).token);
        by_digits(items, |item| (place(item) >> u32::BITS) as u32);
    }
}

/// Sorts by a number, the least digit first; items of equal numbers stay as they stand.
fn by_digits<T: Copy>(items: &mut [T], number: impl Fn(&T) -> u32) {
    let mut counts = [[0u32; VALUES]; size_of::<u32>()];
    for item in items.iter() {
        for (counts, digit) in counts.iter_mut().zip(number(item).to_le_bytes()) {
            counts[usize::from(digit)] += 1;
        }
    }
    let mut from = items.to_vec();
    let mut is_here = true;
    for (place, counts) in counts.iter_mut().enumerate() {
        if counts.iter().any(|&count| count as usize == items.len()) {
            continue;
        }
        let mut first = 0;
        for count in counts.iter_mut() {
            first += std::mem::replace(count, first);
        }
        let (from, to) = if is_here { (&*items, &mut from[..]) } else { (&from[..], &mut *items) };
        for item in from {
            let next = &mut counts[usize::from(number(item).to_le_bytes()[place])];
            to[*next as usize] = *item;
            *next += 1;
        }
        is_here = !is_here;
    }
    if !is_here {
        items.copy_from_slice(&from);
    }
}

#[cfg(test)]
mod tests {
    use super::super::philox::{Purpose, uniform};
    use super::*;
    use std::cmp::Ordering;

    const LOGITS: [f32; 10] =
        [f32::NEG_INFINITY, f32::MIN, -2.5, -0.0, 0.0, f32::MIN_POSITIVE / 2.0, 0.5, 0.5 + f32::EPSILON, 3.0, f32::MAX];

    /// Candidates of scattered tokens, each once, whose logits repeat.
    fn scattered(count: usize) -> Vec<Candidate> {
        let logit = |at| LOGITS[(uniform(7, at, Purpose::Sample) % LOGITS.len() as u64) as usize];
        (0..count as u64).map(|at| Candidate { token: (at * 700_001 % 1_048_573) as u32, logit: logit(at) }).collect()
    }

    /// Short ones by comparison, long ones by digits; some of one digit alone, or in order but for two.
    #[test]
    fn all_lengths_are_sorted_as_the_order_compares() {
        for count in [0, 1, 2, FEW - 1, FEW, FEW + 1, 1000, 5000] {
            let all = scattered(count);
            let mut expected = all.clone();
            expected.sort_by(|a, b| if a.precedes(b) { Ordering::Less } else { b.precedes(a).cmp(&false) });
            let check = |mut items: Vec<Candidate>, what: &str| {
                in_order(&mut items, |candidate| *candidate);
                assert_eq!(items, expected, "{count}, {what}");
            };
            check(all.clone(), "scattered");
            check(expected.clone(), "in order");
            check(expected.iter().rev().copied().collect(), "the wrong way round");
            let mut swapped = expected.clone();
            if count > 1 {
                swapped.swap(0, count / 2);
            }
            check(swapped, "two in each other's place");
            let mut by_id = expected.clone();
            by_token(&mut by_id, |candidate| candidate.token);
            assert!(by_id.windows(2).all(|pair| pair[0].token < pair[1].token), "{count}");
            check(by_id, "by ids");
        }
    }

    #[test]
    fn equal_tokens_stay_as_they_stand() {
        let mut items: Vec<_> = (0..3 * FEW as u32).map(|at| (at * 7 % 5, at)).collect();
        by_token(&mut items, |item| item.0);
        assert!(items.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
