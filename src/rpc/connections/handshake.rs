//! TLS on accepted connections. Each handshake is a task of its own with a time limit of its own. So a client that
//! stops in the middle holds up nobody, and keeps its place no longer than that limit.

use super::connection::{Connection, ConnectionPermit};
use super::listener::{Accept, Guard, accept_each};
use crate::error::Reason;
use crate::reload::Reloaded;
use crate::rpc::caller::Peer;
use crate::tls::{H2, ServerTls};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::Error;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;

/// The TLS settings of a listener.
#[derive(Debug, Clone)]
pub struct Handshake {
    /// The configuration for new connections. Open connections keep the one they began with.
    pub tls: Arc<Reloaded<ServerTls>>,
    /// How long a handshake may take.
    pub timeout: Duration,
}

type Opened<T> = io::Result<Connection<TlsStream<T>>>;

/// The connections of `listener` after their handshakes, until the guard stops it. Then the socket is closed.
pub fn incoming<L: Accept + Sync>(listener: L, guard: Guard, handshake: Handshake) -> ReceiverStream<Opened<L::Io>> {
    let (sender, receiver) = mpsc::channel(1);
    let (each, opened) = (guard.clone(), sender.clone());
    tokio::spawn(accept_each(listener, guard, sender, move |io, place| {
        // The number of these tasks is bounded by the number of places.
        tokio::spawn(open(io, place, each.clone(), handshake.clone(), opened.clone()));
        std::future::ready(())
    }));
    ReceiverStream::new(receiver)
}

async fn open<T>(io: T, place: ConnectionPermit, guard: Guard, handshake: Handshake, opened: Sender<Opened<T>>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Peer + Unpin,
{
    let peer = tracing::enabled!(tracing::Level::DEBUG).then(|| io.peer());
    let acceptor = TlsAcceptor::from(Arc::clone(&handshake.tls.current().config));
    let shaken = tokio::select! {
        biased;
        () = guard.stopped() => return,
        shaken = timeout(handshake.timeout, acceptor.accept(io)) => shaken,
    };
    let reason = match shaken {
        Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(H2) => {
            // The time limit for the HTTP/2 preface begins now.
            let _ = opened.send(Ok(Connection::new(stream, place, &guard))).await;
            return;
        }
        Ok(Ok(_)) => {
            tracing::debug!(peer, "a TLS client does not offer HTTP/2 (ALPN h2)");
            Reason::TlsFailed
        }
        Ok(Err(error)) => {
            tracing::debug!(peer, %error, "a TLS handshake failed");
            reason(&error)
        }
        Err(_) => {
            tracing::debug!(peer, within = ?handshake.timeout, "a TLS handshake did not finish in time");
            Reason::TlsTimeout
        }
    };
    guard.metrics().refused(reason);
}

/// What went wrong, as precisely as it helps to tell whose mistake it is.
fn reason(error: &io::Error) -> Reason {
    match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
        Some(Error::NoCertificatesPresented) => Reason::TlsNoCertificate,
        Some(Error::InvalidCertificate(_)) => Reason::TlsBadCertificate,
        Some(Error::AlertReceived(_)) => Reason::TlsRefused,
        _ => Reason::TlsFailed,
    }
}
