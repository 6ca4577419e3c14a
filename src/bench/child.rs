//! Starts servers as child processes, so that each side of a comparison has its own process.

use super::{Address, BenchError, Transport, client};
use crate::dial::Access;
use crate::proto::GetServerInfoResponse;
use crate::region;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const READY_WITHIN: Duration = Duration::from_secs(20);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A running child process. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Child {
    what: &'static str,
    addr: Address,
    process: std::process::Child,
}

impl Child {
    /// Starts `croupier serve` with its defaults, except for the addresses.
    pub(super) fn server(transport: Transport) -> Result<Self, BenchError> {
        let addr = free_address(transport, "server")?;
        let (listen, uds) = match &addr {
            Address::Tcp(address) => (address.clone(), "none".to_owned()),
            Address::Uds(path) => ("none".to_owned(), path.display().to_string()),
        };
        let args = ["serve", "--listen", &listen, "--uds", &uds, "--admin", "none", "--log-level", "warn"];
        Self::start("croupier serve", &args, addr.clone())
    }

    /// Starts the bare tonic stream.
    pub(super) fn baseline(transport: Transport) -> Result<Self, BenchError> {
        let addr = free_address(transport, "baseline")?;
        Self::start("the baseline server", &["bench-baseline-server", "--addr", &addr.to_string()], addr.clone())
    }

    fn start(what: &'static str, args: &[&str], addr: Address) -> Result<Self, BenchError> {
        let failed = |e: std::io::Error| BenchError::Spawn { what, reason: e.to_string() };
        let binary = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(binary);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        // Settings in the caller's environment are meant for another server.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CROUPIER_")) {
            command.env_remove(name);
        }
        Ok(Self { what, addr, process: command.spawn().map_err(failed)? })
    }

    pub(super) fn addr(&self) -> &Address {
        &self.addr
    }

    /// Waits until the server answers, and returns its information.
    pub(super) async fn wait_until_ready(&mut self) -> Result<GetServerInfoResponse, BenchError> {
        let give_up = Instant::now() + READY_WITHIN;
        loop {
            match client::server_info(&self.addr, &Access::default()).await {
                Ok(info) => return Ok(info),
                Err(e) if self.process.try_wait()?.is_some() => {
                    let status = self.process.wait()?;
                    let reason = format!("it exited at once with {status}; its output is above ({e})");
                    return Err(BenchError::Spawn { what: self.what, reason });
                }
                Err(e) if Instant::now() > give_up => {
                    let reason = format!("no answer within {READY_WITHIN:?}: {e}");
                    return Err(BenchError::Spawn { what: self.what, reason });
                }
                Err(_) => tokio::time::sleep(ASK_EVERY).await,
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The process may have ended by itself. Either way it has ended after this.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Address::Uds(path) = &self.addr {
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_file(region::side_socket(path));
        }
    }
}

/// An address that nobody uses: a port that the system just assigned, or a socket path that contains our process id.
fn free_address(transport: Transport, name: &str) -> Result<Address, BenchError> {
    match transport {
        Transport::Tcp => {
            let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
            Ok(Address::Tcp(format!("127.0.0.1:{port}")))
        }
        Transport::Uds => {
            let file = format!("croupier-bench-{}-{name}.sock", std::process::id());
            let path: PathBuf = std::env::temp_dir().join(file);
            Ok(Address::Uds(path))
        }
    }
}
