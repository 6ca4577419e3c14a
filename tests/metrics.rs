//! Prometheus sees what `docs/metrics.md` says.

use crate::common::{config, http_get, start};
use crate::support::{Gate, TestServer, Worker, inline, open, open_step, sample_step, score_work, seeded};
use crate::work::{chain, deterministic};
use croupier::metrics::exposition::{Family, Kind, parse};
use croupier::proto::{
    DraftLengthParams, OpenSequence, RowStatus, SamplingParams, ScoreWork, Step, StreamConfig, VerifyWork,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// Names of a family's labels, except the buckets' `le`.
fn labels(family: &Family) -> BTreeSet<&str> {
    let names = family.samples.iter().flat_map(|sample| &sample.labels).map(|(name, _)| name.as_str());
    names.filter(|name| *name != "le").collect()
}

fn unit(name: &str) -> &'static str {
    let base = name.trim_end_matches("_total");
    match base {
        _ if base.ends_with("_seconds") => "seconds",
        _ if base.ends_with("_bytes") => "bytes",
        _ if ["_acceptance", "_variation", "_probability", "_overlap", "expected_repeated_siblings"]
            .iter()
            .any(|end| base.ends_with(end)) =>
        {
            "share, 0 to 1"
        }
        _ if base.ends_with("_variance") => "square of a share",
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

/// Series of speculation exist after the first verification. Some exist only if another token could have been proposed, and was measured.
async fn verify_a_draft(server: &crate::common::Running) {
    use croupier::proto::{decode_request::Request, sampler_client::SamplerClient, verify_work::DraftDistribution, *};
    let mut client = SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection");
    let config = StreamConfig { vocab_size: 4, logits_dtype: LogitsDtype::F32.into(), ..Default::default() };
    let open = vec![OpenSequence { sequence_id: 1, ..Default::default() }];
    let sparse = SparseDraft { counts: vec![2, 2], token_ids: vec![1, 2, 1, 2], probs: vec![0.5; 4] };
    let (draft_distribution, parents) = (Some(DraftDistribution::Sparse(sparse)), vec![-1, -1]);
    let draft_token_ids = vec![1, 2];
    let verify = VerifyWork { draft_token_ids, draft_distribution, parents, measure: true };
    let work = vec![Work { sequence_id: Some(1), kind: Some(work::Kind::Verify(verify)), ..Default::default() }];
    // Token 1 is masked, so that the sibling after it is tested too.
    let rows: Vec<f32> = (0..12).map(|at| if at == 1 { f32::NEG_INFINITY } else { 0.0 }).collect();
    let data: Vec<u8> = rows.iter().flat_map(|logit| logit.to_le_bytes()).collect();
    let logits = InlineLogits { data: data.into(), row_stride: 0 };
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

/// The same row sent through both calls is recorded in the same way: a size for each message, and a duration for each stage.
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
    // The stream's configuration is received too, but it is not a step.
    for (stage, count) in [("receive", 3.0), ("queue", 2.0), ("reply", 2.0), ("total", 2.0)] {
        let series = format!("croupier_step_duration_seconds_count{{stage=\"{stage}\"}}");
        assert_eq!(server.series(&series).await, count, "{stage}");
    }
}

#[tokio::test]
async fn a_batch_counts_once_and_each_of_its_steps_waits_for_all_of_it() {
    let gate = Gate::default();
    let server = TestServer::with_backend(gate.clone(), |_| ()).await;
    let mut workers = Vec::new();
    for id in 0..4 {
        let mut worker = server.worker().await;
        worker.step(open_step(vec![open(id, seeded(id))])).await;
        workers.push(worker);
    }
    let counts = || {
        let of = |series: &str| server.series(series);
        let stage = "croupier_step_duration_seconds_count{stage=\"backend\"}";
        (of("croupier_batch_duration_seconds_count"), of(stage))
    };
    let before = counts();
    for (id, worker) in workers.iter_mut().enumerate() {
        worker.send_step(sample_step(&[(id as u64, crate::support::logits(1, 0))])).await;
        if id == 0 {
            gate.wait_for_batch().await;
        }
    }
    server.expect_series("croupier_queue_depth", 3.0).await;
    gate.open();
    for worker in &mut workers {
        worker.step_reply().await.unwrap();
    }
    assert_eq!(counts(), (before.0 + 2.0, before.1 + 4.0));
}

#[tokio::test]
async fn a_stream_that_waits_for_its_worker_is_told_from_one_that_is_waited_for() {
    let gate = Gate::default();
    let server = TestServer::with_backend(gate.clone(), |_| ()).await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    let turns = |part: &str| server.series(&format!("croupier_worker_turn_seconds_{part}"));
    let (count, sum) = (turns("count"), turns("sum"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    worker.step(open_step(vec![open(2, seeded(2))])).await;
    assert_eq!(turns("count"), count + 1.0);
    assert!((0.3..60.0).contains(&(turns("sum") - sum)), "{}", turns("sum") - sum);
    // Only a step that arrives after all earlier ones were answered counts as a turn: of these three, the first.
    worker.send_step(sample_step(&[(1, crate::support::logits(1, 0))])).await;
    gate.wait_for_batch().await;
    for position in 1..3 {
        worker.send_step(sample_step(&[(1, crate::support::logits(1, position))])).await;
    }
    server.expect_series("croupier_queue_depth", 2.0).await;
    gate.open();
    for _ in 0..3 {
        worker.step_reply().await.unwrap();
    }
    assert_eq!(turns("count"), count + 2.0);
}

/// Verifies `drafts` draft tokens, of which the target would choose all, or all but the last. Returns the draft length that is advised
/// next.
async fn verify(worker: &mut Worker, id: u64, drafts: usize, all: bool) -> u32 {
    let mut draft_token_ids = vec![3; drafts];
    if !all {
        draft_token_ids[drafts - 1] = 5;
    }
    let work = worker.verify(id, chain(&draft_token_ids, deterministic()), &vec![sure(3); drafts + 1]).await;
    work.advised_draft_length.expect("it is advised")
}

/// A row whose most likely token is this one.
fn sure(token: u32) -> Vec<f32> {
    (0..crate::support::VOCAB).map(|other| if other == token { 9.0 } else { 0.0 }).collect()
}

#[tokio::test]
async fn what_each_sequence_accepts_is_told_when_it_goes_and_what_exceeds_advice_at_once() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    // Draft tokens are expensive, so few are worthwhile.
    let draft_length = Some(DraftLengthParams { draft_cost: 5.0, verify_cost: 0.1, max_draft_tokens: None });
    let params = |id| SamplingParams { temperature: Some(0.0), draft_length, ..seeded(id) };
    worker.step(open_step((1..=3).map(|id| open(id, params(id))).collect())).await;
    let told =
        |part: &str| server.series(&format!("croupier_spec_decode_sequence_acceptance_{part}{{model=\"default\"}}"));
    let mut beyond = 0;
    let mut advised = 4;
    for round in 0..5 {
        beyond += 4u32.saturating_sub(advised);
        advised = verify(&mut worker, 1, 4, round < 4).await;
    }
    assert!(beyond > 0, "the costs are such that not all are advised");
    let series = "croupier_spec_decode_num_draft_tokens_beyond_advice_total{model=\"default\"}";
    assert_eq!(server.series(series), f64::from(beyond));
    // Fifteen draft tokens are too few to judge a sequence.
    for (id, drafts) in [(2, 15), (3, 16)] {
        verify(&mut worker, id, drafts, true).await;
    }
    assert_eq!(told("count"), 0.0);
    worker.step(Step { close_sequence_ids: vec![1, 2], ..Default::default() }).await;
    assert_eq!((told("count"), told("sum")), (1.0, 19.0 / 20.0));
    drop(worker);
    server.expect_sequences(0).await;
    assert_eq!((told("count"), told("sum")), (2.0, 19.0 / 20.0 + 1.0));
}

/// A tree is no deeper for having siblings.
#[tokio::test]
async fn a_tree_exceeds_advice_by_its_depth_and_not_by_its_tokens() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let draft_length = Some(DraftLengthParams { draft_cost: 0.1, verify_cost: 0.0, max_draft_tokens: Some(1) });
    let params = SamplingParams { temperature: Some(0.0), draft_length, ..seeded(1) };
    worker.step(open_step(vec![open(1, params)])).await;
    assert_eq!(verify(&mut worker, 1, 1, true).await, 1);
    for (parents, beyond) in [(vec![-1, -1], 0.0), (vec![-1, 0], 1.0)] {
        let tree = VerifyWork { parents, ..chain(&[3, 5], deterministic()) };
        let verified = worker.verify(1, tree, &vec![sure(3); 3]).await;
        assert_eq!(verified.advised_draft_length, Some(1));
        let series = "croupier_spec_decode_num_draft_tokens_beyond_advice_total{model=\"default\"}";
        assert_eq!(server.series(series), beyond);
    }
}

#[tokio::test]
async fn draft_tokens_behind_the_end_of_a_text_were_not_rejected() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let params = SamplingParams { temperature: Some(0.0), max_tokens: Some(16), ..seeded(1) };
    worker.step(open_step(vec![open(1, params)])).await;
    let work = worker.verify(1, chain(&[3; 20], deterministic()), &vec![sure(3); 21]).await;
    assert_eq!((work.tokens.len(), work.verify.map(|verify| verify.accepted_count)), (16, Some(16)));
    worker.step(Step { close_sequence_ids: vec![1], ..Default::default() }).await;
    let told =
        |part: &str| server.series(&format!("croupier_spec_decode_sequence_acceptance_{part}{{model=\"default\"}}"));
    assert_eq!((told("count"), told("sum")), (1.0, 1.0));
}

#[tokio::test]
async fn a_work_that_asks_for_no_rows_counts_as_one_that_failed() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let nothing = score_work(None, ScoreWork::default());
    let result = worker.step(Step { work: vec![nothing], logits: inline(&[]), ..Default::default() }).await;
    assert_eq!(result.work[0].status(), RowStatus::InvalidWork);
    assert_eq!(server.series("croupier_rows_invalid_total{model=\"default\",reason=\"invalid_work\"}"), 1.0);
}

