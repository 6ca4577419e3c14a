//! One word of a mapping that several processes write, at which token slots lie; see `TokenSlots` in the wire contract.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// The word at an offset.
///
/// # Panics
/// If it does not lie in the mapping at a multiple of its size.
///
/// # Safety
/// `at` is where a mapping of `len` bytes begins that lives as long as the result. This process accesses it by atomic and volatile
/// operations only; what others do to it is memory of no allocation of Rust's.
pub(super) unsafe fn word<'a>(at: NonNull<u8>, len: usize, offset: usize) -> &'a AtomicU32 {
    let size = size_of::<u32>();
    let is_inside = offset.is_multiple_of(size) && offset < len && len - offset >= size;
    assert!(is_inside, "a word lies in its region; this is a bug");
    // SAFETY: it lies in the mapping and is aligned, as was just checked; the rest is the caller's promise.
    unsafe { AtomicU32::from_ptr(at.as_ptr().add(offset).cast()) }
}
