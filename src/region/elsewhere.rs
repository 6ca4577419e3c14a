//! Regions on systems other than Linux: regions need what only Linux has, so everything here refuses. The configuration
//! refuses them first.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

fn no<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "shared memory regions need Linux"))
}

pub(super) fn page_size() -> usize {
    4096
}

pub(super) fn random(_: &mut [u8]) -> io::Result<()> {
    no()
}

pub(super) fn make(_: usize) -> io::Result<OwnedFd> {
    no()
}

pub(super) fn free_pages(_: &OwnedFd, _: usize) -> io::Result<()> {
    no()
}

pub(super) fn map(_: &OwnedFd, _: usize) -> io::Result<NonNull<u8>> {
    no()
}

pub(super) fn join_pages(_: NonNull<u8>, _: usize) {}

/// # Safety
/// None is needed: nothing is mapped.
pub(super) unsafe fn unmap(_: NonNull<u8>, _: usize) {}

pub(super) fn wake(_: &AtomicU32) {}

pub(super) fn wait(_: &AtomicU32, _: u32, _: Duration) {}

pub(super) fn send(_: BorrowedFd<'_>, _: &[u8], _: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    no()
}

pub(super) fn receive(_: BorrowedFd<'_>, _: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    no()
}
