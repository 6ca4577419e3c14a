//! A counting semaphore for blocking threads: turns at work that takes so much that only a few may do it at once.

use crate::locks::lock;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// At most `most` turns are taken at a time. Others wait until one of them ends.
#[derive(Debug)]
pub(crate) struct BlockingSemaphore {
    most: usize,
    taken: Mutex<usize>,
    done: Condvar,
}

/// A turn. Dropping it ends the turn, on whatever path.
#[derive(Debug)]
#[must_use]
pub(crate) struct BlockingPermit(Arc<BlockingSemaphore>);

impl BlockingSemaphore {
    /// Allows `most` turns at a time, but at least one: with none everybody would wait for ever.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), taken: Mutex::new(0), done: Condvar::new() })
    }

    /// As many turns as there are cores.
    pub(crate) fn one_per_core() -> Arc<Self> {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Waits for a turn, however long others keep theirs.
    pub(crate) fn take(self: &Arc<Self>) -> BlockingPermit {
        let waited = self.done.wait_while(lock(&self.taken), |taken| self.are_taken(*taken));
        self.begin(waited.unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for a turn until `until`; `None` if others take too long.
    pub(crate) fn take_until(self: &Arc<Self>, until: Instant) -> Option<BlockingPermit> {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.done.wait_timeout_while(lock(&self.taken), left, |taken| self.are_taken(*taken));
        let (taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!self.are_taken(*taken)).then(|| self.begin(taken))
    }

    fn are_taken(&self, taken: usize) -> bool {
        taken >= self.most
    }

    fn begin(self: &Arc<Self>, mut taken: MutexGuard<'_, usize>) -> BlockingPermit {
        *taken += 1;
        BlockingPermit(Arc::clone(self))
    }
}

impl Drop for BlockingPermit {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= 1;
        self.0.done.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn who_finds_none_waits_for_it_or_gives_up() {
        let turns = BlockingSemaphore::new(3);
        let take = |millis| turns.take_until(Instant::now() + Duration::from_millis(millis));
        let mut taken: Vec<BlockingPermit> = (0..3).filter_map(|_| take(0)).collect();
        assert!(taken.len() == 3 && take(20).is_none());
        std::thread::scope(|scope| {
            let waiting = [scope.spawn(|| take(60_000)), scope.spawn(|| Some(turns.take()))];
            taken.truncate(1);
            assert!(waiting.into_iter().all(|one| one.join().expect("no panic").is_some()));
        });
    }

    #[test]
    fn never_more_have_one_than_may() {
        let (turns, at_once, most) = (BlockingSemaphore::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _turn = turns.take();
                        most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        at_once.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!((1..=2).contains(&most.into_inner()));
    }

    #[test]
    fn a_panic_gives_it_back() {
        let turns = BlockingSemaphore::new(0);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _turn = turns.take();
            panic!("in its turn");
        }));
        assert!(panicked.is_err() && turns.take_until(Instant::now()).is_some());
    }
}
