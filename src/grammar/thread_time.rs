//! Measures how long threads have really run. A thread may stand still because its process does, or because it gets
//! less of a processor than it could use. That does not make its work slow, so such time does not count against it.

use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;
use std::time::Duration;

/// For how long this thread has run.
pub(super) fn own() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The CPU time of a thread, readable by other threads.
#[derive(Debug, Default)]
pub(super) struct ThreadTime(OnceLock<i32>);

impl ThreadTime {
    /// Makes this the time of the calling thread.
    pub(super) fn begin(&self) {
        self.0.get_or_init(|| gettid().as_raw_nonzero().get());
    }

    /// How much time the thread has taken; `None` if the system does not report it, or if the thread has ended.
    pub(super) fn taken(&self) -> Option<Duration> {
        let Some(thread) = self.0.get() else { return Some(Duration::ZERO) };
        let told = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
        told.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::time::Instant;

    const STILL: Duration = Duration::from_millis(200);

    /// Whether the system reports the time of threads. If not, wall time counts.
    pub(in super::super) fn is_told() -> bool {
        let is_told = std::fs::exists("/proc/thread-self/schedstat").is_ok_and(|there| there);
        if !is_told {
            eprintln!("SKIPPED: this system has no schedstat, so a thread that stands still takes time, too");
        }
        is_told
    }

    #[test]
    fn a_thread_that_stands_still_takes_no_time() {
        let (wall, before) = (Instant::now(), own());
        std::thread::sleep(STILL);
        assert!(wall.elapsed() >= STILL && own() - before < STILL / 2);
    }

    #[test]
    fn another_threads_time_is_what_it_takes() {
        if !is_told() {
            return;
        }
        let (time, (sender, end)) = (Arc::new(ThreadTime::default()), mpsc::channel::<()>());
        assert_eq!(time.taken(), Some(Duration::ZERO), "it has not begun");
        let (idle, its) = (Arc::clone(&time), ThreadTime::default());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                idle.begin();
                let _ = end.recv();
            });
            scope.spawn(move || {
                its.begin();
                while own() < 2 * STILL {}
                std::thread::sleep(STILL);
                assert!(its.taken().is_some_and(|taken| taken >= 2 * STILL), "{its:?}");
            });
            std::thread::sleep(STILL);
            assert!(time.taken().is_some_and(|taken| taken < STILL / 2), "{time:?}");
            drop(sender);
        });
    }
}
