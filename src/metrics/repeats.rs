//! Finds tests that were seen before.

use crate::locks::lock;
use std::sync::Mutex;

/// Remembers the random numbers of tests. Texts that share a seed share the numbers of their positions, so their tests
/// are not independent; counted again and again, one number's luck would look like a fault. So of all tests with the
/// same number only one counts, as long as the number is remembered.
#[derive(Debug, Default)]
pub(super) struct Repeats(Mutex<Seen>);

/// Numbers in two generations. When the younger one is full, the older one is forgotten.
#[derive(Debug, Default)]
struct Seen {
    young: Generation,
    old: Generation,
}

/// How many numbers a generation holds.
const GENERATION: usize = 2048;
/// Places in its table. Half of them stay free, so that a number is found after a few steps.
const PLACES: usize = 2 * GENERATION;
/// Most bytes that the numbers of one model and proposer take. `max_state_bytes` does not count them, because metrics
/// outlive sequences.
pub(super) const MAX_BYTES: usize = 2 * PLACES * size_of::<u64>();
const _: () = assert!(MAX_BYTES <= 64 << 10, "docs/deployment.md says so");

/// A table of a fixed size, so that it never takes more memory than stated; empty before the first number. The numbers
/// are random, so each is stored at the place given by its lowest bits, or at the next free place.
#[derive(Debug, Default)]
struct Generation {
    /// 0 marks a free place.
    places: Vec<u64>,
    taken: usize,
}

impl Generation {
    /// The place where a number is, or is to be stored. There is always a free place.
    fn place(&self, number: u64) -> usize {
        let first = number as usize % PLACES;
        let places = (first..PLACES).chain(0..first);
        places.into_iter().find(|&at| self.places[at] == number || self.places[at] == 0).unwrap_or(first)
    }

    fn contains(&self, number: u64) -> bool {
        !self.places.is_empty() && self.places[self.place(number)] == number
    }

    /// Adds a number. Returns whether it was new.
    fn insert(&mut self, number: u64) -> bool {
        if self.places.is_empty() {
            self.places = vec![0; PLACES];
        }
        let at = self.place(number);
        let is_new = self.places[at] != number;
        self.places[at] = number;
        self.taken += usize::from(is_new);
        is_new
    }

    fn clear(&mut self) {
        self.places.fill(0);
        self.taken = 0;
    }
}

impl Repeats {
    /// Whether a number is new. Remembers it.
    pub(super) fn is_new(&self, number: u64) -> bool {
        let number = number.max(1);
        let mut guard = lock(&self.0);
        let Seen { young, old } = &mut *guard;
        if old.contains(number) || !young.insert(number) {
            return false;
        }
        if young.taken >= GENERATION {
            std::mem::swap(young, old);
            young.clear();
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

    /// The memory that is really allocated.
    fn bytes(repeats: &Repeats) -> usize {
        let seen = repeats.0.lock().unwrap();
        [&seen.young, &seen.old].map(|generation| generation.places.capacity() * size_of::<u64>()).iter().sum()
    }

    #[test]
    fn of_texts_that_share_a_seed_one_counts() {
        let repeats = Repeats::default();
        // First step by step, for longer than numbers are remembered; then one text after another.
        assert!((0..10_000).all(|at| (0..64).map(|_| counted(&repeats, 42, at..at + 1)).sum::<usize>() == 1));
        assert_eq!((0..64).map(|_| counted(&repeats, 43, 0..2000)).sum::<usize>(), 2000);
    }

    #[test]
    fn texts_with_seeds_of_their_own_all_count_and_memory_is_bounded() {
        let repeats = Repeats::default();
        assert_eq!(bytes(&repeats), 0, "nothing is taken before there is something to remember");
        assert!((0..100).all(|seed| counted(&repeats, seed, 0..1000) == 1000));
        assert_eq!(bytes(&repeats), MAX_BYTES);
    }

    /// The seeds make all numbers compete for the same place. One of the numbers is the one that marks a free place.
    #[test]
    fn numbers_that_are_no_random_ones_count_once_too() {
        let repeats = Repeats::default();
        let alike = |n: u64| n * PLACES as u64 + PLACES as u64 - 1;
        for _ in 0..2 {
            let new = (0..GENERATION as u64 - 2).filter(|&n| repeats.is_new(alike(n))).count();
            assert!(new == 0 || new == GENERATION - 2, "{new}");
        }
        assert!(!repeats.is_new(alike(0)) && repeats.is_new(0) && !repeats.is_new(0));
        assert!(bytes(&repeats) <= MAX_BYTES);
    }
}
