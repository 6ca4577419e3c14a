//! The different tokens of a text, and the latest place of each.
//!
//! They are kept in token order, so that the tokens of a window are read off in order: one step for each different
//! token. A further token is found by binary search. Inserting it moves those behind it, which copies at most 256 KiB.

use crate::growth::{after_growth, make_room};
use crate::sampling::steps::step;

/// A token and its latest place.
type Latest = (u32, u32);

/// The tokens of a text.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::sequence) struct Singles {
    /// Ascending, each token once.
    places: Vec<Latest>,
}

impl Singles {
    /// The tokens of a text.
    pub(super) fn latest(tokens: &[u32]) -> Self {
        let place = |(at, &token): (usize, &u32)| {
            step();
            (token, at as u32)
        };
        let mut places: Vec<Latest> = tokens.iter().enumerate().map(place).collect();
        // For each token the latest place first, since `dedup_by_key` keeps the first.
        places.sort_unstable_by_key(|&(token, at)| (token, u32::MAX - at));
        places.dedup_by_key(|(token, _)| *token);
        places.shrink_to_fit();
        Self { places }
    }

    /// Adds a token at this place.
    pub(super) fn push(&mut self, token: u32, at: usize) {
        step();
        match self.places.binary_search_by_key(&token, |&(token, _)| token) {
            Ok(i) => self.places[i].1 = at as u32,
            Err(i) => {
                make_room(&mut self.places);
                self.places.insert(i, (token, at as u32));
            }
        }
    }

    /// The tokens whose latest place is `first` or later, ascending.
    pub(super) fn from(&self, first: usize) -> Vec<u32> {
        let is_near = |&&(_, at): &&Latest| {
            step();
            at as usize >= first
        };
        self.places.iter().filter(is_near).map(|&(token, _)| token).collect()
    }

    /// How many different tokens there are.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Latest>()
    }

    /// The most that [`Self::bytes`] may be once the text has `len` tokens.
    pub(super) fn bytes_after(&self, len: usize) -> usize {
        after_growth(self.places.capacity(), len) * size_of::<Latest>()
    }
}
