//! Bad draft and verify work: an exact status, nothing committed, neighbours unaffected.

use crate::support::*;
use crate::work::*;
use croupier::proto::verify_work::DraftDistribution;
use croupier::proto::*;

#[tokio::test]
async fn bad_speculation_fails_alone_and_changes_nothing() {
    use RowStatus::{InvalidWork, NanLogits, RowOutOfRange, UnknownSequence};
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(5)), open(2, seeded(5)), open(3, seeded(6))])).await;
    let kept_token = worker.draft(3, DraftWork::default(), logits(6, 0)).await;
    let verify = |verify| verify_work(3, verify);
    let draft = |parent| draft_work(3, DraftWork { parent: Some(parent), ..Default::default() });
    let row = |entries: &[(u32, f32)]| verify(chain(&[1], sparse(&[entries])));
    let flat = vec![1.0 / VOCAB as f32; VOCAB as usize];
    let with = |at: usize, value: f32| {
        let mut row = flat.clone();
        row[at] = value;
        verify(chain(&[1], dense(&[row])))
    };
    let raw = |probs: Vec<u8>, dtype| {
        verify(chain(&[1], DraftDistribution::Dense(DenseDraft { probs: probs.into(), dtype })))
    };
    let tree = |parents: &[i32]| verify(VerifyWork { parents: parents.to_vec(), ..chain(&[1, 2], deterministic()) });
    let counts = |counts: &[u32], token_ids: &[u32], probs: &[f32]| {
        let (counts, token_ids, probs) = (counts.to_vec(), token_ids.to_vec(), probs.to_vec());
        verify(chain(&[1], DraftDistribution::Sparse(SparseDraft { counts, token_ids, probs })))
    };
    let nan = |mut row: Vec<f32>| {
        row[7] = f32::NAN;
        row
    };
    let cases: Vec<(RowStatus, &str, Work)> = vec![
        (UnknownSequence, "no such", verify_work(99, chain(&[], deterministic()))),
        (UnknownSequence, "no such", draft_work(99, DraftWork::default())),
        (InvalidWork, "sequence_id", Work { sequence_id: None, ..verify(chain(&[], deterministic())) }),
        (InvalidWork, "sequence_id", Work { sequence_id: None, ..draft(-1) }),
        (InvalidWork, "draft.parent", draft(1)),
        (InvalidWork, "draft.parent", draft(-2)),
        (InvalidWork, "draft.parent", draft(i32::MAX)),
        (InvalidWork, "verify.draft_token_ids[0]", verify(chain(&[VOCAB], deterministic()))),
        (InvalidWork, "verify.draft_token_ids[1]", verify(chain(&[1, u32::MAX], deterministic()))),
        (InvalidWork, "verify.draft_token_ids", verify(chain(&[0; 257], deterministic()))),
        (InvalidWork, "verify.draft_token_ids", verify(chain(&[kept_token, 1], kept()))),
        (InvalidWork, "verify.draft_token_ids[0]", verify(chain(&[(kept_token + 1) % VOCAB], kept()))),
        (InvalidWork, "verify.parents", verify(VerifyWork { parents: vec![0], ..chain(&[kept_token], kept()) })),
        (InvalidWork, "verify.parents", tree(&[-1])),
        (InvalidWork, "verify.parents", tree(&[-1, 1])),
        (InvalidWork, "verify.parents", tree(&[1, 0])),
        (InvalidWork, "verify.parents", tree(&[-2, 0])),
        (InvalidWork, "verify.dense.probs", raw(vec![0; 7], 1)),
        (InvalidWork, "verify.dense.probs", raw(vec![0; 4 * VOCAB as usize * 2], 1)),
        (InvalidWork, "verify.dense.probs", raw(vec![], 1)),
        (InvalidWork, "verify.dense.dtype", raw(vec![0; 4 * VOCAB as usize], 9)),
        (InvalidWork, "verify.dense.probs", with(0, 0.5)),
        (InvalidWork, "verify.dense.probs", with(0, f32::NAN)),
        (InvalidWork, "verify.dense.probs", with(0, -0.1)),
        (InvalidWork, "verify.dense.probs", with(0, f32::INFINITY)),
        (InvalidWork, "verify.dense.probs", with(1, 0.0)),
        (InvalidWork, "verify.sparse", row(&[(1, 0.5), (2, 0.4)])),
        (InvalidWork, "verify.sparse", row(&[(2, 1.0)])),
        (InvalidWork, "verify.sparse", row(&[(1, 0.0), (2, 1.0)])),
        (InvalidWork, "verify.sparse", row(&[(1, 0.5), (1, 0.5)])),
        (InvalidWork, "verify.sparse", row(&[(1, f32::NAN)])),
        (InvalidWork, "verify.sparse.token_ids[1]", row(&[(1, 0.5), (VOCAB, 0.5)])),
        (InvalidWork, "verify.sparse.counts", counts(&[], &[], &[])),
        (InvalidWork, "verify.sparse.counts", counts(&[2], &[1], &[1.0])),
        (InvalidWork, "verify.sparse.counts", counts(&[1], &[1], &[1.0, 0.0])),
        (InvalidWork, "verify.sparse.counts[0]", counts(&[u32::MAX], &[1], &[1.0])),
        (InvalidWork, "verify.sparse.counts[0]", counts(&[VOCAB + 1], &vec![1; 51], &vec![0.0; 51])),
        (RowOutOfRange, "needs 5 rows", verify(chain(&[1; 4], deterministic()))),
        (RowOutOfRange, "needs 2 rows", Work { first_row: Some(3), ..verify(chain(&[1], deterministic())) }),
        (NanLogits, "target row 0", Work { first_row: Some(2), ..verify(chain(&[], deterministic())) }),
        (NanLogits, "target row 0", Work { first_row: Some(2), ..verify(chain(&[1], deterministic())) }),
        (NanLogits, "NaN", Work { first_row: Some(2), ..draft(-1) }),
    ];
    for (position, (status, message, bad)) in (0..).zip(cases) {
        // Rows 0 and 1 are for the neighbours. The bad work has rows 0 to 3, of which row 2 is bad.
        let rows = [logits(5, position), logits(6, 1), nan(logits(6, 2)), logits(6, 3)];
        let bad = Work { first_row: bad.first_row.or(Some(0)), ..bad };
        let neighbour = |id| Work { first_row: Some(0), ..sample_work(id) };
        // Whatever rows the bad work uses, the last row has a use.
        let last =
            Work { first_row: Some(3), ..score_work(None, ScoreWork { token_ids: vec![1], ..Default::default() }) };
        let work = vec![neighbour(1), bad, neighbour(2), last];
        let step = Step { work, logits: inline(&rows), ..Default::default() };
        let result = worker.step(step).await;
        let failed = &result.work[1];
        assert_eq!(failed.status(), status, "{message}: {}", failed.message);
        assert!(failed.message.contains(message), "{message}: {}", failed.message);
        assert!(failed.tokens.is_empty() && failed.verify.is_none());
        assert_eq!(token(&result.work[0]), token(&result.work[2]), "neighbours are as they were");
    }
    // The sequence and its kept draft are unchanged.
    let work = worker.verify(3, chain(&[kept_token], kept()), &[logits(6, 0), logits(6, 1)]).await;
    let verify = work.verify.unwrap();
    assert_eq!((verify.accepted_path, verify.lossless), (vec![0], true), "drawn from this very row");
}

