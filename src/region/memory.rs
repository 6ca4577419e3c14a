//! Memory that another process writes: made here, sealed, and read by copying only.
//!
//! Why nothing else reads it: `docs/decisions/0011-foreign-rows-are-copied-once.md`.

use super::system;
use crate::sampling::logits::Foreign;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Whether this system has such memory.
pub const IS_SUPPORTED: bool = cfg!(target_os = "linux");

/// Bytes of one load.
const WORD: usize = size_of::<u64>();
/// Bytes of a cache line.
const LINE: usize = 64;
/// Places that a row is read at in turn.
const PLACES: usize = 8;
/// How far ahead of the reading each place is asked for.
const AHEAD: usize = 512;

/// A mapping of memory whose size nobody can change.
#[derive(Debug)]
pub struct Memory {
    at: NonNull<u8>,
    len: usize,
    descriptor: OwnedFd,
}

// SAFETY: the mapping is this value's alone, and is only read, by atomic loads.
unsafe impl Send for Memory {}
// SAFETY: as above; atomic loads may run on several threads at once.
unsafe impl Sync for Memory {}

/// `len` rounded up to whole pages.
pub(super) fn whole_pages(len: usize) -> usize {
    len.next_multiple_of(system::page_size())
}

impl Memory {
    /// `len` bytes of zeros, whole pages, all of them in place: neither side will wait for a page, or die for want of
    /// one.
    ///
    /// # Errors
    /// When the system gives no memory or no descriptor.
    pub fn create(len: usize) -> io::Result<Self> {
        let descriptor = system::make(len)?;
        let at = system::map(&descriptor, len, false)?;
        Ok(Self { at, len, descriptor })
    }

    /// Its length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.len
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Foreign for Memory {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        let end = offset.checked_add(to.len());
        assert!(end.is_some_and(|end| end <= self.len), "a row lies in its region; this is a bug");
        // Up to the first aligned word, words, the rest. The mapping itself starts at a page.
        let head = (offset.next_multiple_of(WORD) - offset).min(to.len());
        let (first, rest) = to.split_at_mut(head);
        self.copy_bytes(offset, first);
        let words = rest.len() / WORD * WORD;
        let (middle, last) = rest.split_at_mut(words);
        self.copy_words(offset + head, middle);
        self.copy_bytes(offset + head + words, last);
    }
}

impl Memory {
    /// Copies whole words from an aligned offset; `offset + to.len()` is within the mapping. At several places in turn,
    /// since a row comes from memory, and memory gives more to who asks in several places: 41 us for 128,256 f32 where
    /// one place takes 54 to 61, and memcpy 43 to 48.
    fn copy_words(&self, offset: usize, to: &mut [u8]) {
        let part = to.len() / PLACES / LINE * LINE;
        let (parts, rest) = to.split_at_mut(part * PLACES);
        if part > 0 {
            let mut places: [_; PLACES] = std::array::from_fn(|_| [].chunks_exact_mut(LINE));
            for (place, part) in places.iter_mut().zip(parts.chunks_exact_mut(part)) {
                *place = part.chunks_exact_mut(LINE);
            }
            for at in (offset..offset + part).step_by(LINE) {
                for (i, place) in places.iter_mut().enumerate() {
                    let from = at + i * part;
                    self.prefetch(from + AHEAD);
                    if let Some(line) = place.next() {
                        self.copy_line(from, line);
                    }
                }
            }
        }
        self.copy_line(offset + part * PLACES, rest);
    }

    /// Copies a few whole words; as [`Self::copy_words`].
    #[inline(always)]
    fn copy_line(&self, offset: usize, to: &mut [u8]) {
        for (i, word) in to.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: the word lies in the mapping, as the caller checked, and is aligned; every access of this process
            // to it is an atomic load.
            let from = unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset + i * WORD).cast()) };
            word.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Asks for a cache line, which may lie outside the mapping.
    #[inline(always)]
    fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let line = self.at.as_ptr().wrapping_add(offset).cast_const().cast();
            // SAFETY: a prefetch is a hint: it reads nothing and cannot fault, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Copies single bytes; `offset + to.len()` is within the mapping.
    fn copy_bytes(&self, offset: usize, to: &mut [u8]) {
        for (i, byte) in to.iter_mut().enumerate() {
            // SAFETY: the caller checked that the byte lies in the mapping; every access of this process to it is an
            // atomic load.
            let from = unsafe { AtomicU8::from_ptr(self.at.as_ptr().add(offset + i)) };
            *byte = from.load(Ordering::Relaxed);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this value and is looked at through it alone.
        unsafe { system::unmap(self.at, self.len) };
        // A worker may keep its own mapping for as long as it likes. The pages go all the same: they are counted here,
        // and what it touches from now on is counted where it runs.
        let _ = system::free_pages(&self.descriptor, self.len);
    }
}
