//! Draft tokens for texts that have to match a grammar.

use super::text::Text;
use super::together::{Asked, together};
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

/// What to draft behind each text: the draft that comes with it, as far as its grammar allows, or up to so many tokens that
/// spell what the grammar forces, whichever is longer. Nothing for texts about which the next row will tell what is wrong, or
/// whose turn does not come in time.
#[must_use]
pub fn proposals(texts: Vec<(&Text, Vec<u32>, usize)>) -> Vec<Proposed> {
    within(texts, MOST_WAIT)
}

pub(super) fn within(texts: Vec<(&Text, Vec<u32>, usize)>, most: Duration) -> Vec<Proposed> {
    let asked = texts
        .into_iter()
        .map(|(text, own, most)| Asked::new(Arc::clone(text.place()), move |place| place.propose(&own, most)));
    together(asked.collect(), most).into_iter().map(Result::unwrap_or_default).collect()
}
