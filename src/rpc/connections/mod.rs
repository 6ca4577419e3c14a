//! Connections, before there is a call: read [`listener`], `connection`, [`handshake`]. [`uds`] is the file of the Unix socket.

pub(super) mod connection;
pub mod handshake;
pub mod listener;
pub mod spare;
pub mod uds;