#[tokio::test]
async fn model_labels_are_counted_beside_how_many_there_may_be() {
    let server = TestServer::with_limits(|limits| limits.max_model_labels = 2).await;
    let mut workers = Vec::new();
    for (model, known) in [("a", 1.0), ("b", 2.0), ("a", 2.0), ("c", 2.0)] {
        let config = StreamConfig { model: model.to_owned(), ..crate::support::config() };
        workers.push(server.worker_with(config).await);
        let counted = ["croupier_model_labels", "croupier_model_labels_capacity"].map(|series| server.series(series));
        assert_eq!(counted, [known, 2.0], "{model}");
    }
    workers[3].step(open_step(vec![OpenSequence { sequence_id: 1, ..Default::default() }])).await;
    workers[3].step(sample_step(&[(1, crate::support::logits(1, 0))])).await;
    assert_eq!(server.series("croupier_tokens_total{model=\"other\"}"), 1.0);
}

/// Who holds streams and sequences is named by the model; a stream that ends takes its sequences along.
#[tokio::test]
async fn open_streams_and_sequences_are_counted_by_model() {
    let server = TestServer::with_limits(|limits| limits.max_sequences_per_stream = 3).await;
    let opened = async |model: &str, ids: std::ops::Range<u64>| {
        let config = StreamConfig { model: model.to_owned(), ..crate::support::config() };
        let mut worker = server.worker_with(config).await;
        for sequence_id in ids {
            worker.step(open_step(vec![OpenSequence { sequence_id, ..Default::default() }])).await;
        }
        worker
    };
    let held = |model: &str| {
        ["streams", "sequences"].map(|what| server.series(&format!("croupier_model_{what}{{model=\"{model}\"}}")))
    };
    let mut first = opened("a", 0..2).await;
    let second = opened("a", 0..4).await;
    let _other = opened("b", 7..8).await;
    assert_eq!([held("a"), held("b")], [[2.0, 5.0], [1.0, 1.0]], "the fourth of a stream is refused");
    first.step(Step { close_sequence_ids: vec![1, 1, 9], ..Default::default() }).await;
    assert_eq!(held("a"), [2.0, 4.0]);
    drop(second);
    server.expect_sequences(2).await;
    assert_eq!([held("a"), held("b")], [[1.0, 1.0], [1.0, 1.0]]);
}
