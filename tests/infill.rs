//! Infill over real sockets: texts end where no continuation is certain, reports say so, and errors say what infill needs.

use crate::support::*;
use crate::work::*;
use croupier::backend::cpu::CpuBackend;
use croupier::limits::Limits;
use croupier::proto::decode_request::Request;
use croupier::proto::*;
use croupier::rpc::ServerSetup;
use tonic::Code;

const EOS: u32 = 0;

fn infill(seed: u64) -> SamplingParams {
    SamplingParams { infill: Some(true), top_k: Some(8), ..seeded(seed) }
}

fn with_eos() -> StreamConfig {
    StreamConfig { eos_token_ids: vec![EOS], ..config() }
}

/// A row with these probabilities.
fn row(probabilities: &[(u32, f32)]) -> Vec<f32> {
    let mut row = vec![-20.0; VOCAB as usize];
    probabilities.iter().for_each(|&(token, p)| row[token as usize] = p.ln());
    row
}

/// Eight tokens with texts of three letters: none has a probability of 1/5, and none is a prefix of another.
fn uncertain() -> Vec<f32> {
    row(&[(7, 0.15), (8, 0.15), (9, 0.15), (10, 0.15), (11, 0.1), (12, 0.1), (13, 0.1), (14, 0.1)])
}

#[tokio::test]
async fn a_text_ends_where_nothing_is_certain() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let report = ReportParams { why_not_token_ids: vec![EOS, 7], entropy: true, ..Default::default() };
    let logprobs = LogprobsParams { mode: LogprobsMode::Processed.into(), token_ids: vec![7], ..Default::default() };
    let params = SamplingParams { report: Some(report), logprobs: Some(logprobs), ..infill(1) };
    worker.step(open_step(vec![open(1, params)])).await;
    // "a", "ab" and "abb" have 0.67 together.
    let certain = row(&[(1, 0.35), (4, 0.2), (6, 0.18), (5, 0.15), (10, 0.12)]);
    let work = only(worker.step(step_of(sample_work(1), &[certain])).await);
    assert_eq!((token(&work), work.finish_reason()), (1, FinishReason::Unspecified));
    let work = only(worker.step(step_of(sample_work(1), &[uncertain()])).await);
    assert_eq!((token(&work), work.finish_reason()), (EOS, FinishReason::Eos));
    let told = work.tokens[0].report.as_ref().unwrap();
    let fates: Vec<(RemovedBy, SamplerKind)> = told.why_not.iter().map(|f| (f.removed_by(), f.sampler())).collect();
    assert_eq!(fates, [(RemovedBy::Unspecified, SamplerKind::Unspecified), (RemovedBy::Sampler, SamplerKind::Infill)]);
    assert_eq!((told.why_not[0].probability, told.why_not[0].rank, told.entropy), (1.0, 1, Some(0.0)));
    let token = &work.tokens[0];
    assert_eq!((token.logprob, &token.requested_logprobs[..]), (Some(0.0), &[f32::NEG_INFINITY][..]));
}

#[tokio::test]
async fn what_may_not_end_a_text_does_not() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let stop = SamplingParams { stop_token_ids: vec![30], ..infill(3) };
    let all = [
        (1, SamplingParams { min_tokens: Some(2), ..infill(1) }),
        (2, SamplingParams { banned_token_ids: vec![EOS], ..stop.clone() }),
        (3, SamplingParams { ignore_eos: Some(true), ..stop.clone() }),
        (4, stop),
        (5, SamplingParams { temperature: Some(0.0), ignore_eos: Some(true), ..infill(1) }),
    ];
    worker.step(open_step(all.into_iter().map(|(id, params)| open(id, params)).collect())).await;
    let rows: Vec<_> = (1..=5).map(|id| (id, uncertain())).collect();
    let result = worker.step(sample_step(&rows)).await;
    let got: Vec<(u32, FinishReason)> = result.work.iter().map(|work| (token(work), work.finish_reason())).collect();
    assert!((7..15).contains(&got[0].0) && got[0].1 == FinishReason::Unspecified, "{got:?}");
    assert_eq!(got[1..4], [(30, FinishReason::StopToken), (30, FinishReason::StopToken), (EOS, FinishReason::Eos)]);
    assert_eq!(got[4].0, 7, "greedy");
    // After two tokens the text may end.
    worker.step(sample_step(&[(1, uncertain())])).await;
    let result = worker.step(sample_step(&[(1, uncertain())])).await;
    assert_eq!(result.work[0].finish_reason(), FinishReason::Eos);
}

