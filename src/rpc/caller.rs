//! What the calls of one connection have in common.

use crate::permits::{Counter, Permit};
use metrics::Gauge;
use std::sync::Arc;

/// Calls of one connection at a time that sample nothing: health, reflection, and what the server says of itself. Each may take memory
/// before anybody has shown a token, and no client needs more than a few.
pub(super) const MOST_QUESTIONS: usize = 16;

/// Who is at the other end of a connection; it travels in the extensions of the connection's requests.
#[derive(Debug, Clone)]
pub struct Caller {
    questions: Arc<Counter>,
}

impl Default for Caller {
    fn default() -> Self {
        Self { questions: Counter::new(MOST_QUESTIONS, Gauge::noop()) }
    }
}

impl Caller {
    /// A place for a call that samples nothing, if there is one.
    pub(super) fn question(&self) -> Option<Permit> {
        self.questions.take(1)
    }
}
