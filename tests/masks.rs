//! Masks that come with rows, as grammars make them, over real sockets: a masked token is not emitted, whatever the other parameters; raw
//! logprobs ignore masks; drafts are verified with the masks of their paths; an invalid mask fails only its own work.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;
use tonic::Request;

/// A mask over the tests' vocabulary that allows only these tokens.
fn mask(tokens: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut words = vec![0u32; VOCAB.div_ceil(32) as usize];
    tokens.into_iter().for_each(|token| words[token as usize / 32] |= 1 << (token % 32));
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn masked(work: Work, masks: &[Vec<u8>]) -> Work {
    Work { token_masks: masks.concat().into(), ..work }
}

/// Decreasing logits: token 0 is the most likely.
fn falling() -> Vec<f32> {
    (0..VOCAB).map(|token| -0.1 * token as f32).collect()
}

/// The tokens that the tests' grammar allows after a text: those with another remainder modulo 3 than its last token.
fn grammar(last: Option<u32>) -> Vec<u8> {
    mask((0..VOCAB).filter(|token| last.is_none_or(|last| token % 3 != last % 3)))
}

#[tokio::test]
async fn a_mask_removes_tokens_and_raw_logprobs_do_not_know_of_it() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let logprobs = |mode: LogprobsMode| Some(LogprobsParams { top_n: 2, mode: mode.into(), token_ids: vec![0] });
    let greedy = |mode| SamplingParams { temperature: Some(0.0), logprobs: logprobs(mode), ..seeded(1) };
    let report = ReportParams { why_not_token_ids: vec![0, 7], ..Default::default() };
    let raw = SamplingParams { report: Some(report), ..greedy(LogprobsMode::Raw) };
    worker.step(open_step(vec![open(1, raw), open(2, greedy(LogprobsMode::Processed))])).await;
    let work = [1, 2].map(|id| masked(Work { first_row: Some(0), ..sample_work(id) }, &[mask([7, 40])])).to_vec();
    let result = worker.step(Step { work, logits: inline(&[falling()]), ..Default::default() }).await;
    let [raw, processed] = [0, 1].map(|work: usize| result.work[work].tokens[0].clone());
    assert_eq!((raw.token_id, raw.rank, &raw.top_token_ids), (7, Some(8), &vec![0, 1]));
    assert!(raw.requested_logprobs[0] > raw.logprob.unwrap() && raw.logprob.unwrap() < -0.7);
    assert_eq!((processed.token_id, processed.logprob, processed.rank), (7, Some(0.0), Some(1)));
    assert_eq!(processed.requested_logprobs, [f32::NEG_INFINITY]);
    let why = &raw.report.unwrap().why_not;
    assert_eq!((why[0].removed_by(), why[0].adjusted_logit), (RemovedBy::TokenMask, f32::NEG_INFINITY));
    assert_eq!(why[1].removed_by(), RemovedBy::Unspecified);
}

#[tokio::test]
async fn a_mask_is_about_its_rows_alone() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let greedy = SamplingParams { temperature: Some(0.0), ..seeded(1) };
    worker.step(open_step(vec![open(1, greedy.clone()), open(2, greedy)])).await;
    let work = vec![masked(sample_work(1), &[mask([9])]), sample_work(2)];
    let rows = [falling(), falling()];
    let result = worker.step(Step { work, logits: inline(&rows), ..Default::default() }).await;
    assert_eq!([token(&result.work[0]), token(&result.work[1])], [9, 0]);
    let result = worker.step(sample_step(&[(1, falling())])).await;
    assert_eq!(token(&result.work[0]), 0, "the sequence does not remember it");
}

