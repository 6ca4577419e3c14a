//! An accepted connection: its place within the limits, the bytes it must begin with and by when, and its end.

use super::listener::Guard;
use crate::complaints::Complaints;
use crate::error::Reason;
use crate::metrics::Metrics;
use crate::rpc::caller::{Caller, Peer};
use metrics::Gauge;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;

/// A connection's place within the limit; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    open: Gauge,
    _permit: OwnedSemaphorePermit,
    /// The connection's place among those of its transport, if the transport has fewer places.
    _share: Option<OwnedSemaphorePermit>,
}

impl ConnectionPermit {
    pub(super) fn new(permit: OwnedSemaphorePermit, share: Option<OwnedSemaphorePermit>, open: Gauge) -> Self {
        open.increment(1.0);
        Self { open, _permit: permit, _share: share }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}

/// A connection within the limits of its guard.
#[derive(Debug)]
pub struct Connection<T> {
    io: T,
    /// Present until enough bytes have come.
    opening: Option<Opening>,
    kill: Pin<Box<WaitForCancellationFutureOwned>>,
    caller: Caller,
    _place: ConnectionPermit,
}

#[derive(Debug)]
struct Opening {
    peer: Arc<str>,
    missing: usize,
    preface: &'static [u8],
    complaints: Arc<Complaints>,
    deadline: Pin<Box<Sleep>>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    metrics: Metrics,
}

impl<T: Peer> Connection<T> {
    pub(super) fn new(io: T, place: ConnectionPermit, guard: &Guard) -> Self {
        let caller = Caller::at(&io);
        let opening = Opening {
            peer: Arc::clone(caller.peer()),
            missing: guard.opening_bytes,
            preface: guard.preface,
            complaints: Arc::clone(&guard.strangers),
            deadline: Box::pin(sleep(guard.timeout)),
            stop: Box::pin(guard.stop.clone().cancelled_owned()),
            metrics: guard.metrics.clone(),
        };
        let kill = Box::pin(guard.kill.clone().cancelled_owned());
        Self { io, opening: Some(opening), kill, caller, _place: place }
    }
}

impl<T> Connection<T> {
    /// The socket.
    #[must_use]
    pub fn get_ref(&self) -> &T {
        &self.io
    }

    /// Returns an error once the connection has to end. Until then, the task is woken when that moment comes.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.kill.as_mut().poll(cx).is_ready() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server is shutting down"));
        }
        self.opening.as_mut().map_or(Ok(()), |opening| opening.check(cx))
    }
}

impl Opening {
    /// Reports a client that speaks another protocol. The reader of these bytes then ends the connection.
    fn hear(&mut self, said: &[u8]) {
        let length = said.len().min(self.preface.len());
        let (expected, rest) = self.preface.split_at(length);
        self.preface = rest;
        if expected == &said[..length] {
            return;
        }
        // Clears the expected bytes, so that a connection is reported once.
        self.preface = &[];
        self.metrics.refused(Reason::WrongProtocol);
        if let Some(more) = self.complaints.next(Instant::now()) {
            let what = if said.first() == Some(&TLS_HANDSHAKE) {
                "speaks TLS to a port without TLS"
            } else {
                "does not speak HTTP/2"
            };
            tracing::info!(peer = &*self.peer, more, "a client {what}");
        }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server is shutting down"));
        }
        if self.deadline.as_mut().poll(cx).is_ready() {
            self.metrics.refused(Reason::FirstByteTimeout);
            tracing::debug!(peer = &*self.peer, "a connection stayed silent and is closed");
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the connection stayed silent"));
        }
        Ok(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Connection<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        self.caller.heard();
        if let Some(opening) = &mut self.opening {
            opening.hear(&buf.filled()[before..]);
            opening.missing = opening.missing.saturating_sub(read);
            if opening.missing == 0 {
                self.opening = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Connection<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        // Writes check too, because a client that does not read keeps the connection's task in its writes.
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl<T> Connected for Connection<T> {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}
