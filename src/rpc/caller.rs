//! What the calls of one connection have in common.

use crate::permits::{Counter, Permit};
use metrics::Gauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Calls of one connection at a time that sample nothing: health, reflection, and what the server says of itself. Each may take memory
/// before anybody has shown a token, and no client needs more than a few.
pub(super) const MOST_QUESTIONS: usize = 16;

/// Who is at the other end of a connection; it travels in the extensions of the connection's requests.
#[derive(Debug, Clone)]
pub struct Caller {
    questions: Arc<Counter>,
    line: Arc<Line>,
}

/// What is known of the connection.
#[derive(Debug)]
struct Line {
    opened: Instant,
    /// When something was read last, in milliseconds since it was opened.
    heard: AtomicU64,
    /// Whether it was told that it fell silent.
    is_told: AtomicBool,
}

impl Default for Caller {
    fn default() -> Self {
        let line = Line { opened: Instant::now(), heard: AtomicU64::new(0), is_told: AtomicBool::new(false) };
        Self { questions: Counter::new(MOST_QUESTIONS, Gauge::noop()), line: Arc::new(line) }
    }
}

impl Caller {
    /// A place for a call that samples nothing, if there is one.
    pub(super) fn question(&self) -> Option<Permit> {
        self.questions.take(1)
    }

    /// Something was read.
    pub(super) fn heard(&self) {
        self.line.heard.store(self.line.age(), Ordering::Relaxed);
    }

    /// Whether nothing was read for so long.
    pub(super) fn is_silent(&self, timeout: Duration) -> bool {
        let quiet = self.line.age().saturating_sub(self.line.heard.load(Ordering::Relaxed));
        Duration::from_millis(quiet) >= timeout
    }

    /// Whether this is the first time that its silence is told of.
    pub(super) fn tells(&self) -> bool {
        !self.line.is_told.swap(true, Ordering::Relaxed)
    }
}

impl Line {
    fn age(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_heard_of_lately_is_not_silent_and_who_is_is_told_of_once() {
        let caller = Caller::default();
        let call = caller.clone();
        caller.heard();
        assert!(!call.is_silent(Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(call.is_silent(Duration::from_millis(10)));
        assert!(call.tells() && !caller.tells());
    }
}
