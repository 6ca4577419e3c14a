//! Limits how often the log hears of trouble that others can cause as often as they like.

use crate::locks::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(10);

/// Log lines about one kind of trouble. Errors in accepting, for example, may come twenty times a second while
/// descriptors are short.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    /// When a line was last logged, and how many were left out since then.
    last: Mutex<(Option<Instant>, u64)>,
}

impl Complaints {
    /// `None` if no line may be logged now; otherwise how many were left out before it.
    pub(crate) fn next(&self, now: Instant) -> Option<u64> {
        let (last, left_out) = &mut *lock(&self.last);
        if last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(left_out))
    }
}

/// Logs a line at level info once in a while, with the number of lines that were left out, and otherwise at debug.
macro_rules! complain_at_times {
    ($complaints:expr, $($line:tt)+) => {
        match $complaints.next(std::time::Instant::now()) {
            Some(more) => tracing::info!(more, $($line)+),
            None => tracing::debug!($($line)+),
        }
    };
}
pub(crate) use complain_at_times;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_made_once_in_a_while() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let at = |seconds| complaints.next(start + Duration::from_secs(seconds));
        assert_eq!([at(0), at(1), at(9), at(10), at(11), at(30)], [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
