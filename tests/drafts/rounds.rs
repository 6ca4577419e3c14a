//! One verification at a time: lengths, trees, ends, rules.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;
use croupier::sampling::philox::{Purpose, uniform_at};

/// A row in which `token` is by far the most likely.
fn sure(token: u32) -> Vec<f32> {
    (0..VOCAB).map(|t| if t == token { 30.0 } else { 0.0 }).collect()
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: Some(0.0), ..seeded(1) }
}

fn verdict(work: &WorkResult) -> (Vec<u32>, Vec<u32>, LastToken, FinishReason) {
    let verify = work.verify.as_ref().unwrap();
    assert_eq!(verify.accepted_count as usize, verify.accepted_path.len());
    (ids(work), verify.accepted_path.clone(), verify.last_token(), work.finish_reason())
}

#[tokio::test]
async fn every_length_in_one_step_with_plain_rows_and_scores() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let lengths = [0usize, 1, 5, 64, 256, 2];
    worker.step(open_step((0..8).map(|id| open(id, greedy())).collect())).await;
    let mut step = Step::default();
    let mut rows = Vec::new();
    for (id, &len) in (0..).zip(&lengths) {
        let draft: Vec<u32> = (0..len as u32).map(|i| i % VOCAB).collect();
        rows.extend(draft.iter().map(|&token| sure(token)).chain([sure(33)]));
        step.work.push(verify_work(id, chain(&draft, deterministic())));
        step.work.push(if id == 1 {
            sample_work(6)
        } else {
            score_work(None, ScoreWork { token_ids: vec![2], ..Default::default() })
        });
        rows.push(sure(2));
    }
    step.logits = inline(&rows);
    let result = worker.step(step).await;
    for (work, &len) in result.work.iter().step_by(2).zip(&lengths) {
        assert_eq!(work.status(), RowStatus::Ok, "{}", work.message);
        let (tokens, path, last, _) = verdict(work);
        assert_eq!((tokens.len(), path.len(), last), (len + 1, len, LastToken::Bonus));
        assert_eq!(tokens.last(), Some(&33));
    }
    assert_eq!(ids(&result.work[3]), [2]);
    assert_eq!(result.work[1].tokens[0].rank, Some(1));
}

#[tokio::test]
async fn a_draft_of_no_tokens_is_a_plain_row() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let rules = [
        AcceptanceRule::Rejection,
        AcceptanceRule::Block,
        AcceptanceRule::Greedy,
        AcceptanceRule::Typical,
        AcceptanceRule::Relaxed,
        AcceptanceRule::Synthetic,
    ];
    for (id, rule) in (1..).zip(rules) {
        let synthetic_rate = (rule == AcceptanceRule::Synthetic).then_some(0.5);
        let acceptance = Some(AcceptanceParams { rule: rule.into(), synthetic_rate, ..Default::default() });
        let params = || SamplingParams { logprobs: Some(LogprobsParams::default()), acceptance, ..seeded(8) };
        worker.step(open_step(vec![open(id, params()), open(id + 10, params())])).await;
        for position in 0..20 {
            let plain = only(worker.step(step_of(sample_work(id), &[logits(5, position)])).await);
            let verified = worker.verify(id + 10, VerifyWork::default(), &[logits(5, position)]).await;
            assert_eq!(verified.tokens, plain.tokens, "{rule:?}");
            assert_eq!(verdict(&verified).2, LastToken::Bonus);
            assert!(verified.verify.unwrap().lossless);
        }
    }
}

