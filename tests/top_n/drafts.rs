//! Drafts and their verification on rows of which only the largest logits are sent.

use super::*;

/// The row after a rejected token is read only to measure whether rows are shifted. No token comes from it.
#[tokio::test]
async fn a_cut_row_that_is_only_measured_leaves_the_tokens_lossless() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(8))])).await;
    // The first row lists all its tokens, and the draft token is not among them. The second row is cut.
    let among = |tokens: std::ops::Range<u32>| -> Vec<f32> {
        (0..VOCAB).map(|t| if tokens.contains(&t) { 1.0 } else { f32::NEG_INFINITY }).collect()
    };
    let rows = [among(20..30), among(0..40)];
    let from = verify_work::DraftDistribution::Deterministic(DeterministicDraft {});
    let verify =
        VerifyWork { draft_token_ids: vec![7], draft_distribution: Some(from), measure: true, ..Default::default() };
    let work = vec![Work { sequence_id: Some(1), kind: Some(work::Kind::Verify(verify)), ..Default::default() }];
    let top_n = Some(top_n(&rows, 10, BeyondTopN::Mark));
    let result = worker.step(Step { work, top_n, ..Default::default() }).await;
    let [done] = &result.work[..] else { panic!("one result for one work") };
    let verified = done.verify.as_ref().unwrap_or_else(|| panic!("{}", done.message));
    assert_eq!((done.truncated, verified.lossless, verified.accepted_count), (false, true, 0));
    // As if the ten listed tokens, which include the draft token, were the whole row.
    assert_eq!(verified.tests[0].late_overlap, Some(0.1));
}

#[tokio::test]
async fn drafts_on_cut_rows_are_not_lossless() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(8)), open(2, top_k(3, 8))])).await;
    let rows = [logits(9, 0), logits(9, 1)];
    // For the second sequence, the listed tokens are all that may be drawn.
    for (id, whole) in [(1, false), (2, true)] {
        let from = verify_work::DraftDistribution::Deterministic(DeterministicDraft {});
        let verify = VerifyWork { draft_token_ids: vec![7], draft_distribution: Some(from), ..Default::default() };
        let kind = Some(work::Kind::Verify(verify));
        let work = vec![Work { sequence_id: Some(id), kind, ..Default::default() }];
        let top_n = Some(top_n(&rows, 10, BeyondTopN::Mark));
        let result = worker.step(Step { work, top_n, ..Default::default() }).await;
        let [done] = &result.work[..] else { panic!("one result for one work") };
        assert_eq!((done.truncated, done.verify.as_ref().unwrap().lossless), (!whole, whole), "{}", done.message);
        let labels = format!("model=\"default\",proposer=\"deterministic\",lossless=\"{whole}\"");
        let emitted = done.tokens.len() as f64;
        server.expect_series(&format!("croupier_spec_decode_num_emitted_tokens_total{{{labels}}}"), emitted).await;
    }
}

fn verify(id: u64, draft: &[u32], first_row: u32, measure: bool) -> Work {
    let from = verify_work::DraftDistribution::Deterministic(DeterministicDraft {});
    let verify =
        VerifyWork { draft_token_ids: draft.to_vec(), draft_distribution: Some(from), measure, ..Default::default() };
    Work {
        sequence_id: Some(id),
        first_row: Some(first_row),
        kind: Some(work::Kind::Verify(verify)),
        ..Default::default()
    }
}

/// The logprobs of emitted tokens are computed for all verifications of a batch at once.
#[tokio::test]
async fn what_fails_of_one_verification_is_not_the_next_ones() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let greedy = |seed| SamplingParams {
        temperature: Some(0.0),
        logprobs: Some(LogprobsParams { top_n: 3, ..Default::default() }),
        ..seeded(seed)
    };
    worker.step(open_step(vec![open(1, greedy(1)), open(2, greedy(2))])).await;
    let best = |token: u32| -> Vec<f32> { (0..VOCAB).map(|t| if t == token { 9.0 } else { 0.0 }).collect() };
    // The first row lists fewer than three tokens, so its alternatives need unlisted ones. The rows after it list all tokens.
    let mut listed = top_n(&[best(5)], 2, BeyondTopN::Refuse);
    let rest = top_n(&[best(6), best(7)], VOCAB as usize, BeyondTopN::Refuse);
    listed.counts.extend(rest.counts);
    listed.token_ids.extend(rest.token_ids);
    listed.rest_logsumexp.extend(rest.rest_logsumexp);
    listed.beyond.extend(rest.beyond);
    listed.logits = [listed.logits, rest.logits].concat();
    let step = Step {
        work: vec![verify(1, &[5, 6], 2, false), verify(2, &[11], 0, false)],
        top_n: Some(listed),
        ..sample_step(&[(1, best(11)), (2, best(12))])
    };
    let result = worker.step(step).await;
    assert_eq!(result.work[0].status(), RowStatus::BeyondTopN, "{}", result.work[0].message);
    let second = &result.work[1];
    let tokens: Vec<u32> = second.tokens.iter().map(|token| token.token_id).collect();
    assert_eq!((second.status(), tokens), (RowStatus::Ok, vec![11, 12]), "{}", second.message);
}

