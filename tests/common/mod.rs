//! A real server on free ports, and helpers to observe it from outside.
#![allow(dead_code)] // Each test file uses a part.

use croupier::app::{Addresses, App, Drained, Error};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, BackendInfo, DeviceLost, RowJob, VerifyJob, VerifyResult};
use croupier::config::Config;
use croupier::proto::*;
use croupier::sampling::row::RowResult;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes on a busy machine: reaching it means that the event never happens.
pub(crate) const NEVER: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct Running {
    pub(crate) addresses: Addresses,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<Result<Drained, Error>>,
}

/// The default configuration on free ports.
pub(crate) fn config() -> Config {
    let any = || "127.0.0.1:0".parse().ok();
    Config { listen: any(), admin: any(), threads: Some(1), ..Config::default() }
}

/// Starts a server and waits until it is ready.
pub(crate) async fn start(config: Config) -> Running {
    serve(App::bind(config).await.expect("free ports")).await
}

/// Serves an app that is bound, and waits until it is ready.
pub(crate) async fn serve(app: App) -> Running {
    let addresses = app.addresses().clone();
    let stop = CancellationToken::new();
    let task = tokio::spawn(app.serve(stop.clone()));
    let running = Running { addresses, stop, task };
    if running.addresses.admin.is_some() {
        until("ready", async || running.get("/readyz").await.0 == 200).await;
    }
    running
}

impl Running {
    pub(crate) fn tcp(&self) -> SocketAddr {
        self.addresses.tcp.expect("TCP is on")
    }

    /// Status and body of a page of the admin port.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = http_get(self.addresses.admin.expect("admin is on"), path).await;
        (status, body)
    }

    /// The value of one series.
    pub(crate) async fn series(&self, series: &str) -> f64 {
        let (_, text) = self.get("/metrics").await;
        let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("{series} is missing in:\n{text}"))
    }

    /// Stops the server and waits for its end.
    pub(crate) async fn shut_down(self) -> Result<Drained, Error> {
        self.stop.cancel();
        tokio::time::timeout(NEVER, self.task).await.expect("it ends").expect("no panic")
    }
}

/// Status, headers and body of a page.
pub(crate) async fn http_get(address: SocketAddr, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.expect("the admin port is open");
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers and closes");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, head.to_lowercase(), body.to_owned())
}

/// Waits until a condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is: impl Fn() -> F) {
    let tried = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(NEVER, tried).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// A message that opens a stream for rows of `vocab_size` logits, and one that draws a token of each of some sequences
/// from a row of zeros.
pub(crate) fn requests(vocab_size: u32, params: SamplingParams, sequences: u64) -> [DecodeRequest; 2] {
    let (logits_dtype, default_params) = (LogitsDtype::F32.into(), Some(params));
    let config = StreamConfig { vocab_size, logits_dtype, default_params, ..Default::default() };
    let open = (0..sequences).map(|sequence_id| OpenSequence { sequence_id, ..Default::default() }).collect();
    let kind = Some(work::Kind::Sample(SampleWork {}));
    let work = (0..sequences)
        .map(|id| Work { sequence_id: Some(id), first_row: Some(0), kind: kind.clone(), ..Default::default() })
        .collect();
    let logits = InlineLogits { data: vec![0; vocab_size as usize * 4].into(), row_stride: 0 };
    let step = Step { open, work, logits: Some(step::Logits::Inline(logits)), ..Default::default() };
    [decode_request::Request::Config(config), decode_request::Request::Step(step)]
        .map(|request| DecodeRequest { request: Some(request) })
}

/// A backend whose panic ends the engine's thread: its payload panics when it is dropped, so that catching the panic is not enough.
pub(crate) struct Fatal;

/// The payload of that panic.
struct Remains;

impl Drop for Remains {
    fn drop(&mut self) {
        panic!("the engine's thread ends here");
    }
}

impl Backend for Fatal {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn run(&mut self, _: &[RowJob<'_>]) -> Vec<RowResult> {
        std::panic::panic_any(Remains)
    }

    fn verify(&mut self, _: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        std::panic::panic_any(Remains)
    }
}

/// A backend whose device is lost.
pub(crate) struct Lost;

impl Backend for Lost {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn run(&mut self, _: &[RowJob<'_>]) -> Vec<RowResult> {
        std::panic::panic_any(DeviceLost)
    }

    fn verify(&mut self, _: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        std::panic::panic_any(DeviceLost)
    }
}