#[tokio::test]
async fn the_longest_path_of_a_tree_is_named_by_its_slots() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    //   root ── 4 (0) ── 6 (2) ── 9 (4)
    //        └─ 5 (1) ── 7 (3) ── 8 (5)
    let tree = VerifyWork { parents: vec![-1, -1, 0, 1, 2, 3], ..chain(&[4, 5, 6, 7, 9, 8], deterministic()) };
    let rows = |next: [u32; 7]| next.map(sure).to_vec();
    let cases = [
        // After the root the target says 5, then 7, then 8, then 1.
        ([5, 0, 7, 0, 8, 0, 1], vec![5, 7, 8, 1], vec![1, 3, 5], LastToken::Bonus),
        ([5, 0, 7, 0, 2, 0, 1], vec![5, 7, 2], vec![1, 3], LastToken::Recovered),
        ([4, 6, 0, 9, 0, 3, 0], vec![4, 6, 9, 3], vec![0, 2, 4], LastToken::Bonus),
        ([0, 6, 7, 9, 8, 3, 1], vec![0], vec![], LastToken::Recovered),
    ];
    for (id, (next, tokens, path, last)) in (1..).zip(cases) {
        for (id, rule) in [(id, AcceptanceRule::Rejection), (id + 10, AcceptanceRule::Greedy)] {
            let acceptance = Some(AcceptanceParams { rule: rule.into(), ..Default::default() });
            worker.step(open_step(vec![open(id, SamplingParams { acceptance, ..greedy() })])).await;
            let work = worker.verify(id, tree.clone(), &rows(next)).await;
            let found = verdict(&work);
            assert_eq!((found.0, found.1, found.2), (tokens.clone(), path.clone(), last), "{rule:?} {next:?}");
        }
    }
}

#[tokio::test]
async fn a_tree_of_draft_work_is_verified_as_it_was_drawn() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(3))])).await;
    let child_of = |parent| DraftWork { parent: Some(parent), ..Default::default() };
    let mut draft = vec![worker.draft(1, DraftWork::default(), sure(4)).await];
    draft.push(worker.draft(1, child_of(-1), sure(5)).await);
    draft.push(worker.draft(1, child_of(1), sure(6)).await);
    draft.push(worker.draft(1, DraftWork::default(), sure(7)).await);
    assert_eq!(draft, [4, 5, 6, 7]);
    let rows = [5, 0, 6, 7, 8].map(sure);
    let work = worker.verify(1, chain(&draft, kept()), &rows).await;
    assert_eq!(verdict(&work).1, [1, 2, 3], "the parents are those of draft work");
    assert_eq!(ids(&work), [5, 6, 7, 8]);
    // A part of a draft may be verified. The tokens that were not verified are dropped as well.
    for token in [1, 2, 3] {
        worker.draft(1, DraftWork { restart: token == 1, ..Default::default() }, sure(token)).await;
    }
    let work = worker.verify(1, chain(&[1, 2], kept()), &[1, 2, 9].map(sure)).await;
    assert_eq!(ids(&work), [1, 2, 9]);
    let late = worker.step(step_of(verify_work(1, chain(&[3], kept())), &[sure(3), sure(3)])).await;
    assert_eq!(late.work[0].status(), RowStatus::InvalidWork, "{}", late.work[0].message);
}

/// In a row of equal logits, the token that is drawn shows its random number. It is the documented one: token by token, in whatever order a
/// tree grows, after a restart, and later in the text.
#[tokio::test]
async fn draft_tokens_are_drawn_with_the_documented_numbers() {
    // For each draft token: its parent, its depth, and how many tokens of that depth come before it.
    let tree = [
        (-1, 0, 0),
        (0, 1, 0),
        (-1, 0, 1),
        (2, 1, 1),
        (3, 2, 0),
        (-1, 0, 2),
        (0, 1, 2),
        (1, 2, 1),
        (7, 3, 0),
        (4, 3, 1),
    ];
    let chain: Vec<_> = (0..6).map(|depth| (depth - 1, depth as u32, 0)).collect();
    let flat = || vec![0.0; VOCAB as usize];
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(3))])).await;
    for start in 0..4 {
        for draft in [&chain[..], &tree[..], &tree[..], &chain[..]] {
            for (node, &(parent, depth, nth)) in draft.iter().enumerate() {
                let work = DraftWork { parent: Some(parent), restart: node == 0 };
                let uniform = uniform_at(3, start + u64::from(depth), Purpose::Draft, depth + nth * 65_536);
                let expected = (u128::from(uniform) * u128::from(VOCAB)) >> 64;
                let found = worker.draft(1, work, flat()).await;
                assert_eq!(u128::from(found), expected, "draft token {node} of {draft:?} at {start}");
            }
        }
        only(worker.step(step_of(sample_work(1), &[flat()])).await);
    }
}

