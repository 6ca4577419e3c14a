//! Watermark detection, and `croupier detect`. The question is how likely an unmarked text is to look like the given
//! one.
//!
//! A [`Detector`] counts, over the tokens of a text, what a [mark](crate::sampling::watermark) makes more frequent. Its
//! p-value is the probability that an unmarked text has at least as much of it. An n-gram that appears again is no new
//! evidence, so it counts once. Reading order: [`kgw`], [`synthid`], [`gumbel`] (what is counted), [`tails`] and
//! [`sums`] (how likely that is), [`texts`] (input), [`command`].

pub mod command;
pub mod gumbel;
pub mod kgw;
pub mod sums;
pub mod synthid;
pub mod tails;
pub mod texts;

use crate::params::watermark::Watermark;
use std::collections::HashSet;

/// A text to examine: token ids, of which the first may be a prompt. No mark was put on the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    /// All token ids.
    pub tokens: &'a [u32],
    /// How many of the first tokens are the prompt.
    pub prompt_tokens: usize,
}

/// The result for a text.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Found {
    /// Number of tokens that counted.
    pub scored: usize,
    /// What was counted over these tokens.
    #[serde(flatten)]
    pub evidence: Evidence,
    /// How many standard deviations the count is above the mean of unmarked texts.
    pub z: f64,
    /// The probability that an unmarked text has at least as much.
    pub p_value: f64,
}

/// What is counted, by scheme.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Evidence {
    /// For a greenlist.
    Greens {
        /// Number of green tokens.
        green: usize,
        /// Mean number of green tokens in an unmarked text.
        expected: f64,
    },
    /// For a tournament.
    Layers {
        /// The mean of all bits.
        mean_g: f64,
        /// The mean with larger weights for the first layers, which carry the most evidence.
        weighted_mean_g: f64,
    },
    /// For the Gumbel mark's race.
    Sum {
        /// The sum of `-ln(1 - r)` over the tokens. In unmarked text each token adds 1 on average.
        sum: f64,
    },
}

/// A detector for one mark.
#[derive(Debug)]
pub enum Detector<'a> {
    /// For a greenlist.
    Kgw(kgw::Greens<'a>),
    /// For a tournament.
    Synthid(synthid::Bits<'a>),
    /// For the Gumbel mark's race.
    Gumbel(gumbel::Arrivals<'a>),
}

impl<'a> Detector<'a> {
    /// A detector for a mark whose parameters are [valid](Watermark::validate).
    #[must_use]
    pub fn new(mark: &'a Watermark) -> Self {
        match mark {
            Watermark::Kgw(params) => Self::Kgw(kgw::Greens::new(params)),
            Watermark::Synthid(params) => Self::Synthid(synthid::Bits::new(params)),
            Watermark::Gumbel(params) => Self::Gumbel(gumbel::Arrivals::new(params)),
        }
    }

    /// Examines a text.
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
    /// The n-grams of `width + 1` tokens whose last token is not in the prompt: each once, in order. An n-gram is left
    /// out if its first `width` tokens were also the context at one of the `history` positions before, because there is
    /// no mark after such a context.
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