#[tokio::test]
async fn rows_behind_a_rejection_are_not_looked_at() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, SamplingParams { temperature: Some(0.0), ..seeded(1) })])).await;
    let sure = |token| (0..VOCAB).map(|t| if t == token { 9.0 } else { 0.0 }).collect::<Vec<f32>>();
    let spoilt = vec![f32::NAN; VOCAB as usize];
    let work = worker.verify(1, chain(&[4, 5], deterministic()), &[sure(3), spoilt.clone(), spoilt.clone()]).await;
    assert_eq!(ids(&work), [3]);
    let bad =
        worker.step(step_of(verify_work(1, chain(&[4, 5], deterministic())), &[sure(4), spoilt.clone(), spoilt])).await;
    assert_eq!(bad.work[0].status(), RowStatus::NanLogits);
    assert!(bad.work[0].message.starts_with("target row 1"), "{}", bad.work[0].message);
    let failed = "croupier_rows_invalid_total{model=\"default\",reason=\"nan_logits\"}";
    assert_eq!(server.series(failed), 3.0, "a work's error is that of all its rows");
}

#[tokio::test]
async fn drafts_are_bounded_and_freed() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    for _ in 0..256 {
        worker.draft(1, DraftWork::default(), logits(1, 1)).await;
    }
    let full = worker.step(step_of(draft_work(1, DraftWork::default()), &[logits(1, 1)])).await;
    assert_eq!(full.work[0].status(), RowStatus::InvalidWork);
    assert!(full.work[0].message.contains("256"), "{}", full.work[0].message);
    let restarted = worker.draft(1, DraftWork { restart: true, ..Default::default() }, logits(1, 1)).await;
    // An emitted token makes a draft for its position useless.
    only(worker.step(step_of(sample_work(1), &[logits(1, 2)])).await);
    let late = worker.step(step_of(verify_work(1, chain(&[restarted], kept())), &[logits(1, 1), logits(1, 1)])).await;
    assert_eq!(late.work[0].status(), RowStatus::InvalidWork, "{}", late.work[0].message);
}

