//! Memory that another process writes: made here, sealed, and read only by copying. The server writes tokens to it,
//! word by word.
//!
//! Why it is read in no other way: `docs/decisions/0011-foreign-rows-are-copied-once.md`.

use super::{system, words};
use crate::sampling::logits::Foreign;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Whether this system has such memory.
pub const IS_SUPPORTED: bool = cfg!(target_os = "linux");

/// Bytes of one load.
const WORD: usize = size_of::<u64>();
/// Bytes of a cache line.
const LINE: usize = 64;

/// How many bytes ahead of the current line to prefetch. Each piece is scanned after it is copied, so the processor by
/// itself does not get to the loads of the pieces that follow.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1024;

/// A mapping of memory whose size nobody can change.
#[derive(Debug)]
pub struct Memory {
    at: NonNull<u8>,
    len: usize,
    descriptor: OwnedFd,
}

// SAFETY: the mapping is this value's alone, and is read by volatile and atomic loads and written by atomic stores only.
unsafe impl Send for Memory {}
// SAFETY: the mapping is read by volatile and atomic loads and written by atomic stores only, which may run on several
// threads at once.
unsafe impl Sync for Memory {}

/// `len` rounded up to whole pages.
pub(super) fn whole_pages(len: usize) -> usize {
    len.next_multiple_of(system::page_size())
}

impl Memory {
    /// Makes `len` bytes of zeros, whole pages, all of them in place. So neither side will wait for a page, or die for
    /// want of one.
    ///
    /// # Errors
    /// When the system gives no memory or no descriptor.
    pub fn create(len: usize) -> io::Result<Self> {
        let descriptor = system::make(len)?;
        let at = system::map(&descriptor, len)?;
        system::join_pages(at, len);
        Ok(Self { at, len, descriptor })
    }

    /// The length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The descriptor that another process maps.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

// SAFETY: the mapping is as long as `self` says, ends with it, and is only read by copies and volatile reads.
unsafe impl Foreign for Memory {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        let end = offset.checked_add(to.len());
        assert!(end.is_some_and(|end| end <= self.len), "a row lies in its region; this is a bug");
        // Single bytes up to the first aligned word, then whole lines or words, then the remaining bytes. The mapping
        // itself starts at a page.
        let head = (offset.next_multiple_of(WORD) - offset).min(to.len());
        let (first, rest) = to.split_at_mut(head);
        self.copy_bytes(offset, first);
        let middle = offset + head;
        let lines = if middle.is_multiple_of(LINE) { self.copy_lines(middle, rest) } else { 0 };
        let words = lines + (rest.len() - lines) / WORD * WORD;
        self.copy_words(middle + lines, &mut rest[lines..words]);
        self.copy_bytes(middle + words, &mut rest[words..]);
    }

    fn in_parts(&self) -> bool {
        true
    }

    fn mapped(&self, offset: usize, len: usize) -> Option<*const u8> {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "a row lies in its region; this is a bug");
        // SAFETY: it is within the mapping. Nothing in this program refers to it, so that volatile reads may be made there.
        Some(unsafe { self.at.as_ptr().add(offset) })
    }
}

impl Memory {
    /// Copies whole cache lines from an aligned offset, as many as there are, if this processor has vectors for it.
    /// Returns how many bytes it copied. `offset + to.len()` is within the mapping.
    fn copy_lines(&self, offset: usize, to: &mut [u8]) -> usize {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx") {
            let whole = to.len() / LINE * LINE;
            // SAFETY: the lines lie in the mapping, as the caller checked, and begin at multiples of their length, as the
            // mapping does. Nothing in this program refers to it: it is no memory of Rust's, of which volatile reads may
            // be made whatever others write.
            unsafe { copy_lines(self.at.as_ptr().add(offset), &mut to[..whole]) };
            return whole;
        }
        let _ = (offset, to);
        0
    }

    /// Copies whole words from an aligned offset. Its bounds are those of [`Self::copy_lines`].
    fn copy_words(&self, offset: usize, to: &mut [u8]) {
        for (i, word) in to.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: the word lies in the mapping, as the caller checked, and is aligned; an atomic load may meet a write.
            let from = unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset + i * WORD).cast()) };
            word.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Copies single bytes. Its bounds are those of [`Self::copy_lines`].
    fn copy_bytes(&self, offset: usize, to: &mut [u8]) {
        for (i, byte) in to.iter_mut().enumerate() {
            // SAFETY: the caller checked that the byte lies in the mapping; an atomic load may meet a write.
            let from = unsafe { AtomicU8::from_ptr(self.at.as_ptr().add(offset + i)) };
            *byte = from.load(Ordering::Relaxed);
        }
    }

    /// Writes words from `offset` on, which must be a multiple of their size.
    ///
    /// # Panics
    /// If the words do not lie in the memory.
    pub fn write(&self, offset: usize, words: impl IntoIterator<Item = u32>) {
        for (i, word) in words.into_iter().enumerate() {
            self.word(offset + i * size_of::<u32>()).store(word, Ordering::Relaxed);
        }
    }

    /// Writes one word before other words are written. A reader that sees one of those, and reads this word afterwards,
    /// sees this value or a later one.
    ///
    /// # Panics
    /// If the word does not lie in the memory.
    pub fn withdraw(&self, offset: usize, word: u32) {
        self.word(offset).store(word, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Writes one word so that a reader that sees it also sees everything written before, and wakes those who wait for
    /// it to change.
    ///
    /// # Panics
    /// If the word does not lie in the memory.
    pub fn publish(&self, offset: usize, word: u32) {
        let place = self.word(offset);
        place.store(word, Ordering::Release);
        system::wake(place);
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the mapping is this value's, and accessed as the function wants it.
        unsafe { words::word(self.at, self.len, offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this value and is looked at through it alone.
        unsafe { system::unmap(self.at, self.len) };
        // A worker may keep its own mapping for as long as it likes. The pages are freed all the same: they are counted
        // here, and pages that the worker touches from now on are counted where the worker runs.
        let _ = system::free_pages(&self.descriptor, self.len);
    }
}

/// Copies cache lines, and prefetches the ones that follow, which may lie outside the mapping.
///
/// # Safety
/// `from` begins a cache line of memory that is mapped and not Rust's, `to.len()` bytes of it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_lines(from: *const u8, to: &mut [u8]) {
    use std::arch::x86_64::{__m256i, _MM_HINT_T0, _mm_prefetch, _mm256_storeu_si256};
    for (i, line) in to.chunks_exact_mut(LINE).enumerate() {
        // SAFETY: as promised by the caller; a prefetch reads nothing and cannot fault, whatever the address.
        unsafe {
            let at = from.add(i * LINE);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
            let halves = at.cast::<__m256i>();
            let (low, high) = (halves.read_volatile(), halves.add(1).read_volatile());
            let line = line.as_mut_ptr().cast::<__m256i>();
            _mm256_storeu_si256(line, low);
            _mm256_storeu_si256(line.add(1), high);
        }
    }
}
