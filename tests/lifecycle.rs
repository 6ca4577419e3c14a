//! From the first connection to the last: limits on connections, readiness, and the end.

mod common;

use common::{Fatal, Lost, NEVER, config, requests, serve, start, until};
use croupier::app::{App, Drained, Error};
use croupier::config::Config;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_types::StatusExt;

#[tokio::test]
async fn a_silent_connection_is_closed_and_counted() {
    let server = start(Config { first_byte_timeout: Duration::from_millis(200), ..config() }).await;
    let mut silent = TcpStream::connect(server.tcp()).await.expect("a connection");
    let mut seen = Vec::new();
    // The server's SETTINGS may come first; what counts is that the end comes.
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

/// Of 8 KiB of headers each field counts with its name and 32 bytes. Who sends more is told so, and its connection goes on.
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

/// None of whom has shown a token, if one were asked for.
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

/// However few there are, if there is more than one.
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

/// As many as the admin port has places, three times over: each sends half of its request.
#[tokio::test]
async fn silent_connections_do_not_keep_the_probes_out() {
    let server = start(config()).await;
    let admin = server.addresses.admin.expect("admin is on");
    let mut silent = Vec::new();
    for _ in 0..3 * 64 {
        let mut connection = TcpStream::connect(admin).await.expect("a connection");
        // The oldest may be closed already.
        let _ = connection.write_all(b"GET /livez HTTP/1.1\r\nHo").await;
        silent.push(connection);
    }
    assert_eq!(server.get("/livez").await, (200, "ready\n".to_owned()));
    let count = async |reason: &str| server.series(&format!("croupier_rejected_total{{reason=\"{reason}\"}}")).await;
    assert!(count("admin_connections").await >= 128.0, "{}", count("admin_connections").await);
    assert_eq!(count("too_many_connections").await, 0.0, "max_connections is about workers");
    // The last ones were not in anybody's way, and end all the same.
    for mut connection in silent {
        let end = tokio::time::timeout(NEVER, connection.read(&mut [0; 64])).await.expect("it is closed");
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
    assert_eq!(server.get("/readyz").await.0, 200);
}

/// Before anybody has shown a token, if one were asked for.
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
async fn readiness_and_health_flip_when_draining() {
    let server = start(Config { lame_duck: Duration::from_secs(20), ..config() }).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.tcp())).expect("an address");
    let mut health = HealthClient::new(channel.connect().await.expect("a connection"));
    for service in ["", "croupier.v1.Sampler", "liveness", "readiness"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let reply = health.check(request).await.expect("a status").into_inner();
        assert_eq!(reply.status(), ServingStatus::Serving, "{service}");
    }
    assert_eq!((server.get("/readyz").await.0, server.get("/livez").await.0), (200, 200));
    assert_eq!(server.series("croupier_ready").await, 1.0);

    server.stop.cancel();
    until("not ready", async || server.get("/readyz").await.0 == 503).await;
    assert_eq!(server.get("/readyz").await.1, "draining\n");
    assert_eq!(server.get("/livez").await.0, 200, "a draining server must not be restarted");
    for (service, status) in [
        ("", ServingStatus::NotServing),
        ("readiness", ServingStatus::NotServing),
        ("liveness", ServingStatus::Serving),
    ] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let reply = health.check(request).await.expect("a status").into_inner();
        assert_eq!(reply.status(), status, "{service}");
    }
    server.task.abort();
}

#[tokio::test]
async fn an_unknown_page_says_which_there_are() {
    let server = start(config()).await;
    let (status, body) = server.get("/nothing").await;
    assert_eq!(status, 404);
    assert!(body.contains("/metrics") && body.contains("/readyz"), "{body}");
}

#[tokio::test]
async fn who_measures_the_admin_port_is_told() {
    use croupier::bench::{Address, BenchArgs, run};
    let server = start(config()).await;
    let admin = server.addresses.admin.expect("admin is on");
    let args = BenchArgs { addr: Some(Address::Tcp(admin.to_string())), ..BenchArgs::default() };
    let said = run(args).await.expect_err("there is no gRPC").to_string();
    assert!(said.ends_with("it speaks no gRPC there: is this the admin port?"), "{said}");
}

