//! `min_eos_p` over real sockets: texts end where the end is likely, reports say so, drafts end there too, and errors say what it needs.

use crate::support::*;
use crate::work::*;
use croupier::proto::decode_request::Request;
use croupier::proto::*;
use tonic::Code;

/// The tokens that end a text.
const EOS: [u32; 2] = [3, 5];

fn ending(seed: u64) -> SamplingParams {
    SamplingParams { min_eos_p: Some(0.3), ..seeded(seed) }
}

fn with_eos() -> StreamConfig {
    StreamConfig { eos_token_ids: EOS.to_vec(), ..config() }
}

/// A row with these probabilities for the end tokens, and the rest for token 7.
fn row(ends: [f32; 2]) -> Vec<f32> {
    let mut row = vec![f32::NEG_INFINITY; VOCAB as usize];
    row[7] = (1.0 - ends[0] - ends[1]).ln();
    EOS.iter().zip(ends).for_each(|(&end, p)| row[end as usize] = p.ln());
    row
}

#[tokio::test]
async fn a_text_ends_where_one_end_is_likely() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let report = ReportParams { why_not_token_ids: vec![7, 3], ..Default::default() };
    let logprobs =
        LogprobsParams { mode: LogprobsMode::Processed.into(), token_ids: vec![3, 5, 7], ..Default::default() };
    let params = SamplingParams { report: Some(report), logprobs: Some(logprobs), ..ending(1) };
    worker.step(open_step((1..=8).map(|id| open(id, params.clone())).collect())).await;
    // Neither end token reaches 0.3 alone.
    let work = only(worker.step(step_of(sample_work(1), &[row([0.29, 0.28])])).await);
    let near = |got: f32, p: f32| (got.exp() - p).abs() < 1e-5;
    let told = &work.tokens[0].requested_logprobs;
    assert!(near(told[0], 0.29) && near(told[1], 0.28) && near(told[2], 0.43), "{told:?}");
    for id in 2..=8 {
        let work = only(worker.step(step_of(sample_work(id), &[row([0.31, 0.1])])).await);
        assert!(EOS.contains(&token(&work)), "{work:?}");
        assert_eq!(work.finish_reason(), FinishReason::Eos);
        let told = &work.tokens[0].requested_logprobs;
        assert!(near(told[0], 31.0 / 41.0) && near(told[1], 10.0 / 41.0) && told[2] == f32::NEG_INFINITY, "{told:?}");
        let fates = &work.tokens[0].report.as_ref().unwrap().why_not;
        assert_eq!((fates[0].removed_by(), fates[0].sampler()), (RemovedBy::Sampler, SamplerKind::MinEosP));
        assert_eq!(fates[1].removed_by(), RemovedBy::Unspecified);
    }
}

#[tokio::test]
async fn ends_that_may_not_come_are_not_likely() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let all = [
        (1, SamplingParams { min_tokens: Some(2), ..ending(1) }),
        (2, SamplingParams { banned_token_ids: EOS.to_vec(), ..ending(1) }),
        (3, SamplingParams { banned_token_ids: vec![3], ..ending(1) }),
        (4, SamplingParams { allowed_token_ids: vec![7], ..ending(1) }),
        (5, SamplingParams { temperature: Some(0.0), ..ending(1) }),
        (6, SamplingParams { min_eos_p: Some(1.0), top_k: Some(1), ..ending(1) }),
    ];
    let ids: Vec<u64> = all.iter().map(|(id, _)| *id).collect();
    worker.step(open_step(all.into_iter().map(|(id, params)| open(id, params)).collect())).await;
    let rows: Vec<_> = ids.iter().map(|&id| (id, row([0.35, 0.25]))).collect();
    let result = worker.step(sample_step(&rows)).await;
    let got: Vec<u32> = result.work.iter().map(token).collect();
    assert_eq!([&got[..2], &got[3..]].concat(), [7; 5], "{got:?}");
    // Without token 3, the probability of token 5 is .25 / .65.
    assert_eq!(got[2], 5);
    let result = worker.step(sample_step(&[(1, row([0.35, 0.25]))])).await;
    assert_eq!(token(&result.work[0]), 7, "the second of two that have to come");
    let result = worker.step(sample_step(&[(1, row([0.35, 0.25]))])).await;
    assert_eq!(result.work[0].finish_reason(), FinishReason::Eos);
}

