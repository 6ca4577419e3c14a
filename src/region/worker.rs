//! The worker's end of a region, which the worker maps, writes, and reads tokens from. It is for the load generator and
//! tests; other languages do the same with a few lines (see `docs/data-paths.md`).

use super::{system, words};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A region as the worker has it.
#[derive(Debug)]
pub struct Window {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is this value's alone; writing needs it exclusively.
unsafe impl Send for Window {}
// SAFETY: a shared one tells its length and reads words by atomic loads.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `len` bytes of the memory behind a descriptor.
    ///
    /// # Errors
    /// What the system says.
    pub fn map(descriptor: &OwnedFd, len: usize) -> io::Result<Self> {
        let at = system::map(descriptor, len)?;
        Ok(Self { at, len })
    }

    /// The length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes `bytes` from `offset` on.
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(
            offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len),
            "what is written lies in the region"
        );
        // SAFETY: the range lies in the mapping, as was checked; this process never makes a reference into it, and what
        // the server reads meanwhile is the server's to bear.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr().add(offset), bytes.len()) }
    }

    /// Reads a word that the server writes. Everything the server wrote before it is then visible too.
    ///
    /// # Panics
    /// If the word does not lie in the region at a multiple of its size.
    #[must_use]
    pub fn word(&self, offset: usize) -> u32 {
        self.place(offset).load(Ordering::Acquire)
    }

    /// Waits until a word has `value` or `most` has passed. Returns whether the word has the value.
    ///
    /// # Panics
    /// As [`Self::word`].
    #[must_use]
    pub fn wait(&self, offset: usize, value: u32, most: Duration) -> bool {
        let (place, until) = (self.place(offset), Instant::now() + most);
        loop {
            let now = place.load(Ordering::Acquire);
            let left = until.saturating_duration_since(Instant::now());
            if now == value || left.is_zero() {
                return now == value;
            }
            system::wait(place, now, left);
        }
    }

    fn place(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the mapping is this value's. Bytes are copied into it too, but not while it is borrowed to look at words.
        unsafe { words::word(self.at, self.len, offset) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this value and is looked at through it alone.
        unsafe { system::unmap(self.at, self.len) };
    }
}
