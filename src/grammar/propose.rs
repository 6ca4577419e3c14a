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

/// What to draft behind a text.
#[derive(Debug)]
pub struct ToDraft<'t> {
    /// Where the text stands in its grammar.
    pub text: &'t Text,
    /// What a proposer would draft, which knows nothing of the grammar.
    pub own: Vec<u32>,
    /// At most so many tokens.
    pub most: usize,
}

/// What to draft behind each text: its own draft, as far as its grammar allows, or tokens that spell what the grammar forces,
/// whichever is longer. Nothing for texts about which the next row will tell what is wrong; where
/// a text's turn does not come in time, its own draft as it is.
#[must_use]
pub fn proposals(texts: Vec<ToDraft<'_>>) -> Vec<Proposed> {
    within(texts, MOST_WAIT)
}

pub(super) fn within(texts: Vec<ToDraft<'_>>, most_wait: Duration) -> Vec<Proposed> {
    let drafts: Vec<Vec<u32>> = texts.iter().map(|text| text.own.clone()).collect();
    let asked = |ToDraft { text, own, most }: ToDraft<'_>| {
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
