//! A server in this process over a real socket, and a worker that talks to it.
#![allow(dead_code, unreachable_pub)] // Every test file uses its own part of this.

mod gate;
mod worker;

#[allow(unused_imports)] // Few stop the backend.
pub use gate::Gate;
pub use worker::Worker;

use croupier::backend::Backend;
use croupier::backend::cpu::CpuBackend;
use croupier::config::Config;
use croupier::engine::{Engine, Handle};
use croupier::grammar::Grammars;
use croupier::limits::Limits;
use croupier::metrics::{Metrics, Transport as Counted};
use croupier::proto::decode_request::Request;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use croupier::region::{DeviceSide, Regions};
use croupier::rpc::connections::listener::Guard;
use croupier::rpc::connections::uds::UdsListener;
use croupier::rpc::health::Health;
use croupier::rpc::server::routes;
use croupier::rpc::{Options, RegionSide, ServerSetup, Service, regions};
use croupier::sampling::logits::Dtype;
use croupier::vocabulary::Vocabulary;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Server};
use tonic_types::StatusExt;

pub const VOCAB: u32 = 50;
/// Longer than anything here takes on a busy machine: reaching it means that the event never happens.
const NEVER: Duration = Duration::from_secs(60);

/// How workers reach the server.
#[derive(Debug, Clone, Copy)]
pub enum Transport {
    Tcp,
    Unix,
}

/// A running server; it stops when dropped.
pub struct TestServer {
    pub engine: Handle,
    pub draining: CancellationToken,
    pub metrics: Metrics,
    address: Address,
    _stop: DropGuard,
}

enum Address {
    Tcp(std::net::SocketAddr),
    Unix(tempfile::TempDir),
}

impl TestServer {
    pub async fn start() -> Self {
        Self::with(Transport::Tcp, Limits::default(), Box::new(CpuBackend::new(1))).await
    }

    pub async fn with_limits(change: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = Limits::default();
        change(&mut limits);
        Self::with(Transport::Tcp, limits, Box::new(CpuBackend::new(1))).await
    }

    pub async fn with_backend(backend: impl Backend + 'static, change: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = Limits::default();
        change(&mut limits);
        Self::with(Transport::Tcp, limits, Box::new(backend)).await
    }

    /// A server with the shipped presets and texts of tokens.
    pub async fn with(transport: Transport, limits: Limits, backend: Box<dyn Backend>) -> Self {
        let setup = ServerSetup { presets: Config::default().presets, ..ServerSetup::default() };
        let metrics = Metrics::new(&limits, &backend.info());
        let (vocabulary, compile) = (Arc::new(vocabulary()), metrics.grammar_compile.clone());
        // Grammars that nobody uses are not kept, so that tests see their memory become free.
        let grammars = Grammars::new(Arc::clone(&vocabulary)).recorded(compile).keeping(0);
        let setup = ServerSetup { vocabulary: Some(vocabulary), grammars: Some(Arc::new(grammars)), ..setup };
        Self::counted(transport, limits, backend, (setup, metrics)).await
    }

    pub async fn with_setup(
        transport: Transport,
        limits: Limits,
        backend: Box<dyn Backend>,
        setup: ServerSetup,
    ) -> Self {
        let metrics = Metrics::new(&limits, &backend.info());
        Self::counted(transport, limits, backend, (setup, metrics)).await
    }

