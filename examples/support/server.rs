//! The real server, in this process, on its own Unix socket.

use super::Result;
use croupier::app::{App, Drained, Error};
use croupier::config::Config;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The port of the metrics, unless it is already in use.
const ADMIN_PORT: u16 = 9464;
/// How long streams may take to end after the example is over. Its only client has gone by then.
const DRAIN: Duration = Duration::from_secs(2);

/// A running server.
pub(crate) struct Server {
    /// The gRPC socket.
    pub(crate) socket: PathBuf,
    /// The HTTP address of the metrics.
    pub(crate) admin: SocketAddr,
    task: JoinHandle<std::result::Result<Drained, Error>>,
    stop: CancellationToken,
    /// Removed, with the socket in it, when the server is dropped.
    _directory: TempDir,
}

/// Starts a server as `croupier --uds PATH --listen none` would.
pub(crate) async fn start_server() -> Result<Server> {
    let directory = tempfile::Builder::new().prefix("croupier-example-").tempdir()?;
    let socket = directory.path().join("croupier.sock");
    let config = |port| Config {
        listen: None,
        uds: Some(socket.clone()),
        admin: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        drain_timeout: DRAIN,
        ..Config::default()
    };
    let app = match App::bind(config(ADMIN_PORT)).await {
        Ok(app) => app,
        // Another server uses the port. Any other port will do.
        Err(_) => App::bind(config(0)).await?,
    };
    let admin = app.addresses().admin.ok_or("the admin port is not open")?;
    let stop = CancellationToken::new();
    let task = tokio::spawn(app.serve(stop.clone()));
    Ok(Server { socket, admin, task, stop, _directory: directory })
}

impl Server {
    /// Drains and stops it.
    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.task.await??;
        Ok(())
    }
}