#[tokio::test]
async fn a_text_ends_inside_its_draft() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![3], ..config() }).await;
    let cases = [
        (greedy(), FinishReason::Eos, vec![1, 2, 3]),
        (SamplingParams { stop_token_ids: vec![2], ..greedy() }, FinishReason::StopToken, vec![1, 2]),
        (
            SamplingParams { stop_token_sequences: vec![TokenSequence { token_ids: vec![1, 2] }], ..greedy() },
            FinishReason::StopSequence,
            vec![1, 2],
        ),
        (SamplingParams { max_tokens: Some(1), ..greedy() }, FinishReason::MaxTokens, vec![1]),
        (
            SamplingParams { max_tokens: Some(3), ignore_eos: Some(true), ..greedy() },
            FinishReason::MaxTokens,
            vec![1, 2, 3],
        ),
    ];
    for (id, (params, reason, tokens)) in (1..).zip(cases) {
        worker.step(open_step(vec![open(id, params)])).await;
        let work = worker.verify(id, chain(&[1, 2, 3, 4], deterministic()), &[1, 2, 3, 4, 5].map(sure)).await;
        assert_eq!(verdict(&work), (tokens.clone(), (0..tokens.len() as u32).collect(), LastToken::Accepted, reason));
        let again = worker.step(step_of(sample_work(id), &[sure(1)])).await;
        assert_eq!(again.work[0].status(), RowStatus::SequenceFinished);
    }
    // The bonus token can end the text too, and `min_tokens` holds along the draft.
    worker.step(open_step(vec![open(9, SamplingParams { min_tokens: Some(2), ..greedy() })])).await;
    let row: Vec<f32> =
        (0..VOCAB).map(|t| [(3, 9.0), (8, 8.0)].iter().find(|x| x.0 == t).map_or(0.0, |x| x.1)).collect();
    let work = worker.verify(9, chain(&[8, 8], deterministic()), &[row.clone(), row.clone(), row]).await;
    assert_eq!(verdict(&work), (vec![8, 8, 3], vec![0, 1], LastToken::Bonus, FinishReason::Eos));
}

#[tokio::test]
async fn a_draft_says_where_it_would_end() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![3], ..config() }).await;
    worker.step(open_step(vec![open(1, greedy())])).await;
    for (token, expected) in [(1, FinishReason::Unspecified), (3, FinishReason::Eos)] {
        let work = only(worker.step(step_of(draft_work(1, DraftWork::default()), &[sure(token)])).await);
        assert_eq!((ids(&work), work.finish_reason()), (vec![token], expected));
    }
    // Nothing was emitted before.
    assert_eq!(ids(&only(worker.step(step_of(sample_work(1), &[sure(5)])).await)), [5]);
}

#[tokio::test]
async fn each_rule_accepts_as_it_says() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    // The target gives token 1 about 0.6, token 2 about 0.3, the others almost nothing.
    let row: Vec<f32> = (0..VOCAB)
        .map(|t| match t {
            1 => 20.0,
            2 => 19.3,
            _ => 0.0,
        })
        .collect();
    let rule = |rule: AcceptanceRule| AcceptanceParams { rule: rule.into(), ..Default::default() };
    let typical = |epsilon| AcceptanceParams {
        typical_epsilon: Some(epsilon),
        typical_alpha: Some(1.0),
        ..rule(AcceptanceRule::Typical)
    };
    let relaxed = |delta| AcceptanceParams {
        relaxed_top_n: Some(2),
        relaxed_delta: Some(delta),
        ..rule(AcceptanceRule::Relaxed)
    };
    let synthetic = |rate| AcceptanceParams { synthetic_rate: Some(rate), ..rule(AcceptanceRule::Synthetic) };
    let cases = [
        (rule(AcceptanceRule::Greedy), 1, true, false),
        (rule(AcceptanceRule::Greedy), 2, false, false),
        (typical(0.2), 2, true, false),
        (typical(0.5), 2, false, false),
        (relaxed(0.5), 2, true, false),
        (relaxed(0.1), 2, false, false),
        (relaxed(1.0), 3, false, false),
        (synthetic(1.0), 7, true, false),
        (synthetic(0.0), 1, false, false),
    ];
    for (id, (acceptance, token, accepted, lossless)) in (1..).zip(cases) {
        let params = SamplingParams { acceptance: Some(acceptance), ..seeded(id) };
        worker.step(open_step(vec![open(id, params)])).await;
        let work = worker.verify(id, chain(&[token], deterministic()), &[row.clone(), sure(4)]).await;
        let verify = work.verify.as_ref().unwrap();
        assert_eq!((verify.accepted_count == 1, verify.lossless), (accepted, lossless), "{acceptance:?} {token}");
    }
}

