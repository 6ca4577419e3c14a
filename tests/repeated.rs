//! Rows that repeat an earlier row, which no model gives: these are counted, and no others.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;

/// Counts of rows that repeat an earlier one, the one before their draft token, or that of another text, and of flat rows.
fn counted(server: &TestServer) -> [f64; 4] {
    ["earlier", "parent", "neighbour", "flat"]
        .map(|like| server.series(&format!("croupier_rows_repeated_total{{model=\"default\",like=\"{like}\"}}")))
}

#[tokio::test]
async fn a_row_that_a_text_had_before_is_counted() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step((1..=3).map(|id| open(id, seeded(id))).collect())).await;
    // Different texts may have the same row, and one row may come again, but not in the same text.
    for (rows, expected) in [([1, 2, 1], 0.0), ([2, 1, 3], 0.0), ([1, 1, 4], 1.0), ([1, 2, 4], 3.0)] {
        let rows: Vec<(u64, Vec<f32>)> = (1..).zip(rows.map(|number| logits(number, 0))).collect();
        worker.step(sample_step(&rows)).await;
        assert_eq!(counted(&server)[..2], [expected, 0.0]);
    }
    // The row of work that fails is not remembered: it is sent again, corrected.
    let good = logits(9, 0);
    let mut bad = good.clone();
    bad[3] = f32::NAN;
    for row in [bad, good.clone()] {
        worker.step(sample_step(&[(1, row)])).await;
    }
    assert_eq!(counted(&server)[..2], [3.0, 0.0]);
    worker.step(sample_step(&[(1, good)])).await;
    assert_eq!(counted(&server)[..2], [4.0, 0.0]);
}

/// Rows that follow the same token are not compared, also where the first of these tokens is the last one of the prompt.
#[tokio::test]
async fn a_first_row_is_not_compared_where_its_token_repeats_the_prompts_end() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let behind = |id: u64, prompt: &[u32], output: &[u32]| OpenSequence {
        prompt_token_ids: prompt.to_vec(),
        output_token_ids: output.to_vec(),
        ..open(id, seeded(id))
    };
    // The last two texts did not end with token 4 before they emitted it.
    let opens = vec![behind(1, &[7, 4], &[]), behind(2, &[7], &[4]), behind(3, &[4, 7], &[]), behind(4, &[4], &[7])];
    worker.step(open_step(opens)).await;
    let mut row: Vec<f32> = logits(9, 0).iter().map(|logit| logit - 60.0).collect();
    row[4] = 0.0;
    for (id, expected) in [(1, 0.0), (2, 0.0), (3, 1.0), (4, 2.0)] {
        for _ in 0..2 {
            worker.step(sample_step(&[(id, row.clone())])).await;
        }
        assert_eq!(counted(&server)[0], expected, "sequence {id}");
    }
}

/// Rows that say nothing: masked rows, and rows in which all tokens are equal.
#[tokio::test]
async fn rows_of_which_little_is_seen_are_not_counted() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    // A mask need not be infinite.
    let masked = |mask: f32| (0..VOCAB).map(|token| if token < 3 { token as f32 } else { mask }).collect::<Vec<f32>>();
    for row in [masked(f32::NEG_INFINITY), masked(-1e9), vec![2.0; VOCAB as usize]] {
        for _ in 0..2 {
            worker.step(sample_step(&[(1, row.clone())])).await;
        }
    }
    // But a row in which all tokens are equal is flat, whether it repeats or not.
    assert_eq!(counted(&server), [0.0, 0.0, 0.0, 2.0]);
    let flat = vec![0.0; VOCAB as usize];
    let work = worker.verify(1, chain(&[1, 2], deterministic()), &[flat.clone(), flat.clone(), flat]).await;
    let all = 2.0 + ids(&work).len() as f64;
    assert_eq!(counted(&server), [0.0, 0.0, 0.0, all], "of each row that a token was drawn from");
    // A worker may clamp unlikely tokens to one value.
    let mut cut = vec![-23.0; VOCAB as usize];
    cut[4] = 0.0;
    worker.step(sample_step(&[(1, cut)])).await;
    assert_eq!(counted(&server), [0.0, 0.0, 0.0, all]);
}

