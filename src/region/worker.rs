//! The worker's end of a region: what it maps and writes. For the load generator and tests; other languages do the
//! same with a few lines (see `docs/data-paths.md`).

use super::system;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// A region as its worker has it.
#[derive(Debug)]
pub struct Window {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is this value's alone; writing needs it exclusively.
unsafe impl Send for Window {}
// SAFETY: a shared one does nothing but tell its length.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `len` bytes of what a descriptor stands for.
    ///
    /// # Errors
    /// What the system says.
    pub fn map(descriptor: &OwnedFd, len: usize) -> io::Result<Self> {
        let at = system::map(descriptor, len, true)?;
        Ok(Self { at, len })
    }

    /// Its length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes `bytes` from `offset` on.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(
            offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len),
            "what is written lies in the region"
        );
        // SAFETY: the range lies in the mapping, as was checked; this process never makes a reference into it, and what
        // the server reads meanwhile is the server's to bear.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr().add(offset), bytes.len()) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this value and is looked at through it alone.
        unsafe { system::unmap(self.at, self.len) };
    }
}
