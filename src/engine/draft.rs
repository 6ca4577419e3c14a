//! Where a draft token goes among those of its sequence, and whether a verification matches the kept draft tokens.

use super::step::{DraftWork, RowFailure, RowStatus, VerifyWork};
use crate::params::{FieldError, MAX_TREE_TOKENS};
use crate::sequence::Sequence;
use crate::sequence::drafts::Drafts;
use crate::speculative::numbers::Spot;

/// A place in a tree of draft tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Branch {
    /// The draft token that it follows; `None` if it follows the sequence's last token.
    pub(super) parent: Option<usize>,
    /// The place's coordinates, on which its random numbers depend.
    pub(super) spot: Spot,
}

impl Branch {
    /// The place of the next draft token.
    ///
    /// # Errors
    /// When the parent is no draft token, or there are too many draft tokens.
    pub(super) fn of(work: DraftWork, drafts: &Drafts) -> Result<Self, RowFailure> {
        let none = Drafts::default();
        let drafts = if work.restart { &none } else { drafts };
        let index = drafts.len();
        if index >= MAX_TREE_TOKENS as usize {
            let message =
                format!("the sequence already has {index} draft tokens, the most allowed; verify them, or set restart");
            return Err(RowFailure::new(RowStatus::InvalidWork, message));
        }
        let parent = match work.parent {
            None => index.checked_sub(1),
            Some(-1) => None,
            Some(parent) => match usize::try_from(parent).ok().filter(|&parent| parent < index) {
                Some(parent) => Some(parent),
                None => {
                    let message = format!(
                        "is {parent}, must be -1 or the index of one of {index} draft tokens (each new token of the text drops them, and \
                         so does opening it again); draft again from the first"
                    );
                    return Err(invalid(&FieldError::new("draft.parent", message)));
                }
            },
        };
        Ok(Self { parent, spot: drafts.next_spot(parent) })
    }

    /// The draft tokens before this place.
    pub(super) fn path(&self, drafts: &Drafts) -> Vec<u32> {
        drafts.path(self.parent)
    }
}

/// Checks that a verification of kept draft tokens matches them: it names the first of them, in their tree.
///
/// # Errors
/// When it does not match.
pub(super) fn check_kept(work: &VerifyWork, sequence: &Sequence) -> Result<(), RowFailure> {
    if !work.is_kept() {
        return Ok(());
    }
    let (drafts, len) = (sequence.drafts(), work.tokens.len());
    if drafts.len() < len {
        let message = format!(
            "has {len} tokens, but only {} are kept from draft work (the next token of the text drops them); draft again, or \
             send their distribution",
            drafts.len()
        );
        return Err(invalid(&FieldError::new("verify.draft_token_ids", message)));
    }
    let at = drafts.in_common(&work.tokens);
    if let Some((kept, sent)) = drafts.tokens().zip(&work.tokens).nth(at) {
        let message = format!(
            "is {sent}, but draft work proposed {kept}; send the tokens as proposed, or the distribution that yours were drawn from"
        );
        return Err(invalid(&FieldError::new(format!("verify.draft_token_ids[{at}]"), message)));
    }
    let sent = work.parents.iter().flatten().zip(drafts.parents(len));
    if let Some((at, (sent, kept))) = sent.enumerate().find(|(_, (sent, kept))| *sent != kept) {
        let message = format!("is {sent}, but {kept} in draft work; leave verify.parents out");
        return Err(invalid(&FieldError::new(format!("verify.parents[{at}]"), message)));
    }
    Ok(())
}

fn invalid(error: &FieldError) -> RowFailure {
    RowFailure::new(RowStatus::InvalidWork, error.to_string())
}
