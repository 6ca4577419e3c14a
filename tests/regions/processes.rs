//! Worker processes that are killed, and a server process that is observed from outside.

use super::*;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine: reaching it means that the event never happens.
pub(super) const NEVER: Duration = Duration::from_secs(60);
/// For events that must not happen: long enough to notice them.
pub(super) const A_WHILE: Duration = Duration::from_secs(3);
/// The path at which the worker process finds the server, and the point at which it stops.
pub(super) const SOCKET: &str = "CROUPIER_TEST_SOCKET";
const POINT: &str = "CROUPIER_TEST_POINT";
/// Points at which workers are killed, in the order of their lives.
const POINTS: [&str; 5] = ["configured", "greeted", "leased", "writing", "stepping"];

/// A server process that is killed when its test ends.
pub(super) struct Server {
    pub(super) process: Child,
    dir: tempfile::TempDir,
    admin: std::net::SocketAddr,
}

/// The resources that a server holds for its workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Held {
    descriptors: usize,
    mappings: usize,
    /// Regions, their bytes, streams, sequences.
    pub(super) series: Vec<f64>,
}

impl Server {
    pub(super) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let admin = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
        command.args(["serve", "--listen=none", "--threads=1", "--log-level=warn", "--uds"]).arg(dir.path().join("s"));
        let process = command.args(["--admin", &admin.to_string()]).spawn().unwrap();
        let server = Self { process, dir, admin };
        until(|| server.page("/readyz").is_some_and(|page| page.contains(" 200 ")));
        server
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn page(&self, path: &str) -> Option<String> {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.admin).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    pub(super) fn series(&self, series: &str) -> f64 {
        let page = self.page("/metrics").unwrap();
        page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok()).unwrap()
    }

    pub(super) fn held(&self) -> Held {
        let proc = PathBuf::from(format!("/proc/{}", self.process.id()));
        let maps = std::fs::read_to_string(proc.join("maps")).unwrap();
        let names = ["croupier_regions", "croupier_region_bytes", "croupier_streams", "croupier_sequences_active"];
        Held {
            descriptors: proc.join("fd").read_dir().unwrap().count(),
            mappings: maps.lines().filter(|line| line.contains("croupier-region")).count(),
            series: names.iter().map(|name| self.series(name)).collect(),
        }
    }

    /// Whether the server returns to holding exactly this.
    pub(super) fn comes_back_to(&self, held: &Held, within: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < within {
            if self.held() == *held {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// What the server holds when nobody has connected for a while.
    pub(super) fn at_rest(&self) -> Held {
        let mut same: Vec<Held> = Vec::new();
        until(|| {
            let held = self.held();
            same.retain(|before| *before == held);
            same.push(held);
            same.len() == 10
        });
        same.remove(0)
    }

    /// A worker process that has come to a point of its life.
    fn worker(&self, point: &str) -> Child {
        self.process_at("regions::processes::worker_process", POINT, point)
    }

    /// Starts one of the ignored helper tests as a process, with `variable` set, and waits until it has come to its point.
    pub(super) fn process_at(&self, test: &str, variable: &str, point: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        command.env(SOCKET, self.socket()).env(variable, point).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("at the point")), "{point} was never reached");
        child
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(super) fn until(mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < NEVER, "it never happens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

async fn stream_to(socket: &Path) -> (Worker, RegionOffer) {
    let uri = format!("unix://{}", socket.display());
    let channel = tonic::transport::Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    Worker::over(channel).await.unwrap().with_regions(config()).await
}

/// A stream with a region and one sequence.
pub(super) async fn working(socket: &Path) -> (Worker, SideClient, Leased) {
    let (mut worker, offer) = stream_to(socket).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let mut side = SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap();
    let region = side.lease(REGION).unwrap();
    (worker, side, region)
}

/// Called at the point: the test reads this line and kills the process.
#[allow(clippy::print_stdout)]
pub(super) fn at_the_point() -> ! {
    println!("at the point");
    loop {
        std::thread::park();
    }
}

/// Not a test: a worker for the tests below.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the tests of this file"]
async fn worker_process() {
    let (Ok(socket), Ok(point)) = (std::env::var(SOCKET), std::env::var(POINT)) else { return };
    let (mut worker, offer) = stream_to(Path::new(&socket)).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    if point == "configured" {
        at_the_point();
    }
    let mut side = SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap();
    if point == "greeted" {
        at_the_point();
    }
    let mut region = side.lease(REGION).unwrap();
    if point == "leased" {
        at_the_point();
    }
    let step = Step { work: vec![sample_work(1)], logits: at(place(&region, 0, 1)), ..Default::default() };
    std::thread::spawn(move || {
        for i in 0u64.. {
            region.window.write(0, &bytes(&logits(i, i)));
        }
    });
    if point == "writing" {
        at_the_point();
    }
    for _ in 0..10 {
        worker.step(step.clone()).await;
    }
    std::thread::spawn(|| at_the_point());
    loop {
        worker.step(step.clone()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_any_point_harms_nobody_and_leaves_nothing() {
    let server = Server::start();
    let reference = TestServer::start().await;
    let expected = inline_tokens(&reference, 5, 40).await;
    let (mut worker, _side, mut region) = working(&server.socket()).await;
    let before = server.held();
    assert_eq!((before.mappings, before.series[0]), (1, 1.0));
    for (turn, point) in (0..).zip(POINTS) {
        let mut killed = [(); 3].map(|()| blocking(|| server.worker(point)));
        let next = |turn: u64| turn * 8..turn * 8 + 4;
        for position in next(turn) {
            let token = region_token(&mut worker, &mut region, &logits(5, position)).await;
            assert_eq!(token, expected[position as usize], "beside workers at {point}");
        }
        killed.iter_mut().for_each(|child| child.kill().unwrap());
        for position in next(turn).map(|position| position + 4) {
            let token = region_token(&mut worker, &mut region, &logits(5, position)).await;
            assert_eq!(token, expected[position as usize], "after the death at {point}");
        }
        for mut child in killed {
            child.wait().unwrap();
        }
        assert!(blocking(|| server.comes_back_to(&before, NEVER)), "{point}: {:?}, was {before:?}", server.held());
    }
}

/// Runs several short-lived workers in this process.
async fn lives(server: &Server, count: usize) {
    for turn in 0..count {
        let (mut worker, mut side, mut region) = working(&server.socket()).await;
        region_token(&mut worker, &mut region, &logits(5, 0)).await;
        match turn % 3 {
            0 => drop((worker, side)),
            1 => drop((side, worker)),
            _ => side.release(&region.lease).unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_many_workers_and_a_leak_would_be_seen() {
    let server = Server::start();
    lives(&server, 10).await;
    let before = blocking(|| server.at_rest());
    assert_eq!((before.mappings, before.series.as_slice()), (0, [0.0; 4].as_slice()));
    lives(&server, 200).await;
    assert!(blocking(|| server.comes_back_to(&before, NEVER)), "{:?}, was {before:?}", server.held());
    // The detector notices one lease that is not released.
    let kept = working(&server.socket()).await;
    assert!(!blocking(|| server.comes_back_to(&before, A_WHILE)), "a leak of one region went unseen");
    drop(kept);
    assert!(blocking(|| server.comes_back_to(&before, NEVER)), "{:?}, was {before:?}", server.held());
}