#[tokio::test]
async fn nothing_that_is_masked_comes_back() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let biased = SamplingParams { logit_bias: vec![LogitBias { token_id: 3, bias: 100.0 }], ..seeded(1) };
    let listed = SamplingParams { allowed_token_ids: vec![3, 5], ..seeded(2) };
    let forced = SamplingParams { forced_first_token: Some(3), ..seeded(3) };
    worker.step(open_step(vec![open(1, biased), open(2, listed), open(3, forced)])).await;
    let without_3 = mask((0..VOCAB).filter(|&token| token != 3));
    let work =
        [1, 2, 3].map(|id| masked(Work { first_row: Some(0), ..sample_work(id) }, std::slice::from_ref(&without_3)));
    let result = worker.step(Step { work: work.to_vec(), logits: inline(&[falling()]), ..Default::default() }).await;
    assert_ne!(token(&result.work[0]), 3);
    assert_eq!(token(&result.work[1]), 5, "both lists have to allow it");
    assert_eq!(result.work[2].status(), RowStatus::AllMasked, "no other token is invented for the forced one");
    let result = worker.step(sample_step(&[(3, falling())])).await;
    assert_eq!(token(&result.work[0]), 3, "nothing had changed");
}

#[tokio::test]
async fn a_wrong_mask_fails_its_work_alone() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step((1..=4).map(|id| open(id, seeded(id))).collect())).await;
    let score = ScoreWork { token_ids: vec![1], logprobs: None };
    let work = vec![
        masked(sample_work(1), &[vec![0xFF; 7]]),
        masked(sample_work(2), &[mask([0]), mask([1])]),
        masked(sample_work(3), &[mask([])]),
        sample_work(4),
        masked(score_work(None, score), &[mask([1])]),
        masked(score_work(None, ScoreWork::default()), &[vec![0xFF; 7]]),
    ];
    let rows = vec![falling(); 5];
    let result = worker.step(Step { work, logits: inline(&rows), ..Default::default() }).await;
    use RowStatus::{AllMasked, InvalidWork, Ok};
    let statuses: Vec<RowStatus> = result.work.iter().map(WorkResult::status).collect();
    assert_eq!(statuses, [InvalidWork, InvalidWork, AllMasked, Ok, InvalidWork, InvalidWork]);
    let message = &result.work[0].message;
    assert!(message.starts_with("token_masks: has 7 bytes, must have none or 8"), "{message}");
    assert!(result.work[1].message.starts_with("token_masks: has 16 bytes"), "{}", result.work[1].message);
    assert!(result.work[4].message.contains("PROCESSED"), "{}", result.work[4].message);
    let message = &result.work[5].message;
    assert!(message.starts_with("score.token_ids: is empty"), "the work's own mistake comes first: {message}");
    // Each sequence is where it was before.
    let plain = worker.step(sample_step(&[1, 2, 3].map(|id| (id, falling())))).await;
    assert!(plain.work.iter().all(|work| work.status() == Ok));
}

/// The text that a sequence gives token by token under the grammar.
async fn one_by_one(server: &TestServer, params: &SamplingParams, count: u64) -> Vec<u32> {
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, params.clone())])).await;
    let mut text: Vec<u32> = Vec::new();
    for position in 0..count {
        let work = masked(sample_work(1), &[grammar(text.last().copied())]);
        text.push(ids(&only(worker.step(step_of(work, &[logits(5, position)])).await))[0]);
    }
    text
}

#[tokio::test]
async fn drafts_without_chance_change_not_one_token_of_a_masked_text() {
    let server = TestServer::start().await;
    let params = SamplingParams { temperature: Some(1.2), frequency_penalty: Some(0.3), ..seeded(11) };
    let text = one_by_one(&server, &params, 24).await;
    assert!(text.windows(2).all(|pair| pair[0] % 3 != pair[1] % 3), "{text:?}");
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, params)])).await;
    let mut emitted: Vec<u32> = Vec::new();
    let mut accepted = 0;
    while emitted.len() < text.len() - 4 {
        // Right for two tokens, then wrong.
        let at = emitted.len();
        let draft = [text[at], text[at + 1], (text[at + 2] + 1) % VOCAB];
        let behind = [emitted.last().copied(), Some(draft[0]), Some(draft[1]), Some(draft[2])];
        let rows: Vec<Vec<f32>> = (0..4).map(|row| logits(5, (at + row) as u64)).collect();
        let work = masked(verify_work(1, chain(&draft, deterministic())), &behind.map(grammar));
        let result = only(worker.step(step_of(work, &rows)).await);
        accepted += result.verify.as_ref().unwrap().accepted_count;
        emitted.extend(ids(&result));
    }
    assert_eq!(emitted, text[..emitted.len()]);
    assert!(accepted >= 10);
}

