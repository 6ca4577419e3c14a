//! Tests that were seen before.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Remembers the random numbers of tests. Texts that share a seed share the numbers of their positions: what they draw there
/// is not independent, and counted again and again, one number's luck would look like a fault. So of all tests with a number one
/// counts, as long as it is remembered.
#[derive(Debug, Default)]
pub(super) struct Repeats(Mutex<Seen>);

/// Numbers in two generations: when the younger one is full, the older one is forgotten.
#[derive(Debug, Default)]
struct Seen {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

/// Numbers of a generation: both take less than 100 KB.
const GENERATION: usize = 2048;

impl Repeats {
    /// Whether a number is new. The next time it is not.
    pub(super) fn is_new(&self, number: u64) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.old.contains(&number) || !seen.young.insert(number) {
            return false;
        }
        if seen.young.len() >= GENERATION {
            seen.old = std::mem::take(&mut seen.young);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::philox::{Purpose, uniform};

    fn counted(repeats: &Repeats, seed: u64, positions: std::ops::Range<u64>) -> usize {
        positions.filter(|&at| repeats.is_new(uniform(seed, at, Purpose::Accept))).count()
    }

    #[test]
    fn of_texts_that_share_a_seed_one_counts() {
        let repeats = Repeats::default();
        // Step by step, longer than what is remembered; and one text after another.
        assert!((0..10_000).all(|at| (0..64).map(|_| counted(&repeats, 42, at..at + 1)).sum::<usize>() == 1));
        assert_eq!((0..64).map(|_| counted(&repeats, 43, 0..2000)).sum::<usize>(), 2000);
    }

    #[test]
    fn texts_with_seeds_of_their_own_all_count_and_memory_is_bounded() {
        let repeats = Repeats::default();
        assert!((0..100).all(|seed| counted(&repeats, seed, 0..1000) == 1000));
        let seen = repeats.0.lock().unwrap();
        assert!(seen.young.capacity().max(seen.old.capacity()) < 2 * GENERATION);
    }
}