    async fn counted(
        transport: Transport,
        limits: Limits,
        backend: Box<dyn Backend>,
        (setup, metrics): (ServerSetup, Metrics),
    ) -> Self {
        let limits = Arc::new(limits);
        let info = backend.info();
        let device = backend.device_memory().map(|memory| {
            let (limit, bytes) = (limits.max_device_region_bytes, metrics.device_region_bytes.clone());
            DeviceSide::new(memory, limit, bytes, true)
        });
        let (engine, _thread) = Engine::start(backend, Arc::clone(&limits), metrics.clone());
        let stop = CancellationToken::new();
        let dir = tempfile::tempdir().unwrap();
        let regions =
            matches!(transport, Transport::Unix).then(|| region_side(dir.path(), &limits, &metrics, device, &stop));
        let options = Options { setup, regions, ..Options::default() };
        let service = Service::new(engine.clone(), Arc::clone(&limits), info, metrics.clone(), options);
        let draining = service.drain_token();
        let router = Server::builder()
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20)
            .add_routes(routes(service, &Health::new(metrics.clone()).await, false, &stop));
        let stopped = stop.clone().cancelled_owned();
        let address = match transport {
            Transport::Tcp => {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                tokio::spawn(router.serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopped));
                Address::Tcp(address)
            }
            Transport::Unix => {
                let listener = tokio::net::UnixListener::bind(dir.path().join("socket")).unwrap();
                tokio::spawn(router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped));
                Address::Unix(dir)
            }
        };
        Self { engine, draining, metrics, address, _stop: stop.drop_guard() }
    }

    pub async fn client(&self) -> SamplerClient<Channel> {
        SamplerClient::new(self.channel().await)
    }

    pub async fn channel(&self) -> Channel {
        let channel = match &self.address {
            Address::Tcp(address) => Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await,
            Address::Unix(dir) => {
                let path = dir.path().join("socket");
                Endpoint::from_shared(format!("unix://{}", path.display())).unwrap().connect().await
            }
        };
        channel.unwrap()
    }

    /// The address at which the server listens.
    pub fn tcp_address(&self) -> std::net::SocketAddr {
        let Address::Tcp(address) = &self.address else { panic!("it listens on a Unix socket") };
        *address
    }

    /// The path at which another process finds the server, over a Unix socket.
    pub fn socket(&self) -> std::path::PathBuf {
        let Address::Unix(dir) = &self.address else { panic!("it listens on TCP") };
        dir.path().join("socket")
    }

    /// A configured stream.
    pub async fn worker(&self) -> Worker {
        self.worker_with(config()).await
    }

    pub async fn worker_with(&self, config: StreamConfig) -> Worker {
        let mut worker = self.stream().await.unwrap();
        worker.send(Request::Config(config)).await;
        worker.ready().await;
        worker
    }

    /// A stream that may have regions, and the server's offer of them.
    pub async fn region_worker(&self, config: StreamConfig) -> (Worker, RegionOffer) {
        self.stream().await.unwrap().with_regions(config).await
    }

    /// A stream on which nothing was sent yet.
    pub async fn stream(&self) -> Result<Worker, Status> {
        Worker::over(self.channel().await).await
    }

    /// The value of one series of the server's metrics.
    pub fn series(&self, series: &str) -> f64 {
        value_in(&self.metrics.render(), series)
    }

    /// Openings that failed for this reason, on streams without a model label.
    pub fn not_opened(&self, reason: &str) -> f64 {
        self.series(&format!("croupier_openings_failed_total{{model=\"default\",reason=\"{reason}\"}}"))
    }

    /// Waits until a series has this value.
    pub async fn expect_series(&self, series: &str, value: f64) {
        self.expect_all(&[(series, value)]).await;
    }

    /// Waits until these series have these values.
    pub async fn expect_all(&self, expected: &[(&str, f64)]) {
        let started = Instant::now();
        loop {
            let text = self.metrics.render();
            let Some((series, value)) = expected.iter().find(|(series, value)| value_in(&text, series) != *value)
            else {
                return;
            };
            assert!(started.elapsed() < NEVER, "{series} is {}, expected {value}", value_in(&text, series));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until this many sequences are open on the server.
    pub async fn expect_sequences(&self, count: usize) {
        let started = Instant::now();
        while self.engine.open_sequences() != count {
            let open = self.engine.open_sequences();
            assert!(started.elapsed() < NEVER, "{open} sequences are open, expected {count}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The value of one series in a text of metrics.
fn value_in(text: &str, series: &str) -> f64 {
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("{series} is missing in:\n{text}"))
}

/// The side that offers regions, with its own socket.
fn region_side(
    dir: &Path,
    limits: &Limits,
    metrics: &Metrics,
    device: Option<DeviceSide>,
    stop: &CancellationToken,
) -> RegionSide {
    let socket = dir.join("socket.region");
    let all = Regions::with_device(limits, metrics.regions.clone(), metrics.region_bytes.clone(), device);
    let guard = Guard::grpc(64, Duration::from_secs(1), stop.clone(), stop.clone(), metrics.clone());
    let guard = guard.for_transport(Counted::Region).opening_with(regions::OPENING_BYTES);
    tokio::spawn(regions::serve(UdsListener::bind(&socket).unwrap(), guard, Arc::clone(&all), metrics.clone()));
    RegionSide { regions: all, socket }
}

/// The texts of tokens: token 0 has none, then "a", "b", "aa", "ab", "ba", "bb", "aaa" and so on.
pub fn vocabulary() -> Vocabulary {
    let text = |token: u32| {
        let digits = (token + 1).ilog2();
        (0..digits).rev().map(|digit| if (token + 1) >> digit & 1 == 1 { b'b' } else { b'a' }).collect()
    };
    Vocabulary::new(&(0..VOCAB).map(|token| Some(text(token))).collect::<Vec<_>>(), b"")
}

pub fn config() -> StreamConfig {
    StreamConfig { vocab_size: VOCAB, logits_dtype: LogitsDtype::F32.into(), ..Default::default() }
}

/// The logits of a text at a position. Any function of both will do, as long as it is irregular.
pub fn logits(text: u64, position: u64) -> Vec<f32> {
    let mut state = text.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ position.wrapping_mul(0xD1B5_4A32_D192_ED03);
    (0..VOCAB)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 24) as f32) * 6.0 - 3.0
        })
        .collect()
}

