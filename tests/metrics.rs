//! What Prometheus sees is what `docs/metrics.md` says.

mod common;

use common::{config, http_get, start};
use croupier::metrics::exposition::{Family, Kind, parse};
use std::collections::BTreeSet;

/// Names of a family's labels, without those of buckets.
fn labels(family: &Family) -> BTreeSet<&str> {
    let names = family.samples.iter().flat_map(|sample| &sample.labels).map(|(name, _)| name.as_str());
    names.filter(|name| *name != "le").collect()
}

fn unit(name: &str) -> &'static str {
    let base = name.trim_end_matches("_total");
    match base {
        _ if base.ends_with("_seconds") => "seconds",
        _ if base.ends_with("_bytes") => "bytes",
        _ if ["_acceptance", "_variation", "_probability", "_overlap"].iter().any(|end| base.ends_with(end)) => {
            "share, 0 to 1"
        }
        _ => "count",
    }
}

#[tokio::test]
async fn the_documentation_lists_every_metric_and_no_other() {
    let server = start(config()).await;
    verify_a_draft(&server).await;
    let (status, head, text) = http_get(server.addresses.admin.expect("admin is on"), "/metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let mut table = vec!["| metric | type | labels | unit | meaning |".to_owned(), "|---|---|---|---|---|".to_owned()];
    for (name, f) in parse(&text).expect("Prometheus' text format") {
        assert!(f.kind != Kind::Untyped && !f.help.is_empty(), "{name} has no type or no help");
        let labels: Vec<String> = labels(&f).iter().map(|label| format!("`{label}`")).collect();
        table.push(format!("| `{name}` | {} | {} | {} | {} |", f.kind.name(), labels.join(" "), unit(&name), f.help));
    }
    let page = include_str!("../docs/metrics.md");
    let listed: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    assert!(listed == table, "the table in docs/metrics.md has to be:\n{}", table.join("\n"));
}

/// Series of speculation exist from the first verification on; some only where another token could have been proposed, and was
/// measured.
async fn verify_a_draft(server: &common::Running) {
    use croupier::proto::{decode_request::Request, sampler_client::SamplerClient, verify_work::DraftDistribution, *};
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let config = StreamConfig { vocab_size: 4, logits_dtype: LogitsDtype::F32.into(), ..Default::default() };
    let open = vec![OpenSequence { sequence_id: 1, ..Default::default() }];
    let sparse = SparseDraft { counts: vec![2], token_ids: vec![1, 2], probs: vec![0.5, 0.5] };
    let from = Some(DraftDistribution::Sparse(sparse));
    let verify = VerifyWork { draft_token_ids: vec![1], draft_distribution: from, measure: true, ..Default::default() };
    let work = vec![Work { sequence_id: Some(1), kind: Some(work::Kind::Verify(verify)), ..Default::default() }];
    let logits = InlineLogits { data: vec![0; 2 * 4 * 4].into(), row_stride: 0 };
    let step = Step { open, work, logits: Some(step::Logits::Inline(logits)), ..Default::default() };
    let requests = [Request::Config(config), Request::Step(step)];
    let requests = requests.map(|request| DecodeRequest { request: Some(request) });
    let mut replies = client.decode(tokio_stream::iter(requests)).await.expect("a stream").into_inner();
    while replies.message().await.expect("a reply").is_some() {}
}

#[tokio::test]
async fn names_follow_the_conventions() {
    let server = start(config()).await;
    let (_, text) = server.get("/metrics").await;
    for (name, family) in parse(&text).expect("Prometheus' text format") {
        assert!(name.starts_with("croupier_") || name.starts_with("process_"), "{name}");
        assert_eq!(name.ends_with("_total"), family.kind == Kind::Counter, "{name} is a {:?}", family.kind);
        assert_ne!(family.kind, Kind::Summary, "{name}: quantiles cannot be aggregated");
    }
}

/// The same row by both roads leaves the same marks: a size for each message, and a duration for each stage.
#[tokio::test]
async fn messages_and_stages_are_recorded_for_both_calls() {
    use croupier::proto::{decode_request::Request, sampler_client::SamplerClient, *};
    use prost::Message;
    let server = start(config()).await;
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let logits = || InlineLogits { data: vec![0; 8 * 4].into(), row_stride: 0 };
    let (vocab_size, logits_dtype) = (8, LogitsDtype::F32.into());
    let sample = SampleRequest {
        vocab_size,
        logits_dtype,
        rows: vec![SampleRow::default()],
        logits: Some(logits()),
        ..Default::default()
    };
    let sample_bytes = sample.encoded_len();
    let answer = client.sample(sample).await.expect("an answer").into_inner();
    let counts = async |metric: &str| {
        let series = |part: &str| format!("croupier_{metric}_bytes_{part}");
        (server.series(&series("count")).await, server.series(&series("sum")).await)
    };
    assert_eq!(counts("request").await, (1.0, sample_bytes as f64));
    assert_eq!(counts("response").await, (1.0, answer.encoded_len() as f64));

    let config = StreamConfig { vocab_size, logits_dtype, ..Default::default() };
    let open = vec![OpenSequence { sequence_id: 1, ..Default::default() }];
    let kind = Some(work::Kind::Sample(SampleWork {}));
    let work = vec![Work { sequence_id: Some(1), first_row: None, kind, ..Default::default() }];
    let step = Step { open, work, logits: Some(step::Logits::Inline(logits())), ..Default::default() };
    let requests = [Request::Config(config), Request::Step(step)];
    let requests = requests.map(|request| DecodeRequest { request: Some(request) });
    let asked: usize = requests.iter().map(Message::encoded_len).sum();
    let mut replies = client.decode(tokio_stream::iter(requests)).await.expect("a stream").into_inner();
    let mut answered = 0;
    while let Some(reply) = replies.message().await.expect("a reply") {
        answered += reply.encoded_len();
    }
    assert_eq!(counts("request").await, (3.0, (sample_bytes + asked) as f64));
    assert_eq!(counts("response").await, (3.0, (answer.encoded_len() + answered) as f64));
    // The stream's configuration is received too, and is no step.
    for (stage, count) in [("receive", 3.0), ("queue", 2.0), ("reply", 2.0), ("total", 2.0)] {
        let series = format!("croupier_step_duration_seconds_count{{stage=\"{stage}\"}}");
        assert_eq!(server.series(&series).await, count, "{stage}");
    }
}