#[tokio::test]
async fn what_it_needs_is_told() {
    let known = TestServer::start().await;
    let setup = ServerSetup::default();
    let bare = TestServer::with_setup(Transport::Tcp, Limits::default(), Box::new(CpuBackend::new(1)), setup).await;
    let ignored = SamplingParams { ignore_eos: Some(true), ..infill(1) };
    let greedy = SamplingParams { temperature: Some(0.0), ..infill(1) };
    let stop = SamplingParams { stop_token_ids: vec![3], ..infill(1) };
    let cases = [
        (&bare, with_eos(), infill(1), Some("needs the texts of tokens")),
        (&bare, with_eos(), greedy, None),
        (&known, config(), infill(1), Some("needs a token that ends the text")),
        (&known, with_eos(), ignored.clone(), Some("needs a token that ends the text")),
        (&known, with_eos(), infill(1), None),
        (&known, config(), stop, None),
    ];
    for (server, config, params, expected) in cases {
        let mut worker = server.worker_with(config.clone()).await;
        let opened = worker.step(open_step(vec![open(1, params.clone())])).await.open.remove(0);
        let status = if expected.is_some() { OpenStatus::InvalidArgument } else { OpenStatus::Ok };
        assert_eq!(opened.status(), status, "{opened:?}");
        let error = opened.error.unwrap_or_default();
        assert!(error.message.contains(expected.unwrap_or_default()), "{}", error.message);
        assert_eq!(error.field, if expected.is_some() { "params.infill" } else { "" });
        let mut stream = server.stream().await.unwrap();
        stream.send(Request::Config(StreamConfig { default_params: Some(params), ..config })).await;
        match (stream.reply().await, expected) {
            (Ok(_), None) => {}
            (Err(status), Some(expected)) => {
                assert_eq!(status.code(), Code::InvalidArgument);
                assert_eq!(violation(&status).0, "config.default_params.infill");
                assert!(status.message().contains(expected), "{status}");
            }
            (got, expected) => panic!("{got:?} {expected:?}"),
        }
    }
}

#[tokio::test]
async fn a_sequence_over_a_stream_with_infill_has_its_own_ends() {
    let server = TestServer::start().await;
    let defaults = Some(SamplingParams { stop_token_ids: vec![40], ..infill(1) });
    let mut worker = server.worker_with(StreamConfig { default_params: defaults, ..config() }).await;
    let own = SamplingParams { stop_token_ids: vec![41], ..seeded(2) };
    let off = SamplingParams { infill: Some(false), ..seeded(2) };
    worker.step(open_step(vec![open(1, seeded(1)), open(2, own), open(3, off)])).await;
    let result = worker.step(sample_step(&[(1, uncertain()), (2, uncertain()), (3, uncertain())])).await;
    let tokens: Vec<u32> = result.work.iter().map(token).collect();
    assert_eq!(tokens[..2], [40, 41]);
    assert!((7..15).contains(&tokens[2]));
}

#[tokio::test]
async fn the_server_says_what_texts_it_has() {
    let server = TestServer::start().await;
    let info = server.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    let vocabulary = info.vocabulary.unwrap();
    assert_eq!((vocabulary.tokens, vocabulary.texts, vocabulary.sha256.len()), (VOCAB, VOCAB - 1, 64));
    assert!(info.parameters.contains(&"infill".to_owned()));
}
