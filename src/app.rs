//! The composition root: the only place that knows all parts. It binds every socket, then serves, then drains.

mod descriptors;
mod device;
mod engine_thread;
mod exporting;
mod serving;
mod stall;
mod startup_checks;

use crate::admin;
use crate::backend::cuda::{self, OpenError};
use crate::backend::{Backend, BackendInfo};
use crate::config::{self, Config};
use crate::engine::Engine;
use crate::metrics::{Metrics, UPKEEP_INTERVAL};
use crate::otlp::Collector;
use crate::output;
use crate::region::{DeviceSide, Regions};
use crate::rpc::connections::BACKLOG;
use crate::rpc::connections::uds::{self, UdsListener};
use crate::rpc::health::{Health, State};
use crate::rpc::{self, Options, RegionSide, ServerSetup, Service};
use crate::secrets::Secrets;
use crate::{memory, shutdown, telemetry};
use serving::Serving;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// The fault is outside the process: an address is taken, a directory cannot be written.
const EXIT_START: u8 = 1;
/// The fault is inside the process.
const EXIT_INTERNAL: u8 = 70;
/// The device failed. Whoever started the process should start it again, on another device if it fails often.
const EXIT_DEVICE_LOST: u8 = 86;
/// The device has no room at the start.
const EXIT_DEVICE_MEMORY: u8 = 88;
/// How long connections that are being cut, the engine and the last spans may take at the end.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// A thread for blocking work ends after this long without work. Upkeep is such work and comes more often, so that one
/// thread is always there.
const BLOCKING_THREAD_KEEP_ALIVE: Duration = Duration::from_secs(5 * UPKEEP_INTERVAL.as_secs());

/// Why the server did not run or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket could not be opened.
    #[error("{setting}: cannot listen on {address}: {source}")]
    Bind {
        /// The flag of the setting that names the address.
        setting: &'static str,
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The certificate or the tokens cannot be used.
    #[error("cannot use certificate or tokens: {}", .0.join("; "))]
    Secrets(Vec<String>),
    /// The collector of traces cannot be used.
    #[error("cannot send traces: {0}")]
    Collector(String),
    /// The configured backend cannot be used.
    #[error("cannot use the backend cuda: {0}")]
    Backend(#[from] OpenError),
    /// The device failed in a way that it does not recover from.
    #[error("the device is lost; its results can no longer be trusted")]
    DeviceLost,
    /// The thread that drives the backend ended.
    #[error("the engine stopped unexpectedly")]
    Engine,
    /// A task that serves has ended.
    #[error("a server stopped unexpectedly: {0}")]
    Server(String),
    /// The system gives less than a server needs at the start.
    #[error("cannot start without {wanted}: {source}; {remedy}")]
    System {
        /// The resource and how much of it is needed.
        wanted: String,
        /// What to do about it.
        remedy: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The system refused something else at the start.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

impl Error {
    /// The code that the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Backend(OpenError::OutOfMemory(_)) => EXIT_DEVICE_MEMORY,
            Self::Bind { .. } | Self::Secrets(_) | Self::Collector(_) | Self::Backend(_) => EXIT_START,
            Self::System { .. } | Self::Io(_) => EXIT_START,
            Self::DeviceLost => EXIT_DEVICE_LOST,
            Self::Engine | Self::Server(_) => EXIT_INTERNAL,
        }
    }
}

/// Where the server listens, with the ports that the system chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// gRPC over TCP.
    pub tcp: Option<SocketAddr>,
    /// gRPC over a Unix socket.
    pub uds: Option<PathBuf>,
    /// The side socket for shared memory.
    pub regions: Option<PathBuf>,
    /// Metrics and probes.
    pub admin: Option<SocketAddr>,
}

impl Addresses {
    fn log_ready(&self, backend: &BackendInfo) {
        tracing::info!(
            tcp = self.tcp.map(display),
            uds = self.uds.as_ref().map(|path| display(path.display())),
            regions = self.regions.as_ref().map(|path| display(path.display())),
            admin = self.admin.map(display),
            backend = backend.name,
            device = backend.device,
            threads = backend.parallelism,
            version = env!("CARGO_PKG_VERSION"),
            "ready"
        );
    }
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every stream had ended.
    Clean,
    /// Streams that were still open at the deadline were cut.
    Cut,
    /// All streams had ended or were cut, but the engine was still at work. Its device may hang. The driver would wait
    /// for it at the end of the process, so the process ends without the driver's exit handlers.
    EngineBusy,
}

