//! The works that a step asks for.

use super::step::{LogitsBlock, RowFailure, RowStatus};
use crate::params::{FieldError, LogprobsParams, MAX_TREE_TOKENS, check_tokens};
use crate::sampling::mask::TokenMask;
use crate::sampling::row::LogprobsMode;
use crate::sequence::drafts::Drafts;
use crate::speculative::job::DraftSource;
use crate::speculative::tree::Tree;
use bytes::Bytes;

/// One piece of work.
#[derive(Debug)]
pub struct Work {
    /// The sequence that the work is for.
    pub sequence_id: Option<u64>,
    /// The first logits row that the work uses.
    pub first_row: u64,
    /// What to do, or why it cannot be done in any state.
    pub kind: Result<WorkKind, RowFailure>,
    /// The tokens that the work's rows may emit.
    pub masks: Masks,
}

/// A mask for each row of a work, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Masks {
    words: Bytes,
    vocab_size: usize,
}

/// What to do with rows.
#[derive(Debug)]
pub enum WorkKind {
    /// Draw one token from one row and commit it.
    Sample,
    /// Draw one draft token and keep it.
    Draft(DraftWork),
    /// Report on known tokens, one row each.
    Score(Score),
    /// Decide which draft tokens to emit. This takes one row more than there are draft tokens.
    Verify(VerifyWork),
}

/// A draft token to draw.
#[derive(Debug, Clone, Copy)]
pub struct DraftWork {
    /// Whether to forget earlier draft tokens first.
    pub restart: bool,
    /// What the draft token follows: the draft token with this index, or for −1 the sequence's last token; `None` means
    /// the latest draft token.
    pub parent: Option<i32>,
}

/// Tokens to score and what to report about them.
#[derive(Debug)]
pub struct Score {
    /// The tokens; token i followed row i.
    pub tokens: Vec<u32>,
    /// What to report.
    pub logprobs: LogprobsParams,
}

/// Draft tokens to verify.
#[derive(Debug)]
pub struct VerifyWork {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The parent of each token; `None` for a chain, or for the tree that draft work made.
    pub parents: Option<Vec<i32>>,
    /// What the tokens were drawn from.
    pub from: DraftsFrom,
    /// Whether to compute the expected acceptance.
    pub measure: bool,
}

/// Where draft distributions are.
#[derive(Debug)]
pub enum DraftsFrom {
    /// Kept with the sequence by draft work.
    Kept,
    /// In this block, as a row of probabilities for each draft token.
    Dense(LogitsBlock),
    /// Here, as the probabilities of some tokens.
    Sparse {
        /// How many entries each draft token has.
        counts: Vec<u32>,
        /// The tokens.
        tokens: Vec<u32>,
        /// Their probabilities.
        probs: Vec<f32>,
    },
    /// Nowhere, because the proposer is deterministic.
    Nowhere,
}

impl Work {
    /// How many rows the work uses.
    pub(super) fn rows(&self) -> usize {
        match &self.kind {
            Ok(WorkKind::Sample | WorkKind::Draft(_)) => 1,
            Ok(WorkKind::Score(score)) => score.tokens.len(),
            Ok(WorkKind::Verify(verify)) => verify.rows(),
            Err(_) => 0,
        }
    }

    pub(super) fn is_verify(&self) -> bool {
        self.verify().is_some()
    }

    /// The verification, if it is one.
    pub(super) fn verify(&self) -> Option<&VerifyWork> {
        if let Ok(WorkKind::Verify(verify)) = &self.kind { Some(verify) } else { None }
    }

    pub(super) fn is_score(&self) -> bool {
        matches!(self.kind, Ok(WorkKind::Score(_)))
    }
}

