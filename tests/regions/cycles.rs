//! Connect, lease, `kill -9`, over and over: nothing is left over. Every run does this a hundred times. CROUPIER_CYCLES
//! sets another number, and docs/data-paths.md has the results of 10,000.

use super::processes::{A_WHILE, Held, NEVER, SOCKET, Server, at_the_point, until, working};
use super::*;
use std::time::Instant;

/// The environment variable for the number of cycles.
const CYCLES: &str = "CROUPIER_CYCLES";
/// The number of workers in a process that is killed: so many connections, streams, sequences and leases end at once.
const WORKERS: &str = "CROUPIER_TEST_WORKERS";
const MAX_WORKERS: usize = 50;
/// Memory that the allocator and threads may use and free, whatever the number of cycles.
const SLACK_KIB: u64 = 16 << 10;

/// Not a test: many workers in one process, each with a region and a sequence that has sampled from it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the tests of this file"]
async fn many_workers() {
    let (Ok(socket), Ok(count)) = (std::env::var(SOCKET), std::env::var(WORKERS)) else { return };
    let mut workers = Vec::new();
    for turn in 0..count.parse().unwrap() {
        let (mut worker, side, mut region) = working(Path::new(&socket)).await;
        region_token(&mut worker, &mut region, &logits(5, turn)).await;
        workers.push((worker, side, region));
    }
    at_the_point();
}

/// Other counts of a server: connections, state, bytes in flight.
fn counted(server: &Server) -> Vec<f64> {
    let names = [
        "croupier_connections{transport=\"uds\"}",
        "croupier_connections{transport=\"region\"}",
        "croupier_state_bytes",
        "croupier_in_flight_bytes",
        "croupier_in_flight_rows",
        "croupier_queue_depth",
    ];
    names.iter().map(|name| server.series(name)).collect()
}

/// The server's resident anonymous memory, in KiB.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Kills `count` workers, a process of them at a time, and waits until the server holds nothing for them.
fn cycles(server: &Server, count: usize, rest: &Held) {
    let mut left = count;
    while left > 0 {
        let workers = left.min(MAX_WORKERS);
        let mut process = server.process_at("regions::cycles::many_workers", WORKERS, &workers.to_string());
        assert_eq!(server.held().series[0], workers as f64, "all of them have their region when they die");
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(server.comes_back_to(rest, NEVER), "{:?}, was {rest:?}, with {left} to go", server.held());
        left -= workers;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stdout)] // What was measured.
async fn nothing_is_left_of_workers_that_connect_lease_and_are_killed() {
    let count = std::env::var(CYCLES).map_or(100, |count| count.parse().unwrap());
    let server = Server::start();
    let idle = blocking(|| server.at_rest());
    // Threads, buffers and handles that are created only once exist after the first cycles.
    blocking(|| cycles(&server, 2 * MAX_WORKERS, &idle));
    let nobody = [0.0; 6];
    blocking(|| until(|| counted(&server) == nobody));
    let before = resident(&server);
    let start = Instant::now();
    blocking(|| cycles(&server, count, &idle));
    // Connections may be counted for a moment longer than the calls that came over them.
    blocking(|| until(|| counted(&server) == nobody));
    let (after, seconds) = (resident(&server), start.elapsed().as_secs_f64());
    let granted = server.series("croupier_region_leases_total{result=\"granted\"}");
    println!(
        "{count} workers connected, leased and were killed in {seconds:.1} s; {granted} regions were leased. Left: {:?} \
         and {:?}, as before; {before} KiB of memory before, {after} KiB after",
        server.held(),
        counted(&server),
    );
    assert_eq!(granted, (2 * MAX_WORKERS + count) as f64);
    assert!(after < before + SLACK_KIB + count as u64 / 4, "{before} KiB before, {after} KiB after {count} cycles");
    // The check for leaks notices one: a single worker that lives.
    let kept = working(&server.socket()).await;
    assert!(!blocking(|| server.comes_back_to(&idle, A_WHILE)), "a leak of one region went unseen");
    let seen = counted(&server);
    assert!(seen[..3].iter().zip(&nobody).all(|(now, before)| now > before), "{seen:?}");
    drop(kept);
    assert!(blocking(|| server.comes_back_to(&idle, NEVER)), "{:?}, was {idle:?}", server.held());
}
