//! How long the grammars of one message wait to be compiled.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a grammar waits to be compiled, behind others that take long.
const MOST_WAIT: Duration = Duration::from_secs(10);

/// The time that the grammars of one message have, all together, to begin to be compiled; it runs from the first of them on. With a time
/// for each, a message of many would keep its room for all of these.
#[derive(Debug, Default)]
pub struct Patience(OnceLock<Instant>);

impl Patience {
    /// Until when they may wait.
    pub(super) fn until(&self) -> Instant {
        *self.0.get_or_init(|| Instant::now() + MOST_WAIT)
    }

    /// It ran out.
    #[cfg(test)]
    pub(crate) fn over() -> Self {
        Self(Instant::now().into())
    }
}
