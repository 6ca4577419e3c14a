//! Accepting connections: at most so many, none that stays silent, and no error that ends it.
//!
//! hyper has no limit on connections and no time limit on the HTTP/2 preface, and its graceful shutdown waits for ever
//! for a client that never sends one; keepalive only begins after it. So each connection is wrapped here.

use super::connection::{Connection, ConnectionPermit};
use super::spare::Spare;
use super::uds::UdsListener;
use crate::complaints::Complaints;
use crate::error::Reason;
use crate::metrics::{Metrics, Transport};
use crate::rpc::caller::Peer;
use metrics::Gauge;
use rustix::io::Errno;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Semaphore, TryAcquireError, mpsc};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// What every client of HTTP/2 says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Running out of descriptors lasts until one is closed: without a pause the loop would burn a core meanwhile.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// What a listening socket must do.
pub trait Accept: Send + 'static {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Peer + Unpin + Send + 'static;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Replies are small and waited for. Without it they would still arrive, later.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Accept for UdsListener {
    type Io = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Self::accept(self).await
    }
}

/// Takes sockets. Errors are counted and survived.
#[derive(Debug, Clone)]
pub struct Acceptor {
    metrics: Metrics,
    complaints: Arc<Complaints>,
    spare: Option<Spare>,
}

impl Acceptor {
    /// Counts in `metrics`.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, complaints: Arc::default(), spare: None }
    }

    /// The same, which gives up a descriptor for a socket where there is no other.
    #[must_use]
    pub fn with(self, spare: Spare) -> Self {
        Self { spare: Some(spare), ..self }
    }

    /// The next socket.
    pub async fn next<L: Accept>(&self, listener: &L) -> L::Io {
        loop {
            match self.accepted(listener).await {
                Ok(io) => return io,
                Err(error) => {
                    self.metrics.accept_errors.increment(1);
                    if let Some(spare) = self.spare.as_ref().filter(|_| is_lack(&error)) {
                        // Without a descriptor the system does not say whether anybody is there.
                        match in_place_of(spare, listener).await {
                            Some(Poll::Ready(Ok(io))) => return io,
                            Some(Poll::Pending) => {
                                spare.keep();
                                continue;
                            }
                            Some(Poll::Ready(Err(_))) | None => spare.keep(),
                        }
                    }
                    if let Some(more) = self.complaints.next(Instant::now()) {
                        tracing::warn!(%error, more, "a connection could not be accepted{}", advice(&error));
                    }
                    sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    }

    /// A socket, with any descriptor but one that the process's spare one waits for: that is another acceptor's.
    async fn accepted<L: Accept>(&self, listener: &L) -> io::Result<L::Io> {
        let mut accepted = pin!(listener.accept());
        let poll = |cx: &mut Context<'_>| match &self.spare {
            Some(_) => accepted.as_mut().poll(cx),
            None => {
                Spare::beside(|| accepted.as_mut().poll(cx)).unwrap_or_else(|| Poll::Ready(Err(Errno::MFILE.into())))
            }
        };
        poll_fn(poll).await
    }
}

/// What connections are held to.
#[derive(Debug, Clone)]
pub struct Guard {
    permits: Arc<Semaphore>,
    /// How many of these its transport may have, where that is fewer.
    share: Option<Arc<Semaphore>>,
    /// Bytes that must have come within `timeout`.
    pub(super) opening_bytes: usize,
    /// What they begin with, where that is known.
    pub(super) preface: &'static [u8],
    pub(super) timeout: Duration,
    /// Ends accepting, and connections that are still opening.
    pub(super) stop: CancellationToken,
    /// Ends every connection.
    pub(super) kill: CancellationToken,
    open: Gauge,
    pub(super) metrics: Metrics,
    acceptor: Acceptor,
    /// Of clients that speak something else.
    pub(super) strangers: Arc<Complaints>,
}

impl Guard {
    /// For gRPC: the HTTP/2 preface must come within `timeout`. Clones share `permits` and so the limit.
    #[must_use]
    pub fn grpc(
        permits: Arc<Semaphore>,
        timeout: Duration,
        stop: CancellationToken,
        kill: CancellationToken,
        metrics: Metrics,
    ) -> Self {
        Self {
            permits,
            share: None,
            opening_bytes: PREFACE.len(),
            preface: PREFACE,
            timeout,
            stop,
            kill,
            open: Gauge::noop(),
            acceptor: Acceptor::new(metrics.clone()),
            strangers: Arc::default(),
            metrics,
        }
    }

    /// The same guard for connections that open with another message.
    #[must_use]
    pub fn opening_with(self, opening_bytes: usize) -> Self {
        Self { opening_bytes, preface: &[], ..self }
    }

    /// The same guard, with so few places among those of all transports.
    #[must_use]
    pub fn at_most(self, places: usize) -> Self {
        Self { share: Some(Arc::new(Semaphore::new(places))), ..self }
    }

    /// How long a connection may take to open.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The same guard for connections counted under `transport`.
    #[must_use]
    pub fn for_transport(&self, transport: Transport) -> Self {
        Self { open: self.metrics.connections(transport).clone(), ..self.clone() }
    }

    /// Resolves when no more connections are taken.
    pub fn stopped(&self) -> WaitForCancellationFutureOwned {
        self.stop.clone().cancelled_owned()
    }

    /// Where its refusals are counted.
    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The next socket within the limit; what is over it is closed.
    async fn admit<L: Accept>(&self, listener: &L) -> (L::Io, ConnectionPermit) {
        loop {
            let io = self.acceptor.next(listener).await;
            match self.take_place() {
                Ok(place) => return (io, place),
                // Closing at once tells the client more than a connection that nobody answers.
                Err(_) => self.metrics.refused(Reason::TooManyConnections),
            }
        }
    }

    /// A place for one more connection, if there is one.
    fn take_place(&self) -> Result<ConnectionPermit, TryAcquireError> {
        let share = self.share.clone().map(Semaphore::try_acquire_owned).transpose()?;
        let permit = Arc::clone(&self.permits).try_acquire_owned()?;
        Ok(ConnectionPermit::new(permit, share, self.open.clone()))
    }
}

/// What `incoming` gives: connections, and what is over once the socket is closed and its file gone.
pub type Incoming<T> = (ReceiverStream<io::Result<Connection<T>>>, JoinHandle<()>);

/// Connections of `listener` until the guard stops it, or nobody takes them; then the socket is closed.
pub fn incoming<L: Accept + Sync>(listener: L, guard: Guard) -> Incoming<L::Io> {
    let (sender, receiver) = mpsc::channel(1);
    let (opened, each) = (sender.clone(), guard.clone());
    let closed = tokio::spawn(accept_each(listener, guard, sender, move |io, place| {
        let (opened, connection) = (opened.clone(), Connection::new(io, place, &each));
        async move { drop(opened.send(Ok(connection)).await) }
    }));
    (ReceiverStream::new(receiver), closed)
}

/// Gives every socket of `listener` to `each`, until the guard stops it or nobody takes what comes of it.
pub(super) async fn accept_each<L: Accept, T, F: Future<Output = ()>>(
    listener: L,
    guard: Guard,
    taken: mpsc::Sender<T>,
    each: impl Fn(L::Io, ConnectionPermit) -> F,
) {
    loop {
        let (io, place) = tokio::select! {
            biased;
            () = guard.stop.cancelled() => break,
            () = taken.closed() => break,
            admitted = guard.admit(&listener) => admitted,
        };
        each(io, place).await;
    }
}

/// What comes of accepting with the descriptor of `spare`, without waiting; `None` where that is given up already.
async fn in_place_of<L: Accept>(spare: &Spare, listener: &L) -> Option<Poll<io::Result<L::Io>>> {
    let mut accepted = pin!(listener.accept());
    poll_fn(|cx| Poll::Ready(spare.in_its_place(|| accepted.as_mut().poll(cx)))).await
}

/// Whether there is no descriptor left.
fn is_lack(error: &io::Error) -> bool {
    let is_full = |error| [Errno::MFILE, Errno::NFILE].contains(&error);
    Errno::from_io_error(error).is_some_and(is_full)
}

/// What to do about an error.
fn advice(error: &io::Error) -> &'static str {
    if is_lack(error) { ": the process has no descriptor left; raise the limit of open files, ulimit -n" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendInfo;
    use crate::limits::Limits;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Refuses three times, as a process without descriptors does, then connects.
    struct Exhausted(AtomicUsize);

    impl Peer for tokio::io::DuplexStream {
        fn peer(&self) -> String {
            "test".to_owned()
        }
    }

    impl Accept for Exhausted {
        type Io = tokio::io::DuplexStream;

        async fn accept(&self) -> io::Result<Self::Io> {
            const EMFILE: i32 = 24;
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0..3 => Err(io::Error::from_raw_os_error(EMFILE)),
                _ => Ok(tokio::io::duplex(64).0),
            }
        }
    }

    fn guard(stop: &CancellationToken) -> (Guard, Metrics) {
        let info = BackendInfo { name: "cpu", device: String::new(), parallelism: 1 };
        let metrics = Metrics::new(&Limits::default(), &info);
        let (permits, timeout, kill) = (Arc::new(Semaphore::new(1)), Duration::from_secs(60), CancellationToken::new());
        (Guard::grpc(permits, timeout, stop.clone(), kill, metrics.clone()), metrics)
    }

    #[tokio::test]
    async fn accept_errors_are_counted_and_survived() {
        let (guard, metrics) = guard(&CancellationToken::new());
        let listener = Exhausted(AtomicUsize::new(0));
        let admitted = guard.admit(&listener).await;
        assert!(metrics.render().contains("croupier_accept_errors_total 3"));
        assert_eq!(guard.permits.available_permits(), 0);
        drop(admitted);
        assert_eq!(guard.permits.available_permits(), 1);
    }

    /// Without descriptors, and without memory for a socket where there is one.
    struct Hopeless(AtomicUsize);

    impl Accept for Hopeless {
        type Io = tokio::io::DuplexStream;

        async fn accept(&self) -> io::Result<Self::Io> {
            let tried = self.0.fetch_add(1, Ordering::Relaxed);
            assert!(tried < 100, "it spins");
            Err([Errno::MFILE, Errno::NOBUFS][tried % 2].into())
        }
    }

    #[tokio::test]
    async fn a_spare_descriptor_that_does_not_help_is_no_reason_to_spin() {
        let (guard, _) = guard(&CancellationToken::new());
        let (acceptor, listener) = (guard.acceptor.with(Spare::new()), Hopeless(AtomicUsize::new(0)));
        let next = tokio::time::timeout(3 * PAUSE_AFTER_ERROR, acceptor.next(&listener)).await;
        assert!(next.is_err() && listener.0.load(Ordering::Relaxed) >= 2);
    }

    #[test]
    fn a_lack_of_descriptors_is_told_what_to_do() {
        let of = |errno: rustix::io::Errno| advice(&io::Error::from(errno)).contains("ulimit");
        assert!(of(Errno::MFILE) && of(Errno::NFILE) && !of(Errno::INTR));
    }

    #[tokio::test]
    async fn what_closes_a_socket_is_over_when_its_file_is_gone() {
        let (dir, stop) = (tempfile::tempdir().expect("a folder"), CancellationToken::new());
        let path = dir.path().join("socket");
        let (_connections, closed) = incoming(UdsListener::bind(&path).expect("nobody has it"), guard(&stop).0);
        assert!(path.exists());
        stop.cancel();
        closed.await.expect("no panic");
        assert!(!path.exists());
    }
}
