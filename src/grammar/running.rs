//! Texts that threads are working on, so that one which takes too long is noticed by whoever waits for any text.

use super::lock;
use super::text::Place;
use std::sync::{Arc, Mutex, Weak};

/// At most one text for each working thread.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Vec<Weak<Place>>>);

impl Running {
    /// Registers that a thread works on a text while it does `work`.
    pub(super) fn during<T>(&self, place: &Arc<Place>, work: impl FnOnce() -> T) -> T {
        let own = Arc::downgrade(place);
        lock(&self.0).push(Weak::clone(&own));
        let _ends = OnDrop(|| lock(&self.0).retain(|other| !other.ptr_eq(&own)));
        work()
    }

    /// Ends work on texts that have used up their time, for good.
    pub(super) fn cancel_late(&self) {
        let running = lock(&self.0);
        running.iter().filter_map(Weak::upgrade).filter(|place| place.is_late()).for_each(|place| place.cancel());
    }
}

/// Runs something when dropped, also on a panic.
pub(super) struct OnDrop<F: FnMut()>(pub(super) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