pub fn inline(rows: &[Vec<f32>]) -> Option<step::Logits> {
    let data = rows.iter().flat_map(|row| Dtype::F32.encode(row)).collect::<Vec<u8>>().into();
    Some(step::Logits::Inline(InlineLogits { data, row_stride: 0 }))
}

pub fn sample_work(sequence_id: u64) -> Work {
    Work { sequence_id: Some(sequence_id), kind: Some(work::Kind::Sample(SampleWork {})), ..Default::default() }
}

pub fn score_work(sequence_id: Option<u64>, score: ScoreWork) -> Work {
    Work { sequence_id, kind: Some(work::Kind::Score(score)), ..Default::default() }
}

/// A step that samples each of these sequences from its row.
pub fn sample_step(rows: &[(u64, Vec<f32>)]) -> Step {
    let work = rows.iter().map(|(id, _)| sample_work(*id)).collect();
    let rows: Vec<_> = rows.iter().map(|(_, row)| row.clone()).collect();
    Step { work, logits: inline(&rows), ..Default::default() }
}

pub fn open(sequence_id: u64, params: SamplingParams) -> OpenSequence {
    OpenSequence { sequence_id, params: Some(params), ..Default::default() }
}

pub fn open_step(open: Vec<OpenSequence>) -> Step {
    Step { open, ..Default::default() }
}

pub fn seeded(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), ..Default::default() }
}

/// The only token of an OK result.
pub fn token(result: &WorkResult) -> u32 {
    assert_eq!(result.status(), RowStatus::Ok, "{}", result.message);
    assert_eq!(result.tokens.len(), 1);
    result.tokens[0].token_id
}

/// Path of the field that a status names, and its stable reason.
pub fn violation(status: &Status) -> (String, String) {
    let details = status.get_error_details();
    let field = details.bad_request().and_then(|bad| bad.field_violations.first().map(|v| v.field.clone()));
    let reason = details.error_info().map(|info| info.reason.clone());
    (field.unwrap_or_default(), reason.unwrap_or_default())
}

/// The text with this seed, as a stream with inline logits gets it.
pub async fn inline_tokens(server: &TestServer, seed: u64, count: u64) -> Vec<u32> {
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(seed))])).await;
    let mut tokens = Vec::new();
    for position in 0..count {
        tokens.push(token(&worker.step(sample_step(&[(1, logits(seed, position))])).await.work[0]));
    }
    tokens
}
