//! Draft tokens for texts that have to match a grammar.

use super::mask_error::MaskError;
use super::text::GrammarText;
use super::together::{Asked, together};
use std::sync::Arc;
use std::time::Duration;

/// How long a reply waits for drafts, which it can do without. Those of a batch of 64 take one millisecond on two
/// cores.
const MAX_DRAFT_WAIT: Duration = Duration::from_millis(50);

/// A draft.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proposed {
    /// Its tokens, each following the one before it.
    pub tokens: Vec<u32>,
    /// Whether the grammar forces them, and the proposer's own draft had fewer tokens that the grammar allows.
    pub is_forced: bool,
}

impl Proposed {
    /// A draft that was not checked against the grammar.
    pub(super) fn unchecked(own: &[u32]) -> Self {
        Self { tokens: own.to_vec(), is_forced: false }
    }
}

/// A text that asks for a draft.
#[derive(Debug)]
pub struct ToDraft<'t> {
    /// Where the text stands in its grammar.
    pub text: &'t GrammarText,
    /// The draft of a proposer, which knows nothing of the grammar.
    pub own: Vec<u32>,
    /// The most tokens that the grammar may force.
    pub most: usize,
}

/// The draft for each text: its own draft, as far as its grammar allows it, or tokens that spell what the grammar
/// forces, whichever is longer. The draft is empty for texts in trouble, which the next row will report. If a text's
/// turn does not come in time, its own draft is returned unchecked.
#[must_use]
pub fn proposals(texts: Vec<ToDraft<'_>>) -> Vec<Proposed> {
    within(texts, MAX_DRAFT_WAIT)
}

pub(super) fn within(texts: Vec<ToDraft<'_>>, most_wait: Duration) -> Vec<Proposed> {
    let drafts: Vec<Vec<u32>> = texts.iter().map(|text| text.own.clone()).collect();
    let asked = |ToDraft { text, own, most }: ToDraft<'_>| {
        Asked::new(Arc::clone(text.place()), move |place| place.propose(&own, most))
    };
    let found = together(texts.into_iter().map(asked).collect(), most_wait).into_iter().zip(drafts);
    let found = found.map(|(found, own)| match found {
        Ok(proposed) => proposed,
        Err(MaskError::NotYet) => Proposed::unchecked(&own),
        Err(_) => Proposed::default(),
    });
    found.collect()
}
