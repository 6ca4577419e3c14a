//! How long the grammars of one message may wait to be compiled.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a grammar may wait while others are compiled.
const MAX_COMPILE_QUEUE_WAIT: Duration = Duration::from_secs(10);

/// The time that all grammars of one message have, together, to begin being compiled. It runs from the first of them
/// on. If each had a time of its own, a message of many would keep its room for the sum of these.
#[derive(Debug, Default, Clone)]
pub struct CompileDeadline {
    until: OnceLock<Instant>,
    /// It ends at this time at the latest.
    at_most: Option<Instant>,
}

impl CompileDeadline {
    /// A deadline that comes at this time at the latest.
    #[must_use]
    pub fn at_most(at_most: Option<Instant>) -> Self {
        Self { at_most, ..Self::default() }
    }

    /// The time until which the grammars may wait.
    #[must_use]
    pub fn until(&self) -> Instant {
        let until = *self.until.get_or_init(|| Instant::now() + MAX_COMPILE_QUEUE_WAIT);
        self.at_most.map_or(until, |at_most| at_most.min(until))
    }

    /// A deadline that has passed.
    #[cfg(test)]
    pub(crate) fn over() -> Self {
        Self::at_most(Some(Instant::now()))
    }
}
