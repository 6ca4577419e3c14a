//! What the calls of one connection have in common.

use crate::engine::StepOrigin;
use crate::permits::{Counter, Permit};
use axum::http::Extensions;
use metrics::Gauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// Most small calls of one connection at a time: health, reflection and server info, which sample nothing. Each may
/// take memory before anybody has shown a token, and no client needs more than a few.
pub(super) const MAX_SMALL_CALLS: usize = 16;

/// The client at the other end of a connection. It travels in the extensions of the connection's requests.
#[derive(Debug, Clone)]
pub struct Caller {
    small_calls: Arc<Counter>,
    connection: Arc<ConnectionState>,
}

/// What all requests of a connection share.
#[derive(Debug)]
struct ConnectionState {
    /// The client's address or process, as the log names it.
    peer: Arc<str>,
    opened: Instant,
    /// When something was last read, in milliseconds since the connection was opened.
    heard: AtomicU64,
    /// Whether the connection's silence was reported.
    is_silence_reported: AtomicBool,
}

/// A socket that knows its peer.
pub trait Peer {
    /// The peer, as the log names it.
    fn peer(&self) -> String;
}

impl Peer for TcpStream {
    fn peer(&self) -> String {
        self.peer_addr().map_or_else(|_| "gone".to_owned(), |address| address.to_string())
    }
}

impl Peer for UnixStream {
    fn peer(&self) -> String {
        match self.peer_cred().ok().and_then(|of| of.pid()) {
            Some(pid) if pid > 0 => format!("unix, process {pid}"),
            // The process is in another PID namespace, for example in another container.
            _ => "unix".to_owned(),
        }
    }
}

impl<T: Peer> Peer for TlsStream<T> {
    fn peer(&self) -> String {
        self.get_ref().0.peer()
    }
}

impl Caller {
    /// The caller at the other end of this socket.
    pub(super) fn at(socket: &impl Peer) -> Self {
        Self::called(&socket.peer())
    }

    /// The caller of a request. A request without a connection has a caller without a name.
    pub(super) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_else(|| Self::called(StepOrigin::NOBODY))
    }

    fn called(peer: &str) -> Self {
        let (heard, is_silence_reported) = (AtomicU64::new(0), AtomicBool::new(false));
        let connection = ConnectionState { peer: peer.into(), opened: Instant::now(), heard, is_silence_reported };
        Self { small_calls: Counter::new(MAX_SMALL_CALLS, Gauge::noop()), connection: Arc::new(connection) }
    }

    /// The peer, as the log names it.
    pub(super) fn peer(&self) -> &Arc<str> {
        &self.connection.peer
    }

    /// A place for a call that samples nothing, if there is one.
    pub(super) fn small_call_place(&self) -> Option<Permit> {
        self.small_calls.take(1)
    }

    /// Notes that something was read.
    pub(super) fn heard(&self) {
        self.connection.heard.store(self.connection.age(), Ordering::Relaxed);
    }

    /// Whether nothing was read for at least `timeout`.
    pub(super) fn is_silent(&self, timeout: Duration) -> bool {
        let quiet = self.connection.age().saturating_sub(self.connection.heard.load(Ordering::Relaxed));
        Duration::from_millis(quiet) >= timeout
    }

    /// Whether to report the connection's silence now. Only the first of its calls that asks gets `true`.
    pub(super) fn may_report_silence(&self) -> bool {
        !self.connection.is_silence_reported.swap(true, Ordering::Relaxed)
    }
}

impl ConnectionState {
    fn age(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_heard_of_lately_is_not_silent_and_who_is_is_told_of_once() {
        let caller = Caller::called("test");
        let call = caller.clone();
        caller.heard();
        assert!(!call.is_silent(Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(call.is_silent(Duration::from_millis(10)));
        assert!(call.may_report_silence() && !caller.may_report_silence());
    }
}
