//! Where the last tokens of a text stood before: chains of positions by hash, as in LZ77 compressors.
//!
//! A *position* is a number of tokens, and names the place behind them: what stands before it is its context, the
//! token at it what followed. For a few lengths of context, the *levels*, positions whose contexts share a bucket of a
//! hash table are chained, the latest first. A search walks at most [`CANDIDATES`] positions of a level, compares each
//! with the end of the text, and goes to shorter contexts only if it found none. So it finds the longest match, unless
//! more than [`CANDIDATES`] positions share the bucket of a level's context: then the longest among the latest of them,
//! or none on this level where all of those are others (a long loop, in one text of thousands).
//!
//! | | worst case |
//! |---|---|
//! | push | a constant number of steps on each of at most 3 levels; now and then a vector grows and is copied, never rehashed |
//! | search | 3 levels × 64 candidates × 64 compared tokens |
//! | memory per token | when opened: 4 bytes, and 8 to 12 for each level; after growing at most 5, and 13 for each level |
//!
//! Whatever the tokens are, even chosen to collide: hashes decide only which candidates are looked at, never whether
//! they match.

use super::grams::{Grams, after_growth, push};

/// Most positions that a search looks at on each level.
pub(super) const CANDIDATES: usize = 64;

/// Each level's context is so many times as long as the next one's.
const LEVEL_RATIO: usize = 8;
/// A text and the chains of its positions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Index {
    tokens: Vec<u32>,
    /// The longest context first.
    levels: Vec<Grams>,
    /// Matches are compared up to here.
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

    /// As [`Index::bytes`], once `more` tokens are pushed; as it may be at most.
    pub(super) fn bytes_after(&self, more: usize) -> usize {
        let len = self.tokens.len() + more;
        let levels: usize = self.levels.iter().map(|level| level.bytes_after(len)).sum();
        after_growth(self.tokens.capacity(), len) * size_of::<u32>()
            + levels
            + self.levels.capacity() * size_of::<Grams>()
    }

    /// The longest match, and the latest `most` positions behind one of that length.
    pub(super) fn longest_match(&self, most: usize) -> Option<Matches> {
        self.levels.iter().map(|level| self.longest_on(level, most)).find(|found| !found.positions.is_empty())
    }

    fn longest_on(&self, level: &Grams, most: usize) -> Matches {
        let mut found = Matches { length: level.context(), positions: Vec::new() };
        for position in level.chain().take(self.candidates) {
            #[cfg(test)]
            super::tests::count_candidate();
            let length = self.matching(position);
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

    /// How many tokens before `position` are those at the end of the text.
    fn matching(&self, position: usize) -> usize {
        let pairs = self.tokens[..position].iter().rev().zip(self.tokens.iter().rev());
        pairs.take(self.longest).take_while(|(a, b)| a == b).count()
    }

    /// The token at `position` of the text and the draft behind it. A match that reaches the end of the text goes on
    /// into the draft, so that a loop is proposed as a loop.
    pub(super) fn token(&self, position: usize, draft: &[u32]) -> u32 {
        self.tokens.get(position).copied().unwrap_or_else(|| draft[position - self.tokens.len()])
    }
}
