//! Sorts by token ids and by the [order](super::order). Most lists are already sorted, which one pass over them finds
//! out. Long lists that are not sorted get a radix sort, which takes a few nanoseconds a token where comparisons take
//! tens.

use super::order::Candidate;

/// Shorter lists are sorted by comparisons: a radix sort has a fixed cost for counting digits.
const FEW: usize = 96;
/// Values of a digit.
const VALUES: usize = 1 << u8::BITS;
/// Digits of a number, a byte each.
const PLACES: usize = size_of::<u32>();

/// Sorts by token ids, ascending.
pub(super) fn by_token<T: Copy>(items: &mut Vec<T>, token: impl Fn(&T) -> u32) {
    if items.is_sorted_by_key(&token) {
        return;
    }
    if items.len() < FEW {
        items.sort_unstable_by_key(token);
    } else {
        by_digits(items, &mut Vec::new(), token);
    }
}

/// Puts items in order. No two may have the same token.
pub(super) fn in_order<T: Copy>(items: &mut Vec<T>, candidate: impl Fn(&T) -> Candidate) {
    let place = |item: &T| candidate(item).place();
    if items.is_sorted_by_key(place) {
        return;
    }
    if items.len() < FEW {
        items.sort_unstable_by_key(place);
    } else {
        // A radix sort is stable, so sorting by token first leaves equal logits in order of token.
        by_token(items, |item| candidate(item).token);
        by_digits(items, &mut Vec::new(), |item| (place(item) >> u32::BITS) as u32);
    }
}

/// Stable radix sort by a number, the least significant digit first. `spare` is storage; its content does not matter.
pub(crate) fn by_digits<T: Copy>(items: &mut Vec<T>, spare: &mut Vec<T>, number: impl Fn(&T) -> u32) {
    let mut next = counts(items, &number);
    spare.clear();
    spare.extend_from_slice(items);
    for (place, next) in next.iter_mut().enumerate() {
        if next.iter().any(|&count| count as usize == items.len()) {
            continue;
        }
        let mut first = 0;
        for count in next.iter_mut() {
            first += std::mem::replace(count, first);
        }
        scatter(items, spare, next, |item| digit(number(item), place));
        std::mem::swap(items, spare);
    }
}

/// Moves each item to the next free place of its digit. A function of its own, so that the compiler knows that the
/// slices do not overlap: the sort takes twice as long where it has to check.
#[inline(always)]
fn scatter<T: Copy>(from: &[T], to: &mut [T], next: &mut [u32; VALUES], digit: impl Fn(&T) -> usize) {
    for item in from {
        let next = &mut next[digit(item)];
        to[*next as usize] = *item;
        *next += 1;
    }
}

#[inline(always)]
fn digit(number: u32, place: usize) -> usize {
    (number >> (u8::BITS * place as u32)) as usize % VALUES
}

/// How many items have each digit, at each place.
fn counts<T>(items: &[T], number: impl Fn(&T) -> u32) -> [[u32; VALUES]; PLACES] {
    // Neighbours often share a digit, and then each increment waits for the one before to come back from memory. Two
    // sets of counts, used by turns, avoid that.
    let mut by_turns = [[[0u32; VALUES]; PLACES]; 2];
    for pair in items.chunks(2) {
        for (counts, item) in by_turns.iter_mut().zip(pair) {
            let number = number(item);
            (0..PLACES).for_each(|place| counts[place][digit(number, place)] += 1);
        }
    }
    let [mut counts, others] = by_turns;
    for (count, other) in counts.as_flattened_mut().iter_mut().zip(others.as_flattened()) {
        *count += other;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::super::philox::{Purpose, uniform};
    use super::*;
    use std::cmp::Ordering;

    const LOGITS: [f32; 10] =
        [f32::NEG_INFINITY, f32::MIN, -2.5, -0.0, 0.0, f32::MIN_POSITIVE / 2.0, 0.5, 0.5 + f32::EPSILON, 3.0, f32::MAX];

    /// Candidates of scattered tokens, each once, with repeated logits.
    fn scattered(count: usize) -> Vec<Candidate> {
        let logit = |at| LOGITS[(uniform(7, at, Purpose::Sample) % LOGITS.len() as u64) as usize];
        (0..count as u64).map(|at| Candidate { token: (at * 700_001 % 1_048_573) as u32, logit: logit(at) }).collect()
    }

    /// Short lists are sorted by comparison, long ones by digits. Some differ in only one digit, or are in order except for two items.
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
