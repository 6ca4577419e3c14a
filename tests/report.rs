//! Reports on why a token was chosen or removed, over real sockets: the same report for sample, score and verify work, with the name of the
//! parameter that removed a token.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;

fn why(tokens: &[u32]) -> Option<ReportParams> {
    Some(ReportParams {
        support_size: true,
        max_surviving_token_ids: 4,
        entropy: true,
        why_not_token_ids: tokens.to_vec(),
    })
}

/// Decreasing logits: token 0 is the most likely.
fn falling() -> Vec<f32> {
    (0..VOCAB).map(|token| -0.1 * token as f32).collect()
}

/// What removed each token.
fn removed(token: &Token) -> Vec<RemovedBy> {
    token.report.as_ref().unwrap().why_not.iter().map(WhyNot::removed_by).collect()
}

#[tokio::test]
async fn a_step_explains_so_many_logits() {
    let server = TestServer::start().await;
    let vocab_size = 1 << 20;
    let mut worker = server.worker_with(StreamConfig { vocab_size, ..config() }).await;
    let params = SamplingParams { temperature: Some(0.0), report: why(&[0]), ..seeded(1) };
    let plain = open(9, SamplingParams { report: None, ..params.clone() });
    let opens = (1..=2).map(|id| open(id, params.clone())).chain([plain]).collect();
    worker.step(open_step(opens)).await;
    let row = vec![0.0; vocab_size as usize];
    let shared = |id| Work { first_row: Some(0), ..sample_work(id) };
    let step = |ids: &[u64]| Step {
        work: ids.iter().map(|&id| shared(id)).collect(),
        logits: inline(std::slice::from_ref(&row)),
        ..Default::default()
    };
    let result = worker.step(step(&[1, 2, 9])).await;
    let statuses: Vec<RowStatus> = result.work.iter().map(WorkResult::status).collect();
    use RowStatus::{InvalidWork, Ok};
    assert_eq!(statuses, [Ok, InvalidWork, Ok]);
    assert!(result.work[1].message.contains("report.why_not_token_ids"), "{}", result.work[1].message);
    // Raw logprobs do not depend on parameters, so there is nothing to explain.
    let score = |mode: LogprobsMode| {
        let logprobs = Some(LogprobsParams { mode: mode.into(), ..Default::default() });
        let kind = work::Kind::Score(ScoreWork { token_ids: vec![3, 3], logprobs });
        let work = Work { sequence_id: Some(1), kind: Some(kind), ..Default::default() };
        Step { work: vec![work], logits: inline(&[row.clone(), row.clone()]), ..Default::default() }
    };
    assert_eq!(worker.step(score(LogprobsMode::Processed)).await.work[0].status(), InvalidWork);
    let raw = only(worker.step(score(LogprobsMode::Raw)).await);
    assert_eq!(raw.tokens.len(), 2);
    // The failed work had no effect, and the next step has room again.
    let result = only(worker.step(step(&[2])).await);
    assert_eq!((result.status(), result.tokens.len()), (Ok, 1));
}

#[tokio::test]
async fn each_parameter_that_removes_a_token_is_named() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![2], ..config() }).await;
    let word = |token_ids: &[u32]| TokenSequence { token_ids: token_ids.to_vec() };
    let params = SamplingParams {
        banned_token_ids: vec![1],
        bad_words: vec![word(&[3]), word(&[30, 4])],
        min_tokens: Some(9),
        token_ban_ranges: vec![TokenBanRange { token_ids: vec![5], start: 3, length: 1 }],
        no_repeat_ngram: Some(NoRepeatNgramParams { size: 2, ..Default::default() }),
        top_k: Some(3),
        min_p: Some(0.5),
        sampler_order: vec![SamplerKind::TopK.into(), SamplerKind::MinP.into()],
        logit_bias: vec![LogitBias { token_id: 40, bias: -100.0 }],
        report: why(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 40]),
        ..seeded(1)
    };
    // 6 came after 30, so it may not come after 30 again.
    let open = OpenSequence { output_token_ids: vec![30, 6, 30], ..open(1, params) };
    worker.step(open_step(vec![open])).await;
    let mut row = falling();
    row[9] = -3.0;
    let token = only(worker.step(step_of(sample_work(1), &[row.clone()])).await).tokens.remove(0);
    use RemovedBy::*;
    // Top-k leaves 0, 7, 8, whose shares of the largest are 1, 0.497 and 0.449.
    let expected = [
        Unspecified,
        BannedTokenIds,
        MinTokens,
        BadWords,
        BadWords,
        TokenBanRanges,
        NoRepeatNgram,
        Sampler,
        Sampler,
        Sampler,
        Sampler,
    ];
    assert_eq!(removed(&token), expected);
    let report = token.report.unwrap();
    let samplers: Vec<SamplerKind> = report.why_not[7..].iter().map(WhyNot::sampler).collect();
    use SamplerKind::{MinP, TopK};
    assert_eq!(samplers, [MinP, MinP, TopK, TopK]);
    assert_eq!((report.support_size, report.surviving_token_ids, report.entropy), (1, vec![0], Some(0.0)));
    assert!(report.raw_entropy.unwrap() > 1.0);
    let [first, .., last] = &report.why_not[..] else { panic!("all were asked for") };
    assert_eq!((first.rank, first.probability, first.raw_logit), (1, 1.0, 0.0));
    assert_eq!((last.raw_logit, last.adjusted_logit), (row[40], row[40] - 100.0));
}

