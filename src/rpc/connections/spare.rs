//! A spare descriptor, kept for one more connection when the process has no other left.
//!
//! The spare is closed to free a descriptor for that connection, and opened again after the connection is closed.
//! Nobody else may get the descriptor in between, or there would be none for the next connection.

use crate::locks::lock;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, OnceLock};

/// The descriptor, until it is given up. Whoever took a connection in its place [takes it back](Self::keep) when the
/// connection is closed.
#[derive(Debug, Clone)]
pub struct Spare(Arc<Mutex<Option<UnixDatagram>>>);

/// Takes the descriptor back when dropped. It must be dropped after the connection, which frees the descriptor.
#[derive(Debug)]
pub struct SpareGuard(Spare);

impl Spare {
    /// A spare with a descriptor, if there is one.
    #[must_use]
    pub fn new() -> Self {
        let spare = Self(Arc::default());
        spare.keep();
        spare
    }

    /// The spare that all listeners of the process know.
    #[must_use]
    pub fn of_process() -> Self {
        OF_PROCESS.get_or_init(Self::new).clone()
    }

    /// Gives up the descriptor and runs `take`, which can use it; `None` if it was already given up.
    pub(super) fn in_its_place<R>(&self, take: impl FnOnce() -> R) -> Option<R> {
        let mut held = lock(&self.0);
        held.take()?;
        Some(take())
    }

    /// Runs `take`, which may use any other descriptor; `None` while the process's spare one is given up and none is
    /// free, because the next free descriptor is for the spare.
    pub(super) fn beside<R>(take: impl FnOnce() -> R) -> Option<R> {
        let Some(Self(spare)) = OF_PROCESS.get() else { return Some(take()) };
        let mut held = lock(spare);
        open(&mut held);
        held.is_some().then(take)
    }

    /// Opens a descriptor, unless the spare has one. This fails while none is free.
    pub(super) fn keep(&self) {
        open(&mut lock(&self.0));
    }

    /// A handle for a connection, to be dropped after the connection.
    #[must_use]
    pub fn guard(&self) -> SpareGuard {
        SpareGuard(self.clone())
    }
}

static OF_PROCESS: OnceLock<Spare> = OnceLock::new();

/// Opens a socket that is never connected. It needs no file, so it exists in a minimal root file system too.
fn open(held: &mut Option<UnixDatagram>) {
    if held.is_none() {
        *held = UnixDatagram::unbound().ok();
    }
}

impl Default for Spare {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SpareGuard {
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
        let guard = spare.guard();
        assert_eq!((spare.in_its_place(|| 1), spare.in_its_place(|| 2)), (Some(1), None));
        drop(guard);
        assert_eq!(spare.in_its_place(|| 3), Some(3));
    }
}
