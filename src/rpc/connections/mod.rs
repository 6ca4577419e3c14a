//! Connections before their calls. Read [`listener`], `places`, `connection`, [`handshake`]; [`uds`] is the file of the
//! Unix socket.

pub(super) mod connection;
pub mod handshake;
pub mod listener;
mod places;
pub mod spare;
pub mod uds;

/// How many connections may wait to be accepted by a listener.
pub const BACKLOG: u32 = 1024;