#[tokio::test]
async fn a_draft_ends_where_the_text_would() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    worker.step(open_step((1..=20).map(|id| open(id, ending(id))).collect())).await;
    for id in 1..=20 {
        // Without `min_eos_p` the draft would go on with probability 3/5.
        let rows = [row([0.0, 0.0]), row([0.35, 0.05]), row([0.0, 0.0])];
        let work = worker.verify(id, chain(&[7, 7], deterministic()), &rows).await;
        let got = ids(&work);
        assert!(got.len() == 2 && got[0] == 7 && EOS.contains(&got[1]), "{got:?}");
        assert_eq!((work.finish_reason(), work.verify.unwrap().accepted_count), (FinishReason::Eos, 1));
    }
}

#[tokio::test]
async fn what_it_needs_is_told() {
    let server = TestServer::start().await;
    let ignored = SamplingParams { ignore_eos: Some(true), ..ending(1) };
    let stop = SamplingParams { stop_token_ids: vec![3], ..ending(1) };
    let greedy = SamplingParams { temperature: Some(0.0), ..ending(1) };
    let vllm = SamplingParams { engine_order: EngineOrder::Vllm.into(), ..ending(1) };
    let hf = SamplingParams { engine_order: EngineOrder::Transformers.into(), ..ending(1) };
    let needs = Some(("min_eos_p", "needs a token that ends the text"));
    let cases = [
        (config(), ending(1), needs),
        (config(), stop, needs),
        (with_eos(), ignored, needs),
        (with_eos(), vllm, Some(("engine_order", "has no place for min_eos_p"))),
        (config(), greedy, None),
        (with_eos(), ending(1), None),
        (with_eos(), hf, None),
    ];
    for (config, params, expected) in cases {
        let mut worker = server.worker_with(config.clone()).await;
        let opened = worker.step(open_step(vec![open(1, params.clone())])).await.open.remove(0);
        let status = if expected.is_some() { OpenStatus::InvalidArgument } else { OpenStatus::Ok };
        assert_eq!(opened.status(), status, "{opened:?}");
        let mut stream = server.stream().await.unwrap();
        stream.send(Request::Config(StreamConfig { default_params: Some(params), ..config })).await;
        match (stream.reply().await, expected) {
            (Ok(_), None) => {}
            (Err(status), Some((field, message))) => {
                let error = opened.error.unwrap();
                assert_eq!(error.field, format!("params.{field}"));
                assert!(error.message.contains(message), "{}", error.message);
                assert_eq!(status.code(), Code::InvalidArgument);
                assert_eq!(violation(&status).0, format!("config.default_params.{field}"));
            }
            (got, expected) => panic!("{got:?} {expected:?}"),
        }
    }
}

#[tokio::test]
async fn a_sequence_over_a_stream_has_the_streams_ends() {
    let server = TestServer::start().await;
    let defaults = Some(SamplingParams { min_eos_p: Some(0.3), ..seeded(1) });
    let mut worker = server.worker_with(StreamConfig { default_params: defaults, ..with_eos() }).await;
    let off = SamplingParams { min_eos_p: Some(0.0), top_k: Some(1), ..seeded(2) };
    worker.step(open_step(vec![open(1, seeded(1)), open(2, off)])).await;
    let result = worker.step(sample_step(&[(1, row([0.35, 0.0])), (2, row([0.35, 0.0]))])).await;
    let tokens: Vec<u32> = result.work.iter().map(token).collect();
    assert_eq!(tokens, [3, 7]);
}