/// A server with open sockets that does not serve yet.
pub struct App {
    config: Config,
    backend: Box<dyn Backend>,
    info: BackendInfo,
    metrics: Metrics,
    secrets: Secrets,
    /// Changes whenever somebody asks for the certificate and token files to be read again.
    reload_requests: watch::Receiver<()>,
    collector: Option<Collector>,
    tcp: Option<TcpListener>,
    uds: Option<UdsListener>,
    regions: Option<UdsListener>,
    admin: Option<TcpListener>,
    addresses: Addresses,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("addresses", &self.addresses).field("backend", &self.info).finish_non_exhaustive()
    }
}

impl App {
    /// Opens every socket, so that a taken address is known before anything runs.
    ///
    /// # Errors
    /// The first socket that cannot be opened.
    pub async fn bind(config: Config) -> Result<Self, Error> {
        let backend = device::open(&config)?;
        Self::bind_with(config, backend).await
    }

    /// As [`Self::bind`], with a backend that the caller has made.
    ///
    /// # Errors
    /// The first socket that cannot be opened.
    pub async fn bind_with(config: Config, backend: Box<dyn Backend>) -> Result<Self, Error> {
        let info = backend.info();
        let metrics = Metrics::new(&config.limits, &info);
        let secrets = Secrets::open(&config).map_err(Error::Secrets)?;
        let collector = Collector::open(&config.traces).map_err(Error::Collector)?;
        let tcp = bind_tcp("--listen", config.listen)?;
        let admin = bind_tcp("--admin", config.admin)?;
        let uds = config.uds.as_deref().map(|path| bind_uds("--uds", path)).transpose()?;
        let regions = config.region_socket().as_deref().map(|path| bind_uds("--region-socket", path)).transpose()?;
        let local = |listener: &Option<TcpListener>| listener.as_ref().map(TcpListener::local_addr).transpose();
        let path = |listener: &Option<UdsListener>| listener.as_ref().map(|uds| uds.path().to_owned());
        let addresses =
            Addresses { tcp: local(&tcp)?, uds: path(&uds), regions: path(&regions), admin: local(&admin)? };
        let reload_requests = watch::channel(()).1;
        Ok(Self {
            config,
            backend,
            info,
            metrics,
            secrets,
            reload_requests,
            collector,
            tcp,
            uds,
            regions,
            admin,
            addresses,
        })
    }

    /// Makes the server also read its certificate and token files again whenever `reload_requests` changes.
    #[must_use]
    pub fn reloading_on(self, reload_requests: watch::Receiver<()>) -> Self {
        Self { reload_requests, ..self }
    }

    /// Where the server listens.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Serves until `stop`, then drains. Always ends within the drain timeout and a moment.
    ///
    /// # Errors
    /// When the server could not go on.
    pub async fn serve(self, stop: CancellationToken) -> Result<Drained, Error> {
        let health = Health::new(self.metrics.clone()).await;
        let mut background = JoinSet::new();
        background.spawn(upkeep(self.metrics.clone()));
        if let Some(listener) = self.admin {
            let served = admin::serve(listener, self.metrics.clone(), health.clone());
            background.spawn(async move {
                served.await.unwrap_or_else(|error| tracing::error!(%error, "the admin port failed"))
            });
        }
        let limits = Arc::new(self.config.limits.clone());
        let device = device_side(&*self.backend, &self.config, &self.metrics);
        let (engine, thread) = Engine::start(self.backend, Arc::clone(&limits), self.metrics.clone());
        let engine_ended = engine_thread::watch(thread)?;
        let heartbeat = engine.heartbeat();
        background.spawn(stall::watch(move || heartbeat.busy_for(), self.config.engine_stall_timeout, health.clone()));
        let regions = self.regions.map(|listener| {
            let (count, bytes) = (self.metrics.regions.clone(), self.metrics.region_bytes.clone());
            let socket = listener.path().to_owned();
            (listener, RegionSide { regions: Regions::with_device(&limits, count, bytes, device), socket })
        });
        let traces = self.collector.map(|to| exporting::start(to, self.config.trace_ratio, &self.metrics));
        let (tracer, exporting) = traces.unzip();
        let options = Options {
            setup: server_setup(&self.config, &self.metrics),
            max_age: self.config.max_connection_age,
            ping_timeout: self.config.keepalive_timeout,
            regions: regions.as_ref().map(|(_, side)| side.clone()),
            tracer,
        };
        let service = Service::new(engine, limits, self.info.clone(), self.metrics.clone(), options);
        let mut serving = Serving::new(&self.config, service, &health, &self.metrics);
        regions.into_iter().for_each(|(listener, side)| serving.serve_regions(listener, side));
        self.tcp.into_iter().for_each(|tcp| serving.serve_tcp(tcp, &self.secrets));
        self.uds.into_iter().for_each(|uds| serving.serve_uds(uds));
        self.secrets.watch(&mut background, &self.reload_requests, &self.metrics);
        health.set(State::Ready).await;
        self.addresses.log_ready(&self.info);
        serving.run(stop, engine_ended, background, exporting).await
    }
}