impl Masks {
    /// Masks over `vocab_size` tokens for `rows` rows; without `words` there are none.
    ///
    /// # Errors
    /// At `field`, with the length that the masks should have.
    pub fn new(field: &str, words: Bytes, rows: usize, vocab_size: u32) -> Result<Self, FieldError> {
        let vocab_size = vocab_size as usize;
        let each = TokenMask::bytes_for(vocab_size);
        if !words.is_empty() && words.len() != rows * each {
            let message = format!(
                "has {} bytes, must have none or {}: {each} for each of {rows} rows, with one bit for each of {vocab_size} tokens \
                 in 32-bit words",
                words.len(),
                rows * each
            );
            return Err(FieldError::new(field, message));
        }
        Ok(Self { words, vocab_size })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Masks that allow what both these and `others` allow. `None` among the others allows everything.
    #[must_use]
    pub fn and(&self, others: &[Option<Bytes>], vocab_size: usize) -> Self {
        if others.iter().all(Option::is_none) {
            return self.clone();
        }
        let each = TokenMask::bytes_for(vocab_size);
        let mut words = if self.words.is_empty() { vec![u8::MAX; others.len() * each] } else { self.words.to_vec() };
        for (row, other) in words.chunks_exact_mut(each).zip(others) {
            row.iter_mut().zip(other.iter().flatten()).for_each(|(byte, other)| *byte &= other);
        }
        Self { words: words.into(), vocab_size }
    }

    /// The mask of a row of the work.
    #[must_use]
    pub fn row(&self, row: usize) -> Option<TokenMask<'_>> {
        let each = TokenMask::bytes_for(self.vocab_size);
        let words = self.words.get(row * each..(row + 1) * each).filter(|words| !words.is_empty())?;
        Some(TokenMask::new(words, self.vocab_size))
    }
}

impl Score {
    /// Whether the scores are of the rows as they were sent. The sequence's parameters and masks play no part then.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.logprobs.mode == LogprobsMode::Raw
    }

    /// Checks what can be checked without the sequence.
    ///
    /// # Errors
    /// [`RowStatus::InvalidWork`] with the field at fault.
    pub fn check(&self, has_sequence: bool, vocab_size: u32, max_top_logprobs: u32) -> Result<(), RowFailure> {
        let checked = if self.tokens.is_empty() {
            Err(FieldError::new("token_ids", "is empty; give the token that followed each row"))
        } else if !self.is_raw() && !has_sequence {
            Err(FieldError::new("logprobs.mode", "PROCESSED and TEMPERED need a sequence_id, whose parameters apply"))
        } else {
            check_tokens("token_ids", &self.tokens, vocab_size)
                .and_then(|()| self.logprobs.validate(vocab_size, max_top_logprobs).map_err(|e| e.within("logprobs")))
        };
        checked.map_err(|error| invalid("score", &error))
    }
}

