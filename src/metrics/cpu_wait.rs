//! How long the process's threads were ready to run and waited for a core, as the kernel counts it for each thread.
//! A server that is not given its CPU is slow in every stage but the one that computes, and uses little CPU, which
//! without this figure looks like slow workers or a slow network.

use crate::locks::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

/// The waiting of all threads. What a thread waits after the last look before it ends is not counted.
#[derive(Debug, Default)]
pub(super) struct CpuWait(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    /// The nanoseconds of each thread, at the last look.
    seen: HashMap<u32, u64>,
    total: u64,
}

impl CpuWait {
    /// The waiting until now. It stays 0 where the kernel does not count it, and stays as it was where nothing can be
    /// read, for lack of a file descriptor.
    pub(super) fn update(&self) -> Duration {
        let mut waits = lock(&self.0);
        if let Some(now) = of_threads() {
            waits.add(now);
        }
        Duration::from_nanos(waits.total)
    }
}

impl Waits {
    /// Adds what threads have waited since the last look. The number of a thread that has ended may be given again.
    fn add(&mut self, now: HashMap<u32, u64>) {
        let since = |(thread, now): (&u32, &u64)| {
            let before = self.seen.get(thread).copied().unwrap_or(0);
            if *now < before { *now } else { now - before }
        };
        self.total = self.total.saturating_add(now.iter().map(since).sum());
        self.seen = now;
    }
}

/// The nanoseconds that each thread has waited; `None` if they cannot be read.
fn of_threads() -> Option<HashMap<u32, u64>> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let waited = |entry: std::fs::DirEntry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        let schedstat = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
        Some((thread, waited(&schedstat)?))
    };
    Some(threads.filter_map(Result::ok).filter_map(waited).collect())
}

/// The second of the three numbers: time on a core, time ready to run without one, and turns.
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_threads_line_has_its_waiting_second() {
        assert_eq!(waited("1234 567 8\n"), Some(567));
        assert_eq!((waited(""), waited("1234"), waited("1 -2 3")), (None, None, None));
    }

    #[test]
    fn what_threads_wait_is_added_up_and_never_falls() {
        let mut waits = Waits::default();
        let mut after = |now: &[(u32, u64)]| {
            waits.add(now.iter().copied().collect());
            waits.total
        };
        assert_eq!(after(&[(1, 50), (2, 7)]), 57);
        assert_eq!(after(&[(1, 60), (3, 1)]), 68, "one ended and one began");
        assert_eq!(after(&[(1, 60), (3, 1)]), 68);
        assert_eq!(after(&[(1, 4)]), 72, "another thread has the number");
        assert_eq!(after(&[]), 72);
    }

    /// More threads than cores wait for one another.
    #[test]
    fn threads_that_wait_for_a_core_are_seen() {
        if of_threads().is_none_or(|threads| threads.is_empty()) {
            eprintln!("skipped: this kernel does not count how long threads wait (/proc/self/task/*/schedstat)");
            return;
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (wait, least) = (CpuWait::default(), Duration::from_millis(20));
        let before = wait.update();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 * cores {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            while wait.update() - before < least {
                std::thread::sleep(Duration::from_millis(5));
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}
