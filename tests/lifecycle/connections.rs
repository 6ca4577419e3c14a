//! Bounds on connections: how many there may be, what they may send, and for whom places are kept.

use crate::common::{NEVER, config, start, until};
use croupier::config::Config;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

#[tokio::test]
async fn a_silent_connection_is_closed_and_counted() {
    let server = start(Config { first_byte_timeout: Duration::from_millis(200), ..config() }).await;
    let mut silent = TcpStream::connect(server.tcp()).await.expect("a connection");
    let mut seen = Vec::new();
    // The server's SETTINGS may come first. What matters is that the connection ends.
    let end = tokio::time::timeout(NEVER, silent.read_to_end(&mut seen)).await;
    assert!(end.is_ok(), "the connection stayed open");
    until("counted", async || server.series("croupier_rejected_total{reason=\"first_byte_timeout\"}").await == 1.0)
        .await;
    until("closed", async || server.series("croupier_connections{transport=\"tcp\"}").await == 0.0).await;
}

#[tokio::test]
async fn connections_over_the_limit_are_closed_at_once() {
    let mut limited = config();
    limited.limits.max_connections = 1;
    let server = start(limited).await;
    let first = TcpStream::connect(server.tcp()).await.expect("a connection");
    until("first", async || server.series("croupier_connections{transport=\"tcp\"}").await == 1.0).await;
    let mut second = TcpStream::connect(server.tcp()).await.expect("the backlog takes it");
    let read = tokio::time::timeout(NEVER, second.read(&mut [0; 64])).await.expect("it is closed");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    assert_eq!(server.series("croupier_rejected_total{reason=\"too_many_connections\"}").await, 1.0);
    drop(first);
    until("room again", async || SamplerClient::connect(format!("http://{}", server.tcp())).await.is_ok()).await;
}

/// The headers of a call may have 8 KiB, in which each field counts with its name and 32 bytes. A client that sends more gets an error, and
/// its connection goes on.
#[tokio::test]
async fn headers_beyond_their_bound_are_refused_and_the_connection_goes_on() {
    let server = start(config()).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.tcp())).expect("an address");
    let mut client = SamplerClient::new(channel.connect().await.expect("a connection"));
    let mut ask = async |bytes: usize| {
        let mut request = tonic::Request::new(GetServerInfoRequest {});
        request.metadata_mut().insert("x-filler", "x".repeat(bytes).parse().expect("a header"));
        tokio::time::timeout(NEVER, client.get_server_info(request)).await.expect("an answer").map(drop)
    };
    ask(7 << 10).await.expect("headers below the bound");
    for _ in 0..3 {
        ask(9 << 10).await.expect_err("headers above it");
        ask(7 << 10).await.expect("the same connection");
    }
    assert_eq!(server.series("croupier_connections{transport=\"tcp\"}").await, 1.0);
    assert_eq!(server.series("croupier_requests_total{method=\"GetServerInfo\",code=\"OK\"}").await, 4.0);
}

/// None of these clients has shown a token, if tokens were required.
#[tokio::test]
async fn those_who_reach_the_port_leave_places_for_workers_on_the_host() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("croupier.sock");
    let mut limited = Config { uds: Some(path.clone()), ..config() };
    limited.limits.max_connections = 16;
    let server = start(limited).await;
    let mut strangers = Vec::new();
    for _ in 0..20 {
        strangers.push(TcpStream::connect(server.tcp()).await.expect("the backlog takes it"));
    }
    let series = async |name: &str| server.series(name).await;
    until("refused", async || series("croupier_rejected_total{reason=\"too_many_connections\"}").await == 6.0).await;
    assert_eq!(series("croupier_connections{transport=\"tcp\"}").await, 14.0);
    let address = format!("unix:{}", path.display());
    let one = SamplerClient::connect(address.clone()).await.expect("a place");
    let two = SamplerClient::connect(address).await.expect("the last place");
    until("connected", async || series("croupier_connections{transport=\"uds\"}").await == 2.0).await;
    drop((one, two, strangers));
    until("all gone", async || series("croupier_connections{transport=\"tcp\"}").await == 0.0).await;
    assert!(SamplerClient::connect(format!("http://{}", server.tcp())).await.is_ok(), "room again");
}

