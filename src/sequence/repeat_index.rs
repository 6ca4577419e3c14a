//! Finds where the last tokens of a text stood before, for DRY, and skips places that tell nothing new.
//!
//! Two places are *the same* if the same token follows both, and the tokens before both agree as far back as can
//! matter. Of places that are the same only the latest counts. So each place knows two others: the one before it in its
//! chain ([`Grams`]), and the first one before it that is not the same. In a text that says one thing over and over,
//! few places remain.
//!
//! Pushing a token takes one step if the text goes on as it did at the place before, because the length of that match
//! is then known. Otherwise the tokens before the two places are compared one by one, as far as they matter, which is
//! no further than [`FARTHEST`]. The memory is 4 bytes a token, besides the grams.

use crate::growth::{after_growth, push};
use crate::sampling::steps::step;
use crate::speculative::propose::grams::{Grams, agreeing};

/// If more tokens than this matter, no two places are treated as the same.
pub(super) const FARTHEST: usize = 512;

/// The places of a text's kept tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RepeatIndex {
    grams: Grams,
    /// How many tokens before a place matter; `None` means all.
    matter: Option<usize>,
    /// For each position, the first before it in its chain that is not the same; 0 if there is none.
    others: Vec<u32>,
    /// For the last position: the one before it in its chain, and how many tokens before both agree, of those that
    /// matter.
    last: Option<(usize, usize)>,
}

impl RepeatIndex {
    /// The places of `tokens`, looked up by the last `context` tokens. Repeats of `longest` or more tokens all count as
    /// equally long.
    pub(super) fn new(context: usize, longest: usize, tokens: &[u32]) -> Self {
        let (grams, matter) = (Grams::new(context, tokens.len()), Some(longest).filter(|&longest| longest <= FARTHEST));
        let others = Vec::with_capacity(if matter.is_some() { tokens.len() } else { 0 });
        let mut places = Self { grams, matter, others, last: None };
        for (at, &token) in tokens.iter().enumerate() {
            places.push(&tokens[..at], token);
        }
        places
    }

    /// Adds the position behind `tokens` to its chain, just before `token` is appended there.
    pub(super) fn push(&mut self, tokens: &[u32], token: u32) {
        if let Some(matter) = self.matter {
            let is_chained = tokens.len() >= self.grams.context();
            let before = if is_chained { self.grams.chain().next() } else { None };
            self.last = before.map(|before| (before, self.equal(tokens, before, matter)));
            let other = self.last.map_or(0, |(before, equal)| {
                if equal == matter && tokens[before] == token { self.others[before] } else { before as u32 }
            });
            push(&mut self.others, other);
        }
        self.grams.push(tokens, token);
    }

    /// How many tokens before a place agree with the last ones, of those that matter.
    fn equal(&self, tokens: &[u32], place: usize, matter: usize) -> usize {
        match self.last {
            Some((last, equal)) if last + 1 == place => {
                step();
                if tokens[last] == tokens[tokens.len() - 1] { (equal + 1).min(matter) } else { 0 }
            }
            _ => agreeing(tokens, place, matter),
        }
    }

    /// How many tokens before a place matter.
    pub(super) fn matter(&self) -> usize {
        self.matter.unwrap_or(usize::MAX)
    }

    /// The latest place behind these tokens, of which there are as many as the context has, or behind others with the
    /// same hash.
    pub(super) fn latest(&self, context: impl Iterator<Item = u32>) -> Option<usize> {
        self.grams.chain_behind(context).next()
    }

    /// The first place before this one, in its chain, that is not the same.
    pub(super) fn before(&self, place: usize) -> Option<usize> {
        match self.matter {
            Some(_) => Some(self.others[place] as usize).filter(|&at| at > 0),
            None => self.grams.before(place),
        }
    }

    /// How many tokens are looked up at once.
    pub(super) fn context(&self) -> usize {
        self.grams.context()
    }

    /// The memory held, besides its own fields.
    pub(super) fn bytes(&self) -> usize {
        self.grams.bytes() + self.others.capacity() * size_of::<u32>()
    }

    /// The most that [`bytes`](Self::bytes) may be once the text has `len` tokens.
    pub(super) fn bytes_after(&self, len: usize) -> usize {
        let others = if self.matter.is_some() { after_growth(self.others.capacity(), len) } else { 0 };
        self.grams.bytes_after(len) + others * size_of::<u32>()
    }
}
