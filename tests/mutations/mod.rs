//! Messages with random errors, over real sockets: for every call that samples, and for the side socket. Each gets a documented answer that
//! names a field, nothing panics, nothing is left over, and a neighbour's text does not change.
//!
//! `MUTATIONS=100000 cargo test --release --test random mutations::` tries more of them than the suite does, and `MUTATIONS_SEED` others.

mod call;
mod side;
mod spoil;
mod steps;
mod talk;
mod told;
mod tree;

use crate::support::*;
use croupier::backend::cpu::CpuBackend;
use croupier::limits::Limits;
use croupier::proto::SamplingParams;
use spoil::Spoiler;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use told::Told;

/// Series that must have these values again when a call has ended. One stream, the neighbour's, stays open.
const AT_REST: [(&str, f64); 9] = [
    ("croupier_streams", 1.0),
    ("croupier_sequences_active", 1.0),
    ("croupier_in_flight_bytes", 0.0),
    ("croupier_in_flight_rows", 0.0),
    ("croupier_queue_depth", 0.0),
    ("croupier_regions", 0.0),
    ("croupier_region_bytes", 0.0),
    ("croupier_shard_ranks", 0.0),
    ("croupier_shard_bytes", 0.0),
];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}

async fn server() -> TestServer {
    let limits = Limits {
        max_bytes_per_region: 1 << 20,
        max_region_bytes: 4 << 20,
        // The server waits in vain for ranks whose messages are spoiled.
        shard_timeout: Duration::from_millis(20),
        ..Limits::default()
    };
    TestServer::with(Transport::Unix, limits, Box::new(CpuBackend::new(1))).await
}

/// A text that remembers all of its tokens, on the server under test and on a server without other clients.
struct Neighbour {
    workers: [Worker; 2],
    position: u64,
}

impl Neighbour {
    async fn begin(servers: [&TestServer; 2]) -> Self {
        let mut workers = [servers[0].worker().await, servers[1].worker().await];
        let params = SamplingParams { frequency_penalty: Some(0.1), dry_multiplier: Some(0.5), ..seeded(11) };
        for worker in &mut workers {
            worker.step(open_step(vec![open(1, params.clone())])).await;
        }
        Self { workers, position: 0 }
    }

    async fn goes_on(&mut self) -> Result<(), String> {
        let [there, alone] = &mut self.workers;
        let step = || sample_step(&[(1, logits(1, self.position))]);
        let (there, alone) = (there.step(step()).await, alone.step(step()).await);
        self.position += 1;
        if there.work == alone.work { Ok(()) } else { Err(format!("a neighbour got {there:?} in place of {alone:?}")) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_wrong_with_messages_has_an_answer_and_harms_nobody() {
    let panics = Arc::new(AtomicUsize::new(0));
    let (counted, before) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |what| {
        counted.fetch_add(1, Ordering::SeqCst);
        before(what);
    }));
    let (server, quiet) = (server().await, server().await);
    let mut neighbour = Neighbour::begin([&server, &quiet]).await;
    let (channel, calls, first) = (server.channel().await, number("MUTATIONS", 1500), number("MUTATIONS_SEED", 1));
    let mut told = Told::default();
    for seed in (first << 32..).take(calls as usize) {
        let share = [0.0, 0.1, 0.3, 0.8][seed as usize % 4];
        let mut spoiler = Spoiler::new(seed, share);
        let mut sent = Vec::new();
        let went = talk::any(&channel, &mut spoiler, &mut told, &mut sent).await;
        let mut went = went.and_then(|()| match panics.load(Ordering::SeqCst) {
            0 => Ok(()),
            count => Err(format!("{count} panics")),
        });
        if went.is_ok() {
            went = neighbour.goes_on().await;
        }
        went.unwrap_or_else(|what| panic!("call {seed}: {what}\nsent: {sent:02x?}"));
        server.expect_all(&AT_REST).await;
        // Only the neighbour's state is left.
        server.expect_series("croupier_state_bytes", quiet.series("croupier_state_bytes")).await;
    }
    println!("{told}");
    told.hold(u32::try_from(calls).unwrap());
}
