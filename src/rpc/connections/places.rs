//! How many connections there may be.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A number of places for connections. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    pub(super) number: usize,
}

impl Places {
    pub(super) fn new(number: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(number)), number }
    }

    /// A place, if one is free.
    pub(super) fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }
}

/// Which places are taken, and what to do about it, as the log says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// Those of all transports.
    #[error("max_connections is {0} and as many are open; raise it, or look for clients that open too many")]
    All(usize),
    /// Those of one transport.
    #[error(
        "max_connections is {all}, of which this port may have {share}, and as many are open there; \
         raise it, or look for clients that open too many"
    )]
    Share {
        /// The places of the transport.
        share: usize,
        /// The places of all transports.
        all: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_it_is_given_back() {
        let places = Places::new(1);
        let taken = places.take();
        assert!(taken.is_some() && places.clone().take().is_none());
        drop(taken);
        assert!(places.take().is_some());
    }

    #[test]
    fn the_log_names_the_limit_that_is_reached_and_its_setting() {
        assert!(Full::All(512).to_string().starts_with("max_connections is 512 and as many are open; raise it"));
        let share = Full::Share { share: 14, all: 16 }.to_string();
        assert!(share.starts_with("max_connections is 16, of which this port may have 14, and as many are"), "{share}");
    }
}