#[tokio::test]
async fn a_draft_distribution_is_kept_behind_its_mask() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(4))])).await;
    // Two tokens with the same logit. The mask allows one, so the draft has probability 1 and the target 1/2.
    let row: Vec<f32> = (0..VOCAB).map(|token| if token < 2 { 0.0 } else { f32::NEG_INFINITY }).collect();
    let (mut accepted, rounds) = (0, 2000);
    for _ in 0..rounds {
        let draft = masked(draft_work(1, DraftWork { restart: true, parent: None }), &[mask([1])]);
        assert_eq!(ids(&only(worker.step(step_of(draft, std::slice::from_ref(&row))).await)), [1]);
        let verify = verify_work(1, chain(&[1], kept()));
        let result = only(worker.step(step_of(verify, &[row.clone(), row.clone()])).await);
        accepted += result.verify.unwrap().accepted_count;
    }
    // Of 2,000 fair coins, 880 to 1,120 show heads, except with probability 10^-7.
    assert!((880..=1120).contains(&accepted), "{accepted} of {rounds}");
}

#[tokio::test]
async fn scores_and_top_n_rows_know_masks() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1)), open(2, seeded(2))])).await;
    let logprobs = LogprobsParams { mode: LogprobsMode::Processed.into(), ..Default::default() };
    let score = ScoreWork { token_ids: vec![3, 4], logprobs: Some(logprobs) };
    let work = masked(score_work(Some(1), score), &[mask([3]), mask([3, 5])]);
    let result = only(worker.step(step_of(work, &[falling(), falling()])).await);
    assert_eq!([0, 1].map(|token: usize| result.tokens[token].logprob), [Some(0.0), Some(f32::NEG_INFINITY)]);
    // The mask allows none of the tokens that are not listed, so the row is known completely.
    let listed = |rest| TopNRows {
        counts: vec![2],
        token_ids: vec![0, 4],
        logits: [0.0f32, -0.4].iter().flat_map(|x| x.to_le_bytes()).collect(),
        rest_logsumexp: vec![rest],
        ..Default::default()
    };
    let step = |masks: &[Vec<u8>]| Step {
        work: vec![masked(sample_work(2), masks)],
        top_n: Some(listed(2.0)),
        ..Default::default()
    };
    assert_eq!(ids(&only(worker.step(step(&[mask([4])])).await)), [4]);
    let beyond = worker.step(step(&[mask([4, 9])])).await;
    assert_eq!(beyond.work[0].status(), RowStatus::BeyondTopN);
}

#[tokio::test]
async fn a_stateless_batch_takes_masks() {
    let server = TestServer::start().await;
    let mut client = server.client().await;
    let row = |token_mask: Vec<u8>| SampleRow {
        params: Some(SamplingParams { temperature: Some(0.0), ..seeded(1) }),
        token_mask: token_mask.into(),
        row: Some(0),
        ..Default::default()
    };
    let Some(step::Logits::Inline(logits)) = inline(&[falling()]) else { unreachable!() };
    let request = SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        rows: vec![row(vec![]), row(mask([8, 9])), row(vec![1])],
        logits: Some(logits),
        ..Default::default()
    };
    let answer = client.sample(Request::new(request)).await.unwrap().into_inner();
    let tokens: Vec<_> = answer.rows.iter().map(|row| row.token.as_ref().map(|token| token.token_id)).collect();
    assert_eq!(tokens, [Some(0), Some(8), None]);
    assert_eq!(answer.rows[2].status(), RowStatus::InvalidWork);
    assert!(answer.rows[2].message.starts_with("token_mask: has 1 bytes"), "{}", answer.rows[2].message);
}
