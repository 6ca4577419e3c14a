//! A descriptor that is kept for one connection more, where the process has no other left.

use crate::locks::lock;
use std::fs::File;
use std::sync::{Arc, Mutex};

/// Kept until it is given up. Who took a connection for it takes it [back](Self::keep) when that is closed.
#[derive(Debug, Clone)]
pub struct Spare(Arc<Mutex<Option<File>>>);

/// Takes the descriptor back when it is dropped: behind the connection's own.
#[derive(Debug)]
pub struct Behind(Spare);

impl Spare {
    /// With a descriptor, if there is one.
    #[must_use]
    pub fn new() -> Self {
        let spare = Self(Arc::default());
        spare.keep();
        spare
    }

    /// Closes it, so that another can be opened; says whether there was one.
    pub(super) fn give_up(&self) -> bool {
        lock(&self.0).take().is_some()
    }

    /// Opens one, unless it is there. It may fail as long as there is none.
    pub(super) fn keep(&self) {
        let mut held = lock(&self.0);
        if held.is_none() {
            *held = File::open("/dev/null").ok();
        }
    }

    /// For a connection, to be dropped behind it.
    #[must_use]
    pub fn behind(&self) -> Behind {
        Behind(self.clone())
    }
}

impl Default for Spare {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.0.keep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_there_once_and_again_behind_each_connection() {
        let spare = Spare::new();
        let behind = spare.behind();
        assert!(spare.give_up() && !spare.give_up());
        drop(behind);
        assert!(spare.give_up());
    }
}
