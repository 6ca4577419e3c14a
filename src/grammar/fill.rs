//! The masks of a batch's rows.

use super::ahead::Ahead;
use super::mask_error::{MAX_MASK_WAIT, MaskError};
use super::state::Mask;
use super::text::{GrammarText, Place};
use super::together::{Asked, together};
use std::sync::Arc;

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

/// The masks of each work, in order, or why its text has none.
#[must_use]
pub fn masks(wanted: Vec<Wanted>) -> Vec<Result<Vec<Mask>, MaskError>> {
    together(wanted.into_iter().map(Wanted::asked).collect(), MAX_MASK_WAIT)
}
