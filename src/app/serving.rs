//! The gRPC servers of all transports: serving, and the drain.

use super::engine_thread::EngineEnd;
use super::exporting::Exporting;
use super::{CUT_GRACE, Drained, Error, device};
use crate::config::Config;
use crate::metrics::{Metrics, Transport};
use crate::rpc::connections::handshake::{self, Handshake};
use crate::rpc::connections::listener::{self, Guard};
use crate::rpc::connections::uds::UdsListener;
use crate::rpc::health::{Health, State};
use crate::rpc::{Calls, RegionSide, Service, auth, regions, server};
use crate::secrets::Secrets;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// One in so many connections is kept for the Unix sockets, where there are any.
const UDS_SHARE: usize = 8;
/// A client answers the ping behind GOAWAY within a round trip, and leaves. One that has not left so long after the last call ended is
/// stopped or gone, and loses nothing if it is cut.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long streams that are open at the deadline have to tell their clients why they end. It is part of [`CUT_GRACE`], so that the end
/// takes no longer for it.
const PARTING: Duration = Duration::from_millis(250);

/// How many of these connections TCP may have where there is a Unix socket too: all but its share, and one at least.
fn beside_uds(places: usize) -> usize {
    (places - (places / UDS_SHARE).max(1)).max(1)
}

/// The gRPC servers of all transports.
pub(super) struct Serving<'a> {
    config: &'a Config,
    health: &'a Health,
    metrics: &'a Metrics,
    servers: JoinSet<Result<(), String>>,
    guard: Guard,
    routes: Routes,
    calls: Calls,
    /// No new calls; those there may finish.
    refuse: CancellationToken,
    /// Streams end with a status.
    close: CancellationToken,
    /// No new connections; those there may finish.
    stop: CancellationToken,
    /// Connections are cut.
    kill: CancellationToken,
}

impl<'a> Serving<'a> {
    /// Serves nothing yet.
    pub(super) fn new(config: &'a Config, service: Service, health: &'a Health, metrics: &'a Metrics) -> Self {
        let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
        let permits = Arc::new(Semaphore::new(config.limits.max_connections));
        let guard = Guard::grpc(permits, config.first_byte_timeout, stop.clone(), kill.clone(), metrics.clone());
        let (calls, refuse, close) = (service.calls(), service.drain_token(), service.closing_token());
        let routes = server::routes(service, health, config, &stop);
        let servers = JoinSet::new();
        Self { config, health, metrics, servers, guard, routes, calls, refuse, close, stop, kill }
    }

    pub(super) fn serve_regions(&mut self, listener: UdsListener, side: RegionSide) {
        let guard = self.guard.for_transport(Transport::Region).opening_with(regions::OPENING_BYTES);
        let served = regions::serve(listener, guard, side.regions, self.metrics.clone());
        self.servers.spawn(async move {
            served.await;
            Ok(())
        });
    }

    pub(super) fn serve_tcp(&mut self, listener: TcpListener, secrets: &Secrets) {
        let config = self.config;
        let guard = self.guard.for_transport(Transport::Tcp);
        // Whoever reaches the port may connect, with a token or without; workers on this host have places that nobody there can take.
        let guard = match config.uds {
            Some(_) => guard.at_most(beside_uds(config.limits.max_connections)),
            None => guard,
        };
        let routes = match &secrets.tokens {
            Some(tokens) => auth::guarded(self.routes.clone(), Arc::clone(&tokens.current), self.metrics.clone()),
            None => self.routes.clone(),
        };
        let (stopped, frame) = (guard.stopped(), config.http2.frame_size_tcp);
        if let Some(tls) = &secrets.tls {
            let handshake = Handshake { tls: Arc::clone(&tls.current), timeout: config.tls_handshake_timeout };
            let connections = handshake::incoming(listener, guard, handshake);
            self.servers.spawn(server::serve(connections, stopped, routes, config, frame));
        } else {
            let (connections, closed) = listener::incoming(listener, guard);
            self.spawn(server::serve(connections, stopped, routes, config, frame), closed);
        }
    }

    pub(super) fn serve_uds(&mut self, listener: UdsListener) {
        let config = self.config;
        let guard = self.guard.for_transport(Transport::Uds);
        let (stopped, routes) = (guard.stopped(), self.routes.clone());
        let (connections, closed) = listener::incoming(listener, guard);
        self.spawn(server::serve(connections, stopped, routes, config, config.http2.frame_size_uds), closed);
    }

