//! Named parameter sets: what they fill in, what goes before them, and names that there are not.

#![allow(clippy::unwrap_used)]

mod support;

use croupier::proto::decode_request::Request;
use croupier::proto::decode_response::Response;
use croupier::proto::*;
use support::{TestServer, VOCAB, config, inline, logits, open, open_step, violation};
use tonic::Code;

/// Tokens of 200 rows of one shape with parameters that differ in their seeds.
async fn drawn(server: &TestServer, defaults: Option<SamplingParams>, params: SamplingParams) -> Vec<u32> {
    let params = |seed| SamplingParams { seed: Some(seed), ..params.clone() };
    let rows = (0..200).map(|seed| SampleRow { row: Some(0), params: Some(params(seed)), ..Default::default() });
    let Some(step::Logits::Inline(logits)) = inline(&[logits(3, 0)]) else { panic!("one row") };
    let request = SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        default_params: defaults,
        rows: rows.collect(),
        logits: Some(logits),
        ..Default::default()
    };
    let answer = server.client().await.sample(request).await.unwrap().into_inner();
    answer.rows.into_iter().map(|row| row.token.unwrap().token_id).collect()
}

fn preset(name: &str) -> SamplingParams {
    SamplingParams { preset: name.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_preset_fills_what_is_absent() {
    let server = TestServer::start().await;
    let chat = SamplingParams { temperature: Some(0.7), min_p: Some(0.05), ..Default::default() };
    let expected = drawn(&server, None, chat.clone()).await;
    assert_ne!(expected, drawn(&server, None, SamplingParams::default()).await, "chat differs from the defaults");
    assert_eq!(drawn(&server, None, preset("chat")).await, expected);
    assert_eq!(drawn(&server, Some(preset("chat")), SamplingParams::default()).await, expected);

    let hot = SamplingParams { temperature: Some(2.0), ..preset("chat") };
    let expected = drawn(&server, None, SamplingParams { temperature: Some(2.0), ..chat.clone() }).await;
    assert_eq!(drawn(&server, None, hot.clone()).await, expected, "a field goes before its preset");
    assert_eq!(drawn(&server, Some(hot), SamplingParams::default()).await, expected);
}

#[tokio::test]
async fn a_preset_goes_before_the_stream_and_leaves_what_it_does_not_give() {
    let server = TestServer::start().await;
    let stream = SamplingParams { temperature: Some(3.0), top_k: Some(4), ..Default::default() };
    let expected = SamplingParams { temperature: Some(0.7), min_p: Some(0.05), top_k: Some(4), ..Default::default() };
    let expected = drawn(&server, None, expected).await;
    assert_eq!(drawn(&server, Some(stream), preset("chat")).await, expected);
    // Lists of the stream hold beside a preset.
    let stream = SamplingParams { allowed_token_ids: vec![1, 2], ..Default::default() };
    let tokens = drawn(&server, Some(stream), preset("chat")).await;
    assert!(tokens.iter().all(|token| [1, 2].contains(token)), "{tokens:?}");
}

#[tokio::test]
async fn presets_are_listed_and_others_are_mistakes() {
    let server = TestServer::start().await;
    let info = server.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    let names: Vec<&str> = info.presets.iter().map(|preset| preset.name.as_str()).collect();
    assert!(names.contains(&"chat") && names.is_sorted(), "{names:?}");
    assert!(info.presets.iter().all(|preset| !preset.description.is_empty()));

    let mut worker = server.worker().await;
    worker.send(Request::Step(open_step(vec![open(1, preset("chatt")), open(2, preset("chat"))]))).await;
    let Some(Response::Step(reply)) = worker.reply().await.unwrap() else { panic!("expected a step") };
    let error = reply.open[0].error.as_ref().unwrap();
    assert_eq!((reply.open[0].status(), error.field.as_str()), (OpenStatus::InvalidArgument, "params.preset"));
    assert!(error.message.contains(&names.join(", ")), "{}", error.message);
    assert_eq!(reply.open[1].status(), OpenStatus::Ok);

    let mut stream = server.stream().await.unwrap();
    stream.send(Request::Config(StreamConfig { default_params: Some(preset("x")), ..config() })).await;
    let status = stream.reply().await.unwrap_err();
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "config.default_params.preset"));
}
