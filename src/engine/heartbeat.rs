//! Tells a watcher whether the engine makes progress, by how long it has been at one batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The engine's heartbeat. Clones share it.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    origin: Instant,
    /// Milliseconds from the origin to the last beat, plus one; 0 while the engine waits for work.
    beat: Arc<AtomicU64>,
}

impl Heartbeat {
    pub(super) fn new() -> Self {
        Self { origin: Instant::now(), beat: Arc::default() }
    }

    /// Notes that the engine takes up a batch.
    pub(super) fn beat(&self) {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.beat.store(now + 1, Ordering::Relaxed);
    }

    /// Notes that the engine has nothing to do.
    pub(super) fn rest(&self) {
        self.beat.store(0, Ordering::Relaxed);
    }

    /// How long the engine has been at its current batch; `None` while it waits for work.
    #[must_use]
    pub fn busy_for(&self) -> Option<Duration> {
        let since = Duration::from_millis(self.beat.load(Ordering::Relaxed).checked_sub(1)?);
        Some(self.origin.elapsed().saturating_sub(since))
    }
}
