//! The start: sockets that exist already, and the services that are offered.

use crate::common::{config, start, until};
use croupier::app::{App, Drained, Error};
use croupier::config::Config;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

#[tokio::test]
async fn the_socket_file_is_replaced_when_stale_refused_when_live_and_removed_at_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("croupier.sock");
    // A killed server leaves a socket file that nobody listens on.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let uds = || Config { uds: Some(path.clone()), ..config() };
    let server = start(uds()).await;
    let meta = std::fs::metadata(&path).expect("the file");
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o660);

    let refused = App::bind(uds()).await.expect_err("a live socket");
    assert!(matches!(&refused, Error::Bind { .. }) && refused.to_string().contains("another server"), "{refused}");

    let mut client = SamplerClient::connect(format!("unix:{}", path.display())).await.expect("a connection");
    client.get_server_info(GetServerInfoRequest {}).await.expect("an answer");
    assert_eq!(server.series("croupier_connections{transport=\"uds\"}").await, 1.0);
    drop(client);
    server.shut_down().await.expect("a clean end");
    assert!(!path.exists());

    std::fs::write(&path, "precious").expect("a file");
    assert!(App::bind(uds()).await.expect_err("no socket").to_string().contains("not a socket"));
    assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
}

#[tokio::test]
async fn a_socket_file_that_is_removed_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("croupier.sock");
    let server = start(Config { uds: Some(path.clone()), ..config() }).await;
    let connect = || SamplerClient::connect(format!("unix:{}", path.display()));
    let mut before = connect().await.expect("a connection");
    // The socket of the regions lies next to it.
    let files = [path.clone(), server.addresses.regions.clone().expect("regions")];
    for file in &files {
        std::fs::remove_file(file).expect("it is there");
    }
    until("there again", async || files.iter().all(|file| std::os::unix::net::UnixStream::connect(file).is_ok())).await;
    let mut after = connect().await.expect("a connection");
    for client in [&mut before, &mut after] {
        client.get_server_info(GetServerInfoRequest {}).await.expect("an answer");
    }
    drop((before, after));
    server.shut_down().await.expect("a clean end");
    assert!(files.iter().all(|file| !file.exists()));
}

#[tokio::test]
async fn a_taken_port_is_told_before_anything_runs() {
    let server = start(config()).await;
    let taken = App::bind(Config { listen: server.addresses.tcp, ..config() }).await.expect_err("taken");
    assert!(taken.to_string().contains(&server.tcp().to_string()), "{taken}");
}

#[tokio::test]
async fn reflection_is_off_unless_asked_for() {
    for reflection in [false, true] {
        let server = start(Config { reflection, ..config() }).await;
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.tcp())).expect("an address");
        let channel = endpoint.connect().await.expect("a connection");
        let mut client = ServerReflectionClient::new(channel);
        let ask = |request| ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        // The services, and the messages that tools need to show the details of a refusal.
        let details = ["google.rpc.ErrorInfo", "google.rpc.BadRequest", "google.rpc.RetryInfo"];
        let mut asked = vec![ask(MessageRequest::ListServices(String::new()))];
        asked.extend(details.map(|name| ask(MessageRequest::FileContainingSymbol(name.to_owned()))));
        let answer = client.server_reflection_info(tokio_stream::iter(asked)).await;
        assert_eq!(answer.is_ok(), reflection, "{answer:?}");
        let Ok(answers) = answer else { continue };
        let mut answers = answers.into_inner();
        for at in 0..=details.len() {
            let answer = answers.message().await.expect("an answer").expect("one for each").message_response;
            let is_file = matches!(answer, Some(MessageResponse::FileDescriptorResponse(_)));
            assert_eq!(is_file, at > 0, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn two_servers_in_one_process_do_not_mix() {
    let (a, b) = (start(config()).await, start(config()).await);
    let _silent = TcpStream::connect(a.tcp()).await.expect("a connection");
    until("a has it", async || a.series("croupier_connections{transport=\"tcp\"}").await == 1.0).await;
    assert_eq!(b.series("croupier_connections{transport=\"tcp\"}").await, 0.0);
    let stop = CancellationToken::new();
    stop.cancel();
    let third = App::bind(config()).await.expect("free ports").serve(stop).await;
    assert_eq!(third.expect("a server that is stopped before it starts ends"), Drained::Clean);
}