/// A draft model may be sampled at any temperature: a greedy sequence emits the most likely token.
#[tokio::test]
async fn drafts_with_chance_on_a_greedy_sequence() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let (right, wrong): (&[(u32, f32)], &[(u32, f32)]) = (&[(4, 0.1), (9, 0.9)], &[(9, 0.9), (4, 0.1)]);
    for id in 0..30 {
        worker.step(open_step(vec![open(id, SamplingParams { seed: Some(id), ..greedy() })])).await;
        let work = worker.verify(id, chain(&[4, 9], sparse(&[right, wrong])), &[sure(4), sure(5), sure(6)]).await;
        assert_eq!(verdict(&work), (vec![4, 5], vec![0], LastToken::Recovered, FinishReason::Unspecified));
        assert!(work.verify.unwrap().lossless);
    }
}

#[tokio::test]
async fn acceptance_is_relaxed_in_thinking_only_where_that_is_asked() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    // Of two tokens that are almost equally likely, the first is the greedy one. 5 begins thinking, and 6 ends it.
    let near: Vec<f32> =
        (0..VOCAB).map(|token| [0.0, 20.0, 19.3].get(token as usize).copied().unwrap_or(0.0)).collect();
    let params = |in_thinking_only| SamplingParams {
        acceptance: Some(AcceptanceParams {
            rule: AcceptanceRule::Relaxed.into(),
            relaxed_in_thinking_only: Some(in_thinking_only),
            ..Default::default()
        }),
        thinking_budget: Some(ThinkingBudgetParams {
            start_token_ids: vec![5],
            end_token_ids: vec![6],
            budget: u32::MAX,
            ..Default::default()
        }),
        ..greedy()
    };
    let rows = [sure(5), near.clone(), sure(6), near.clone(), near];
    let cases = [
        // Relaxed everywhere.
        (false, vec![5, 2, 6, 2], vec![5, 2, 6, 2, 1], false),
        // 2 is accepted only between 5 and 6.
        (true, vec![5, 2, 6, 2], vec![5, 2, 6, 1], false),
        (true, vec![5, 2, 6, 1], vec![5, 2, 6, 1, 1], false),
        // Thinking never begins, so nothing is relaxed.
        (true, vec![4, 2, 6, 2], vec![5], true),
    ];
    for (id, (in_thinking_only, draft, expected, lossless)) in (1..).zip(cases) {
        worker.step(open_step(vec![open(id, params(in_thinking_only))])).await;
        let work = worker.verify(id, chain(&draft, deterministic()), &rows).await;
        assert_eq!((ids(&work), work.verify.unwrap().lossless), (expected, lossless), "{in_thinking_only} {draft:?}");
    }
    // Without a budget there is no thinking.
    worker.step(open_step(vec![open(9, SamplingParams { thinking_budget: None, ..params(true) })])).await;
    let work = worker.verify(9, chain(&[5, 2], deterministic()), &rows[..3]).await;
    assert_eq!((ids(&work), work.verify.unwrap().lossless), (vec![5, 1], true));
}
