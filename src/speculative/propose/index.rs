//! Finds where the last tokens of a text stood before, with chains of positions by hash, as in LZ77 compressors.
//!
//! A *position* is a number of tokens: it names the place behind the first so many. What stands before it is its
//! context; the token at it is what followed that context. There are a few lengths of context, the *levels*. On each
//! level, positions whose contexts share a bucket of a hash table are chained, the latest first. A search walks at most
//! [`CANDIDATES`] positions of a level, compares each with the end of the text, and goes on to a shorter context only
//! if it found no match. So it finds the longest match, with one exception: if more than [`CANDIDATES`] positions share
//! the bucket, it finds the longest match among the latest of them, or none on this level if all of those have another
//! context (which takes a long loop, in one text of thousands).
//!
//! | | worst case |
//! |---|---|
//! | push | a constant number of steps on each of at most 3 levels; now and then a vector grows and is copied, never rehashed |
//! | search | 3 levels × 64 candidates × 64 compared tokens |
//! | memory per token | when opened: 4 bytes, and 8 to 12 for each level; after growing at most 5, and 13 for each level |
//!
//! These bounds hold whatever the tokens are, even if they are chosen to collide: hashes decide only which candidates
//! are compared, never whether they match.

use super::grams::{Grams, agreeing};
use crate::growth::{after_growth, push};

/// Most positions that a search looks at on each level.
pub(super) const CANDIDATES: usize = 64;

/// Each level's context is this many times as long as that of the next level.
const LEVEL_RATIO: usize = 8;
/// A text and the chains of its positions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Index {
    tokens: Vec<u32>,
    /// The chains of each level, the one with the longest context first.
    levels: Vec<Grams>,
    /// The most tokens that are compared for a match.
    longest: usize,
    candidates: usize,
}

/// Positions behind the longest match.
#[derive(Debug, PartialEq)]
pub(super) struct Matches {
    /// How many tokens match.
    pub(super) length: usize,
    /// The latest first; not empty.
    pub(super) positions: Vec<usize>,
}

impl Index {
    /// An empty text, to be searched for matches of `shortest` to `longest` tokens, with room for `capacity` tokens.
    pub(super) fn new(shortest: usize, longest: usize, candidates: usize, capacity: usize) -> Self {
        let mut contexts = vec![longest];
        while let Some(next) = contexts.last().map(|last| (last / LEVEL_RATIO).max(shortest))
            && contexts.last() != Some(&next)
        {
            contexts.push(next);
        }
        let levels = contexts.into_iter().map(|context| Grams::new(context, capacity)).collect();
        Self { tokens: Vec::with_capacity(capacity), levels, longest, candidates }
    }

    pub(super) fn push(&mut self, token: u32) {
        for level in &mut self.levels {
            level.push(&self.tokens, token);
        }
        push(&mut self.tokens, token);
    }

    pub(super) fn bytes(&self) -> usize {
        let levels: usize = self.levels.iter().map(Grams::bytes).sum();
        self.tokens.capacity() * size_of::<u32>() + levels + self.levels.capacity() * size_of::<Grams>()
    }

    /// The most that [`Index::bytes`] may be once `more` tokens are pushed.
    pub(super) fn bytes_after(&self, more: usize) -> usize {
        let len = self.tokens.len() + more;
        let levels: usize = self.levels.iter().map(|level| level.bytes_after(len)).sum();
        after_growth(self.tokens.capacity(), len) * size_of::<u32>()
            + levels
            + self.levels.capacity() * size_of::<Grams>()
    }

    /// The longest match, with the latest positions behind matches of that length, at most `most` of them.
    pub(super) fn longest_match(&self, most: usize) -> Option<Matches> {
        self.levels.iter().map(|level| self.longest_on(level, most)).find(|found| !found.positions.is_empty())
    }

    fn longest_on(&self, level: &Grams, most: usize) -> Matches {
        let mut found = Matches { length: level.context(), positions: Vec::new() };
        for position in level.chain().take(self.candidates) {
            #[cfg(test)]
            super::tests::count_candidate();
            let length = agreeing(&self.tokens, position, self.longest);
            if length > found.length {
                found = Matches { length, positions: Vec::new() };
            }
            if length == found.length && found.positions.len() < most {
                found.positions.push(position);
            }
            if found.length == self.longest && found.positions.len() == most {
                break;
            }
        }
        found
    }

    /// The token at `position`, in the text followed by the draft. A match that reaches the end of the text continues
    /// into the draft, so that a loop is proposed as a loop.
    pub(super) fn token(&self, position: usize, draft: &[u32]) -> u32 {
        self.tokens.get(position).copied().unwrap_or_else(|| draft[position - self.tokens.len()])
    }
}