impl VerifyWork {
    /// How many rows the work uses.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.len() + 1
    }

    /// The parent of each draft token, -1 for the sequence's last token: as sent, or as draft work kept them, or as a
    /// chain.
    pub(super) fn parents_among(&self, kept: &Drafts) -> Vec<i32> {
        match &self.parents {
            Some(parents) => parents.clone(),
            None if self.is_kept() => kept.parents(self.tokens.len()),
            None => (-1..).take(self.tokens.len()).collect(),
        }
    }

    /// The most tokens that the work may emit: the longest path and one more.
    pub(super) fn most_emitted(&self, kept: &Drafts) -> usize {
        let parents = self.parents_among(kept);
        let mut depths: Vec<usize> = Vec::with_capacity(parents.len());
        for parent in parents {
            let above = usize::try_from(parent).ok().and_then(|parent| depths.get(parent)).copied();
            depths.push(above.unwrap_or(0) + 1);
        }
        depths.into_iter().max().unwrap_or(0) + 1
    }

    /// Checks what can be checked without the sequence.
    ///
    /// # Errors
    /// [`RowStatus::InvalidWork`] with the field at fault.
    pub fn check(&self, vocab_size: u32) -> Result<(), RowFailure> {
        let checked = self.check_draft(vocab_size).and_then(|()| self.check_distributions(vocab_size));
        checked.map_err(|error| invalid("verify", &error))
    }

    fn check_draft(&self, vocab_size: u32) -> Result<(), FieldError> {
        if self.tokens.len() > MAX_TREE_TOKENS as usize {
            let message = format!("has {} tokens, at most {MAX_TREE_TOKENS} are verified at once", self.tokens.len());
            return Err(FieldError::new("draft_token_ids", message));
        }
        check_tokens("draft_token_ids", &self.tokens, vocab_size)?;
        match &self.parents {
            Some(parents) => {
                let tree = Tree::new(parents, self.tokens.len());
                tree.map(drop).map_err(|error| FieldError::new("parents", error.to_string()))
            }
            None => Ok(()),
        }
    }

    fn check_distributions(&self, vocab_size: u32) -> Result<(), FieldError> {
        let drafts = self.tokens.len();
        match &self.from {
            DraftsFrom::Kept | DraftsFrom::Nowhere => Ok(()),
            DraftsFrom::Dense(rows) if rows.rows() != drafts as u64 => {
                let message = format!(
                    "has {} rows of vocab_size values, must have one for each of {drafts} draft tokens",
                    rows.rows()
                );
                Err(FieldError::new("dense.probs", message))
            }
            DraftsFrom::Dense(_) => Ok(()),
            DraftsFrom::Sparse { counts, .. } if counts.len() != drafts => {
                let message = format!("has {} entries, must have one for each of {drafts} draft tokens", counts.len());
                Err(FieldError::new("sparse.counts", message))
            }
            DraftsFrom::Sparse { counts, tokens, probs } => {
                if let Some((at, count)) = counts.iter().enumerate().find(|&(_, &count)| count > vocab_size) {
                    let message = format!("is {count}, but vocab_size is {vocab_size}; name each token once");
                    return Err(FieldError::new(format!("sparse.counts[{at}]"), message));
                }
                let counted = places(counts);
                if tokens.len() != counted || probs.len() != counted {
                    let (ids, probs) = (tokens.len(), probs.len());
                    let message =
                        format!("sum to {counted}, but there are {ids} token_ids and {probs} probs; all must be equal");
                    return Err(FieldError::new("sparse.counts", message));
                }
                check_tokens("sparse.token_ids", tokens, vocab_size)
            }
        }
    }

    /// Bytes of the probabilities that were sent for all tokens. They are read as rows are.
    pub(super) fn dense_bytes(&self) -> usize {
        match &self.from {
            DraftsFrom::Dense(rows) => rows.bytes_of(0, self.tokens.len()),
            DraftsFrom::Kept | DraftsFrom::Nowhere | DraftsFrom::Sparse { .. } => 0,
        }
    }

    /// How many tokens have a probability that was sent by itself.
    pub(super) fn sparse_entries(&self) -> usize {
        match &self.from {
            DraftsFrom::Sparse { tokens, .. } => tokens.len(),
            DraftsFrom::Kept | DraftsFrom::Nowhere | DraftsFrom::Dense(_) => 0,
        }
    }

    /// Whether the draft tokens have the distributions that draft work kept.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.from, DraftsFrom::Kept)
    }

    /// The distribution that the worker sent for a draft token; `None` for kept ones, or if there is none.
    pub(super) fn sent(&self, index: usize) -> Option<DraftSource<'_>> {
        match &self.from {
            DraftsFrom::Kept => None,
            DraftsFrom::Dense(rows) => Some(DraftSource::Dense(rows.row(index as u64)?)),
            DraftsFrom::Sparse { counts, tokens, probs } => {
                let entries = places(counts.get(..index)?)..places(counts.get(..=index)?);
                Some(DraftSource::Sparse { tokens: tokens.get(entries.clone())?, probs: probs.get(entries)? })
            }
            DraftsFrom::Nowhere => Some(DraftSource::Deterministic),
        }
    }

    /// The field that says what draft tokens were drawn from.
    pub(super) fn distribution_field(&self) -> &'static str {
        match self.from {
            DraftsFrom::Kept | DraftsFrom::Nowhere => "draft_token_ids",
            DraftsFrom::Dense(_) => "dense.probs",
            DraftsFrom::Sparse { .. } => "sparse",
        }
    }
}

/// How many entries draft tokens with these counts have together.
fn places(counts: &[u32]) -> usize {
    counts.iter().map(|&count| count as usize).fold(0, usize::saturating_add)
}

fn invalid(work: &str, error: &FieldError) -> RowFailure {
    RowFailure::new(RowStatus::InvalidWork, format!("{work}.{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_which_the_others_say_nothing_keeps_its_own_mask() {
        let mask = |tokens: u32| Bytes::from(tokens.to_le_bytes().to_vec());
        let allowed = |masks: &Masks| {
            [0, 1].map(|row| masks.row(row).map(|mask| mask.tokens().collect::<Vec<_>>()).expect("a mask"))
        };
        let others = [Some(mask(0b0110)), None];
        let all: Vec<u32> = (0..4).collect();
        assert_eq!(allowed(&Masks::default().and(&others, 4)), [vec![1, 2], all]);
        let own = Masks::new("token_masks", [mask(0b0011), mask(0b1001)].concat().into(), 2, 4).expect("two rows");
        assert_eq!(allowed(&own.and(&others, 4)), [vec![1], vec![0, 3]]);
    }
}
