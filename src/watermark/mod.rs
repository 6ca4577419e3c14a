//! Finding marks: how likely it is that a text that was not made with a key looks as it does. And `croupier detect`.
//!
//! A [`Detector`] counts, over the tokens of a text, what a [mark](crate::sampling::mark) makes more frequent. Its p-value is
//! the probability that text without the mark has as much of it, or more. An n-gram that comes again says
//! nothing new, so it counts once. Read [`kgw`], [`synthid`], [`gumbel`] (what is counted), [`tails`] and [`sums`] (how likely), [`texts`] (what is
//! read), [`command`].

pub mod command;
pub mod gumbel;
pub mod kgw;
pub mod sums;
pub mod synthid;
pub mod tails;
pub mod texts;

use crate::params::watermark::Watermark;
use std::collections::HashSet;

/// A text to look at: token ids, the first of which may be a prompt, which nothing was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    /// All of them.
    pub tokens: &'a [u32],
    /// How many are the prompt.
    pub prompt_tokens: usize,
}

/// What was found in a text.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Found {
    /// How many tokens counted.
    pub scored: usize,
    /// What they said.
    #[serde(flatten)]
    pub evidence: Evidence,
    /// How many standard deviations that is above what text without the mark has.
    pub z: f64,
    /// The probability that text without the mark has as much.
    pub p_value: f64,
}

/// What is counted.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Evidence {
    /// Of a greenlist.
    Greens {
        /// Green tokens.
        green: usize,
        /// As many as text without the mark has, on average.
        expected: f64,
    },
    /// Of a tournament.
    Layers {
        /// The mean of all bits.
        mean_g: f64,
        /// The mean where the first layers, which say most, weigh most.
        weighted_mean_g: f64,
    },
    /// Of a race.
    Sum {
        /// Of `-ln(1 - r)` over the tokens; 1 for each in text without the mark, on average.
        sum: f64,
    },
}

/// Looks for one mark.
#[derive(Debug)]
pub enum Detector<'a> {
    /// A greenlist.
    Kgw(kgw::Greens<'a>),
    /// A tournament.
    Synthid(synthid::Bits<'a>),
    /// A race.
    Gumbel(gumbel::Arrivals<'a>),
}

impl<'a> Detector<'a> {
    /// Of a mark whose parameters are [valid](Watermark::validate).
    #[must_use]
    pub fn new(mark: &'a Watermark) -> Self {
        match mark {
            Watermark::Kgw(params) => Self::Kgw(kgw::Greens::new(params)),
            Watermark::Synthid(params) => Self::Synthid(synthid::Bits::new(params)),
            Watermark::Gumbel(params) => Self::Gumbel(gumbel::Arrivals::new(params)),
        }
    }

    /// Looks at a text.
    #[must_use]
    pub fn look(&self, text: &Text<'_>) -> Found {
        match self {
            Self::Kgw(greens) => greens.look(text),
            Self::Synthid(bits) => bits.look(text),
            Self::Gumbel(arrivals) => arrivals.look(text),
        }
    }
}

impl<'a> Text<'a> {
    /// The n-grams of `width` tokens and one more, of which that one is no prompt: each once, in order. Those whose `width` first tokens
    /// came before the token at one of the `history` positions before are left out: there is no mark on them.
    pub(crate) fn ngrams(&self, width: usize, history: usize) -> Vec<&'a [u32]> {
        let mut once = HashSet::new();
        let all = self.tokens.windows(width + 1).enumerate();
        let mut last = std::collections::HashMap::new();
        let mut found = Vec::new();
        for (at, ngram) in all.filter(|(at, _)| at + width >= self.prompt_tokens) {
            let before = last.insert(&ngram[..width], at);
            if before.is_none_or(|before| at - before > history) && once.insert(ngram) {
                found.push(ngram);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ngram_counts_once_and_no_prompt() {
        let ngrams = |tokens, prompt_tokens, width, history| {
            Text { tokens, prompt_tokens }.ngrams(width, history).into_iter().map(<[u32]>::to_vec).collect::<Vec<_>>()
        };
        assert_eq!(ngrams(&[1, 2, 1, 2, 3], 0, 1, 0), [[1, 2], [2, 1], [2, 3]]);
        assert_eq!(ngrams(&[1, 2, 1, 2, 3], 2, 1, 0), [[2, 1], [1, 2], [2, 3]], "the context may be the prompt");
        assert_eq!(ngrams(&[1, 2, 1, 2, 3], 0, 1, 2), [[1, 2], [2, 1]], "no mark behind a context that was there");
        assert_eq!(ngrams(&[1, 2, 1, 2, 3], 0, 1, 1), [[1, 2], [2, 1], [2, 3]]);
        assert_eq!(
            (ngrams(&[1], 0, 1, 0).len(), ngrams(&[], 0, 2, 9).len(), ngrams(&[1, 2], 2, 1, 0).len()),
            (0, 0, 0)
        );
    }
}
