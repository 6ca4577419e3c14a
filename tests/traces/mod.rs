//! Traces that a collector gets from a server, over real sockets.

mod collector;
mod trouble;

use crate::common::{NEVER, Running, config, start, until};
use collector::{Collector, Manner, attributes};
use croupier::config::Config;
use croupier::otlp::Settings;
use croupier::otlp::wire::{Span, SpanKind};
use croupier::proto::decode_request::Request;
use croupier::proto::decode_response::Response;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
const OTHER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const STAGES: [&str; 3] = ["queue", "backend", "reply"];
/// Spans of an answered step: the step's own and those of its stages.
const SPANS: usize = 1 + STAGES.len();

/// A configuration that sends this share of its traces to the collector.
pub(crate) fn tracing(collector: SocketAddr, ratio: f64) -> Config {
    let traces = Settings { endpoint: Some(format!("http://{collector}")), ca: None };
    Config { traces, trace_ratio: ratio, ..config() }
}

pub(crate) async fn client(server: &Running) -> SamplerClient<Channel> {
    SamplerClient::connect(format!("http://{}", server.tcp())).await.expect("a connection")
}

/// A stream that is configured.
pub(crate) struct Worker {
    requests: mpsc::Sender<DecodeRequest>,
    replies: Streaming<DecodeResponse>,
    steps: u64,
}

impl Worker {
    pub(crate) async fn open(server: &Running, traceparent: Option<&str>) -> Self {
        let (requests, receiver) = mpsc::channel(8);
        let (vocab_size, logits_dtype) = (4, LogitsDtype::F32.into());
        let config = StreamConfig { vocab_size, logits_dtype, model: "llama".to_owned(), ..Default::default() };
        requests.try_send(DecodeRequest { request: Some(Request::Config(config)) }).expect("room");
        let request = with_context(ReceiverStream::new(receiver), traceparent);
        let replies = client(server).await.decode(request).await.expect("a stream").into_inner();
        let mut worker = Self { requests, replies, steps: 0 };
        assert!(matches!(worker.reply().await, Ok(Some(Response::Ready(_)))));
        worker
    }

    /// Samples `rows` rows of sequence 1, which the first step opens. Returns the tokens.
    pub(crate) async fn step(&mut self, traceparent: &str) -> Vec<u32> {
        self.send(step(self.steps + 1, traceparent)).await;
        let Ok(Some(Response::Step(result))) = self.reply().await else { panic!("expected the result of a step") };
        result.work.iter().flat_map(|work| &work.tokens).map(|token| token.token_id).collect()
    }

    async fn send(&mut self, step: Step) {
        self.steps += 1;
        self.requests.send(DecodeRequest { request: Some(Request::Step(step)) }).await.expect("the stream is open");
    }

    async fn reply(&mut self) -> Result<Option<Response>, Status> {
        let reply = tokio::time::timeout(NEVER, self.replies.message()).await.expect("an answer");
        reply.map(|reply| reply.map(|reply| reply.response.expect("a response")))
    }
}

/// Step `id`: the first one opens sequences 1 and 2. Sequence 1 has a row, sequence 2 one with a NaN.
fn step(id: u64, traceparent: &str) -> Step {
    let open = |sequence_id| {
        let params = Some(SamplingParams { seed: Some(7), ..Default::default() });
        OpenSequence { sequence_id, params, ..Default::default() }
    };
    let sample =
        |id| Work { sequence_id: Some(id), kind: Some(work::Kind::Sample(SampleWork {})), ..Default::default() };
    Step {
        step_id: id,
        open: if id == 1 { vec![open(1), open(2)] } else { Vec::new() },
        work: vec![sample(1), sample(2)],
        logits: Some(step::Logits::Inline(rows([1.0, 2.0, 3.0, 2.0, f32::NAN, 0.0, 0.0, 0.0]))),
        traceparent: traceparent.to_owned(),
        ..Default::default()
    }
}