#[tokio::test]
async fn a_forced_token_removes_all_others() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let params = SamplingParams { forced_first_token: Some(7), report: why(&[0, 7]), ..seeded(1) };
    worker.step(open_step(vec![open(1, params)])).await;
    let token = only(worker.step(step_of(sample_work(1), &[falling()])).await).tokens.remove(0);
    assert_eq!(removed(&token), [RemovedBy::ForcedToken, RemovedBy::Unspecified]);
    let token = only(worker.step(step_of(sample_work(1), &[falling()])).await).tokens.remove(0);
    assert_eq!(removed(&token), [RemovedBy::Unspecified; 2], "the second token is free");
}

#[tokio::test]
async fn a_sequence_can_do_without_what_its_stream_asks_for() {
    let server = TestServer::start().await;
    let default_params = Some(SamplingParams { report: why(&[1]), ..Default::default() });
    let mut worker = server.worker_with(StreamConfig { default_params, ..config() }).await;
    let off = SamplingParams { report: Some(ReportParams::default()), ..seeded(1) };
    let own = SamplingParams { report: why(&[3, 4]), ..seeded(1) };
    let (inherits, listed) = (seeded(1), [1, 2, 3]);
    let opened = listed.into_iter().zip([inherits, off, own]).map(|(id, params)| open(id, params));
    worker.step(open_step(opened.collect())).await;
    let mut told = Vec::new();
    for id in listed {
        let work = only(worker.step(step_of(sample_work(id), &[falling()])).await);
        told.push(work.tokens[0].report.as_ref().map(|report| report.why_not.len()));
    }
    assert_eq!(told, [Some(1), None, Some(2)]);
}

/// Draft work has no report. Verify and score work give the same report as sample work, with raw logprobs or none.
#[tokio::test]
async fn every_kind_of_work_says_the_same() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let raw = LogprobsParams { mode: LogprobsMode::Raw.into(), ..Default::default() };
    for (id, logprobs) in [(1, None), (5, Some(raw.clone()))] {
        let params = SamplingParams {
            temperature: Some(0.8),
            top_p: Some(0.8),
            typical_p: Some(0.9),
            frequency_penalty: Some(0.5),
            no_repeat_ngram: Some(NoRepeatNgramParams { size: 2, ..Default::default() }),
            report: why(&[0, 1, 2, 20, 40]),
            logprobs,
            ..seeded(1)
        };
        worker.step(open_step((id..id + 3).map(|id| open(id, params.clone())).collect())).await;
        let rows: Vec<_> = (0..4).map(|position| logits(3, position)).collect();
        let mut sampled = Vec::new();
        for row in &rows {
            sampled.extend(only(worker.step(step_of(sample_work(id), std::slice::from_ref(row))).await).tokens);
        }
        assert!(sampled.iter().all(|token| token.report.is_some()));
        let text: Vec<u32> = sampled.iter().map(|token| token.token_id).collect();
        let draft = worker.step(step_of(draft_work(id + 1, DraftWork::default()), &rows[..1])).await;
        assert_eq!(only(draft).tokens[0].report, None);
        let verified = worker.verify(id + 1, chain(&text[..3], deterministic()), &rows).await;
        assert_eq!(verified.tokens, sampled);
        let processed = LogprobsParams { mode: LogprobsMode::Processed.into(), ..Default::default() };
        let score = |logprobs| ScoreWork { token_ids: text.clone(), logprobs: Some(logprobs) };
        let scored = only(worker.step(step_of(score_work(Some(id + 2), score(processed)), &rows)).await);
        let reports = |tokens: &[Token]| tokens.iter().map(|token| token.report.clone()).collect::<Vec<_>>();
        assert_eq!(reports(&scored.tokens), reports(&sampled));
        let model = only(worker.step(step_of(score_work(Some(id + 2), score(raw.clone())), &rows)).await);
        assert_eq!(reports(&model.tokens), [None, None, None, None], "no parameter applies to the model's own");
    }
}

#[tokio::test]
async fn the_stateless_road_says_it_too() {
    let server = TestServer::start().await;
    let Some(step::Logits::Inline(row)) = inline(&[falling()]) else { unreachable!() };
    let StreamConfig { vocab_size, logits_dtype, .. } = config();
    let params = SamplingParams { top_k: Some(2), report: why(&[1, 2]), ..seeded(1) };
    let rows = vec![SampleRow { params: Some(params), ..Default::default() }];
    let request = SampleRequest { vocab_size, logits_dtype, rows, logits: Some(row), ..Default::default() };
    let answer = server.client().await.sample(request).await.unwrap().into_inner();
    let token = answer.rows[0].token.as_ref().unwrap();
    assert_eq!(removed(token), [RemovedBy::Unspecified, RemovedBy::Sampler]);
    assert_eq!(token.report.as_ref().unwrap().surviving_token_ids, [0, 1]);
}

#[tokio::test]
async fn what_is_out_of_range_is_named() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let cases = [
        ("max_surviving_token_ids", ReportParams { max_surviving_token_ids: 4097, ..Default::default() }),
        ("why_not_token_ids", ReportParams { why_not_token_ids: vec![0; 65], ..Default::default() }),
        ("why_not_token_ids[1]", ReportParams { why_not_token_ids: vec![0, VOCAB], ..Default::default() }),
    ];
    for (id, (field, report)) in (1..).zip(cases) {
        let params = SamplingParams { report: Some(report), ..Default::default() };
        let opened = worker.step(open_step(vec![open(id, params)])).await.open.remove(0);
        assert_eq!(opened.status(), OpenStatus::InvalidArgument);
        assert_eq!(opened.error.unwrap().field, format!("params.report.{field}"));
    }
}