/// Two texts that end with different tokens cannot have the same row. Before a token is emitted, nothing is known about a text's end.
#[tokio::test]
async fn a_row_that_two_texts_have_at_once_is_counted() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step((1..=3).map(|id| open(id, seeded(id))).collect())).await;
    // One likely token, with a bell-shaped row far below.
    let only = |token: usize, number: u64| {
        let mut row: Vec<f32> = logits(number, 0).iter().map(|logit| logit - 60.0).collect();
        row[token] = 0.0;
        row
    };
    let same = only(4, 9);
    worker.step(sample_step(&[(1, same.clone()), (2, same.clone()), (3, same)])).await;
    assert_eq!(counted(&server), [0.0; 4]);
    worker.step(sample_step(&[(1, only(5, 1)), (2, only(5, 2)), (3, only(6, 3))])).await;
    // Texts 1 and 2 may be equal; 3 is different.
    let same = only(7, 4);
    worker.step(sample_step(&[(1, same.clone()), (2, same.clone())])).await;
    worker.step(sample_step(&[(1, only(5, 5)), (2, only(5, 6)), (3, only(6, 7))])).await;
    assert_eq!(counted(&server), [0.0; 4]);
    let same = only(7, 8);
    worker.step(sample_step(&[(1, same.clone()), (2, only(7, 10)), (3, same)])).await;
    assert_eq!(counted(&server), [0.0, 0.0, 1.0, 0.0]);
    // The first row of a draft counts as well.
    worker.step(sample_step(&[(1, only(5, 11)), (3, only(6, 12))])).await;
    let same = only(7, 13);
    let work = vec![sample_work(1), verify_work(3, chain(&[1], deterministic()))];
    worker.step(Step { work, logits: inline(&[same.clone(), same, only(7, 14)]), ..Default::default() }).await;
    assert_eq!(counted(&server), [0.0, 0.0, 2.0, 0.0]);
}

/// The target has the rejected token in place of the recovered one. Or a row of a draft does not see the token before it.
#[tokio::test]
async fn rows_of_drafts_that_come_again_are_counted() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    // Token 0 or token 1 alone is likely, with a bell-shaped row far below.
    let alone = |token: usize, number: u64| {
        let mut row: Vec<f32> = logits(number, 0).iter().map(|logit| logit - 60.0).collect();
        row[token] = 0.0;
        row
    };
    let (first, after_rejected, other) = (alone(0, 1), alone(0, 2), alone(1, 3));
    // Draft token 1 is rejected, and token 0 is emitted in its place.
    let work = worker.verify(1, chain(&[1], deterministic()), &[first.clone(), after_rejected.clone()]).await;
    assert_eq!(ids(&work), [0]);
    assert_eq!(counted(&server)[..2], [0.0, 0.0]);
    // The row after the rejected token cannot be the row after the recovered one.
    worker.verify(1, chain(&[0], deterministic()), &[after_rejected, other.clone()]).await;
    assert_eq!(counted(&server)[..2], [1.0, 0.0]);
    // The row of the bonus token again: the bonus token was not read.
    worker.verify(1, chain(&[1], deterministic()), &[other.clone(), first.clone()]).await;
    assert_eq!(counted(&server)[..2], [2.0, 0.0]);
    // In a tree, siblings may have equal rows, but a token and its child may not.
    let [a, b] = [4, 5].map(|number| alone(0, number));
    let verify = |parents: Vec<i32>| VerifyWork { parents, ..chain(&[0, 1, 2], deterministic()) };
    worker.verify(1, verify(vec![-1, -1, -1]), &[a.clone(), b.clone(), b.clone(), b.clone()]).await;
    assert_eq!(counted(&server)[..2], [2.0, 0.0]);
    worker.verify(1, verify(vec![-1, 0, 0]), &[alone(0, 6), b.clone(), b.clone(), b]).await;
    assert_eq!(counted(&server)[..2], [2.0, 2.0]);
}

/// A rule that draws from the whole target may emit the token that it rejected, and a text may repeat one token. The rows then follow the
/// same token, so they may be equal.
#[tokio::test]
async fn rows_behind_the_same_token_are_not_counted() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let acceptance =
        AcceptanceParams { rule: AcceptanceRule::Synthetic.into(), synthetic_rate: Some(0.0), ..Default::default() };
    worker.step(open_step(vec![open(1, SamplingParams { acceptance: Some(acceptance), ..seeded(1) })])).await;
    let alone = |number: u64| {
        let mut row: Vec<f32> = logits(number, 0).iter().map(|logit| logit - 60.0).collect();
        row[7] = 0.0;
        row
    };
    let [first, behind] = [1, 2].map(alone);
    let work = worker.verify(1, chain(&[7], deterministic()), &[first, behind.clone()]).await;
    assert_eq!((ids(&work), work.verify.as_ref().unwrap().accepted_count), (vec![7], 0));
    for _ in 0..3 {
        worker.step(sample_step(&[(1, behind.clone())])).await;
    }
    worker.verify(1, chain(&[7], deterministic()), &[behind.clone(), behind.clone()]).await;
    assert_eq!(counted(&server)[..2], [0.0, 0.0]);
}
