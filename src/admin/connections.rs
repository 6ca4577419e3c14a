//! Connections of the admin port. Each exists for one short request and is closed with its answer, so one that has been
//! open for long waits for something that does not come. When there is no place left, the oldest connection makes room.
//! So a probe is always heard, and it is answered unless as many newer connections as there are places come before
//! that.

use crate::error::Reason;
use crate::metrics::Metrics;
use crate::rpc::connections::listener::Acceptor;
use crate::rpc::connections::spare::{Spare, SpareGuard};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The limits that connections must keep.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// How many connections there may be. Scrapers and probes need a handful.
    places: usize,
    /// How long a request may take to come. It is one packet, and a health probe gives up after a second.
    request: Duration,
    /// How long a connection may last. A slow scrape takes milliseconds.
    whole: Duration,
}

const BOUNDS: Bounds = Bounds { places: 64, request: Duration::from_secs(2), whole: Duration::from_secs(10) };

/// The admin port's socket and its open connections.
pub(super) struct Listener {
    socket: TcpListener,
    acceptor: Acceptor,
    /// The spare descriptor, for when everything else has taken all descriptors: a scrape is how operators see that.
    spare: Spare,
    metrics: Metrics,
    bounds: Bounds,
    places: Arc<Semaphore>,
    /// The open connections, oldest first. Connections that have ended are forgotten when the next one comes.
    open: VecDeque<Weak<OpenConnection>>,
}

/// What an open connection holds.
struct OpenConnection {
    /// Cancelled when the connection has to make room for another one.
    leave: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl Listener {
    pub(super) fn new(socket: TcpListener, metrics: Metrics) -> Self {
        Self::within(BOUNDS, socket, metrics)
    }

    fn within(bounds: Bounds, socket: TcpListener, metrics: Metrics) -> Self {
        let spare = Spare::of_process();
        let acceptor = Acceptor::new(metrics.clone()).with(spare.clone());
        let places = Arc::new(Semaphore::new(bounds.places));
        Self { socket, acceptor, spare, metrics, bounds, places, open: VecDeque::new() }
    }

    /// Waits for a place, for which the oldest connection may have to leave.
    async fn place(&mut self) -> Arc<OpenConnection> {
        let permit = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                // The oldest connection may already have been asked to leave without having ended yet, if another place
                // became free first.
                let oldest = self.open.iter().find_map(Weak::upgrade);
                if let Some(oldest) = oldest.filter(|oldest| !oldest.leave.is_cancelled()) {
                    oldest.leave.cancel();
                    self.metrics.refused(Reason::AdminConnections);
                }
                // The oldest connection ends as soon as its task is woken. Until then no other connection is accepted,
                // so that the bound holds.
                Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed")
            }
        };
        let place = Arc::new(OpenConnection { leave: CancellationToken::new(), _permit: permit });
        self.open.retain(|open| open.strong_count() > 0);
        self.open.push_back(Arc::downgrade(&place));
        place
    }
}

impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let io = self.acceptor.next(&self.socket).await;
        let peer = io.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        let place = self.place().await;
        (Connection::new(io, place, self.spare.guard(), self.bounds, self.metrics.clone()), peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// A connection for one request.
pub(super) struct Connection {
    io: TcpStream,
    /// The deadline of the request until the answer begins, and of the whole connection afterwards.
    deadline: Pin<Box<Sleep>>,
    /// When the whole connection has to end; `None` once its answer has begun.
    end: Option<Instant>,
    leave: Pin<Box<WaitForCancellationFutureOwned>>,
    metrics: Metrics,
    _place: Arc<OpenConnection>,
    /// Dropped after `io`, whose descriptor is free by then.
    _guard: SpareGuard,
}

impl Connection {
    fn new(io: TcpStream, place: Arc<OpenConnection>, guard: SpareGuard, bounds: Bounds, metrics: Metrics) -> Self {
        let leave = Box::pin(place.leave.clone().cancelled_owned());
        let (deadline, end) = (Box::pin(sleep(bounds.request)), Some(Instant::now() + bounds.whole));
        Self { io, deadline, end, leave, metrics, _place: place, _guard: guard }
    }

    /// Returns an error once the connection has to end. Until then, the task is woken when that moment comes.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.leave.as_mut().poll(cx).is_ready() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "closed to make room for a newer connection"));
        }
        if self.deadline.as_mut().poll(cx).is_ready() {
            self.metrics.refused(Reason::AdminConnections);
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the request, or reading its answer, took too long"));
        }
        Ok(())
    }

    /// Moves the deadline to that of the whole connection. The server writes nothing before a request, or the greeting
    /// of HTTP/2, has come, so the first written byte shows that it has.
    fn answering(&mut self) {
        if let Some(end) = self.end.take() {
            self.deadline.as_mut().reset(end);
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.answering();
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
        self.answering();
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendInfo;
    use crate::limits::Limits;
    use axum::serve::Listener as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const SOON: Duration = Duration::from_millis(50);
    const LATER: Duration = Duration::from_millis(500);

    async fn listener(request: Duration) -> (Listener, SocketAddr, Metrics) {
        let info = BackendInfo { name: "cpu", device: String::new(), parallelism: 1 };
        let metrics = Metrics::new(&Limits::default(), &info);
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = socket.local_addr().expect("it is bound");
        (Listener::within(Bounds { places: 2, request, whole: LATER }, socket, metrics.clone()), address, metrics)
    }

    fn closed(metrics: &Metrics) -> String {
        let text = metrics.render();
        let line = text.lines().find(|line| line.contains("reason=\"admin_connections\""));
        line.and_then(|line| line.rsplit(' ').next()).expect("the series is there").to_owned()
    }

    #[tokio::test]
    async fn the_oldest_leaves_before_another_is_taken() {
        let (mut listener, address, metrics) = listener(BOUNDS.request).await;
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.expect("a connection"));
        }
        let (mut first, second) = (listener.accept().await.0, listener.accept().await.0);
        let (third, said) = tokio::join!(listener.accept(), async move { first.read(&mut [0; 8]).await });
        assert_eq!(said.expect_err("it has to leave").kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!((closed(&metrics).as_str(), listener.places.available_permits()), ("1", 0));
        drop((second, third));
        assert_eq!(listener.places.available_permits(), 2);
        clients.push(TcpStream::connect(address).await.expect("a connection"));
        let _fourth = listener.accept().await;
        assert_eq!((closed(&metrics).as_str(), listener.open.len()), ("1", 1), "those that ended are forgotten");
    }

    #[tokio::test]
    async fn a_request_has_less_time_than_its_answer() {
        let (mut listener, address, metrics) = listener(SOON).await;
        let mut ended = async |answer: &[u8]| {
            let (began, _client) = (Instant::now(), TcpStream::connect(address).await.expect("a connection"));
            let mut connection = listener.accept().await.0;
            connection.write_all(answer).await.expect("room");
            assert_eq!(connection.read(&mut [0; 8]).await.expect_err("nothing came").kind(), io::ErrorKind::TimedOut);
            began.elapsed()
        };
        assert!(ended(&b""[..]).await >= SOON);
        assert!(ended(&b"HTTP/1.1 200 OK\r\n"[..]).await >= LATER);
        assert_eq!(closed(&metrics), "2");
    }
}
