//! How long the grammars of one message wait to be compiled.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a grammar waits to be compiled, behind others that take long.
const MOST_WAIT: Duration = Duration::from_secs(10);

/// The time that the grammars of one message have, all together, to begin to be compiled; it runs from the first of them on. With a time
/// for each, a message of many would keep its room for all of these.
#[derive(Debug, Default, Clone)]
pub struct Patience {
    until: OnceLock<Instant>,
    /// It ends then whenever it begins.
    at_most: Option<Instant>,
}

impl Patience {
    /// One that ends then, if it does not before.
    #[must_use]
    pub fn at_most(at_most: Option<Instant>) -> Self {
        Self { at_most, ..Self::default() }
    }

    /// Until when they may wait.
    #[must_use]
    pub fn until(&self) -> Instant {
        let until = *self.until.get_or_init(|| Instant::now() + MOST_WAIT);
        self.at_most.map_or(until, |at_most| at_most.min(until))
    }

    /// It ran out.
    #[cfg(test)]
    pub(crate) fn over() -> Self {
        Self::at_most(Some(Instant::now()))
    }
}
