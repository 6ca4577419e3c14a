//! Whether the engine moves: since when it has been at one batch, for whoever watches it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The engine's pulse. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Pulse {
    origin: Instant,
    /// Milliseconds from the origin to the last beat, and one; 0 while the engine waits for work.
    beat: Arc<AtomicU64>,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self { origin: Instant::now(), beat: Arc::default() }
    }

    /// The engine takes up a batch.
    pub(super) fn beat(&self) {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.beat.store(now + 1, Ordering::Relaxed);
    }

    /// The engine has nothing to do.
    pub(super) fn rest(&self) {
        self.beat.store(0, Ordering::Relaxed);
    }

    /// How long the engine has been at the batch it is at; `None` while it waits for work.
    #[must_use]
    pub fn busy_for(&self) -> Option<Duration> {
        let since = Duration::from_millis(self.beat.load(Ordering::Relaxed).checked_sub(1)?);
        Some(self.origin.elapsed().saturating_sub(since))
    }
}
