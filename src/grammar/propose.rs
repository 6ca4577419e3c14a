//! Draft tokens for texts that have to match a grammar.

use super::mask_error::MaskError;
use super::text::GrammarText;
use super::together::{Asked, UnderWay};
use std::sync::Arc;
use std::thread::Thread;
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

/// Drafts for several texts, which threads work out.
#[derive(Debug)]
pub struct PendingDrafts {
    found: UnderWay<Proposed>,
    own: Vec<Vec<u32>>,
}

impl PendingDrafts {
    /// Has all threads together work out the drafts of these texts.
    #[must_use]
    pub fn begin(texts: Vec<ToDraft<'_>>) -> Self {
        Self::within(texts, MAX_DRAFT_WAIT)
    }

    pub(super) fn within(texts: Vec<ToDraft<'_>>, most_wait: Duration) -> Self {
        let own: Vec<Vec<u32>> = texts.iter().map(|text| text.own.clone()).collect();
        let asked = |ToDraft { text, own, most }: ToDraft<'_>| {
            Asked::new(Arc::clone(text.place()), move |place| place.propose(&own, most))
        };
        Self { found: UnderWay::begin(texts.into_iter().map(asked).collect(), most_wait), own }
    }

    /// Waits for at most so long. Returns whether [`Self::drafts`] need not wait.
    pub fn wait(&mut self, at_most: Duration) -> bool {
        self.found.wait(at_most)
    }

    /// Has this thread woken once all drafts are there. They may be already, and only who looks at them notices that
    /// their time is over, so look again before parking, and from time to time.
    pub fn wakes(&self, thread: Thread) {
        self.found.wakes(thread);
    }

    /// The draft for each text: its own draft, as far as its grammar allows it, or tokens that spell what the grammar
    /// forces, whichever is longer. The draft is empty for texts in trouble, which the next row will report. If a text's
    /// turn does not come in time, its own draft is returned unchecked.
    #[must_use]
    pub fn drafts(self) -> Vec<Proposed> {
        let found = self.found.results().into_iter().zip(self.own);
        let found = found.map(|(found, own)| match found {
            Ok(proposed) => proposed,
            Err(MaskError::NotYet) => Proposed::unchecked(&own),
            Err(_) => Proposed::default(),
        });
        found.collect()
    }
}
