//! Listed rows, of which the worker sends only the largest logits: some tokens with their logits, and the log-sum-exp
//! of all others.
//!
//! Such a row gives the same result as the whole row, bit for bit, or it is refused, with what
//! [needs tokens](NeedsUnlisted) that are not listed. Nothing is guessed: unlisted tokens are bounded ([`rest`]), and a
//! row goes through its samplers ([`walk`]) as long as the bounds leave one answer. The cost is about proportional to
//! the length of the list, whatever is allowed; where unlisted tokens may be emitted, each entry of biases, bans and
//! penalties is looked at too, and a step is limited in these (`src/engine/plan.rs`). [`row`] puts it together.
//!
//! Raw logprobs are the exception, since no list can have their exact total: they count the others by their
//! log-sum-exp, and the result is marked so ([`Approximation::rounded`]).

mod rest;
mod row;
mod walk;

pub(super) use row::{distribution, sample_row};

use super::mask::TokenMask;
use super::order::Candidate;
use super::sort;
use crate::params::Sampler;

/// The most tokens that a row may list. A longer list is no thin row any more, and each of its tokens costs what a
/// hundred tokens of a whole row do.
pub const MAX_LISTED: usize = 1 << 14;

/// What happens to a row whose parameters reach beyond its listed tokens; `BeyondTopN` of the wire contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BeyondTopN {
    /// The row has no result.
    #[default]
    Refuse,
    /// The row is sampled as if no other token could be emitted, and its result is [marked](Approximation::truncated).
    Mark,
}

/// What cannot be known of a row without the tokens that it does not list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NeedsUnlisted {
    /// Which token comes first is not certain.
    #[error("after masks, bias and penalties, a token that is not listed may come first")]
    First,
    /// Every token may be drawn.
    #[error("tokens that are not listed may be drawn; cut them off with top_k, top_p or min_p")]
    Draw,
    /// What a sampler does depends on unlisted tokens.
    #[error("{} depends on tokens that are not listed", .0.name())]
    Sampler(Sampler),
    /// More of the first tokens are asked for than are certain.
    #[error("logprobs.top_n asks for tokens that may not be listed")]
    TopLogprobs,
    /// The logprob of an unlisted token is asked for.
    #[error("a logprob is requested for a token that is not listed")]
    Logprob,
    /// The rank of a token is asked for that unlisted tokens may precede.
    #[error("a rank is requested for a token that may come after tokens that are not listed")]
    Rank,
    /// The report would describe unlisted tokens.
    #[error("report.entropy and report.why_not_token_ids depend on tokens that are not listed")]
    Report,
}

/// How the result of a listed row differs from that of the whole row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Approximation {
    /// Parameters reach beyond the listed tokens; see [`BeyondTopN::Mark`].
    pub truncated: bool,
    /// Logprobs count unlisted tokens by their log-sum-exp, so they are off by some roundings.
    pub rounded: bool,
}

/// How many bytes of a whole row take as long as one listed token, about 0.05 us, and as a list without its tokens,
/// about 1 us (`benches/lists.rs`).
const TOKEN_TIME_BYTES: usize = 1 << 10;
const LIST_TIME_BYTES: usize = 24 << 10;

/// A row that lists some of its tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    vocab_size: u32,
    /// Ascending ids, each once; logits as they were sent.
    entries: Vec<Candidate>,
    /// The same in [order](super::order).
    ranked: Vec<Candidate>,
    /// The natural logarithm of the sum of `exp(logit)` over all others; −∞: none of them can be emitted.
    rest: f32,
    /// Whether the tokens are the first of the order, with tokens of equal logits listed in order of their ids.
    ties_in_order: bool,
    beyond: BeyondTopN,
}

/// What is wrong with a listed row.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ListedError {
    /// It lists no tokens, or too many.
    #[error("is {0}, must be in 1 ..= {1}; send longer rows whole")]
    Count(usize, usize),
    /// A token is not in the vocabulary.
    #[error("has token id {0}, must be below vocab_size {1}")]
    OutOfRange(u32, u32),
    /// A token is listed twice.
    #[error("has token id {0} twice in one row")]
    Twice(u32),
    /// The others' log-sum-exp is NaN or +∞.
    #[error("is {0}, must be finite, or -infinity where no other token can be emitted")]
    Rest(f32),
    /// The others' log-sum-exp is larger than possible, since each of them is at most as large as the least listed
    /// logit.
    #[error("is {0}, must be at most {1}, since no other logit may exceed the smallest listed one")]
    TooMuch(f32, f32),
}

impl ListedError {
    /// The field of a row that is at fault.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Count(..) => "counts",
            Self::OutOfRange(..) | Self::Twice(_) => "token_ids",
            Self::Rest(_) | Self::TooMuch(..) => "rest_logsumexp",
        }
    }
}