#[tokio::test]
async fn a_rejected_token_that_is_not_listed_has_no_rank() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let rows: [Vec<f32>; 2] = std::array::from_fn(|_| (0..VOCAB).map(|t| -(t as f32)).collect());
    // Without top-k, any token may be drawn, so the row is cut.
    for (id, k, draft, rank) in [(1, 2, 2, 3), (2, 2, 30, 0), (3, 0, 30, 0)] {
        worker.step(open_step(vec![open(id, top_k(k, 8))])).await;
        let beyond = if k == 0 { BeyondTopN::Mark } else { BeyondTopN::Refuse };
        let top_n = Some(top_n(&rows, 10, beyond));
        let result = worker.step(Step { work: vec![verify(id, &[draft], 0, true)], top_n, ..Default::default() }).await;
        let found = result.work[0].verify.as_ref().unwrap_or_else(|| panic!("{}", result.work[0].message));
        assert_eq!(found.tests[0].rejected_rank, rank, "{draft}");
    }
}

#[tokio::test]
async fn drafts_and_verifications_are_those_of_whole_rows() {
    let server = TestServer::start().await;
    for rule in [AcceptanceRule::Rejection, AcceptanceRule::Block] {
        drafts_are_verified_as_with_whole_rows(&server, rule).await;
    }
}

async fn drafts_are_verified_as_with_whole_rows(server: &TestServer, rule: AcceptanceRule) {
    let mut worker = server.worker().await;
    let acceptance = Some(AcceptanceParams { rule: rule.into(), ..Default::default() });
    let params = SamplingParams { acceptance, ..top_k(5, 3) };
    worker.step(open_step([1, 2].map(|id| open(id, params.clone())).to_vec())).await;
    let sent = |id: u64, kind: work::Kind, rows: &[Vec<f32>], is_listed: bool| {
        let work = vec![Work { sequence_id: Some(id), first_row: None, kind: Some(kind), ..Default::default() }];
        match is_listed {
            true => Step { work, top_n: Some(top_n(rows, 16, BeyondTopN::Refuse)), ..Default::default() },
            false => Step { work, logits: inline(rows), ..Default::default() },
        }
    };
    for round in 0..10 {
        let mut texts = Vec::new();
        for (id, is_listed) in [(1, false), (2, true)] {
            let mut drafts = Vec::new();
            for depth in 0..3 {
                let draft = work::Kind::Draft(DraftWork::default());
                let row = [logits(round, depth)];
                drafts.push(token(&worker.step(sent(id, draft, &row, is_listed)).await.work[0]));
            }
            let rows: Vec<_> = (0..4).map(|depth| logits(round, depth + u64::from(depth > 1))).collect();
            let verify = work::Kind::Verify(VerifyWork { draft_token_ids: drafts, ..Default::default() });
            let result = worker.step(sent(id, verify, &rows, is_listed)).await.work.remove(0);
            assert_eq!(result.status(), RowStatus::Ok, "{}", result.message);
            texts.push((result.tokens, result.verify));
        }
        assert_eq!(texts[0], texts[1], "{round}");
    }
    // Rows of both kinds cannot be verified together.
    let rows: Vec<_> = (0..2).map(|depth| logits(1, depth)).collect();
    let verify = VerifyWork {
        draft_token_ids: vec![1],
        draft_distribution: Some(verify_work::DraftDistribution::Deterministic(DeterministicDraft {})),
        ..Default::default()
    };
    let mut both = sent(1, work::Kind::Verify(verify), &rows[..1], true);
    both.logits = inline(&rows[1..]);
    let result = worker.step(both).await.work.remove(0);
    assert_eq!(result.status(), RowStatus::InvalidWork);
    assert!(result.message.contains("all whole or all listed"), "{}", result.message);
}
