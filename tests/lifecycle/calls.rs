//! Calls that tonic or its reflection service would end without a reason.

use crate::common::{config, start};
use croupier::config::Config;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use tonic::Code;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_types::StatusExt;

/// The code and reason of a status. Each error has a reason, even those that tonic alone would send without one.
fn reason(status: &tonic::Status) -> (Code, String) {
    (status.code(), status.get_details_error_info().map(|info| info.reason).unwrap_or_default())
}

#[tokio::test]
async fn a_question_about_the_schema_that_is_too_long_is_told_so_behind_the_answers_before_it() {
    let server = start(Config { reflection: true, ..config() }).await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.tcp())).expect("an address");
    let mut client = ServerReflectionClient::new(endpoint.connect().await.expect("a connection"));
    let ask = |symbol: String| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(symbol)),
    };
    let asked = [ask("croupier.v1.Sampler".to_owned()), ask("x".repeat(4096))];
    let mut answers = client.server_reflection_info(tokio_stream::iter(asked)).await.expect("a call").into_inner();
    assert!(answers.message().await.expect("an answer").is_some());
    let end = answers.message().await.expect_err("a mistake");
    assert_eq!(reason(&end), (Code::OutOfRange, "MESSAGE_TOO_LONG".to_owned()), "{end}");
    server.shut_down().await.expect("a clean end");
}

#[tokio::test]
async fn a_call_with_compressed_messages_is_told_so() {
    let server = start(config()).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    for (encoding, expected) in [("identity", None), ("gzip", Some("UNKNOWN_COMPRESSION"))] {
        let mut request = tonic::Request::new(GetServerInfoRequest {});
        request.metadata_mut().insert("grpc-encoding", encoding.parse().expect("a value"));
        let answer = client.get_server_info(request).await;
        let Some(expected) = expected else {
            answer.expect("an answer");
            continue;
        };
        let status = answer.expect_err("nothing here knows it");
        assert_eq!(reason(&status), (Code::Unimplemented, expected.to_owned()), "{status}");
        assert_eq!(status.metadata().get("grpc-accept-encoding").expect("what it knows"), "identity");
    }
    assert_eq!(server.series("croupier_rejected_total{reason=\"unknown_compression\"}").await, 1.0);
    server.shut_down().await.expect("a clean end");
}
