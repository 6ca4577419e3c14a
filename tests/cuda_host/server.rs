//! A server process on a driver without a GPU, observed from outside.

use crate::build::{FOLDER, built};
use crate::support::Worker;
use croupier::proto::StreamConfig;
use croupier::proto::decode_request::Request;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};

/// Longer than anything here takes on a busy machine: reaching it means that the event never happens.
pub const NEVER: Duration = Duration::from_secs(240);

/// A process that is killed when its test ends.
pub struct Server {
    process: Child,
    dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a server with these flags and driver settings (tests/cuda_driver/driver.hpp). Rows come in messages here, and run on the device
/// unless the flags say otherwise. None without a C++ compiler.
pub fn start(flags: &[&str], driver: &[(&str, &str)]) -> Option<Server> {
    built().then(|| {
        let dir = tempfile::tempdir().unwrap();
        let texts: Vec<String> = (0..300).map(|token| format!("{token:b}")).collect();
        std::fs::write(dir.path().join("texts.json"), serde_json::to_vec(&texts).unwrap()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
        command.args(["serve", "--listen=none", "--admin=127.0.0.1:0", "--threads=1", "--log-format=json"]).args(flags);
        if !flags.iter().any(|flag| flag.starts_with("--host-rows")) {
            command.arg("--host-rows=cuda");
        }
        command.arg("--vocabulary").arg(dir.path().join("texts.json"));
        command.arg("--uds").arg(dir.path().join("s")).env("FAKE_CUDA_LOG", dir.path().join("calls"));
        command.env("LD_LIBRARY_PATH", format!("{FOLDER}/driver")).envs(driver.iter().copied());
        command.env("FAKE_CUDA_ANSWERS", format!("{FOLDER}/driver/answers"));
        if driver.iter().any(|(_, value)| value.contains(WHEN_ARMED)) {
            command.env("FAKE_CUDA_ARMED", dir.path().join("armed"));
            command.envs(driver.iter().map(|(name, value)| (name, value.trim_start_matches(WHEN_ARMED))));
        }
        let process = command.stderr(std::fs::File::create(dir.path().join("log")).unwrap()).spawn().unwrap();
        Server { process, dir }
    })
}

/// Prefix of a fault that is planted only once the server is [armed](Server::arm).
pub const WHEN_ARMED: &str = "armed:";

impl Server {
    /// The text that the server has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// The number of finished driver calls whose name begins with `function`.
    pub fn calls(&self, function: &str) -> usize {
        let log = std::fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        log.lines().filter(|line| line.split(' ').nth(1).is_some_and(|name| name.starts_with(function))).count()
    }

    /// From now on, the driver's calls count for faults.
    pub fn arm(&self) {
        std::fs::write(self.dir.path().join("armed"), "").unwrap();
    }

    /// Waits until the server is ready, and returns the line that says so.
    pub fn ready(&mut self) -> serde_json::Value {
        let start = Instant::now();
        loop {
            let log = self.log();
            let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            if let Some(line) = lines.into_iter().find(|line| field(line, "message") == "ready") {
                return line;
            }
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none() && start.elapsed() < NEVER, "not ready ({ended:?}):\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the server ends. Returns its exit code and log.
    pub fn ended(&mut self) -> (i32, String) {
        let start = Instant::now();
        while self.process.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < NEVER, "it does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        let code = self.process.wait().unwrap().code();
        (code.unwrap_or_else(|| panic!("a signal ended it:\n{}", self.log())), self.log())
    }

    /// A page of the admin port, once the server is ready.
    pub async fn page(&mut self, path: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let admin = field(&self.ready(), "admin");
        let mut stream = tokio::net::TcpStream::connect(admin).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// The value of one series.
    pub async fn series(&mut self, series: &str) -> f64 {
        let page = self.page("/metrics").await;
        let found = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("{series} is missing in:\n{page}"))
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("unix:{}", self.socket().display())).unwrap().connect().await.unwrap()
    }

    /// A configured stream.
    pub async fn worker(&self, config: StreamConfig) -> Worker {
        let mut worker = Worker::over(self.channel().await).await.unwrap();
        worker.send(Request::Config(config)).await;
        worker.ready().await;
        worker
    }
}

/// A field of a logged line, as text.
pub fn field(line: &serde_json::Value, name: &str) -> String {
    let value = line.get(name).or_else(|| line.get("fields")?.get(name));
    value.and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}
