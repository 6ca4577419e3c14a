//! A descriptor that is kept for one connection more, where the process has no other left.
//!
//! It is closed for that connection, and opened again behind it. Whoever else waits for a descriptor must not get it in between: there
//! would be none for the next one.

use crate::locks::lock;
use std::fs::File;
use std::sync::{Arc, Mutex, OnceLock};

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

    /// The one that a server's listeners know of.
    #[must_use]
    pub fn of_process() -> Self {
        OF_PROCESS.get_or_init(Self::new).clone()
    }

    /// What `take` does with the descriptor that this one was; `None` if it is given up already.
    pub(super) fn in_its_place<R>(&self, take: impl FnOnce() -> R) -> Option<R> {
        let mut held = lock(&self.0);
        held.take()?;
        Some(take())
    }

    /// What `take` does with any other descriptor; `None` where the process's own is given up: the next free one is for that.
    pub(super) fn beside<R>(take: impl FnOnce() -> R) -> Option<R> {
        let Some(Self(spare)) = OF_PROCESS.get() else { return Some(take()) };
        let mut held = lock(spare);
        open(&mut held);
        held.is_some().then(take)
    }

    /// Opens one, unless it is there. It may fail as long as there is none.
    pub(super) fn keep(&self) {
        open(&mut lock(&self.0));
    }

    /// For a connection, to be dropped behind it.
    #[must_use]
    pub fn behind(&self) -> Behind {
        Behind(self.clone())
    }
}

static OF_PROCESS: OnceLock<Spare> = OnceLock::new();

fn open(held: &mut Option<File>) {
    if held.is_none() {
        *held = File::open("/dev/null").ok();
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
        assert_eq!((spare.in_its_place(|| 1), spare.in_its_place(|| 2)), (Some(1), None));
        drop(behind);
        assert_eq!(spare.in_its_place(|| 3), Some(3));
    }
}
