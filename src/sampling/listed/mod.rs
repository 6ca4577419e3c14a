//! Rows of which only the largest logits are here: some tokens with their logits, and the log-sum-exp of all others.
//!
//! Such a row gives what the whole row would have given, bit for bit, or it is refused with what [needs tokens](NeedsUnlisted)
//! that are not listed. Nothing is guessed: what is not listed is bounded ([`rest`]), and a row goes its way ([`walk`]) as long as the
//! bounds leave one answer. All of it costs about as much as the list is long, whatever is allowed, and where others may be
//! emitted a look at each entry of biases, bans and penalties, of which a step may have so many (`src/engine/plan.rs`);
//! [`row`] puts it together.
//!
//! Raw logprobs are the exception, since no list can have their exact total: they count the others by their log-sum-exp,
//! and say so ([`Marks::rounded`]).

mod rest;
mod row;
mod walk;

pub(super) use row::{distribution, sample_row};

use super::mask::TokenMask;
use super::order::Candidate;
use super::sort;
use crate::params::Sampler;

/// Most tokens of one row: more are no thin row, and each costs what a hundred of a whole row do.
pub const MAX_LISTED: usize = 1 << 14;

/// What becomes of a row whose parameters reach beyond its tokens; `BeyondTopN` of the wire contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BeyondTopN {
    /// It has no result.
    #[default]
    Refuse,
    /// It is taken as if no other token could be emitted, and [marked](Marks::truncated).
    Mark,
}

/// What of a row cannot be known without the tokens that it does not list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NeedsUnlisted {
    /// Who comes first is not certain.
    #[error("after masks, bias and penalties a token that is not listed may come first")]
    First,
    /// Every token may be drawn.
    #[error("tokens that are not listed may be drawn; cut them off by top_k, top_p or min_p")]
    Draw,
    /// What a sampler does depends on others.
    #[error("{} depends on tokens that are not listed", .0.name())]
    Sampler(Sampler),
    /// The first tokens of the order are asked for, more than are certain.
    #[error("logprobs.top_n asks for tokens that may not be listed")]
    TopLogprobs,
    /// The logprob of another token.
    #[error("the logprob of a token is asked for that is not listed")]
    Logprob,
    /// The rank of a token that others may precede.
    #[error("the rank of a token is asked for that tokens which are not listed may precede")]
    Rank,
    /// The report tells of others.
    #[error("report.entropy and report.why_not_token_ids tell of tokens that are not listed")]
    Report,
}

/// How a result differs from that of a whole row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// Parameters reach beyond the tokens; see [`BeyondTopN::Mark`].
    pub truncated: bool,
    /// Logprobs count tokens that are not here by their log-sum-exp, so they are off by some roundings.
    pub rounded: bool,
}

/// Bytes of a whole row that take as long as a token of a list, about 0.05 us, and as a list without its tokens, about 1 us
/// (`benches/lists.rs`).
const TOKEN_TIME_BYTES: usize = 1 << 10;
const LIST_TIME_BYTES: usize = 24 << 10;

/// A row of which some tokens are known.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    vocab_size: u32,
    /// Ascending ids, each once; logits as they were sent.
    entries: Vec<Candidate>,
    /// The same in [order](super::order).
    ranked: Vec<Candidate>,
    /// The natural logarithm of the sum of `exp(logit)` over all others; −∞: none of them can be emitted.
    rest: f32,
    /// Whether the tokens are the first of the order, those of equal logits by their ids.
    ties_in_order: bool,
    beyond: BeyondTopN,
}

/// What is wrong with a row.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ListedError {
    /// It has none, or too many.
    #[error("is {0}, must be in 1 ..= {1}, and send longer rows whole")]
    Count(usize, usize),
    /// A token is not in the vocabulary.
    #[error("has {0}, must be below vocab_size {1}")]
    OutOfRange(u32, u32),
    /// A token stands there twice.
    #[error("has {0} twice in one row")]
    Twice(u32),
    /// The others' log-sum-exp is NaN or +∞.
    #[error("is {0}, must be finite, or -infinity where no other token can be emitted")]
    Rest(f32),
    /// The others have more than they can, each at most as large as the least of the row.
    #[error("is {0}, but the other tokens, each at most as large as the least that is listed, have at most {1}")]
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
    /// A row of `vocab_size` tokens of which these are known, in any order; no other has a larger logit, which cannot be
    /// checked. `rest` is the log-sum-exp of the others. `ties_in_order`: an other one that is as large as the least has a
    /// larger id than all of these that are.
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

    /// The most that the log-sum-exp of the others can be, with room for what a worker's sums round; `None` where logits
    /// are wrong, which the row itself will say.
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

    /// The tokens that are known, ascending ids.
    #[must_use]
    pub fn entries(&self) -> &[Candidate] {
        &self.entries
    }

    /// The same in [order](super::order); logits that are no numbers may stand anywhere.
    fn ranked(&self) -> &[Candidate] {
        &self.ranked
    }

    /// Memory that it holds beside itself.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        size_of_val(self.entries.as_slice()) + size_of_val(self.ranked.as_slice())
    }

    /// Bytes of a whole row that take as long to sample.
    pub(super) fn time_bytes(&self) -> usize {
        LIST_TIME_BYTES + self.entries.len() * TOKEN_TIME_BYTES
    }

    /// How many are not.
    fn others(&self) -> usize {
        self.vocab_size() - self.entries.len()
    }

    /// Whether some other token may be emitted.
    #[must_use]
    pub fn has_rest(&self) -> bool {
        self.rest > f32::NEG_INFINITY && self.others() > 0
    }

    /// Whether no other token is in a mask.
    fn lists_all_of(&self, mask: TokenMask<'_>) -> bool {
        let listed = self.entries.iter().filter(|entry| mask.allows(entry.token)).count();
        mask.count() == listed
    }

    /// The least logit.
    fn least(&self) -> f32 {
        self.entries.iter().map(|entry| entry.logit).fold(f32::INFINITY, f32::min)
    }

    /// Where a token stands among the entries, if it does.
    fn find(&self, token: u32) -> Option<usize> {
        self.entries.binary_search_by_key(&token, |entry| entry.token).ok()
    }

    /// The row with −∞ for all others, in f32.
    fn expanded(&self) -> Vec<u8> {
        let mut row = vec![f32::NEG_INFINITY; self.vocab_size()];
        self.entries.iter().for_each(|entry| row[entry.token as usize] = entry.logit);
        super::logits::Dtype::F32.encode(&row)
    }
}

/// Tokens in [order](super::order), as far as a row knows them: all others are at −∞, or may be anywhere behind an edge.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranks {
    tokens: Vec<Candidate>,
    edge: Option<Candidate>,
}

impl Ranks {
    /// Of tokens in any order.
    fn new(mut tokens: Vec<Candidate>) -> Self {
        tokens.retain(|token| token.logit > f32::NEG_INFINITY);
        sort::in_order(&mut tokens, |token| *token);
        Self { tokens, edge: None }
    }

    /// The same where others may stand behind this.
    fn until(self, edge: Option<Candidate>) -> Self {
        Self { edge, ..self }
    }

    /// Those that can be emitted, in order.
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