impl Listed {
    /// A row of `vocab_size` tokens that lists these, in any order. No other token may have a larger logit, which
    /// cannot be checked. `rest` is the log-sum-exp of the others. `ties_in_order`: any other token with the same logit
    /// as the least has a larger id than all listed tokens with that logit.
    ///
    /// # Errors
    /// [`ListedError`].
    pub fn new(
        vocab_size: u32,
        mut entries: Vec<Candidate>,
        rest: f32,
        ties_in_order: bool,
        beyond: BeyondTopN,
    ) -> Result<Self, ListedError> {
        let most = MAX_LISTED.min(vocab_size as usize);
        if entries.is_empty() || entries.len() > most {
            return Err(ListedError::Count(entries.len(), most));
        }
        let mut ranked = entries.clone();
        sort::in_order(&mut ranked, |entry| *entry);
        sort::by_token(&mut entries, |entry| entry.token);
        if let Some(outside) = entries.last().filter(|last| last.token >= vocab_size) {
            return Err(ListedError::OutOfRange(outside.token, vocab_size));
        }
        if let Some(twice) = entries.windows(2).find(|pair| pair[0].token == pair[1].token) {
            return Err(ListedError::Twice(twice[0].token));
        }
        if rest.is_nan() || rest == f32::INFINITY {
            return Err(ListedError::Rest(rest));
        }
        let row = Self { vocab_size, entries, ranked, rest, ties_in_order, beyond };
        match row.most_of_rest() {
            Some(most) if rest > most => Err(ListedError::TooMuch(rest, most)),
            _ => Ok(row),
        }
    }

    /// The largest possible log-sum-exp of the others, with room for the roundings of a worker's sums. `None` where
    /// listed logits are invalid, which sampling the row will report.
    fn most_of_rest(&self) -> Option<f32> {
        let is_wrong = |entry: &Candidate| entry.logit.is_nan() || entry.logit == f32::INFINITY;
        if self.entries.iter().any(is_wrong) {
            return None;
        }
        let most = f64::from(self.least()) + libm::log(self.others() as f64);
        // Without others, or with none above −∞, there is nothing to round.
        let room = if most.is_finite() { 0.01 * most.abs().max(1.0) } else { 0.0 };
        Some((most + room).min(f64::from(f32::MAX)) as f32)
    }

    /// Number of tokens of the whole row.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab_size as usize
    }

    /// The listed tokens, ascending ids.
    #[must_use]
    pub fn entries(&self) -> &[Candidate] {
        &self.entries
    }

    /// The same in [order](super::order), except that logits that are NaN may stand anywhere.
    fn ranked(&self) -> &[Candidate] {
        &self.ranked
    }

    /// Bytes of memory that it holds, besides itself.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        size_of_val(self.entries.as_slice()) + size_of_val(self.ranked.as_slice())
    }

    /// How many bytes of a whole row take as long to sample.
    pub(super) fn time_bytes(&self) -> usize {
        LIST_TIME_BYTES + self.entries.len() * TOKEN_TIME_BYTES
    }

    /// How many tokens are not listed.
    fn others(&self) -> usize {
        self.vocab_size() - self.entries.len()
    }

    /// Whether some unlisted token may be emitted.
    #[must_use]
    pub fn has_rest(&self) -> bool {
        self.rest > f32::NEG_INFINITY && self.others() > 0
    }

    /// Whether all tokens that a mask allows are listed.
    fn lists_all_of(&self, mask: TokenMask<'_>) -> bool {
        let listed = self.entries.iter().filter(|entry| mask.allows(entry.token)).count();
        mask.count() == listed
    }

    /// The least listed logit.
    fn least(&self) -> f32 {
        self.entries.iter().map(|entry| entry.logit).fold(f32::INFINITY, f32::min)
    }

    /// Whether a token is listed.
    #[must_use]
    pub fn lists(&self, token: u32) -> bool {
        self.find(token).is_some()
    }

    /// The place of a token among the entries, if it is listed.
    fn find(&self, token: u32) -> Option<usize> {
        self.entries.binary_search_by_key(&token, |entry| entry.token).ok()
    }

    /// The whole row in f32, with −∞ for all others.
    fn expanded(&self) -> Vec<u8> {
        let mut row = vec![f32::NEG_INFINITY; self.vocab_size()];
        self.entries.iter().for_each(|entry| row[entry.token as usize] = entry.logit);
        super::logits::Dtype::F32.encode(&row)
    }
}

/// Tokens in [order](super::order), as far as a row knows them. All other tokens are at −∞, or, if there is an edge,
/// may be anywhere after it.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranks {
    tokens: Vec<Candidate>,
    edge: Option<Candidate>,
}

impl Ranks {
    /// From tokens in any order.
    fn new(mut tokens: Vec<Candidate>) -> Self {
        tokens.retain(|token| token.logit > f32::NEG_INFINITY);
        sort::in_order(&mut tokens, |token| *token);
        Self { tokens, edge: None }
    }

    /// The same, where unlisted tokens may stand after this edge.
    fn until(self, edge: Option<Candidate>) -> Self {
        Self { edge, ..self }
    }

    /// The tokens that can be emitted, in order.
    fn tokens(&self) -> &[Candidate] {
        &self.tokens
    }

    /// 1 + the number of tokens that precede this one; `None` where that is not certain.
    #[must_use]
    pub fn rank(&self, token: u32) -> Option<u32> {
        let place = self.tokens.iter().position(|other| other.token == token);
        if let Some(edge) = &self.edge {
            return place.filter(|&place| self.tokens[place].precedes(edge)).map(|place| place as u32 + 1);
        }
        let behind = || {
            let smaller = self.tokens.iter().filter(|other| other.token < token).count();
            self.tokens.len() + token as usize - smaller
        };
        Some(1 + place.unwrap_or_else(behind) as u32)
    }
}

#[cfg(test)]
mod tests;
