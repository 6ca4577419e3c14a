//! Connections that last: their worker vanishes, or they grow old.

use crate::common::{config, requests, start, until};
use croupier::config::Config;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;

/// An address that leads to `to` for one connection. Once told so, it passes nothing on any more and closes nothing, like a cut cable. Both
/// ends are closed when its task ends.
async fn cable(to: std::net::SocketAddr) -> (std::net::SocketAddr, CancellationToken, JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (address, cut) = (listener.local_addr().expect("an address"), CancellationToken::new());
    let told = cut.clone();
    let task = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.expect("a connection");
        let mut far = TcpStream::connect(to).await.expect("a connection");
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
            () = told.cancelled() => {}
        }
        // Both ends stay open.
        std::future::pending::<()>().await;
    });
    (address, cut, task)
}

#[tokio::test]
async fn a_worker_that_vanishes_without_a_word_is_cut_and_its_sequences_are_freed() {
    let (interval, timeout) = (Duration::from_millis(200), Duration::from_secs(4));
    let server = start(Config { keepalive_interval: interval, keepalive_timeout: timeout, ..config() }).await;
    let (address, cut, _) = cable(server.tcp()).await;
    let mut client = SamplerClient::connect(format!("http://{address}")).await.expect("a connection");
    // The worker sends no more, and does not end its side.
    let [hello, _] = requests(8, SamplingParams::default(), 1);
    let requests = tokio_stream::iter(requests(8, SamplingParams::default(), 3)).chain(tokio_stream::pending());
    let mut replies = client.decode(requests).await.expect("a stream").into_inner();
    for _ in 0..2 {
        replies.message().await.expect("a reply").expect("not the end");
    }
    // The worker is silent but alive: it answers pings. By then, the time limit of the first ping has passed.
    tokio::time::sleep(interval * 2 + timeout).await;
    assert_eq!(server.series("croupier_sequences_active").await, 3.0);
    assert_eq!(server.series("croupier_connections{transport=\"tcp\"}").await, 1.0);
    // A worker that is lost with its connection counts as another case. (tests/receive.rs covers workers that reset their calls.)
    let (address, _, through) = cable(server.tcp()).await;
    let mut other = SamplerClient::connect(format!("http://{address}")).await.expect("a connection");
    let lost = other.decode(tokio_stream::once(hello).chain(tokio_stream::pending())).await.expect("a stream");
    assert_eq!(server.series("croupier_streams").await, 2.0);
    through.abort();
    until("lost", async || server.series("croupier_streams").await == 1.0).await;
    drop(lost);
    let silent = async || server.series("croupier_rejected_total{reason=\"keepalive_timeout\"}").await;
    assert_eq!(silent().await, 0.0);
    cut.cancel();
    until("freed", async || server.series("croupier_sequences_active").await == 0.0).await;
    until("cut", async || server.series("croupier_connections{transport=\"tcp\"}").await == 0.0).await;
    assert_eq!(server.series("croupier_state_bytes").await, 0.0);
    assert_eq!(silent().await, 1.0);
    assert_eq!(server.series("croupier_requests_total{method=\"Decode\",code=\"CANCELLED\"}").await, 2.0);
}

#[tokio::test]
async fn an_old_connection_takes_no_new_calls_and_its_stream_goes_on() {
    let server = start(Config { max_connection_age: Duration::from_millis(200), ..config() }).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let (sender, messages) = tokio::sync::mpsc::channel(4);
    for request in requests(8, SamplingParams::default(), 3) {
        sender.send(request).await.expect("room");
    }
    let stream = tokio_stream::wrappers::ReceiverStream::new(messages);
    let mut replies = client.decode(stream).await.expect("a stream").into_inner();
    for _ in 0..2 {
        replies.message().await.expect("a reply").expect("not the end");
    }
    // The client's channel is asked to leave, and connects again for the next call.
    let connections = async || server.series("croupier_connections{transport=\"tcp\"}").await;
    until("another connection", async || {
        // A call that meets the end of a connection fails: tonic does not retry it.
        let answered = client.clone().get_server_info(GetServerInfoRequest {}).await.is_ok();
        answered && connections().await >= 2.0
    })
    .await;
    let [_, mut next] = requests(8, SamplingParams::default(), 3);
    if let Some(decode_request::Request::Step(step)) = &mut next.request {
        step.step_id += 1;
        step.open.clear();
    }
    sender.send(next).await.expect("room");
    let reply = replies.message().await.expect("the stream goes on").expect("not the end");
    let Some(decode_response::Response::Step(result)) = reply.response else { panic!("{reply:?}") };
    assert!(result.work.iter().all(|work| work.status() == RowStatus::Ok), "{result:?}");
    assert_eq!(server.series("croupier_sequences_active").await, 3.0);
}
