//! Slow, absent or misbehaving collectors harm nobody, and spans that they do not take are counted.

use super::{Worker, client, collected, one_row, tracing};
use crate::common::{Running, start, until};
use crate::tls::pki::{Authority, Mounted};
use crate::traces::collector::{Collector, Manner};
use croupier::app::{App, Drained};
use croupier::otlp::Settings;
use croupier::proto::LogitsDtype;
use tonic::Code;

/// Spans of one step: its own and those of its stages.
const SPANS: f64 = 4.0;

async fn spans(server: &Running, result: &str) -> f64 {
    server.series(&format!("croupier_trace_spans_total{{result=\"{result}\"}}")).await
}

#[tokio::test]
async fn what_was_taken_is_counted() {
    let (_collector, address) = Collector::start(Manner::Takes).await;
    let server = start(tracing(address, 1.0)).await;
    let mut worker = Worker::open(&server, None).await;
    for _ in 0..5 {
        worker.step("").await;
    }
    until("five steps are exported", async || spans(&server, "exported").await == 5.0 * SPANS).await;
    assert_eq!((spans(&server, "dropped").await, spans(&server, "failed").await), (0.0, 0.0));
}

#[tokio::test]
async fn what_was_turned_away_is_counted() {
    let (collector, address) = Collector::start(Manner::TakesAllBut(3)).await;
    let server = start(tracing(address, 1.0)).await;
    let mut worker = Worker::open(&server, None).await;
    worker.step("").await;
    until("three spans fail", async || spans(&server, "failed").await == 3.0).await;
    assert_eq!(spans(&server, "exported").await, SPANS - 3.0);
    // After a permanent error, the spans are not sent again.
    collector.be(Manner::Refuses(Code::PermissionDenied));
    worker.step("").await;
    until("four more fail", async || spans(&server, "failed").await == 3.0 + SPANS).await;
    // Then the collector takes spans again.
    collector.be(Manner::Takes);
    worker.step("").await;
    until("they are taken again", async || spans(&server, "exported").await == 2.0 * SPANS - 3.0).await;
}

#[tokio::test]
async fn a_collector_that_comes_late_gets_what_is_left() {
    let (collector, address) = Collector::start(Manner::Refuses(Code::Unavailable)).await;
    let server = start(tracing(address, 1.0)).await;
    let mut worker = Worker::open(&server, None).await;
    worker.step("").await;
    collector.be(Manner::Takes);
    until("it is tried again", async || spans(&server, "exported").await == SPANS).await;
    assert_eq!(spans(&server, "failed").await, 0.0);
}

#[tokio::test]
async fn a_collector_that_hangs_holds_up_nobody_and_drops_are_counted() {
    const STEPS: usize = 3000;
    let (_collector, address) = Collector::start(Manner::Hangs).await;
    let server = start(tracing(address, 1.0)).await;
    let mut worker = Worker::open(&server, None).await;
    for _ in 0..STEPS {
        worker.step("").await;
    }
    // 2,048 spans wait, and one or two batches of 256 may be under way.
    let dropped = spans(&server, "dropped").await / SPANS;
    assert!((1.0..=(STEPS - 2048) as f64).contains(&dropped), "{dropped}");
    drop(worker);
    // The server ends in time, and drops the spans that hang.
    assert_eq!(server.shut_down().await.expect("it ends"), Drained::Clean);
}

#[tokio::test]
async fn nobody_listening_is_no_trouble() {
    let address = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("an address")
    };
    let server = start(tracing(address, 1.0)).await;
    let mut worker = Worker::open(&server, None).await;
    for _ in 0..100 {
        assert_eq!(worker.step("").await.len(), 1);
    }
    client(&server).await.sample(one_row(LogitsDtype::F32)).await.expect("an answer");
    drop(worker);
    assert_eq!(server.shut_down().await.expect("it ends"), Drained::Clean);
}

#[tokio::test]
async fn the_collector_is_reached_over_tls() {
    let (authority, other) = (Authority::new(), Authority::new());
    let pair = authority.server();
    let (collector, address) = Collector::start_with_tls(&pair.cert, &pair.key).await;
    let mounted = Mounted::new(&[("good.crt", &authority.pem()), ("other.crt", &other.pem())]);
    for (file, taken) in [("good.crt", true), ("other.crt", false)] {
        let endpoint = Some(format!("https://localhost:{}", address.port()));
        let mut settings = tracing(address, 1.0);
        settings.traces = Settings { endpoint, ca: Some(mounted.path(file)) };
        let server = start(settings).await;
        Worker::open(&server, None).await.step("").await;
        let before = collector.spans().len();
        let least = if taken { before + super::SPANS } else { before };
        let after = collected(server, &collector, least).await.len();
        assert_eq!(after > before, taken, "{file}");
    }
    let missing = Settings { endpoint: Some("https://localhost:1".to_owned()), ca: Some(mounted.path("none.crt")) };
    let mut settings = tracing(address, 1.0);
    settings.traces = missing;
    let told = App::bind(settings).await.expect_err("there is no such file").to_string();
    assert!(told.contains("none.crt"), "{told}");
}