#[tokio::test]
async fn a_draft_may_not_outgrow_the_history() {
    let server = TestServer::with_limits(|limits| limits.max_history_tokens = 4).await;
    let mut worker = server.worker().await;
    let text = OpenSequence { prompt_token_ids: vec![1], output_token_ids: vec![2], ..open(1, seeded(1)) };
    worker.step(open_step(vec![text])).await;
    let rows: Vec<_> = (0..3).map(|i| logits(1, i)).collect();
    let long = worker.step(step_of(verify_work(1, chain(&[1, 2], deterministic())), &rows)).await;
    assert_eq!(long.work[0].status(), RowStatus::HistoryLimit);
    worker.draft(1, DraftWork::default(), logits(1, 0)).await;
    worker.verify(1, chain(&[1], deterministic()), &rows[..2]).await;
    // Tokens that cannot be emitted take no room: those beyond `max_tokens`, and those outside the longest path.
    let capped = SamplingParams { max_tokens: Some(3), temperature: Some(0.0), ..seeded(1) };
    let text = |id, params| OpenSequence { prompt_token_ids: vec![1], output_token_ids: vec![2], ..open(id, params) };
    worker.step(open_step(vec![text(2, capped), text(3, seeded(1))])).await;
    let rows: Vec<_> = (0..5).map(|i| logits(1, i)).collect();
    worker.verify(2, chain(&[1; 4], deterministic()), &rows).await;
    let flat = VerifyWork { parents: vec![-1; 4], ..chain(&[1, 2, 3, 4], deterministic()) };
    worker.verify(3, flat, &rows).await;
    // Draft tokens count with those that they follow.
    worker.step(open_step(vec![text(5, seeded(1))])).await;
    for status in [RowStatus::Ok, RowStatus::Ok, RowStatus::HistoryLimit] {
        let drafted = worker.step(step_of(draft_work(5, DraftWork::default()), &rows[..1])).await;
        assert_eq!(drafted.work[0].status(), status, "{}", drafted.work[0].message);
    }
    // Draft work knows its tree, so nobody has to send it.
    worker.step(open_step(vec![text(4, seeded(1))])).await;
    let mut siblings = Vec::new();
    for _ in 0..4 {
        siblings.push(worker.draft(4, DraftWork { parent: Some(-1), ..Default::default() }, logits(1, 0)).await);
    }
    worker.verify(4, chain(&siblings, kept()), &rows).await;
}

#[tokio::test]
async fn acceptance_parameters_are_checked() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let rule = |rule: i32| AcceptanceParams { rule, ..Default::default() };
    let cases = [
        ("params.acceptance.rule", rule(77)),
        ("params.acceptance.typical_epsilon", AcceptanceParams { typical_epsilon: Some(1.5), ..rule(4) }),
        ("params.acceptance.typical_alpha", AcceptanceParams { typical_alpha: Some(0.0), ..rule(4) }),
        ("params.acceptance.relaxed_top_n", AcceptanceParams { relaxed_top_n: Some(0), ..rule(5) }),
        ("params.acceptance.relaxed_delta", AcceptanceParams { relaxed_delta: Some(f32::NAN), ..rule(5) }),
        ("params.acceptance.synthetic_rate", rule(6)),
        ("params.acceptance.synthetic_rate", AcceptanceParams { synthetic_rate: Some(-0.5), ..rule(6) }),
        ("params.acceptance.typical_alpha", AcceptanceParams { typical_alpha: Some(0.3), ..rule(0) }),
        ("params.acceptance.synthetic_rate", AcceptanceParams { synthetic_rate: Some(0.5), ..rule(1) }),
    ];
    for (field, acceptance) in cases {
        let params = SamplingParams { acceptance: Some(acceptance), ..seeded(1) };
        let result = worker.step(open_step(vec![open(1, params)])).await;
        assert_eq!(result.open[0].status(), OpenStatus::InvalidArgument);
        assert_eq!(result.open[0].error.as_ref().unwrap().field, field);
    }
}
