//! Draft tokens for texts that have to match a grammar.

use super::text::Text;
use super::together::{Asked, together};
use super::trouble::Trouble;
use std::sync::Arc;
use std::time::Duration;

/// How long a reply waits for drafts that it can do without. Those of a batch of 64 take one millisecond on two cores.
const MOST_WAIT: Duration = Duration::from_millis(50);

/// A draft.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proposed {
    /// Its tokens, one behind the other.
    pub tokens: Vec<u32>,
    /// Whether the grammar forces them, and nobody else proposed as many that it allows.
    pub is_forced: bool,
}

impl Proposed {
    /// A draft of which nobody knows how far the grammar allows it.
    pub(super) fn unchecked(own: &[u32]) -> Self {
        Self { tokens: own.to_vec(), is_forced: false }
    }
}

/// What to draft behind each text: the draft that comes with it, as far as its grammar allows, or up to so many tokens that
/// spell what the grammar forces, whichever is longer. Nothing for texts about which the next row will tell what is wrong; where
/// a text's turn does not come in time, its draft as it is.
#[must_use]
pub fn proposals(texts: Vec<(&Text, Vec<u32>, usize)>) -> Vec<Proposed> {
    within(texts, MOST_WAIT)
}

pub(super) fn within(texts: Vec<(&Text, Vec<u32>, usize)>, most_wait: Duration) -> Vec<Proposed> {
    let drafts: Vec<Vec<u32>> = texts.iter().map(|(_, own, _)| own.clone()).collect();
    let asked = |(text, own, most): (&Text, Vec<u32>, usize)| {
        Asked::new(Arc::clone(text.place()), move |place| place.propose(&own, most))
    };
    let found = together(texts.into_iter().map(asked).collect(), most_wait).into_iter().zip(drafts);
    let found = found.map(|(found, own)| match found {
        Ok(proposed) => proposed,
        Err(Trouble::NotYet) => Proposed::unchecked(&own),
        Err(_) => Proposed::default(),
    });
    found.collect()
}
