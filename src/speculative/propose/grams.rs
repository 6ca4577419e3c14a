//! Finds where a few tokens stood before, with chains of positions by the hash of the tokens before them.
//!
//! [`index`](super::index) says what a *position* is and what pushing costs. A sequence's rules against repetition use
//! these chains too.

use crate::growth::{after_growth, push};
use crate::sampling::steps::step;
use std::collections::HashSet;

/// The initial number of buckets; a power of two.
const FIRST_BUCKETS: usize = 16;
/// The end of a chain. No context stands before position 0, so 0 is free for this.
const NONE: u32 = 0;
/// The base of the polynomial hash. It is odd, so that no token is lost.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;
/// Spreads a hash over its high bits (MurmurHash3's finaliser).
const SPREAD: u64 = 0xFF51_AFD7_ED55_8CCD;

/// The chains for one length of context. The caller keeps the tokens themselves.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grams {
    context: usize,
    /// The hash of the text's last `context` tokens, or of all if there are fewer.
    hash: u64,
    /// `BASE ^ context`: weight of a token that leaves the context.
    leaving: u64,
    /// The latest position of each bucket.
    heads: Vec<u32>,
    /// For each position, the one before it in its chain.
    previous: Vec<u32>,
}

impl Grams {
    /// The chains of an empty text, with room for `capacity` tokens. `context` is at least 1.
    pub(crate) fn new(context: usize, capacity: usize) -> Self {
        let leaving = (0..context).fold(1, |power: u64, _| power.wrapping_mul(BASE));
        let mut heads = Vec::with_capacity(buckets(capacity));
        heads.resize(FIRST_BUCKETS, NONE);
        Self { context, hash: 0, leaving, heads, previous: Vec::with_capacity(capacity) }
    }

    /// The chains of `tokens`, as if each had been [pushed over](Self::push_over), with no more steps than there are
    /// tokens.
    pub(crate) fn latest(context: usize, tokens: &[u32]) -> Self {
        // A `HashSet` hashes with a random key, so that nobody can make a slow text. What is found does not depend on
        // the key.
        let mut seen = HashSet::with_capacity(tokens.len());
        let mut is_latest = vec![false; tokens.len()];
        for at in (context..tokens.len()).rev() {
            step();
            is_latest[at] = seen.insert(&tokens[at - context..=at]);
        }
        let mut latest = Self::new(context, tokens.len());
        latest.heads.resize(buckets(tokens.len()), NONE);
        for (at, &token) in tokens.iter().enumerate() {
            latest.append(&tokens[..at], token, is_latest[at]);
        }
        latest
    }

    /// Like [`push`](Self::push), but if the same token followed the same context before, that earlier place leaves its
    /// chain. A chain then has only the latest place of each token that followed its context.
    pub(crate) fn push_over(&mut self, tokens: &[u32], token: u32) {
        if let Some(first) = tokens.len().checked_sub(self.context) {
            let is_same = |grams: &Self, at: usize| tokens[at - grams.context..at] == tokens[first..];
            self.unchain(|grams, at| tokens[at] == token && is_same(grams, at));
        }
        self.push(tokens, token);
    }

    /// Removes one position from the chain of the last tokens, if it is there.
    fn unchain(&mut self, is_it: impl Fn(&Self, usize) -> bool) {
        let bucket = self.bucket();
        let (mut later, mut at) = (None, self.heads[bucket]);
        while at != NONE {
            step();
            let before = self.previous[at as usize];
            if is_it(self, at as usize) {
                match later {
                    None => self.heads[bucket] = before,
                    Some(later) => self.previous[later as usize] = before,
                }
                return;
            }
            (later, at) = (Some(at), before);
        }
    }

    /// Adds the position behind `tokens` to its chain, just before `token` is appended there.
    pub(crate) fn push(&mut self, tokens: &[u32], token: u32) {
        self.append(tokens, token, true);
    }

    /// Appends a token. `is_chained` says whether the position before it joins its chain.
    fn append(&mut self, tokens: &[u32], token: u32, is_chained: bool) {
        let position = tokens.len();
        let mut before = NONE;
        let mut left = 0;
        if let Some(first) = position.checked_sub(self.context) {
            let bucket = self.bucket();
            if is_chained {
                before = std::mem::replace(&mut self.heads[bucket], position as u32);
            }
            left = value(tokens[first]).wrapping_mul(self.leaving);
        }
        push(&mut self.previous, before);
        self.hash = self.hash.wrapping_mul(BASE).wrapping_add(value(token)).wrapping_sub(left);
        if self.heads.len() < buckets(self.previous.len()) {
            // Both halves of the new table begin with the chains of the old one, so nothing is rehashed, and every
            // chain depends on the tokens alone. On average, the old part of a chain has half a position too many for
            // each doubling.
            self.heads.extend_from_within(..);
        }
    }

    /// The positions whose context has the hash of the last tokens, and some others of the same bucket, the latest
    /// first.
    pub(crate) fn chain(&self) -> impl Iterator<Item = usize> {
        self.chained(self.bucket())
    }

    /// The same for other tokens than the last ones. `context` has as many tokens as [`Self::context`] says.
    pub(crate) fn chain_behind(&self, context: impl Iterator<Item = u32>) -> impl Iterator<Item = usize> {
        let hash = context.fold(0, |hash: u64, token| hash.wrapping_mul(BASE).wrapping_add(value(token)));
        self.chained(bucket(hash, self.heads.len()))
    }

    fn chained(&self, bucket: usize) -> impl Iterator<Item = usize> {
        let exists = |&position: &u32| position != NONE;
        let head = Some(self.heads[bucket]).filter(exists);
        let positions = std::iter::successors(head, move |&at| Some(self.previous[at as usize]).filter(exists));
        positions.map(|position| {
            step();
            position as usize
        })
    }

    /// The position before a chained one in the same chain.
    pub(crate) fn before(&self, at: usize) -> Option<usize> {
        Some(self.previous[at] as usize).filter(|&at| at != NONE as usize)
    }

    fn bucket(&self) -> usize {
        bucket(self.hash, self.heads.len())
    }

    /// The number of tokens in a context.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// The memory held, besides its own fields.
    pub(crate) fn bytes(&self) -> usize {
        (self.heads.capacity() + self.previous.capacity()) * size_of::<u32>()
    }

    /// The most that [`Grams::bytes`] may be once the text has `len` tokens.
    pub(crate) fn bytes_after(&self, len: usize) -> usize {
        let heads = self.heads.capacity().max(buckets(len));
        (heads + after_growth(self.previous.capacity(), len)) * size_of::<u32>()
    }
}

/// How many tokens before `position` agree with the last ones of a text; counts up to `most`.
pub(crate) fn agreeing(tokens: &[u32], position: usize, most: usize) -> usize {
    let pairs = tokens[..position].iter().rev().zip(tokens.iter().rev()).take(most);
    pairs.take_while(|(a, b)| (step(), a == b).1).count()
}

/// The number of buckets for a text of `len` tokens: the next power of two above `len`.
fn buckets(len: usize) -> usize {
    (len + 1).next_power_of_two().max(FIRST_BUCKETS)
}

/// The bucket of a hash. When the number of buckets doubles, each splits in two: bucket `b` of `n` becomes `b` and
/// `b + n`.
pub(super) fn bucket(hash: u64, buckets: usize) -> usize {
    let spread = (hash ^ hash >> 33).wrapping_mul(SPREAD) >> 32;
    spread as usize & (buckets - 1)
}

/// What a token adds to a hash; not 0, even for token 0.
pub(super) fn value(token: u32) -> u64 {
    u64::from(token) + 1
}