#[tokio::test]
async fn draining_does_not_wait_for_a_client_that_never_spoke() {
    let server = start(Config { first_byte_timeout: NEVER * 2, drain_timeout: NEVER * 2, ..config() }).await;
    let _silent = TcpStream::connect(server.tcp()).await.expect("a connection");
    until("connected", async || server.series("croupier_connections{transport=\"tcp\"}").await == 1.0).await;
    assert_eq!(server.shut_down().await.expect("a clean end"), Drained::Clean);
}

#[tokio::test]
async fn draining_cuts_an_open_stream_at_the_deadline() {
    let server = start(Config { drain_timeout: Duration::from_millis(300), ..config() }).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let mut other = client.clone();
    let call = tokio::spawn(async move {
        let mut replies = client.decode(tokio_stream::pending()).await?.into_inner();
        replies.message().await
    });
    // Once it runs, its request is the first on the connection, so a server that answers the second has it.
    tokio::task::yield_now().await;
    other.get_server_info(GetServerInfoRequest {}).await.expect("an answer");
    drop(other);
    assert!(!call.is_finished());
    assert_eq!(server.shut_down().await.expect("an end"), Drained::Cut);
    let ended = tokio::time::timeout(NEVER, call).await.expect("the client notices").expect("no panic");
    assert!(ended.is_err(), "{ended:?}");
}

/// Not driven, a client does not read: its connection's task has a runtime of its own here.
#[test]
fn draining_cuts_a_client_that_does_not_read() {
    const TOKENS: u32 = 1024;
    let servers = tokio::runtime::Runtime::new().expect("a runtime");
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = servers.block_on(start(Config { drain_timeout: Duration::from_millis(300), ..config() }));
    // 16 MB of reply, more than sockets hold: many logprobs for each of many sequences.
    let logprobs = LogprobsParams { token_ids: (0..TOKENS).collect(), ..Default::default() };
    let requests = requests(TOKENS, SamplingParams { logprobs: Some(logprobs), ..Default::default() }, 4096);
    let mut replies = client.block_on(async {
        // Windows that let all of it go out, so that it is the socket that is full.
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.tcp())).expect("an address");
        let endpoint = endpoint.initial_stream_window_size(1 << 30).initial_connection_window_size(1 << 30);
        let channel = endpoint.connect().await.expect("a connection");
        let mut client = SamplerClient::new(channel).max_decoding_message_size(usize::MAX);
        let replies = client.decode(tokio_stream::iter(requests)).await.expect("a stream").into_inner();
        until("at work", async || server.series("croupier_batch_rows_count").await == 1.0).await;
        replies
    });
    servers.block_on(async {
        until("answered", async || server.series("croupier_response_bytes_count").await == 2.0).await;
        assert_eq!(server.shut_down().await.expect("an end"), Drained::Cut);
    });
    // The server's runtime goes on: had the connection not been cut, the whole reply would come now.
    let rest = async {
        while replies.message().await?.is_some() {}
        Ok::<_, tonic::Status>(())
    };
    let ended = client.block_on(async { tokio::time::timeout(NEVER, rest).await }).expect("the client notices");
    assert!(ended.is_err(), "{ended:?}");
}

