//! Counted room: what is in use of a limited thing, returned by dropping the permit that stands for it.

use metrics::Gauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much of something is in use, and how much may be.
#[derive(Debug)]
pub struct Counter {
    used: AtomicUsize,
    limit: usize,
    gauge: Gauge,
}

/// Room taken from a [`Counter`]; dropping it gives the room back, whatever path led there.
#[derive(Debug)]
pub struct Permit {
    counter: Arc<Counter>,
    amount: usize,
}

impl Counter {
    /// Room for `limit`, shown by `gauge`.
    #[must_use]
    pub fn new(limit: usize, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit, gauge })
    }

    /// Takes `amount`, or nothing if there is less room than that.
    #[must_use]
    pub fn take(self: &Arc<Self>, amount: usize) -> Option<Permit> {
        let fits = |used: usize| used.checked_add(amount).filter(|&after| after <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        self.gauge.increment(amount as f64);
        Some(Permit { counter: Arc::clone(self), amount })
    }

    /// How much is in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// How much may be in use.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.counter.used.fetch_sub(self.amount, Ordering::Relaxed);
        self.counter.gauge.decrement(self.amount as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_comes_back() {
        let counter = Counter::new(10, Gauge::noop());
        let six = counter.take(6).expect("room for six");
        assert!(counter.take(5).is_none());
        assert!(counter.take(usize::MAX).is_none());
        let four = counter.take(4).expect("room for four more");
        assert_eq!(counter.used(), 10);
        drop(six);
        assert_eq!(counter.used(), 4);
        drop(four);
        assert_eq!(counter.used(), 0);
    }
}
