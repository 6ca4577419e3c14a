//! Bearer tokens: who must send one, and tokens that change meanwhile.

use super::pki::Mounted;
use super::{Secured, Worker};
use crate::common::{Running, config, start, until};
use croupier::config::Config;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

const OLD: &str = "the-old-token-of-workers";
const NEW: &str = "the-new-token-of-workers";

async fn channel(address: &str) -> Channel {
    Endpoint::from_shared(address.to_owned()).expect("an address").connect().await.expect("it listens")
}

fn with<T>(message: T, authorization: &str) -> Request<T> {
    let mut request = Request::new(message);
    if !authorization.is_empty() {
        let value = MetadataValue::try_from(authorization).expect("a header");
        request.metadata_mut().insert("authorization", value);
    }
    request
}

/// The code of a call with this header, and the reason if it was refused.
async fn call(channel: &Channel, authorization: &str) -> (Code, String) {
    let mut client = SamplerClient::new(channel.clone());
    match client.get_server_info(with(GetServerInfoRequest {}, authorization)).await {
        Ok(_) => (Code::Ok, String::new()),
        Err(status) => {
            let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
            (status.code(), reason.unwrap_or_default())
        }
    }
}

async fn series(server: &Running, reason: &str) -> f64 {
    server.series(&format!("croupier_rejected_total{{reason=\"{reason}\"}}")).await
}

#[tokio::test]
async fn calls_on_tcp_need_a_token_and_health_does_not() {
    let mounted = Mounted::new(&[("tokens", &format!("# workers\n{OLD}\n{NEW}\n"))]);
    let dir = tempfile::tempdir().expect("a folder");
    let uds = dir.path().join("socket");
    let file = Some(mounted.path("tokens"));
    let server = start(Config { auth_token_file: file, uds: Some(uds.clone()), reflection: true, ..config() }).await;
    let tcp = channel(&format!("http://{}", server.tcp())).await;
    for good in [format!("Bearer {OLD}"), format!("bearer {NEW}")] {
        assert_eq!(call(&tcp, &good).await.0, Code::Ok, "{good}");
    }
    for (shown, reason) in [
        (String::new(), "NO_TOKEN"),
        (format!("Basic {OLD}"), "NO_TOKEN"),
        (format!("Bearer {OLD}x"), "WRONG_TOKEN"),
        (format!("Bearer {}", &OLD[1..]), "WRONG_TOKEN"),
    ] {
        let before = series(&server, &reason.to_lowercase()).await;
        assert_eq!(call(&tcp, &shown).await, (Code::Unauthenticated, reason.to_owned()), "{shown}");
        assert_eq!(series(&server, &reason.to_lowercase()).await, before + 1.0);
    }
    let counted = "croupier_requests_total{method=\"GetServerInfo\",code=\"UNAUTHENTICATED\"}";
    assert_eq!(server.series(counted).await, 4.0);
    // Streams, stateless calls and unknown methods are treated alike.
    let stream = tokio_stream::once(DecodeRequest::default());
    let refused = SamplerClient::new(tcp.clone()).decode(stream).await.expect_err("no token");
    assert_eq!(refused.code(), Code::Unauthenticated);
    let reflection = tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient::new(tcp.clone());
    let asked = tokio_stream::once(tonic_reflection::pb::v1::ServerReflectionRequest::default());
    let refused = { reflection }.server_reflection_info(asked).await.expect_err("no token");
    assert_eq!(refused.code(), Code::Unauthenticated);
    HealthClient::new(tcp).check(HealthCheckRequest::default()).await.expect("probes have no token");
    // Clients that may open the socket need no token.
    let socket = channel(&format!("unix://{}", uds.display())).await;
    assert_eq!(call(&socket, "").await.0, Code::Ok);
}

#[tokio::test]
async fn tokens_change_while_a_stream_goes_on() {
    let mounted = Mounted::new(&[("tokens", OLD)]);
    let server = start(Config { auth_token_file: Some(mounted.path("tokens")), ..config() }).await;
    let tcp = channel(&format!("http://{}", server.tcp())).await;
    let mut worker = Worker::open_with(tcp.clone(), OLD).await;
    assert_eq!(worker.step(1).await, 1);
    let reloads = async |result: &str| {
        server.series(&format!("croupier_reloads_total{{what=\"tokens\",result=\"{result}\"}}")).await
    };
    mounted.replace(&[("tokens", &format!("{OLD}\n{NEW}\n"))]);
    until("both", async || reloads("ok").await == 1.0).await;
    for token in [OLD, NEW] {
        assert_eq!(call(&tcp, &format!("Bearer {token}")).await.0, Code::Ok, "{token}");
    }
    mounted.replace(&[("tokens", NEW)]);
    until("the new one alone", async || reloads("ok").await == 2.0).await;
    assert_eq!(call(&tcp, &format!("Bearer {NEW}")).await.0, Code::Ok);
    assert_eq!(call(&tcp, &format!("Bearer {OLD}")).await, (Code::Unauthenticated, "WRONG_TOKEN".to_owned()));
    assert_eq!(worker.step(2).await, 2, "what was let in stays");
    mounted.replace(&[("tokens", "# nobody\n")]);
    until("refused", async || reloads("failed").await == 1.0).await;
    assert_eq!(call(&tcp, &format!("Bearer {NEW}")).await.0, Code::Ok, "the last good ones are kept");
    // The reload is pending as long as the tokens are wrong, and no longer, even if the old ones come back.
    let pending = async || server.series("croupier_reload_pending{what=\"tokens\"}").await;
    assert_eq!((pending().await, server.series("croupier_reload_pending{what=\"tls\"}").await), (1.0, 0.0));
    mounted.replace(&[("tokens", NEW)]);
    until("put right", async || pending().await == 0.0).await;
}

#[tokio::test]
async fn tokens_and_tls_go_together() {
    let mounted = Mounted::new(&[("tokens", OLD)]);
    let secured = Secured::start(false, |config| config.auth_token_file = Some(mounted.path("tokens"))).await;
    let channel = secured.channel(Secured::trusting(&secured.authority)).await.expect("a handshake");
    assert_eq!(call(&channel, "").await.0, Code::Unauthenticated);
    assert_eq!(Worker::open_with(channel, OLD).await.step(3).await, 3);
}
