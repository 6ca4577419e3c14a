//! Proposers inside the sidecar: they find draft tokens in the sequence's own text, without a draft model. Tokens that
//! a grammar forces are found by its automaton instead ([`grammar::propose`](crate::grammar::propose)).
//!
//! A proposal depends only on the parameters and the tokens, not on how these came. So a sequence that is opened again
//! with its tokens proposes the same; with a grammar, this holds as far as looking ahead takes little time. A proposal
//! involves no chance: verification treats the draft tokens as certain, and they do not change a single token of the
//! text ([`rejection`](super::rejection)).
//!
//! [`index`] says what pushing, proposing and remembering cost at worst. Read it first, then [`grams`], [`ngram`] and
//! [`suffix`].

pub(crate) mod grams;
mod index;
mod ngram;
mod suffix;
#[cfg(test)]
mod tests;

use crate::params::{ProposerKind, ProposerParams};
use index::{CANDIDATES, Index};

/// Stands behind what was predicted, where nothing can be proposed. It is no token of any vocabulary.
const END: u32 = u32::MAX;

/// The proposer of one sequence, with the sequence's text.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposer {
    params: ProposerParams,
    /// `None` if only the grammar proposes.
    index: Option<Index>,
    /// How many tokens stand before the text: those of the prediction, and what precedes them.
    predicted: usize,
}

/// Draft tokens that a proposer found, each following the one before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Whether the latest place where all of them stand is in what was predicted.
    pub is_predicted: bool,
}

impl Proposer {
    /// The proposer of a text. The parameters must be valid, and the text must have fewer than 2^32 tokens.
    #[must_use]
    pub fn new(params: &ProposerParams, prompt: &[u32], output: &[u32]) -> Self {
        Self::predicting(params, prompt, output, &[])
    }

    /// The proposer of a text whose output may repeat `predicted`. It looks there as in an earlier part of the text, one
    /// in which the prompt was continued by what is predicted: so the beginning of the output has a match too.
    #[must_use]
    pub fn predicting(params: &ProposerParams, prompt: &[u32], output: &[u32], predicted: &[u32]) -> Self {
        let (shortest, longest) = (params.min_match as usize, params.max_match as usize);
        let earlier = if predicted.is_empty() { &[] } else { &prompt[prompt.len().saturating_sub(longest)..] };
        let end = if predicted.is_empty() { &[][..] } else { &[END] };
        let parts = [earlier, predicted, end, prompt, output];
        let before = parts[..3].iter().map(|part| part.len()).sum();
        let index = (params.kind != ProposerKind::Grammar).then(|| {
            let mut index = Index::new(shortest, longest, CANDIDATES, parts.iter().map(|part| part.len()).sum());
            parts.into_iter().flatten().for_each(|&token| index.push(token));
            index
        });
        Self { params: *params, index, predicted: before }
    }

    /// Appends an emitted token.
    pub fn push(&mut self, token: u32) {
        self.index.iter_mut().for_each(|index| index.push(token));
    }

    /// Draft tokens, each following the one before it, that may continue the text: at most `max` and
    /// `max_draft_tokens`, and none without a match.
    #[must_use]
    pub fn propose(&self, max: usize) -> Found {
        let (limit, Some(index)) = (max.min(self.most()), &self.index) else { return Found::default() };
        let (tokens, latest) = match self.params.kind {
            ProposerKind::Ngram => ngram::propose(index, limit),
            ProposerKind::Suffix => suffix::propose(index, self.params.min_token_prob, limit),
            ProposerKind::Grammar => return Found::default(),
        };
        Found { is_predicted: !tokens.is_empty() && latest < self.predicted, tokens }
    }

    /// The most draft tokens that the parameters allow in one draft.
    #[must_use]
    pub fn most(&self) -> usize {
        self.params.max_draft_tokens as usize
    }

    /// The memory held, including spare capacity for further tokens.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.index.as_ref().map_or(0, Index::bytes)
    }

    /// The most memory that it may hold once `more` tokens are pushed.
    #[must_use]
    pub fn bytes_after(&self, more: usize) -> usize {
        size_of::<Self>() + self.index.as_ref().map_or(0, |index| index.bytes_after(more))
    }
}
