//! How old a stream gets before its worker is asked to move to another server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// By how much longer than connections a stream may live, as a share of that age. Streams that began together are asked
/// one after the other over this time, so that the next servers do not open all their sequences at once.
const SPREAD: f64 = 0.1;

/// The ages at which streams are asked to leave.
#[derive(Debug)]
pub(super) struct StreamAges {
    /// When a connection gets GOAWAY. A stream that left before might come back on the same connection. Zero: never.
    least: Duration,
    begun: AtomicU32,
}

impl StreamAges {
    pub(super) fn from(least: Duration) -> Self {
        Self { least, begun: AtomicU32::new(0) }
    }

    /// When a stream that starts now is asked to leave; `None` for never.
    pub(super) fn end(&self, started: Instant) -> Option<Instant> {
        // Multiples of the golden ratio lie evenly, however many streams begin together.
        let share = self.begun.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9);
        let more = self.least.mul_f64(SPREAD * f64::from(share) / f64::from(u32::MAX));
        started.checked_add(self.least + more).filter(|_| !self.least.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_begin_together_leave_one_after_the_other() {
        let (ages, now, age) = (StreamAges::from(Duration::from_secs(100)), Instant::now(), Duration::from_secs(100));
        let mut after: Vec<Duration> = (0..100).filter_map(|_| Some(ages.end(now)? - now)).collect();
        assert_eq!((after.len(), after[0]), (100, age));
        after.sort_unstable();
        assert!(after[99] <= age + age / 10);
        // A tenth of the age is 10 s, so 100 streams would lie 0.1 s apart at best.
        let gaps = after.windows(2).map(|two| two[1] - two[0]);
        assert!(gaps.max() < Some(Duration::from_millis(200)), "{after:?}");
        assert_eq!(StreamAges::from(Duration::ZERO).end(now), None);
        assert_eq!(StreamAges::from(Duration::MAX / 2).end(now), None, "that is beyond the clock");
    }
}