/// A verification of two draft tokens for sequence 1, of which the target can choose only the first.
fn verification(id: u64) -> Step {
    let draft_distribution = Some(verify_work::DraftDistribution::Deterministic(DeterministicDraft {}));
    let verify = VerifyWork { draft_token_ids: vec![2, 3], draft_distribution, ..Default::default() };
    let only = |token: usize| (0..4).map(move |at| if at == token { 0.0 } else { f32::NEG_INFINITY });
    let logits: Vec<f32> = [2, 1, 1].into_iter().flat_map(only).collect();
    let logits = rows::<12>(logits.try_into().expect("three rows"));
    let work = vec![Work { sequence_id: Some(1), kind: Some(work::Kind::Verify(verify)), ..Default::default() }];
    Step { step_id: id, work, logits: Some(step::Logits::Inline(logits)), ..Default::default() }
}

fn rows<const N: usize>(logits: [f32; N]) -> InlineLogits {
    InlineLogits { data: logits.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>().into(), row_stride: 0 }
}

fn with_context<T>(message: T, traceparent: Option<&str>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(text) = traceparent {
        request.metadata_mut().insert("traceparent", text.parse().expect("a header"));
    }
    request
}

fn one_row(dtype: LogitsDtype) -> SampleRequest {
    SampleRequest {
        vocab_size: 4,
        logits_dtype: dtype.into(),
        rows: vec![SampleRow::default()],
        logits: Some(rows([1.0, 2.0, 3.0, 2.0])),
        model: "llama".to_owned(),
        ..Default::default()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The spans of steps and calls, without those of stages.
fn whole(spans: &[Span]) -> Vec<&Span> {
    spans.iter().filter(|span| span.kind() == SpanKind::Server).collect()
}

/// Stops the server, so that it sends all spans, and returns what the collector got. It waits for `least` spans first: at the end they have
/// little time, and spans that should not exist would come last.
async fn collected(server: Running, collector: &Collector, least: usize) -> Vec<Span> {
    until("the spans are there", async || collector.spans().len() >= least).await;
    server.shut_down().await.expect("it ends");
    collector.spans()
}

#[tokio::test]
async fn a_step_is_a_span_with_its_stages_in_it() {
    let (collector, address) = Collector::start(Manner::Takes).await;
    let server = start(tracing(address, 0.0)).await;
    let mut worker = Worker::open(&server, None).await;
    assert_eq!(worker.step(SAMPLED).await.len(), 1);
    drop(worker);
    let spans = collected(server, &collector, SPANS).await;
    let [step] = whole(&spans)[..] else { panic!("one span, not {spans:?}") };
    assert_eq!((hex(&step.trace_id).as_str(), hex(&step.parent_span_id).as_str()), (TRACE, "b7ad6b7169203331"));
    assert_eq!((step.name.as_str(), step.flags, &step.status), ("croupier.v1.Sampler/Decode", 0x301, &None));
    let told = attributes(step);
    for (name, value) in [
        ("rpc.system.name", "grpc"),
        ("rpc.method", "croupier.v1.Sampler/Decode"),
        ("gen_ai.request.model", "llama"),
        ("croupier.step.id", "1"),
        ("croupier.rows", "2"),
        ("croupier.tokens", "1"),
        ("croupier.work.failed", "1"),
        ("croupier.data_path", "inline"),
        ("croupier.outcome", "ok"),
    ] {
        assert_eq!(told.get(name).map(String::as_str), Some(value), "{name} in {told:?}");
    }
    assert!(!told.contains_key("rpc.response.status_code"), "the call goes on");
    let stages: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id == step.span_id).collect();
    assert_eq!(stages.iter().map(|stage| stage.name.as_str()).collect::<Vec<_>>(), STAGES);
    assert!(stages.iter().all(|s| s.trace_id == step.trace_id && s.kind() == SpanKind::Internal && s.flags == 0x101));
    // The stages follow one another without a gap, and together cover the step.
    let ends = |span: &Span| (span.start_time_unix_nano, span.end_time_unix_nano);
    assert!(stages.windows(2).all(|pair| ends(pair[0]).1 == ends(pair[1]).0));
    assert_eq!((ends(stages[0]).0, ends(stages[2]).1), ends(step));
    assert!(stages.iter().all(|stage| ends(stage).0 <= ends(stage).1));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    assert!(
        (1..u128::from(u32::MAX) * 1000).contains(&(now - u128::from(ends(step).0))),
        "the clock is that of the wall"
    );
}

#[tokio::test]
async fn a_resource_says_which_process_it_is() {
    let (collector, address) = Collector::start(Manner::Takes).await;
    let server = start(tracing(address, 1.0)).await;
    Worker::open(&server, None).await.step("").await;
    collected(server, &collector, SPANS).await;
    let requests = collector.requests();
    let resource = requests[0].resource_spans[0].resource.clone().expect("a resource");
    let keys: Vec<&str> = resource.attributes.iter().map(|a| a.key.as_str()).collect();
    assert_eq!(keys, ["service.name", "service.version", "service.instance.id"]);
}

#[tokio::test]
async fn a_step_belongs_to_its_own_trace_or_to_that_of_its_stream() {
    let (collector, address) = Collector::start(Manner::Takes).await;
    let server = start(tracing(address, 0.0)).await;
    let mut worker = Worker::open(&server, Some(SAMPLED)).await;
    for own in ["", OTHER, UNSAMPLED, "00-nonsense"] {
        worker.step(own).await;
    }
    drop(worker);
    assert_eq!(server.series("croupier_trace_contexts_invalid_total").await, 1.0);
    let spans = collected(server, &collector, 3 * SPANS).await;
    let of: Vec<(String, String)> =
        whole(&spans).iter().map(|span| (attributes(span)["croupier.step.id"].clone(), hex(&span.trace_id))).collect();
    let other = "4bf92f3577b34da6a3ce929d0e0e4736";
    // The third says that its parent is not recorded. The fourth is treated as if it had no parent.
    let expected = [("1", TRACE), ("2", other), ("4", TRACE)].map(|(id, trace)| (id.to_owned(), trace.to_owned()));
    assert_eq!(of, expected);
}

#[tokio::test]
async fn who_brings_no_context_is_recorded_by_share() {
    for (ratio, recorded) in [(0.0, 0), (1.0, 20)] {
        let (collector, address) = Collector::start(Manner::Takes).await;
        let server = start(tracing(address, ratio)).await;
        let mut worker = Worker::open(&server, None).await;
        for _ in 0..20 {
            worker.step("").await;
        }
        drop(worker);
        let spans = collected(server, &collector, recorded * SPANS).await;
        let steps = whole(&spans);
        assert_eq!(steps.len(), recorded, "share {ratio}");
        let traces: BTreeSet<&Vec<u8>> = steps.iter().map(|span| &span.trace_id).collect();
        assert_eq!(traces.len(), recorded, "each begins a trace of its own");
        assert!(steps.iter().all(|span| span.parent_span_id.is_empty() && span.flags == 0x101));
        let ids: BTreeSet<&Vec<u8>> = spans.iter().map(|span| &span.span_id).collect();
        assert_eq!(ids.len(), spans.len(), "no number comes twice");
    }
}

#[tokio::test]
async fn calls_of_sample_have_their_parent_in_the_metadata() {
    let (collector, address) = Collector::start(Manner::Takes).await;
    let server = start(tracing(address, 0.0)).await;
    let mut client = client(&server).await;
    client.sample(with_context(one_row(LogitsDtype::F32), Some(SAMPLED))).await.expect("an answer");
    client.sample(with_context(one_row(LogitsDtype::F32), Some(UNSAMPLED))).await.expect("an answer");
    let wrong = client.sample(with_context(one_row(LogitsDtype::Unspecified), Some(SAMPLED))).await;
    assert_eq!(wrong.expect_err("a mistake").code(), Code::InvalidArgument);
    drop(client);
    let spans = collected(server, &collector, SPANS + 1).await;
    let [good, bad] = whole(&spans)[..] else { panic!("two spans, not {spans:?}") };
    let (good_told, bad_told) = (attributes(good), attributes(bad));
    assert_eq!(good.name, "croupier.v1.Sampler/Sample");
    assert_eq!((good_told["rpc.response.status_code"].as_str(), good_told["croupier.tokens"].as_str()), ("OK", "1"));
    assert!(!good_told.contains_key("croupier.step.id"));
    assert_eq!(bad_told["rpc.response.status_code"], "INVALID_ARGUMENT");
    assert_eq!(bad_told["croupier.outcome"], "invalid_field");
    // A client's error is not a failure of the server.
    assert!(bad.status.is_none() && !bad_told.contains_key("error.type"));
    assert_eq!(spans.iter().filter(|span| span.parent_span_id == good.span_id).count(), STAGES.len());
    assert!(spans.iter().all(|span| span.parent_span_id != bad.span_id), "it came to no stage");
}

#[tokio::test]
async fn steps_that_are_not_answered_have_a_span_too() {
    let (collector, address) = Collector::start(Manner::Takes).await;
    let mut settings = tracing(address, 0.0);
    (settings.limits.max_sequences, settings.limits.max_sequences_per_stream) = (2, 2);
    let server = start(settings).await;
    let mut worker = Worker::open(&server, None).await;
    worker.step(UNSAMPLED).await;
    let refused = client(&server).await.sample(with_context(one_row(LogitsDtype::F32), Some(SAMPLED))).await;
    assert_eq!(refused.expect_err("no room for a third sequence").code(), Code::ResourceExhausted);
    worker.send(Step { logits: None, ..step(2, SAMPLED) }).await;
    assert_eq!(worker.reply().await.expect_err("a mistake").code(), Code::InvalidArgument);
    let spans = collected(server, &collector, 2).await;
    let [refused, wrong] = whole(&spans)[..] else { panic!("two spans, not {spans:?}") };
    for (span, code, outcome, was_read) in [
        (refused, "RESOURCE_EXHAUSTED", "too_many_sequences", true),
        (wrong, "INVALID_ARGUMENT", "invalid_field", false),
    ] {
        let told = attributes(span);
        assert_eq!((told["rpc.response.status_code"].as_str(), told["croupier.outcome"].as_str()), (code, outcome));
        assert_eq!(told.contains_key("croupier.rows"), was_read, "{told:?}");
    }
}

#[tokio::test]
async fn every_attribute_is_on_the_page() {
    let (collector, address) = Collector::start(Manner::Takes).await;
    let server = start(tracing(address, 1.0)).await;
    let mut worker = Worker::open(&server, None).await;
    worker.step("").await;
    worker.send(verification(2)).await;
    worker.reply().await.expect("a verification");
    worker.send(Step { logits: None, ..step(3, "") }).await;
    worker.reply().await.expect_err("a mistake");
    client(&server).await.sample(one_row(LogitsDtype::F32)).await.expect("an answer");
    let spans = collected(server, &collector, 3 * SPANS + 1).await;
    let drafts = |name: &str| spans.iter().filter_map(|span| attributes(span).remove(name)).collect::<Vec<_>>();
    assert_eq!(
        (drafts("croupier.draft_tokens"), drafts("croupier.draft_tokens_accepted")),
        (vec!["2".into()], vec!["1".into()])
    );
    let mut seen: BTreeSet<String> = spans.iter().flat_map(|span| attributes(span).into_keys()).collect();
    // Only failures of the server itself have this attribute.
    seen.insert("error.type".to_owned());
    let page = include_str!("../../docs/traces.md");
    let listed = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let listed: BTreeSet<String> =
        listed.map(|(name, _)| name.to_owned()).filter(|name| name.contains('.') && !name.contains('/')).collect();
    assert_eq!(seen, listed, "docs/traces.md lists the attributes of spans");
}

#[tokio::test]
async fn tokens_are_the_same_with_traces_and_without() {
    let (_collector, address) = Collector::start(Manner::Takes).await;
    let mut texts = Vec::new();
    for settings in [config(), tracing(address, 1.0)] {
        let server = start(settings).await;
        let mut worker = Worker::open(&server, Some(SAMPLED)).await;
        let mut text = Vec::new();
        for _ in 0..30 {
            text.extend(worker.step(OTHER).await);
        }
        assert_eq!(text.len(), 30);
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1]);
}