/// An address that leads to `to` for one connection. Like a cable that is cut, it passes nothing on any more once told
/// so, and closes nothing. Both ends are closed with its task.
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
    let (interval, timeout) = (Duration::from_millis(200), Duration::from_secs(1));
    let server = start(Config { keepalive_interval: interval, keepalive_timeout: timeout, ..config() }).await;
    let (address, cut, _) = cable(server.tcp()).await;
    let mut client = SamplerClient::connect(format!("http://{address}")).await.expect("a connection");
    // The worker says no more, and does not end its side.
    let [hello, _] = requests(8, SamplingParams::default(), 1);
    let requests = tokio_stream::iter(requests(8, SamplingParams::default(), 3)).chain(tokio_stream::pending());
    let mut replies = client.decode(requests).await.expect("a stream").into_inner();
    for _ in 0..2 {
        replies.message().await.expect("a reply").expect("not the end");
    }
    // Silent, but there: it answers pings.
    tokio::time::sleep(interval + timeout * 2).await;
    assert_eq!(server.series("croupier_sequences_active").await, 3.0);
    assert_eq!(server.series("croupier_connections{transport=\"tcp\"}").await, 1.0);
    // Who is lost with the connection is told apart from it. (tests/receive.rs has those that reset their calls.)
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
    // The client's channel is told to leave, and makes another connection for the next call.
    let connections = async || server.series("croupier_connections{transport=\"tcp\"}").await;
    until("another connection", async || {
        // One that meets the end of a connection fails: tonic does not try again by itself.
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

#[tokio::test]
async fn the_end_of_the_engine_is_the_end_of_the_process_with_code_70() {
    let server = serve(App::bind_with(config(), Box::new(Fatal)).await.expect("free ports")).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let requests = tokio_stream::iter(requests(8, SamplingParams::default(), 1));
    // It may be cut before it has begun.
    let call = client.decode(requests).await;
    let ended = tokio::time::timeout(NEVER, server.task).await.expect("it ends").expect("no panic outside the engine");
    let error = ended.expect_err("not a clean end");
    assert!(matches!(error, Error::Engine), "{error}");
    assert_eq!(error.exit_code(), 70);
    let rest = async {
        let mut replies = call?.into_inner();
        while replies.message().await?.is_some() {}
        Ok::<_, tonic::Status>(())
    };
    assert!(rest.await.is_err(), "the call must not seem to end well");
}

#[tokio::test]
async fn a_lost_device_is_never_asked_again_and_ends_the_process_with_code_86() {
    let server = serve(App::bind_with(config(), Box::new(Lost)).await.expect("free ports")).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let requests = tokio_stream::iter(requests(8, SamplingParams::default(), 1));
    let call = client.decode(requests).await;
    let ended = tokio::time::timeout(NEVER, server.task).await.expect("it ends").expect("no panic outside the engine");
    let error = ended.expect_err("not a clean end");
    assert!(matches!(error, Error::DeviceLost), "{error}");
    assert_eq!(error.exit_code(), 86);
    let Ok(replies) = call else { return };
    let mut replies = replies.into_inner();
    while let Ok(Some(reply)) = replies.message().await {
        let answered = matches!(reply.response, Some(decode_response::Response::Step(_)));
        assert!(!answered, "an answer from a broken device: {reply:?}");
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

#[tokio::test]
async fn an_idle_server_drains_at_once() {
    let server = start(Config { drain_timeout: NEVER * 2, ..config() }).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    client.get_server_info(GetServerInfoRequest {}).await.expect("an answer");
    assert_eq!(server.shut_down().await.expect("a clean end"), Drained::Clean);
}

#[tokio::test]
async fn the_socket_file_is_replaced_when_stale_refused_when_live_and_removed_at_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("croupier.sock");
    // What a killed server leaves behind: a socket file that nobody listens on.
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
        // The services, and what tools need to show the details of a refusal.
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

/// Such as a worker that speaks TLS to a server without it, or a health check of a load balancer.
#[tokio::test]
async fn who_speaks_no_http2_is_counted_once() {
    let server = start(config()).await;
    let hello: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03hello, I am a handshake of TLS";
    // The last ones begin as they should.
    for (said, count) in
        [(hello, 1.0), (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 2.0), (b"PRI * HTTP/2.0\r\n\r\nSM\r\nx\n", 3.0)]
    {
        let mut client = TcpStream::connect(server.tcp()).await.expect("a connection");
        for part in said.chunks(20) {
            // It may be closed before all is said.
            let _ = client.write_all(part).await;
        }
        until("counted", async || server.series("croupier_rejected_total{reason=\"wrong_protocol\"}").await == count)
            .await;
        until("closed", async || server.series("croupier_connections{transport=\"tcp\"}").await == 0.0).await;
    }
    SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("others are served");
    assert_eq!(server.series("croupier_rejected_total{reason=\"wrong_protocol\"}").await, 3.0);
}
