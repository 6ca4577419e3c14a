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
use crate::rpc::server::ConnectionSettings;
use crate::rpc::{Calls, RegionSide, Service, auth, regions, server};
use crate::secrets::Secrets;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// Where there are Unix sockets, one in this many connections is kept for them.
const UDS_SHARE: usize = 8;
/// How long clients may stay after the last call has ended. A client answers the ping that follows GOAWAY within a
/// round trip, and leaves. One that stays longer is stopped or gone, and loses nothing if its connection is cut.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long streams that are open at the deadline have to tell their clients why they end. It is part of [`CUT_GRACE`],
/// so it does not make the end take longer.
const PARTING: Duration = Duration::from_millis(250);

/// How many of these connections TCP may have where there is a Unix socket too: all but the socket's share, and at
/// least one.
fn beside_uds(places: usize) -> usize {
    (places - (places / UDS_SHARE).max(1)).max(1)
}

/// The parts of the configuration that apply to connections.
fn connection_settings(config: &Config) -> ConnectionSettings {
    ConnectionSettings {
        max_streams: config.limits.max_streams,
        stream_window: config.http2.stream_window,
        connection_window: config.http2.connection_window,
        keepalive_interval: config.keepalive_interval,
        keepalive_timeout: config.keepalive_timeout,
        max_age: config.max_connection_age,
    }
}

/// The gRPC servers of all transports.
pub(super) struct Serving<'a> {
    config: &'a Config,
    connections: ConnectionSettings,
    health: &'a Health,
    metrics: &'a Metrics,
    servers: JoinSet<Result<(), String>>,
    guard: Guard,
    routes: Routes,
    calls: Calls,
    /// Cancelled: new calls are refused; open calls may finish.
    refuse: CancellationToken,
    /// Cancelled: open streams end with a status.
    close: CancellationToken,
    /// Cancelled: no new connections are accepted; open ones may finish.
    stop: CancellationToken,
    /// Cancelled: open connections are cut.
    kill: CancellationToken,
}

impl<'a> Serving<'a> {
    /// Prepares the servers; none serves yet.
    pub(super) fn new(config: &'a Config, service: Service, health: &'a Health, metrics: &'a Metrics) -> Self {
        let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
        let places = config.limits.max_connections;
        let guard = Guard::grpc(places, config.first_byte_timeout, stop.clone(), kill.clone(), metrics.clone());
        let (calls, refuse, close) = (service.calls(), service.drain_token(), service.closing_token());
        let routes = server::routes(service, health, config.reflection, &stop);
        let (servers, connections) = (JoinSet::new(), connection_settings(config));
        Self { config, connections, health, metrics, servers, guard, routes, calls, refuse, close, stop, kill }
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
        // Anyone who reaches the port may connect, even without a token. So workers on this host have places that TCP
        // clients cannot take.
        let guard = match config.uds {
            Some(_) => guard.at_most(beside_uds(config.limits.max_connections)),
            None => guard,
        };
        let routes = match &secrets.tokens {
            Some(tokens) => auth::guarded(self.routes.clone(), Arc::clone(&tokens.current), self.metrics.clone()),
            None => self.routes.clone(),
        };
        let (stopped, settings, frame) = (guard.stopped(), self.connections, config.http2.frame_size_tcp);
        if let Some(tls) = &secrets.tls {
            let handshake = Handshake { tls: Arc::clone(&tls.current), timeout: config.tls_handshake_timeout };
            let connections = handshake::incoming(listener, guard, handshake);
            self.servers.spawn(server::serve(connections, stopped, routes, settings, frame));
        } else {
            let (connections, closed) = listener::incoming(listener, guard);
            self.spawn(server::serve(connections, stopped, routes, settings, frame), closed);
        }
    }

    pub(super) fn serve_uds(&mut self, listener: UdsListener) {
        let guard = self.guard.for_transport(Transport::Uds);
        let (stopped, routes) = (guard.stopped(), self.routes.clone());
        let (settings, frame) = (self.connections, self.config.http2.frame_size_uds);
        let (connections, closed) = listener::incoming(listener, guard);
        self.spawn(server::serve(connections, stopped, routes, settings, frame), closed);
    }

    /// Runs a server. It counts as ended only when its socket is closed; otherwise the process could end and leave the
    /// socket's file behind.
    fn spawn(&mut self, served: impl Future<Output = Result<(), String>> + Send + 'static, closed: JoinHandle<()>) {
        self.servers.spawn(async move {
            let ended = served.await;
            let _ = closed.await;
            ended
        });
    }

    /// Serves until `stop` and then drains, or ends early when something that serving needs has ended.
    pub(super) async fn run(
        &mut self,
        stop: CancellationToken,
        mut engine_ended: oneshot::Receiver<EngineEnd>,
        mut background: JoinSet<()>,
        exporting: Option<Exporting>,
    ) -> Result<Drained, Error> {
        let config = self.config;
        // The engine may not end while calls may be open, whether or not new ones are taken.
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
        // This drops the last handles of the engine. An engine in the middle of a batch finishes it first.
        self.routes = Routes::default();
        match tokio::join!(timeout(CUT_GRACE, engine_ended), flushed).0 {
            Ok(Ok(EngineEnd::Finished)) => {}
            // A fault ended the last calls and was noticed only after they had ended.
            Ok(end) => return Err(broken(end)),
            Err(_) => {
                tracing::warn!("the engine is still busy; not waiting for it");
                return Ok(Drained::EngineBusy);
            }
        }
        Ok(drained)
    }

    /// Serves until `stop`, and then until the last call has ended or is cut.
    async fn until_drained(&mut self, stop: CancellationToken) -> Result<Drained, Error> {
        tokio::select! {
            () = stop.cancelled() => Ok(self.drain().await),
            ended = self.servers.join_next() => Err(ended_early(ended)),
        }
    }

    async fn drain(&mut self) -> Drained {
        let deadline = Instant::now() + self.config.drain_timeout;
        // Health changes first, so that clients with a choice send no more work here.
        self.health.set(State::Draining).await;
        tokio::time::sleep(self.config.lame_duck).await;
        self.refuse.cancel();
        self.stop.cancel();
        let ended = tokio::select! {
            () = all_ended(&mut self.servers) => Drained::Clean,
            () = self.calls.none_for(GOODBYE) => {
                tracing::info!("clients without a call did not disconnect; closing their connections");
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
            // Connections close by themselves after the last of their streams.
            let _ = timeout(PARTING, all_ended(&mut self.servers)).await;
        }
        self.cut().await;
        match ended {
            Drained::Clean => tracing::info!("drained"),
            Drained::Cut => tracing::info!("ended; what was still open was cut"),
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

/// The error when a server ended that nobody told to.
fn ended_early(ended: Option<Result<Result<(), String>, JoinError>>) -> Error {
    Error::Server(match ended {
        Some(Ok(Err(reason))) => reason,
        Some(Err(panicked)) => panicked.to_string(),
        Some(Ok(Ok(()))) | None => "it stopped taking connections".to_owned(),
    })
}

/// Resolves when all servers have ended.
async fn all_ended(servers: &mut JoinSet<Result<(), String>>) {
    while servers.join_next().await.is_some() {}
}

/// Resolves when one of these tasks panics, because nothing else would do its work.
async fn failed(tasks: &mut JoinSet<()>) -> Error {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            return Error::Server(error.to_string());
        }
    }
    std::future::pending().await
}

/// The error when the engine ended before the server did, or ended by a fault.
fn broken(end: Result<EngineEnd, RecvError>) -> Error {
    if end == Ok(EngineEnd::DeviceLost) { Error::DeviceLost } else { Error::Engine }
}
