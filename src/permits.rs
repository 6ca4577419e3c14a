//! Counted room: a permit stands for the part of a limited resource that is in use, and dropping the permit gives it
//! back.

use metrics::Gauge;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// How much of a resource is in use, and how much may be.
#[derive(Debug)]
pub struct Counter {
    used: AtomicUsize,
    limit: usize,
    gauge: Gauge,
    reclaim: OnceLock<Reclaim>,
    /// The counter of which this one is a part.
    whole: Option<Arc<Counter>>,
}

/// Called with an amount of room to get back from those who hold room that nobody needs. Gives back that much, or
/// nothing if there is less. Returns whether it did.
struct Reclaim(Box<dyn Fn(usize) -> bool + Send + Sync>);

impl std::fmt::Debug for Reclaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reclaim")
    }
}

/// Room taken from a [`Counter`]. Dropping the permit gives the room back, on whatever path.
#[derive(Debug)]
pub struct Permit {
    counter: Arc<Counter>,
    amount: usize,
}

impl Counter {
    /// Room for `limit`; `gauge` shows how much of it is in use.
    #[must_use]
    pub fn new(limit: usize, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit, gauge, reclaim: OnceLock::new(), whole: None })
    }

    /// A part of this room, of which at most `limit` may be in use. What is taken from the part is taken from the whole
    /// too.
    #[must_use]
    pub fn part(self: &Arc<Self>, limit: usize) -> Arc<Self> {
        let (used, whole) = (AtomicUsize::new(0), Some(Arc::clone(self)));
        Arc::new(Self { used, limit, gauge: Gauge::noop(), reclaim: OnceLock::new(), whole })
    }

    /// Sets what to do when there is too little room: `reclaim` is called with how much more is needed. It gives back
    /// that much room that nobody needs, or returns that it has too little. Only the first call of this function
    /// counts.
    pub fn reclaim_by(&self, reclaim: impl Fn(usize) -> bool + Send + Sync + 'static) {
        let _ = self.reclaim.set(Reclaim(Box::new(reclaim)));
    }

    /// Takes `amount`, or nothing if there is less room.
    #[must_use]
    pub fn take(self: &Arc<Self>, amount: usize) -> Option<Permit> {
        self.reserve(amount).then(|| Permit { counter: Arc::clone(self), amount })
    }

    /// Takes `amount`, beyond the limit if necessary. Nobody else gets room until there is some again.
    #[must_use]
    pub fn take_anyway(self: &Arc<Self>, amount: usize) -> Permit {
        let mut permit = Permit { counter: Arc::clone(self), amount: 0 };
        permit.set(amount);
        permit
    }

    /// Adds `more` to what is in use, unless there is less room.
    fn reserve(&self, more: usize) -> bool {
        self.reserve_within(None, more)
    }

    /// The same for what counts in `whole` already, of which this counter is a part.
    fn reserve_within(&self, whole: Option<&Arc<Self>>, more: usize) -> bool {
        let taken = self.reserve_here(more);
        if taken && self.around(whole).is_some_and(|around| !around.reserve_within(whole, more)) {
            self.give_back_here(more);
            return false;
        }
        taken
    }

    /// The counter of which this one is a part, unless that is `whole`.
    fn around(&self, whole: Option<&Arc<Self>>) -> Option<&Arc<Self>> {
        self.whole.as_ref().filter(|around| !whole.is_some_and(|whole| Arc::ptr_eq(around, whole)))
    }

    fn reserve_here(&self, more: usize) -> bool {
        let fits = |used: usize| used.checked_add(more).filter(|&after| after <= self.limit);
        let take = || self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        let mut taken = take();
        while let Some(Reclaim(reclaim)) = self.reclaim.get().filter(|_| !taken) {
            if !self.shortfall(more).is_some_and(reclaim) {
                break;
            }
            taken = take();
        }
        if taken {
            self.gauge.increment(more as f64);
        }
        taken
    }

    /// How much has to be given back before `amount` fits; `None` if it never will.
    #[must_use]
    pub fn shortfall(&self, amount: usize) -> Option<usize> {
        self.limit.checked_sub(amount).map(|left| self.used().saturating_sub(left))
    }

    fn reserve_anyway_within(&self, whole: Option<&Arc<Self>>, more: usize) {
        self.used.fetch_add(more, Ordering::Relaxed);
        self.gauge.increment(more as f64);
        self.around(whole).into_iter().for_each(|around| around.reserve_anyway_within(whole, more));
    }

    /// Whether this much room is left in this counter, which may be a part or the whole. For a part, the whole is not
    /// checked.
    #[must_use]
    pub fn has_room(&self, amount: usize) -> bool {
        self.shortfall(amount) == Some(0)
    }

    fn give_back(&self, amount: usize) {
        self.give_back_here(amount);
        self.whole.iter().for_each(|whole| whole.give_back(amount));
    }

    fn give_back_here(&self, amount: usize) {
        self.used.fetch_sub(amount, Ordering::Relaxed);
        self.gauge.decrement(amount as f64);
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

impl Permit {
    /// How much room the permit stands for.
    #[must_use]
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// The limit of the permit's counter.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.counter.limit
    }

    /// Makes the permit stand for `amount`, and returns whether there was room. A smaller amount always fits. Without
    /// room nothing changes.
    #[must_use]
    pub fn resize(&mut self, amount: usize) -> bool {
        if amount > self.amount && !self.counter.reserve(amount - self.amount) {
            return false;
        }
        if amount < self.amount {
            self.counter.give_back(self.amount - amount);
        }
        self.amount = amount;
        true
    }

    /// The same, but beyond the limits of parts. It succeeds only for the only permit of its part, and only if the
    /// whole has room.
    #[must_use]
    pub fn resize_alone(&mut self, amount: usize) -> bool {
        let mut whole = &self.counter;
        while let Some(more) = &whole.whole {
            whole = more;
        }
        let may = self.counter.used() == self.amount && whole.has_room(amount.saturating_sub(self.amount));
        if may {
            self.set(amount);
        }
        may
    }

    /// Makes the permit stand for room of `part` too, a part of its counter, and returns whether there was room.
    /// Without room nothing changes.
    #[must_use]
    pub fn join_part(&mut self, part: &Arc<Counter>) -> bool {
        let joins = part.reserve_within(Some(&self.counter), self.amount);
        if joins {
            self.counter = Arc::clone(part);
        }
        joins
    }

    /// The same, beyond the limits of parts if necessary.
    pub fn join_part_anyway(&mut self, part: &Arc<Counter>) {
        part.reserve_anyway_within(Some(&self.counter), self.amount);
        self.counter = Arc::clone(part);
    }

    /// Whether the permit stands for room of a part.
    #[must_use]
    pub fn is_of_part(&self) -> bool {
        self.counter.whole.is_some()
    }

    /// Makes the permit stand for room of the whole only, and no longer of a part.
    pub fn leave_part(&mut self) {
        while let Some(whole) = self.counter.whole.clone() {
            self.counter.give_back_here(self.amount);
            self.counter = whole;
        }
    }

    /// Makes the permit stand for `amount`, beyond the limit if necessary, for what already exists. Nobody else gets
    /// room until there is some again.
    pub fn set(&mut self, amount: usize) {
        if amount > self.amount {
            self.counter.reserve_anyway_within(None, amount - self.amount);
            self.amount = amount;
        } else {
            let _ = self.resize(amount);
        }
    }

    /// Another permit of the same counter, beyond the limit if necessary.
    #[must_use]
    pub fn another(&self, amount: usize) -> Self {
        self.counter.take_anyway(amount)
    }

    /// Adds the room of `other`, which must be of the same counter.
    pub fn absorb(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.counter, &other.counter), "rooms of two kinds");
        self.amount += std::mem::take(&mut other.amount);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.counter.give_back(self.amount);
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

    #[test]
    fn what_nobody_needs_is_given_up_before_anybody_is_refused() {
        let counter = Counter::new(10, Gauge::noop());
        let kept: std::sync::Mutex<Vec<Permit>> =
            Vec::from([3, 2].map(|amount| counter.take(amount).expect("room"))).into();
        let asked: std::sync::Arc<std::sync::Mutex<Vec<usize>>> = Arc::default();
        let told = Arc::clone(&asked);
        counter.reclaim_by(move |short| {
            told.lock().expect("no panic").push(short);
            kept.lock().expect("no panic").pop().is_some()
        });
        assert!(counter.take(11).is_none());
        assert_eq!(counter.used(), 5, "for what never fits nothing is given up");
        let mut mine = counter.take(6).expect("the last one went");
        assert_eq!(counter.used(), 9);
        assert!(mine.resize(8) && counter.used() == 8, "and the other one");
        assert_eq!(*asked.lock().expect("no panic"), [1, 1], "how much is lacking");
        assert!(counter.take(3).is_none());
    }

    #[test]
    fn a_part_takes_of_the_whole_and_leaves_the_rest_of_it_to_others() {
        let whole = Counter::new(10, Gauge::noop());
        let part = whole.part(6);
        let mut four = part.take(4).expect("room");
        assert!(part.take(3).is_none() && part.used() == 4 && whole.used() == 4);
        let six = whole.take(6).expect("the rest");
        assert!(!four.resize(5) && part.used() == 4 && whole.used() == 10, "without room in the whole nothing changes");
        four.set(8);
        assert_eq!((part.used(), whole.used()), (8, 14));
        drop(six);
        assert!(whole.take(2).is_some() && part.take(0).is_none());
        drop((four.another(1), four));
        assert_eq!((part.used(), whole.used()), (0, 0));
    }

    #[test]
    fn who_is_alone_may_have_more_than_a_part_and_who_leaves_it_has_none_of_it() {
        let whole = Counter::new(10, Gauge::noop());
        let part = whole.part(6).part(4);
        let mut mine = part.take(1).expect("room");
        let other = part.take(1).expect("room");
        assert!(!mine.resize_alone(5), "another one has some of it");
        drop(other);
        assert!(!mine.resize_alone(11) && part.used() == 1, "more than there is");
        assert!(mine.resize_alone(9) && part.used() == 9 && whole.used() == 9);
        mine.leave_part();
        assert_eq!((part.used(), whole.used()), (0, 9));
        assert!(part.take(1).is_some() && part.take(2).is_none());
        drop(mine);
        assert_eq!(whole.used(), 0);
    }

    #[test]
    fn a_permit_grows_while_there_is_room_and_shrinks_always() {
        let counter = Counter::new(10, Gauge::noop());
        let (mut one, mut other) = (counter.take(4).expect("room"), counter.take(4).expect("room"));
        assert!(one.resize(6) && !other.resize(5) && !other.resize(usize::MAX));
        assert_eq!(counter.used(), 10, "without room nothing changes");
        assert!(one.resize(6) && one.resize(1) && other.resize(9));
        assert_eq!(counter.used(), 10);
        drop(other);
        assert_eq!(counter.used(), 1);
        let more = counter.take_anyway(12);
        assert!(counter.used() == 13 && counter.take(0).is_none() && !one.resize(2));
        drop(more);
        assert_eq!(counter.used(), 1);
        drop(one);
        assert_eq!(counter.used(), 0);
    }

    #[test]
    fn a_permit_joins_a_part_of_what_it_has_already() {
        let whole = Counter::new(10, Gauge::noop());
        let around = whole.part(6);
        let (part, other) = (around.part(4), around.part(4));
        let mut mine = whole.take(3).expect("room");
        assert!(!mine.is_of_part() && mine.join_part(&part) && mine.is_of_part());
        assert_eq!([&part, &around, &whole].map(|counter| counter.used()), [3, 3, 3]);
        let mut next = whole.take(4).expect("room");
        assert!(!next.join_part(&part) && !next.join_part(&other), "neither there nor around it");
        assert_eq!([&part, &other, &around, &whole].map(|counter| counter.used()), [3, 0, 3, 7], "nothing changes");
        next.join_part_anyway(&other);
        assert_eq!([&part, &other, &around, &whole].map(|counter| counter.used()), [3, 4, 7, 7]);
        mine.leave_part();
        assert_eq!([&part, &other, &around, &whole].map(|counter| counter.used()), [0, 4, 4, 7]);
        drop((next, mine));
        assert_eq!([&part, &other, &around, &whole].map(|counter| counter.used()), [0; 4]);
    }
}
