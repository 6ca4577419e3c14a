//! Accepts connections: at most a fixed number, none that stays silent, and no error ends the accepting.
//!
//! hyper has no limit on connections and no time limit on the HTTP/2 preface, and its graceful shutdown waits for ever
//! for a client that never sends one; keepalive only begins after it. So this module wraps each connection.

use super::connection::{Connection, ConnectionPermit};
use super::places::{Full, Places};
use super::spare::Spare;
use super::uds::UdsListener;
use crate::complaints::{Complaints, complain_at_times};
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
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The bytes that every HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause after a failed accept. The lack of descriptors lasts until one is closed, and a loop without a pause would
/// burn a core meanwhile.
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
        // Replies are small and workers wait for them. A failure may be ignored: replies would arrive all the same,
        // only later.
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

/// Accepts sockets. Errors are counted, and accepting goes on.
#[derive(Debug, Clone)]
pub struct Acceptor {
    metrics: Metrics,
    complaints: Arc<Complaints>,
    spare: Option<Spare>,
}

impl Acceptor {
    /// Counts errors in `metrics`.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, complaints: Arc::default(), spare: None }
    }

    /// The same, which gives up the spare descriptor for a socket when no other descriptor is free.
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
                        // Without a free descriptor the system does not say whether a client is waiting.
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

    /// Accepts a socket, but leaves alone the descriptor that the process's spare one waits for: that is for another
    /// acceptor.
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

/// The limits that connections must keep.
#[derive(Debug, Clone)]
pub struct Guard {
    /// The places of all transports.
    places: Places,
    /// The places of this transport, if it has fewer than all transports together.
    share: Option<Places>,
    /// How many bytes must have come within `timeout`.
    pub(super) opening_bytes: usize,
    /// The bytes that connections begin with, if these are known.
    pub(super) preface: &'static [u8],
    pub(super) timeout: Duration,
    /// Cancelled: no more connections are accepted, and those that are still opening end.
    pub(super) stop: CancellationToken,
    /// Cancelled: every connection ends.
    pub(super) kill: CancellationToken,
    open: Gauge,
    pub(super) metrics: Metrics,
    acceptor: Acceptor,
    /// Limits log lines about clients that speak another protocol.
    pub(super) strangers: Arc<Complaints>,
    /// Limits log lines about connections without a place.
    refusals: Arc<Complaints>,
}

impl Guard {
    /// A guard for gRPC: at most `places` connections are open, and the HTTP/2 preface must come within `timeout`. Clones
    /// share the places.
    #[must_use]
    pub fn grpc(
        places: usize,
        timeout: Duration,
        stop: CancellationToken,
        kill: CancellationToken,
        metrics: Metrics,
    ) -> Self {
        Self {
            places: Places::new(places),
            share: None,
            opening_bytes: PREFACE.len(),
            preface: PREFACE,
            timeout,
            stop,
            kill,
            open: Gauge::noop(),
            acceptor: Acceptor::new(metrics.clone()),
            strangers: Arc::default(),
            refusals: Arc::default(),
            metrics,
        }
    }

    /// The same guard for connections that open with another message.
    #[must_use]
    pub fn opening_with(self, opening_bytes: usize) -> Self {
        Self { opening_bytes, preface: &[], ..self }
    }

    /// The same guard, which admits at most `places` of the connections of all transports.
    #[must_use]
    pub fn at_most(self, places: usize) -> Self {
        Self { share: Some(Places::new(places)), ..self }
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

    /// Resolves when no more connections are accepted.
    pub fn stopped(&self) -> WaitForCancellationFutureOwned {
        self.stop.clone().cancelled_owned()
    }

    /// Where refusals are counted.
    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The next socket within the limit. Sockets beyond the limit are closed.
    async fn admit<L: Accept>(&self, listener: &L) -> (L::Io, ConnectionPermit) {
        loop {
            let io = self.acceptor.next(listener).await;
            match self.take_place() {
                Ok(place) => return (io, place),
                // A connection closed at once tells the client more than one that nobody answers.
                Err(full) => self.refuse(&io, full),
            }
        }
    }

    /// Counts and logs a connection that has no place.
    fn refuse(&self, io: &impl Peer, full: Full) {
        self.metrics.refused(Reason::TooManyConnections);
        let peer = io.peer();
        complain_at_times!(self.refusals, peer, "a connection was refused: {full}");
    }

    /// A place for one more connection, if there is one.
    fn take_place(&self) -> Result<ConnectionPermit, Full> {
        let all = self.places.number;
        let of_share = |share: &Places| share.take().ok_or(Full::Share { share: share.number, all });
        let share = self.share.as_ref().map(of_share).transpose()?;
        let permit = self.places.take().ok_or(Full::All(all))?;
        Ok(ConnectionPermit::new(permit, share, self.open.clone()))
    }
}

/// What [`incoming`] returns: the connections, and a task that ends once the socket is closed and its file is gone.
pub type Incoming<T> = (ReceiverStream<io::Result<Connection<T>>>, JoinHandle<()>);

/// The connections of `listener`, until the guard stops it or nobody takes them. Then the socket is closed.
pub fn incoming<L: Accept + Sync>(listener: L, guard: Guard) -> Incoming<L::Io> {
    let (sender, receiver) = mpsc::channel(1);
    let (opened, each) = (sender.clone(), guard.clone());
    let closed = tokio::spawn(accept_each(listener, guard, sender, move |io, place| {
        let (opened, connection) = (opened.clone(), Connection::new(io, place, &each));
        async move { drop(opened.send(Ok(connection)).await) }
    }));
    (ReceiverStream::new(receiver), closed)
}

/// Passes every socket of `listener` to `each`, until the guard stops it or the receiver of `taken` is gone.
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

/// Accepts with the descriptor of `spare`, without waiting; `None` if that descriptor is already given up.
async fn in_place_of<L: Accept>(spare: &Spare, listener: &L) -> Option<Poll<io::Result<L::Io>>> {
    let mut accepted = pin!(listener.accept());
    poll_fn(|cx| Poll::Ready(spare.in_its_place(|| accepted.as_mut().poll(cx)))).await
}

/// Whether the error means that no descriptor is left.
fn is_lack(error: &io::Error) -> bool {
    let is_full = |error| [Errno::MFILE, Errno::NFILE].contains(&error);
    Errno::from_io_error(error).is_some_and(is_full)
}

/// What to do about an error.
fn advice(error: &io::Error) -> &'static str {
    if is_lack(error) {
        ": the process has no file descriptor left; raise the limit on open files (ulimit -n)"
    } else {
        ""
    }
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
        let (timeout, kill) = (Duration::from_secs(60), CancellationToken::new());
        (Guard::grpc(1, timeout, stop.clone(), kill, metrics.clone()), metrics)
    }

    #[tokio::test]
    async fn accept_errors_are_counted_and_survived() {
        let (guard, metrics) = guard(&CancellationToken::new());
        let listener = Exhausted(AtomicUsize::new(0));
        let admitted = guard.admit(&listener).await;
        assert!(metrics.render().contains("croupier_accept_errors_total 3"));
        assert_eq!(guard.take_place().err(), Some(Full::All(1)));
        drop(admitted);
        assert!(guard.take_place().is_ok());
        let guard = guard.at_most(0);
        assert_eq!(guard.take_place().err(), Some(Full::Share { share: 0, all: 1 }));
    }

    /// A listener without descriptors. Once there is a descriptor, there is no memory for a socket.
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