/// This holds for any number of connections above one.
#[tokio::test]
async fn of_two_connections_one_is_for_the_unix_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("croupier.sock");
    let mut limited = Config { uds: Some(path.clone()), ..config() };
    limited.limits.max_connections = 2;
    let server = start(limited).await;
    let _stranger = TcpStream::connect(server.tcp()).await.expect("a place");
    until("taken", async || server.series("croupier_connections{transport=\"tcp\"}").await == 1.0).await;
    let _refused = TcpStream::connect(server.tcp()).await.expect("the backlog takes it");
    until("refused", async || server.series("croupier_rejected_total{reason=\"too_many_connections\"}").await == 1.0)
        .await;
    assert!(SamplerClient::connect(format!("unix:{}", path.display())).await.is_ok());
}

/// The bound holds before a client has shown a token, if tokens were required.
#[tokio::test]
async fn the_calls_of_one_connection_that_sample_nothing_are_few() {
    let server = start(config()).await;
    let connect = async || {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.tcp())).expect("an address");
        HealthClient::new(channel.connect().await.expect("a connection"))
    };
    let request = || HealthCheckRequest { service: String::new() };
    let mut stranger = connect().await;
    let mut watches = Vec::new();
    for _ in 0..16 {
        let mut watch = stranger.watch(request()).await.expect("a place").into_inner();
        assert_eq!(watch.message().await.expect("a status").expect("one").status(), ServingStatus::Serving);
        watches.push(watch);
    }
    let refused = stranger.check(request()).await.expect_err("no place");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(refused.get_details_error_info().expect("a reason").reason, "TOO_MANY_CALLS");
    assert_eq!(server.series("croupier_rejected_total{reason=\"too_many_calls\"}").await, 1.0);
    connect().await.check(request()).await.expect("another connection has its own places");
    watches.pop();
    until("a place again", async || stranger.clone().check(request()).await.is_ok()).await;
    for _ in 0..64 {
        stranger.check(request()).await.expect("a call that has ended has no place");
    }
}

#[tokio::test]
async fn streams_over_the_limit_are_refused_on_the_same_connection_too() {
    let mut limited = config();
    limited.limits.max_streams = 1;
    let server = start(limited).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let _first = client.decode(tokio_stream::pending()).await.expect("a stream");
    for _ in 0..2 {
        let second = tokio::time::timeout(NEVER, client.decode(tokio_stream::pending())).await.expect("an answer");
        assert_eq!(second.expect_err("one too many").code(), tonic::Code::ResourceExhausted);
    }
    client.get_server_info(GetServerInfoRequest {}).await.expect("there is room for other calls");
}

/// For example a worker that speaks TLS to a server without it, or a load balancer's health check.
#[tokio::test]
async fn who_speaks_no_http2_is_counted_once() {
    let server = start(config()).await;
    let hello: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03hello, I am a handshake of TLS";
    // The last bytes begin like HTTP/2.
    for (said, count) in
        [(hello, 1.0), (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 2.0), (b"PRI * HTTP/2.0\r\n\r\nSM\r\nx\n", 3.0)]
    {
        let mut client = TcpStream::connect(server.tcp()).await.expect("a connection");
        for part in said.chunks(20) {
            // The connection may be closed before all is sent.
            let _ = client.write_all(part).await;
        }
        until("counted", async || server.series("croupier_rejected_total{reason=\"wrong_protocol\"}").await == count)
            .await;
        until("closed", async || server.series("croupier_connections{transport=\"tcp\"}").await == 0.0).await;
    }
    SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("others are served");
    assert_eq!(server.series("croupier_rejected_total{reason=\"wrong_protocol\"}").await, 3.0);
}
