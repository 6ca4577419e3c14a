//! How a descriptor travels over a Unix socket: beside the bytes of a message (`SCM_RIGHTS`).

use super::system;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends the beginning of `bytes`, with the descriptor if there is one. Returns how many bytes were sent.
///
/// # Errors
/// What the system says.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    system::send(socket.as_fd(), bytes, descriptor)
}

/// Receives some bytes and the descriptors beside them; 0 bytes at the end of the connection.
///
/// # Errors
/// What the system says.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    system::receive(socket.as_fd(), bytes)
}
