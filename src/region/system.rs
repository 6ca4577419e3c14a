//! The Linux system calls that regions need.

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::rand::GetRandomFlags;
use rustix::thread::futex;
use rustix::time::Timespec;
use std::ffi::c_void;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The name beside the memory's mappings in `/proc/PID/maps`.
const NAME: &str = "croupier-region";
/// Bytes of a huge page, on the processors on which regions are read fast.
const HUGE_PAGE: usize = 2 << 20;
/// Most descriptors beside one message. The kernel cuts off further ones and closes them.
const MAX_RECEIVED: usize = 4;

/// Bytes of a page.
pub(super) fn page_size() -> usize {
    rustix::param::page_size()
}

/// Fills `bytes` with random numbers.
pub(super) fn random(bytes: &mut [u8]) -> io::Result<()> {
    let wanted = bytes.len();
    let filled = rustix::rand::getrandom(bytes, GetRandomFlags::empty())?;
    // getrandom(2) never returns fewer bytes when this few are asked for; but a token of zeros would be worse than
    // none.
    if filled < wanted { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Makes `len` bytes of memory, sealed, with all pages in place.
pub(super) fn make(len: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // NOEXEC_SEAL exists since Linux 6.3; older kernels refuse the flag.
    let descriptor = match rustix::fs::memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(NAME, flags)?,
        made => made?,
    };
    rustix::fs::ftruncate(&descriptor, len as u64)?;
    rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, len as u64)?;
    // After this, no process can shorten the memory while somebody reads it, nor lengthen it past what is counted.
    rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(descriptor)
}

/// Frees the memory's pages, no matter who else has mapped them.
pub(super) fn free_pages(descriptor: &OwnedFd, len: usize) -> io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(descriptor, punch, 0, len as u64)?)
}

/// Maps `len` bytes of the memory, shared with all others who map it. If a huge page fits, the mapping begins at a
/// multiple of its size, because only such mappings can be [joined](join_pages).
pub(super) fn map(descriptor: &OwnedFd, len: usize) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let (place, fixed) = match len {
        ..HUGE_PAGE => (std::ptr::null_mut(), MapFlags::empty()),
        _ => (reserve(len)?, MapFlags::FIXED),
    };
    let flags = MapFlags::SHARED | MapFlags::POPULATE | fixed;
    // SAFETY: a new mapping at a place that the system chooses, or over addresses that were reserved for it: it touches
    // no memory of this process.
    match unsafe { rustix::mm::mmap(place, len, protection, flags, descriptor, 0) } {
        Ok(at) => NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into()),
        Err(error) => {
            if let Some(place) = NonNull::new(place.cast()) {
                // SAFETY: the reservation is this function's own.
                unsafe { unmap(place, len) };
            }
            Err(error.into())
        }
    }
}

/// Reserves `len` bytes of addresses at a multiple of the huge page size, with no memory behind them.
fn reserve(len: usize) -> io::Result<*mut c_void> {
    let len = len.next_multiple_of(page_size());
    let more = len.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new mapping at a place that the system chooses, which touches no memory of this process.
    let first = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), more, ProtFlags::empty(), flags)?
    };
    let before = first.addr().next_multiple_of(HUGE_PAGE) - first.addr();
    let at = first.wrapping_byte_add(before);
    for (from, len) in [(first, before), (at.wrapping_byte_add(len), HUGE_PAGE - before)] {
        if let (Some(from), 1..) = (NonNull::new(from.cast()), len) {
            // SAFETY: both ends of the reservation are this function's own.
            unsafe { unmap(from, len) };
        }
    }
    Ok(at)
}

/// Joins the pages of a mapping to huge pages, as far as they go and the system can: reading rows from memory then
/// takes a fifth to a third less time. The system's setting for huge pages does not matter here, because it concerns
/// what the system does unasked.
pub(super) fn join_pages(at: NonNull<u8>, len: usize) {
    let whole = len / HUGE_PAGE * HUGE_PAGE;
    if whole > 0 {
        // SAFETY: it changes where the mapping's bytes lie in memory, and none of them. Where it fails all stays as it
        // was.
        unsafe { libc::madvise(at.as_ptr().cast(), whole, libc::MADV_COLLAPSE) };
    }
}

/// Ends a mapping.
///
/// # Safety
/// `at` and `len` are of [`map`], and nobody looks at them after.
pub(super) unsafe fn unmap(at: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise. It fails only for what is no mapping.
    let _ = unsafe { rustix::mm::munmap(at.as_ptr().cast(), len) };
}

/// Wakes everybody who waits for a word to change, in any process.
pub(super) fn wake(word: &AtomicU32) {
    // This fails only if there is no memory at the address, and then nobody waits there.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Waits while a word has `value`, but no longer than `most`. May return sooner.
pub(super) fn wait(word: &AtomicU32, value: u32, most: Duration) {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    // Callers check the word again, whatever the reason for the return.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&most));
}

/// See [`super::pass::send`].
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)?)
}

/// See [`super::pass::receive`].
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RECEIVED))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let got = rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let rights = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok((got, rights.flatten().collect()))
}