/// The parts of the configuration that apply to streams.
fn server_setup(config: &Config, metrics: &Metrics) -> ServerSetup {
    let (defaults, defaults_written) = (config.defaults.clone(), config.defaults_written.clone());
    let setup = ServerSetup { defaults, defaults_written, presets: config.presets.clone(), ..ServerSetup::default() };
    match &config.vocabulary {
        Some(known) => setup.with_vocabulary(Arc::clone(known), config.grammars.then_some(metrics)),
        None => setup,
    }
}

/// The memory of the backend's device, if workers may lease some.
fn device_side(backend: &dyn Backend, config: &Config, metrics: &Metrics) -> Option<DeviceSide> {
    let limit = config.limits.max_device_region_bytes;
    let memory = backend.device_memory().filter(|_| limit > 0)?;
    metrics.device_region_capacity.set(limit as f64);
    Some(DeviceSide::new(memory, limit, metrics.device_region_bytes.clone(), config.device_ipc))
}

fn bind_tcp(setting: &'static str, address: Option<SocketAddr>) -> Result<Option<TcpListener>, Error> {
    let Some(address) = address else { return Ok(None) };
    listen(address).map(Some).map_err(|source| Error::Bind { setting, address: address.to_string(), source })
}

/// Listens with a longer queue than the standard library's 128, because all workers connect at once after a restart.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn bind_uds(setting: &'static str, path: &Path) -> Result<UdsListener, Error> {
    UdsListener::bind(path).map_err(|source| Error::Bind { setting, address: path.display().to_string(), source })
}

/// Does the metrics' upkeep, and by that keeps one thread for blocking work alive. As long as there is one, blocking
/// work waits for it when the system gives no more threads. With none, a call that needs one would panic.
async fn upkeep(metrics: Metrics) {
    let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        interval.tick().await;
        let metrics = metrics.clone();
        let done = tokio::task::spawn_blocking(move || metrics.upkeep()).await;
        if let Err(Ok(panic)) = done.map_err(JoinError::try_into_panic) {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Runs a server with this configuration until a signal stops it, and returns the exit code.
#[must_use]
pub fn run(config: Config) -> ExitCode {
    memory::keep_large_buffers();
    let descriptors = descriptors::raise_limit();
    if let Err(error) = startup_checks::check_threads(&config) {
        // The check comes before the log because the log has a thread of its own.
        telemetry::log_without_thread(config.log_format, &error);
        return ExitCode::from(error.exit_code());
    }
    let guard = match telemetry::init(config.log_format, &config.log_level) {
        Ok(guard) => guard,
        Err(error) => {
            output::complain(&format!("croupier: cannot start logging: {error}"));
            return ExitCode::from(EXIT_INTERNAL);
        }
    };
    descriptors::warn_if_few(descriptors, config.limits.max_connections);
    let ended = run_logged(config);
    let is_engine_busy = matches!(ended, Ok(Drained::EngineBusy));
    let code = match ended {
        Ok(_) => 0,
        Err(error) => {
            tracing::error!("{error}");
            error.exit_code()
        }
    };
    // Flushes the log.
    drop(guard);
    if is_engine_busy || code == EXIT_DEVICE_LOST || cuda::hangs() {
        uds::remove_own_files();
        shutdown::end_at_once(code);
    }
    ExitCode::from(code)
}

fn run_logged(config: Config) -> Result<Drained, Error> {
    startup_checks::check_descriptors()?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(config.io_threads()).max_blocking_threads(rpc::most_threads(&config.limits));
    builder.thread_name("croupier-io").thread_keep_alive(BLOCKING_THREAD_KEEP_ALIVE);
    let runtime = builder.enable_all().build()?;
    for (variable, setting) in
        config::unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
    {
        tracing::warn!("{variable} is not a setting and is ignored; did you mean {setting}?");
    }
    let ended = runtime.block_on(async {
        // Signals are watched before a device is opened, because opening it takes a while.
        let (stop, reload_requests) = (shutdown::on_signal(uds::remove_own_files)?, shutdown::on_hangup()?);
        App::bind(config).await?.reloading_on(reload_requests).serve(stop).await
    });
    // Whatever is left may not hold up the exit.
    runtime.shutdown_background();
    ended
}
