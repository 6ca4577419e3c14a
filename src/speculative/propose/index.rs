//! Where the last tokens of a text stood before: chains of positions by hash, as in LZ77 compressors.
//!
//! A *position* is a number of tokens, and names the place behind them: what stands before it is its context, the
//! token at it what followed. For a few lengths of context, the *levels*, positions whose contexts have the same hash
//! are chained, the latest first. A search walks at most [`CANDIDATES`] positions of a level, compares each with
//! the end of the text, and goes to shorter contexts only if it found none. So it finds the longest match, unless more
//! than [`CANDIDATES`] positions share the hash of a level's context; then the longest among the latest of them.
//!
//! | | worst case |
//! |---|---|
//! | push | a constant number of steps on each of at most 3 levels; now and then a vector grows and is copied, never rehashed |
//! | search | 3 levels × 64 candidates × 64 compared tokens |
//! | memory per token | when opened: 4 bytes, and 8 to 12 for each level; after growing at most 5, and 13 for each level |
//!
//! Whatever the tokens are, even chosen to collide: hashes decide only which candidates are looked at, never whether
//! they match.

/// Most positions that a search looks at on each level.
pub(super) const CANDIDATES: usize = 64;

/// Each level's context is so many times as long as the next one's.
const LEVEL_RATIO: usize = 8;
/// Buckets at first; a power of two.
const FIRST_BUCKETS: usize = 16;
/// Ends a chain: no context stands before position 0.
const NONE: u32 = 0;
/// Of the polynomial hash; odd, so that no token is lost.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;
/// Spreads a hash over its high bits (MurmurHash3's finaliser).
const SPREAD: u64 = 0xFF51_AFD7_ED55_8CCD;

/// A text and the chains of its positions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Index {
    tokens: Vec<u32>,
    /// The longest context first.
    levels: Vec<Level>,
    /// Matches are compared up to here.
    longest: usize,
    candidates: usize,
}

/// The chains of one length of context.
#[derive(Debug, Clone, PartialEq)]
struct Level {
    context: usize,
    /// Hash of the text's last `context` tokens, or of all.
    hash: u64,
    /// `BASE ^ context`: weight of a token that leaves the context.
    leaving: u64,
    /// The latest position of each bucket.
    heads: Vec<u32>,
    /// For each position the one before it in its chain.
    previous: Vec<u32>,
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
        let levels = contexts.into_iter().map(|context| Level::new(context, capacity)).collect();
        Self { tokens: Vec::with_capacity(capacity), levels, longest, candidates }
    }

    pub(super) fn push(&mut self, token: u32) {
        for level in &mut self.levels {
            level.push(&self.tokens, token);
        }
        push(&mut self.tokens, token);
    }

    pub(super) fn bytes(&self) -> usize {
        let levels = self.levels.iter().map(|level| level.heads.capacity() + level.previous.capacity());
        (self.tokens.capacity() + levels.sum::<usize>()) * size_of::<u32>()
            + self.levels.capacity() * size_of::<Level>()
    }

    /// As [`Index::bytes`], once `more` tokens are pushed; as it may be at most.
    pub(super) fn bytes_after(&self, more: usize) -> usize {
        let len = self.tokens.len() + more;
        // See `push`: a list that is full by then has grown by a quarter.
        let list = |capacity: usize| capacity.max(len + len / 4 + FIRST_BUCKETS);
        let level = |level: &Level| level.heads.capacity().max(buckets(len)) + list(level.previous.capacity());
        let levels: usize = self.levels.iter().map(level).sum();
        (list(self.tokens.capacity()) + levels) * size_of::<u32>() + self.levels.capacity() * size_of::<Level>()
    }

    /// The longest match, and the latest `most` positions behind one of that length.
    pub(super) fn longest_match(&self, most: usize) -> Option<Matches> {
        self.levels.iter().map(|level| self.longest_on(level, most)).find(|found| !found.positions.is_empty())
    }

    fn longest_on(&self, level: &Level, most: usize) -> Matches {
        let mut found = Matches { length: level.context, positions: Vec::new() };
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

impl Level {
    fn new(context: usize, capacity: usize) -> Self {
        let leaving = (0..context).fold(1, |power: u64, _| power.wrapping_mul(BASE));
        let mut heads = Vec::with_capacity(buckets(capacity));
        heads.resize(FIRST_BUCKETS, NONE);
        Self { context, hash: 0, leaving, heads, previous: Vec::with_capacity(capacity) }
    }

    /// Chains the position behind `tokens`, which `token` is about to follow.
    fn push(&mut self, tokens: &[u32], token: u32) {
        let position = tokens.len();
        let mut before = NONE;
        let mut left = 0;
        if let Some(first) = position.checked_sub(self.context) {
            let bucket = self.bucket();
            before = std::mem::replace(&mut self.heads[bucket], position as u32);
            left = value(tokens[first]).wrapping_mul(self.leaving);
        }
        push(&mut self.previous, before);
        self.hash = self.hash.wrapping_mul(BASE).wrapping_add(value(token)).wrapping_sub(left);
        if self.heads.len() < buckets(self.previous.len()) {
            // Both halves of the new table begin with the chains of the old one: nothing is rehashed, and every chain
            // depends on the tokens alone. What the old part of a chain has too much is half a position, on
            // average, per doubling.
            self.heads.extend_from_within(..);
        }
    }

    /// Positions whose context has the hash of the last tokens, the latest first, and some others.
    fn chain(&self) -> impl Iterator<Item = usize> {
        let exists = |&position: &u32| position != NONE;
        let head = Some(self.heads[self.bucket()]).filter(exists);
        let positions = std::iter::successors(head, move |&at| Some(self.previous[at as usize]).filter(exists));
        positions.map(|position| position as usize)
    }

    fn bucket(&self) -> usize {
        bucket(self.hash, self.heads.len())
    }
}

/// Appends, growing by a quarter and not by all: memory counts here.
fn push(values: &mut Vec<u32>, value: u32) {
    if values.len() == values.capacity() {
        values.reserve_exact(values.len() / 4 + FIRST_BUCKETS);
    }
    values.push(value);
}

/// Buckets for a text of `len` tokens: a power of two above it.
fn buckets(len: usize) -> usize {
    (len + 1).next_power_of_two().max(FIRST_BUCKETS)
}

/// Twice as many buckets split each in two: bucket `b` of `n` becomes `b` and `b + n`.
pub(super) fn bucket(hash: u64, buckets: usize) -> usize {
    let spread = (hash ^ hash >> 33).wrapping_mul(SPREAD) >> 32;
    spread as usize & (buckets - 1)
}

/// What a token adds to a hash; token 0 too.
pub(super) fn value(token: u32) -> u64 {
    u64::from(token) + 1
}
