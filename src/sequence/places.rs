//! Where the last tokens of a text stood before, each place of a run of the same once: what DRY looks through.
//!
//! Two places are *the same* if as many tokens stand before both as can matter, and one token follows both: the later
//! one is all that counts. So each place knows, beside the one before it in its chain ([`Grams`]), the first one before that
//! is not the same. Of a text that says one thing over and over, few are left.
//!
//! A token takes a step where the text goes on as it did at the place before, which is known by then; else it is compared with that,
//! token by token, as far as can matter and no further than [`FARTHEST`]. 4 bytes a token beside the grams.

use crate::sampling::steps::step;
use crate::speculative::propose::grams::{Grams, after_growth, push};

/// Where more than so many tokens matter, no two places are the same.
pub(super) const FARTHEST: usize = 512;

/// Places of the kept tokens of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Places {
    grams: Grams,
    /// So many tokens before a place matter; `None`: all.
    matter: Option<usize>,
    /// For each position the first before it in its chain that is not the same; 0: none.
    others: Vec<u32>,
    /// Of the last position the one before it in its chain, and how many tokens before both are equal, of those that matter.
    last: Option<(usize, usize)>,
}

impl Places {
    /// Of `tokens`, by the last `context` ones. Repeats of `longest` tokens and of more are all one.
    pub(super) fn new(context: usize, longest: usize, tokens: &[u32]) -> Self {
        let (grams, matter) = (Grams::new(context, tokens.len()), Some(longest).filter(|&longest| longest <= FARTHEST));
        let others = Vec::with_capacity(if matter.is_some() { tokens.len() } else { 0 });
        let mut places = Self { grams, matter, others, last: None };
        for (at, &token) in tokens.iter().enumerate() {
            places.push(&tokens[..at], token);
        }
        places
    }

    /// Chains the position behind `tokens`, which `token` is about to follow.
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

    /// How many tokens before a place are the last ones, of those that matter.
    fn equal(&self, tokens: &[u32], place: usize, matter: usize) -> usize {
        let (end, before) = (tokens.len(), &tokens[..place]);
        match self.last {
            Some((last, equal)) if last + 1 == place => {
                step();
                if tokens[last] == tokens[end - 1] { (equal + 1).min(matter) } else { 0 }
            }
            _ => {
                let pairs = before.iter().rev().zip(tokens.iter().rev()).take(matter);
                pairs.take_while(|(a, b)| (step(), a == b).1).count()
            }
        }
    }

    /// So many tokens before a place matter.
    pub(super) fn matter(&self) -> usize {
        self.matter.unwrap_or(usize::MAX)
    }

    /// The latest place where these tokens stood, as many as the context, or others of the same hash.
    pub(super) fn latest(&self, context: impl Iterator<Item = u32>) -> Option<usize> {
        self.grams.chain_behind(context).next()
    }

    /// The first place before one that is not the same.
    pub(super) fn before(&self, place: usize) -> Option<usize> {
        match self.matter {
            Some(_) => Some(self.others[place] as usize).filter(|&at| at > 0),
            None => self.grams.before(place),
        }
    }

    /// Tokens that are looked up at once.
    pub(super) fn context(&self) -> usize {
        self.grams.context()
    }

    /// Memory held beside its own fields.
    pub(super) fn bytes(&self) -> usize {
        self.grams.bytes() + self.others.capacity() * size_of::<u32>()
    }

    /// As [`bytes`](Self::bytes), once the text has `len` tokens; as it may be at most.
    pub(super) fn bytes_after(&self, len: usize) -> usize {
        let others = if self.matter.is_some() { after_growth(self.others.capacity(), len) } else { 0 };
        self.grams.bytes_after(len) + others * size_of::<u32>()
    }
}
