//! Texts that threads work on, so that one which takes too long is found whoever waits.

use super::lock;
use super::text::Place;
use std::sync::{Arc, Mutex, Weak};

/// At most one text for each thread that works on some.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Vec<Weak<Place>>>);

impl Running {
    /// Says that a thread works on a text, for as long as it does `work`.
    pub(super) fn during<T>(&self, place: &Arc<Place>, work: impl FnOnce() -> T) -> T {
        let own = Arc::downgrade(place);
        lock(&self.0).push(Weak::clone(&own));
        let _ends = OnDrop(|| lock(&self.0).retain(|other| !other.ptr_eq(&own)));
        work()
    }

    /// Ends work on texts that have had their time, for good.
    pub(super) fn cancel_late(&self) {
        let running = lock(&self.0);
        running.iter().filter_map(Weak::upgrade).filter(|place| place.is_late()).for_each(|place| place.cancel());
    }
}

/// Does something at its end, also where that is a panic.
pub(super) struct OnDrop<F: FnMut()>(pub(super) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