    /// Runs a server, which counts as ended only when its socket is closed: the process would else end with the socket's file still there.
    fn spawn(&mut self, served: impl Future<Output = Result<(), String>> + Send + 'static, closed: JoinHandle<()>) {
        self.servers.spawn(async move {
            let ended = served.await;
            let _ = closed.await;
            ended
        });
    }

    /// Serves until `stop`, and then drains; or until something that serving needs has ended.
    pub(super) async fn run(
        &mut self,
        stop: CancellationToken,
        mut engine_ended: oneshot::Receiver<EngineEnd>,
        mut background: JoinSet<()>,
        exporting: Option<Exporting>,
    ) -> Result<Drained, Error> {
        let config = self.config;
        // While calls may be open the engine may not end, whether new ones are taken or not.
        let ended = tokio::select! {
            ended = self.until_drained(stop) => ended,
            error = failed(&mut background) => Err(error),
            end = &mut engine_ended => Err(broken(end)),
            () = device::lost(config) => Err(Error::DeviceLost),
        };
        let flushed = async {
            if let Some(exporting) = exporting {
                exporting.flush().await;
            }
        };
        let drained = match ended {
            Ok(drained) => drained,
            Err(error) => {
                self.health.set(State::Broken).await;
                self.cut().await;
                flushed.await;
                return Err(error);
            }
        };
        // The last handles of the engine go with this; in the middle of a batch it finishes that first.
        self.routes = Routes::default();
        match tokio::join!(timeout(CUT_GRACE, engine_ended), flushed).0 {
            Ok(Ok(EngineEnd::Finished)) => {}
            // A break that ended the last calls, and was not seen before their end.
            Ok(end) => return Err(broken(end)),
            Err(_) => {
                tracing::warn!("the engine is still at work; leaving it");
                return Ok(Drained::EngineBusy);
            }
        }
        Ok(drained)
    }

    /// Until `stop`, and then until the last call has ended or is cut.
    async fn until_drained(&mut self, stop: CancellationToken) -> Result<Drained, Error> {
        tokio::select! {
            () = stop.cancelled() => Ok(self.drain().await),
            ended = self.servers.join_next() => Err(Error::Server(format!("{ended:?}"))),
        }
    }

    async fn drain(&mut self) -> Drained {
        let deadline = Instant::now() + self.config.drain_timeout;
        // First of all, so that nobody sends work here who can still choose.
        self.health.set(State::Draining).await;
        tokio::time::sleep(self.config.lame_duck).await;
        self.refuse.cancel();
        self.stop.cancel();
        let ended = tokio::select! {
            () = all_ended(&mut self.servers) => Drained::Clean,
            () = self.calls.none_for(GOODBYE) => {
                tracing::info!("clients without a call did not leave; cutting them");
                Drained::Clean
            }
            () = sleep_until(deadline) => {
                match self.calls.open() {
                    0 => tracing::info!("connections were still open at the deadline; closing them"),
                    calls => tracing::warn!(calls, "calls were still open at the deadline; ending them"),
                }
                Drained::Cut
            }
        };
        if ended == Drained::Cut {
            self.close.cancel();
            // Connections close by themselves behind the last of their streams.
            let _ = timeout(PARTING, all_ended(&mut self.servers)).await;
        }
        self.cut().await;
        match ended {
            Drained::Clean => tracing::info!("drained"),
            Drained::Cut => tracing::info!("ended; what was still open is cut"),
            Drained::EngineBusy => {}
        }
        ended
    }

    async fn cut(&mut self) {
        self.stop.cancel();
        self.kill.cancel();
        if timeout(CUT_GRACE.saturating_sub(PARTING), all_ended(&mut self.servers)).await.is_err() {
            self.servers.abort_all();
        }
    }
}

/// Resolves when all servers have ended.
async fn all_ended(servers: &mut JoinSet<Result<(), String>>) {
    while servers.join_next().await.is_some() {}
}

/// Resolves when one of these tasks panics: nothing else would do what it did.
async fn failed(tasks: &mut JoinSet<()>) -> Error {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            return Error::Server(error.to_string());
        }
    }
    std::future::pending().await
}

/// What it means that the engine ended before the server, or by a fault.
fn broken(end: Result<EngineEnd, RecvError>) -> Error {
    if end == Ok(EngineEnd::DeviceLost) { Error::DeviceLost } else { Error::Engine }
}
