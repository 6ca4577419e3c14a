//! TLS on connections that were accepted. Each handshake is a task of its own with a time limit of its own, so a client
//! that stops in the middle holds up nobody and keeps its place no longer than that.

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

/// How TLS is spoken.
#[derive(Debug, Clone)]
pub struct Handshake {
    /// What new connections meet. Those there keep what they met.
    pub tls: Arc<Reloaded<ServerTls>>,
    /// A handshake must be over by then.
    pub timeout: Duration,
}

type Opened<T> = io::Result<Connection<TlsStream<T>>>;

/// Connections of `listener` after their handshakes, until the guard stops it; then the socket is closed.
pub fn incoming<L: Accept + Sync>(listener: L, guard: Guard, handshake: Handshake) -> ReceiverStream<Opened<L::Io>> {
    let (sender, receiver) = mpsc::channel(1);
    let (each, opened) = (guard.clone(), sender.clone());
    tokio::spawn(accept_each(listener, guard, sender, move |io, place| {
        // As many of these as there are places.
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
            // Its time limit for the preface begins now.
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
            tracing::debug!(peer, within = ?handshake.timeout, "a TLS handshake was not ended in time");
            Reason::TlsTimeout
        }
    };
    guard.metrics().refused(reason);
}

/// What went wrong, as far as it tells whose mistake it is.
fn reason(error: &io::Error) -> Reason {
    match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
        Some(Error::NoCertificatesPresented) => Reason::TlsNoCertificate,
        Some(Error::InvalidCertificate(_)) => Reason::TlsBadCertificate,
        Some(Error::AlertReceived(_)) => Reason::TlsRefused,
        _ => Reason::TlsFailed,
    }
}
