//! The masks of rows.

use super::ahead::Ahead;
use super::mask_error::{MAX_MASK_WAIT, MaskError};
use super::state::Mask;
use super::text::{GrammarText, Place};
use super::together::{Asked, UnderWay};
use std::sync::Arc;
use std::thread::Thread;
use std::time::Duration;

/// The masks that a work needs.
#[derive(Debug)]
pub struct Wanted {
    place: Arc<Place>,
    ahead: Ahead,
}

impl Wanted {
    /// Asks for the masks at these places of a text.
    #[must_use]
    pub fn new(text: &GrammarText, ahead: Ahead) -> Self {
        Self { place: Arc::clone(text.place()), ahead }
    }

    fn asked(self) -> Asked<Vec<Mask>> {
        let Self { place, ahead } = self;
        // Masks that are there already need no work.
        if let Some(masks) = place.ready(&ahead).filter(|_| !place.is_cancelled()) {
            return Asked::Known(Ok(masks));
        }
        Asked::new(place, move |place| place.masks(&ahead))
    }
}

/// The masks of several works, which threads compute.
#[derive(Debug)]
pub struct Pending(UnderWay<Vec<Mask>>);

impl Pending {
    /// Has all threads together compute the masks of these works.
    #[must_use]
    pub fn begin(wanted: Vec<Wanted>) -> Self {
        Self(UnderWay::begin(wanted.into_iter().map(Wanted::asked).collect(), MAX_MASK_WAIT))
    }

    /// Waits for at most so long, and ends texts whose masks take too long. Returns whether [`Self::masks`] need not
    /// wait.
    pub fn wait(&mut self, at_most: Duration) -> bool {
        self.0.wait(at_most)
    }

    /// Has this thread woken once all masks are computed. They may be already, and texts that take too long are ended
    /// only by who waits for them, so look at them again before parking, and from time to time.
    pub fn wakes(&self, thread: Thread) {
        self.0.wakes(thread);
    }

    /// Waits no longer. What is not there is [`MaskError::NoRoom`].
    pub fn give_up(&mut self) {
        self.0.give_up(&MaskError::NoRoom);
    }

    /// The masks of each work, in order, or why its text has none.
    #[must_use]
    pub fn masks(self) -> Vec<Result<Vec<Mask>, MaskError>> {
        self.0.results()
    }
}
