//! Speculative verification: which draft tokens a sequence emits, sequential and obvious.
//!
//! [`verify_chain`] and [`verify_tree`] are the contract that every backend is compared with, bit for bit. Read
//! [`weights`] (distributions as they are compared), [`draft`] (what was proposed), [`numbers`] (random
//! numbers), then the rules: [`rejection`], [`block`], [`greedy`], [`typical`], [`relaxed`], [`synthetic`], and
//! [`tree`], which walks them. Around them stand [`propose`], draft tokens without a draft model, and [`advice`],
//! how many of them pay.
//!
//! Rejection and block verification are lossless with every parameter, penalty and mask, because the two
//! distributions that they compare are the ones that tokens are really drawn from, after everything: the target
//! of a position is what a plain row at that position would be drawn from, the draft what the draft token was.
//! Drafts without chance change not one token of a text; see [`rejection`].

pub mod advice;
pub mod block;
pub mod draft;
pub mod greedy;
pub mod job;
mod judge;
pub mod numbers;
pub mod propose;
pub mod rejection;
pub mod relaxed;
pub mod rule;
pub mod synthetic;
pub mod tree;
pub mod typical;
pub mod verified;
pub mod weights;

use crate::sampling::distribution::Distribution;
use crate::sampling::row::RowError;
use draft::Draft;
pub use job::verify;
use numbers::Numbers;
use rule::AcceptanceRule;
use tree::Tree;
use verified::Verified;

/// The target as seen from the sequence that is verified. `path` is the draft tokens accepted so far, which
/// count as emitted: penalties, bans and lengths grow along it.
pub trait Target {
    /// What a plain row would be drawn from after `path`, from the logits of `row`: 0 is the row after the
    /// sequence's last token, `i + 1` the row after draft token `i`.
    ///
    /// # Errors
    /// [`RowError`] if that row has no distribution. Rows that a verification does not come to are not asked
    /// for.
    fn distribution(&mut self, row: usize, path: &[u32]) -> Result<Distribution, RowError>;

    /// What [relaxed acceptance](relaxed) judges by: the same, but for greedy sequences at temperature 1.
    ///
    /// # Errors
    /// As [`Target::distribution`].
    fn relaxed(&mut self, row: usize, path: &[u32]) -> Result<Distribution, RowError> {
        self.distribution(row, path)
    }

    /// Whether the sequence ends with the last token of `path`: EOS, a stop token, its length. What was drafted
    /// behind it is dropped.
    fn ends(&mut self, path: &[u32]) -> bool;
}

/// A row of the target had no distribution; nothing is emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("target row {row}: {error}")]
pub struct VerifyError {
    /// The row.
    pub row: usize,
    /// Why.
    pub error: RowError,
}

/// Verifies draft tokens that follow one another; none is fine, then the token is a plain row's.
///
/// # Errors
/// [`VerifyError`] if a row that was needed has no distribution.
pub fn verify_chain(
    drafts: &[Draft],
    rule: &AcceptanceRule,
    numbers: &Numbers,
    target: &mut impl Target,
) -> Result<Verified, VerifyError> {
    // Where nothing is left to chance there is nothing to gain from a block, and the plain row's text to keep.
    if *rule == AcceptanceRule::Block && !drafts.iter().all(Draft::is_certain) {
        return block::verify(drafts, numbers, target);
    }
    tree::walk(drafts, &Tree::chain(drafts.len()), rule, numbers, target)
}

/// Verifies draft tokens that stand in a tree.
///
/// # Errors
/// [`VerifyError`] if a row that was needed has no distribution.
///
/// # Panics
/// If the tree is not one of `drafts.len()` tokens, which is a bug.
pub fn verify_tree(
    drafts: &[Draft],
    tree: &Tree,
    rule: &AcceptanceRule,
    numbers: &Numbers,
    target: &mut impl Target,
) -> Result<Verified, VerifyError> {
    assert_eq!(tree.len(), drafts.len(), "one parent per draft token; this is a bug");
    if tree.is_chain() {
        verify_chain(drafts, rule, numbers, target)
    } else {
        tree::walk(drafts, tree, rule, numbers, target)
    }
}

/// [`Target::distribution`], its error with the row.
fn distribution(target: &mut impl Target, row: usize, path: &[u32]) -> Result<Distribution, VerifyError> {
    target.distribution(row, path).map_err(|error| VerifyError { row, error })
}
