//! Locks, also where somebody panicked who had one: what is behind these is valid at all times.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is locked.
pub(crate) fn lock<T: ?Sized>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
