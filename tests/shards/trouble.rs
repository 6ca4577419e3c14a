//! Ranks that come late, leave, run ahead or never come: the rows fail with a clear status, sequences are unchanged, and nobody else
//! notices.

use super::*;
use croupier::proto::attach_response::Response;
use tonic::Code;

const TWO: [u32; 2] = [20, 30];

/// The status and message of a failed step's only row.
fn failure(result: &StepResult) -> (RowStatus, &str) {
    (result.work[0].status(), &result.work[0].message)
}

fn failures(server: &TestServer, reason: &str) -> f64 {
    server.series(&format!("croupier_shard_failures_total{{reason=\"{reason}\"}}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_never_attaches_or_never_announces_fails_the_rows_after_the_timeout() {
    let server = server_with(|limits| limits.shard_timeout = Duration::from_millis(50)).await;
    let expected = inline_tokens(&server, 5, 2).await;
    let (mut worker, ready) = rank_0(&server, sharded(&TWO)).await;
    // The opening in the failed step is valid: the sequence goes on with the next step.
    let first = worker.step(Step { open: vec![open(1, seeded(5))], ..own_step(&TWO, 5, 0) }).await;
    assert_eq!(first.open[0].status(), OpenStatus::Ok);
    assert_eq!(failure(&first).0, RowStatus::ShardMissing);
    assert!(failure(&first).1.contains("rank 1 did not attach within 50ms (shard_timeout)"), "{}", failure(&first).1);
    let mut rank = Rank::attached(&server, &token_of(&ready), &TWO, 1).await;
    let second = worker.step(own_step(&TWO, 5, 0)).await;
    assert_eq!(
        failure(&second),
        (RowStatus::ShardMissing, "rank 1 did not announce its shard within 50ms (shard_timeout)")
    );
    // A shard that comes too late is answered, and does no harm.
    rank.announce(2, &[logits(5, 0)]).await;
    assert_eq!(rank.done().await, (2, false));
    for position in 0..2 {
        // The shard arrives before the step, which would not wait long for it.
        let announced = "croupier_shards_total{data_path=\"inline\"}";
        let before = server.series(announced);
        rank.announce(3 + position, &[logits(5, position)]).await;
        server.expect_series(announced, before + 1.0).await;
        assert_eq!(token(&worker.step(own_step(&TWO, 5, position)).await.work[0]), expected[position as usize]);
        assert_eq!(rank.done().await, (3 + position, true));
    }
    assert_eq!((failures(&server, "not_attached"), failures(&server, "not_announced")), (1.0, 1.0));
    assert_eq!(server.series("croupier_shard_wait_seconds_count"), 2.0);
    assert_eq!(server.series("croupier_rows_invalid_total{model=\"default\",reason=\"shard_missing\"}"), 2.0);
    drop(worker);
    assert!(rank.reply().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_a_step_holds_while_it_waits() {
    let server = server().await;
    let (mut worker, mut ranks) = group(&server, &TWO).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let result = worker.step(Step { deadline_ms: 20, ..own_step(&TWO, 5, 0) }).await;
    assert_eq!(
        failure(&result),
        (RowStatus::DeadlineExceeded, "the step's deadline passed before rank 1 announced its shard")
    );
    assert_eq!(failures(&server, "deadline"), 1.0);
    ranks[0].announce(3, &[logits(5, 0)]).await;
    let dealt = token(&worker.step(own_step(&TWO, 5, 0)).await.work[0]);
    assert_eq!(vec![dealt], inline_tokens(&server, 5, 1).await);
}

/// The step before it waits without a deadline, which is longer.
#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_a_step_behind_another_holds_too() {
    let server = server().await;
    let (mut worker, mut ranks) = group(&server, &TWO).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    worker.send_step(own_step(&TWO, 5, 0)).await;
    worker.send_step(Step { deadline_ms: 400, ..own_step(&TWO, 5, 1) }).await;
    // Both wait, the first of them with its timer set.
    tokio::time::sleep(Duration::from_millis(100)).await;
    ranks[0].announce(2, &[logits(5, 0)]).await;
    assert_eq!(worker.step_reply().await.unwrap().work[0].status(), RowStatus::Ok);
    let late =
        tokio::time::timeout(Duration::from_secs(10), worker.step_reply()).await.expect("at its deadline").unwrap();
    assert_eq!(failure(&late).0, RowStatus::DeadlineExceeded);
}

/// There is place for one step that waits for shards, and for one that waits for the engine.
#[tokio::test(flavor = "multi_thread")]
async fn steps_behind_one_that_waits_for_shards_keep_nobody_else_out() {
    let server = server_with(|limits| limits.max_queued_steps = 1).await;
    let (mut worker, mut ranks) = group(&server, &TWO).await;
    let mut other = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    worker.send_step(own_step(&TWO, 5, 0)).await;
    worker.send_step(open_step(vec![open(2, seeded(6))])).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(other.step(open_step(vec![open(1, seeded(5))])).await.refusal.is_none());
    ranks[0].announce(2, &[logits(5, 0)]).await;
    assert_eq!(worker.step_reply().await.unwrap().work[0].status(), RowStatus::Ok);
    let refusal = worker.step_reply().await.unwrap().refusal.expect("it is held back as well");
    assert_eq!(refusal.reason, "QUEUE_FULL");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_leaves_fails_the_step_at_once_and_all_until_it_is_back() {
    let server = server().await;
    let columns = [20, 20, 10];
    let (mut worker, ready) = rank_0(&server, sharded(&columns)).await;
    let mut ranks = Vec::new();
    for number in 1..3 {
        ranks.push(Rank::attached(&server, &token_of(&ready), &columns, number).await);
    }
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    worker.send_step(own_step(&columns, 5, 0)).await;
    ranks[0].announce(2, &[logits(5, 0)]).await;
    drop(ranks.pop());
    let result = worker.step_reply().await.unwrap();
    assert_eq!(failure(&result).0, RowStatus::ShardMissing);
    assert!(failure(&result).1.starts_with("rank 2 has left"), "{}", failure(&result).1);
    assert_eq!(ranks[0].done().await, (2, false), "what the others brought is released");
    // Later steps no longer wait for the rank.
    let result = worker.step(own_step(&columns, 5, 0)).await;
    assert_eq!(failure(&result).0, RowStatus::ShardMissing);
    ranks.push(Rank::attached(&server, &token_of(&ready), &columns, 2).await);
    for rank in &mut ranks {
        rank.announce(4, &[logits(5, 0)]).await;
    }
    let dealt = token(&worker.step(own_step(&columns, 5, 0)).await.work[0]);
    assert_eq!(vec![dealt], inline_tokens(&server, 5, 1).await);
    assert_eq!(failures(&server, "left"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_rank_announced_before_it_left_is_good() {
    let server = server().await;
    let (mut worker, mut ranks) = group(&server, &TWO).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    ranks[0].announce(2, &[logits(5, 0)]).await;
    server.expect_series("croupier_shards_total{data_path=\"inline\"}", 1.0).await;
    drop(ranks);
    server.expect_series("croupier_shard_ranks", 0.0).await;
    let dealt = token(&worker.step(own_step(&TWO, 5, 0)).await.work[0]);
    assert_eq!(vec![dealt], inline_tokens(&server, 5, 1).await);
    server.expect_series("croupier_shard_bytes", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_again_begins_anew() {
    let server = server().await;
    let (mut worker, ready) = rank_0(&server, sharded(&TWO)).await;
    let token = token_of(&ready);
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let mut rank = Rank::attached(&server, &token, &TWO, 1).await;
    // Garbage for the next step, and then another process takes the rank's place.
    rank.announce(2, &[vec![f32::NAN; VOCAB as usize]]).await;
    server.expect_series("croupier_shards_total{data_path=\"inline\"}", 1.0).await;
    drop(rank);
    server.expect_series("croupier_shard_ranks", 0.0).await;
    let (mut rank, ready) = Rank::try_attach(&server, rank::about(&token, &TWO, 1), &TWO).await.unwrap();
    assert_eq!((ready.last_step_id, ready.max_shards_ahead), (0, 8));
    rank.announce(2, &[logits(5, 0)]).await;
    let dealt = super::token(&worker.step(own_step(&TWO, 5, 0)).await.work[0]);
    assert_eq!(vec![dealt], inline_tokens(&server, 5, 1).await);
    assert_eq!(rank.done().await, (2, true));
    drop(rank);
    server.expect_series("croupier_shard_ranks", 0.0).await;
    let (_rank, ready) = Rank::try_attach(&server, rank::about(&token, &TWO, 1), &TWO).await.unwrap();
    assert_eq!(ready.last_step_id, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_left_out_or_has_other_rows_fails_at_once() {
    let server = server().await;
    let expected = inline_tokens(&server, 5, 2).await;
    let (mut worker, mut ranks) = group(&server, &TWO).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    ranks[0].announce(3, &[logits(5, 0)]).await;
    let result = worker.step(own_step(&TWO, 5, 0)).await;
    assert_eq!(failure(&result), (RowStatus::ShardMissing, "rank 1 left this step out: its next shard is for step 3"));
    assert_eq!(token(&worker.step(own_step(&TWO, 5, 0)).await.work[0]), expected[0], "which is good");
    ranks[0].announce(4, &[logits(5, 1), logits(5, 2)]).await;
    let result = worker.step(own_step(&TWO, 5, 1)).await;
    assert_eq!(failure(&result), (RowStatus::ShardMismatch, "rank 1 announced 2 rows, but the step has 1"));
    ranks[0].announce(5, &[logits(5, 1)]).await;
    assert_eq!(token(&worker.step(own_step(&TWO, 5, 1)).await.work[0]), expected[1]);
    assert_eq!(
        [ranks[0].done().await, ranks[0].done().await, ranks[0].done().await],
        [(3, true), (4, false), (5, true)]
    );
    assert_eq!((failures(&server, "left_out"), failures(&server, "rows")), (1.0, 1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_may_be_announced_ahead_and_sent_ahead() {
    let server = server().await;
    let expected = inline_tokens(&server, 5, 12).await;
    let (mut worker, mut ranks) = group(&server, &[20, 20, 10]).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    // Rank 1 is ahead of rank 0, rank 2 is late.
    for position in 0..12 {
        ranks[0].announce(2 + position, &[logits(5, position)]).await;
    }
    for position in 0..12 {
        worker.send_step(own_step(&[20, 20, 10], 5, position)).await;
    }
    for position in 0..12 {
        ranks[1].announce(2 + position, &[logits(5, position)]).await;
    }
    for expected in expected {
        assert_eq!(token(&worker.step_reply().await.unwrap().work[0]), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_held_for_steps_that_never_come_than_may_be() {
    let server = server_with(|limits| limits.max_shards_ahead = 3).await;
    let (mut worker, mut ranks) = group(&server, &TWO).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    for step_id in 2..12 {
        ranks[0].announce(step_id, &[logits(5, 0)]).await;
    }
    server.expect_series("croupier_shards_total{data_path=\"inline\"}", 3.0).await;
    assert!(ranks[0].is_silent().await);
    assert_eq!(server.series("croupier_shards_total{data_path=\"inline\"}"), 3.0, "the rest is not read");
    // A step far ahead skips these shards, and the rest is read.
    let far = Step { step_id: 11, ..own_step(&TWO, 5, 0) };
    worker.send(decode_request::Request::Step(far)).await;
    let dealt = token(&worker.step_reply().await.unwrap().work[0]);
    assert_eq!(vec![dealt], inline_tokens(&server, 5, 1).await);
    for step_id in 2..11 {
        assert_eq!(ranks[0].done().await, (step_id, false));
    }
    assert_eq!(ranks[0].done().await, (11, true));
    assert_eq!(server.series("croupier_shard_bytes"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_a_shard_is_refused_and_may_come_again() {
    // Room for two messages of one row, but not for three.
    let server = server_with(|limits| limits.max_shard_bytes = 300).await;
    let (mut worker, mut ranks) = group(&server, &TWO).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    for step_id in 2..5 {
        ranks[0].announce(step_id, &[logits(5, step_id - 2)]).await;
    }
    let refused = match ranks[0].reply().await.unwrap() {
        Some(Response::Shard(ShardResult { step_id: 4, refusal: Some(refused), .. })) => refused,
        other => panic!("expected a refusal, got {other:?}"),
    };
    assert_eq!((refused.reason.as_str(), refused.retry_after_ms), ("SHARD_BYTES", 5));
    assert_eq!(server.series("croupier_rejected_total{reason=\"shard_bytes\"}"), 1.0);
    let expected = inline_tokens(&server, 5, 3).await;
    assert_eq!(token(&worker.step(own_step(&TWO, 5, 0)).await.work[0]), expected[0]);
    assert_eq!(ranks[0].done().await, (2, true));
    ranks[0].announce(4, &[logits(5, 2)]).await;
    // A shard that could never be taken ends the call.
    ranks[0].announce(5, &[logits(5, 0), logits(5, 0), logits(5, 0)]).await;
    let status = ranks[0].failed().await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "shard.inline.data"));
    for position in 1..3 {
        assert_eq!(token(&worker.step(own_step(&TWO, 5, position)).await.work[0]), expected[position as usize]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attached_ranks_are_bounded() {
    let server = server_with(|limits| limits.max_attached_ranks = 1).await;
    let (_worker, ready) = rank_0(&server, sharded(&[20, 20, 10])).await;
    let _rank = Rank::attached(&server, &token_of(&ready), &[20, 20, 10], 1).await;
    let Err(status) = Rank::open(&server, &[20, 20, 10], 2).await else { panic!("there is room for one") };
    assert_eq!((status.code(), violation(&status).1.as_str()), (Code::ResourceExhausted, "TOO_MANY_RANKS"));
}

#[tokio::test(flavor = "multi_thread")]
async fn others_go_on_while_a_step_waits_and_its_own_stream_keeps_its_order() {
    let server = server().await;
    let (mut waiting, mut ranks) = group(&server, &TWO).await;
    let opens = vec![open(1, seeded(5)), open(2, seeded(6))];
    waiting.step(open_step(opens)).await;
    waiting.send_step(own_step(&TWO, 5, 0)).await;
    // After it comes a whole row of another sequence.
    waiting.send_step(sample_step(&[(2, logits(6, 0))])).await;
    // Other streams, with and without ranks.
    let other = inline_tokens(&server, 7, 5).await;
    assert_eq!(other.len(), 5);
    let (mut busy, mut busy_ranks) = group(&server, &TWO).await;
    busy.step(open_step(vec![open(1, seeded(7))])).await;
    for position in 0..5 {
        busy_ranks[0].announce(2 + position, &[logits(7, position)]).await;
        assert_eq!(token(&busy.step(own_step(&TWO, 7, position)).await.work[0]), other[position as usize]);
    }
    ranks[0].announce(2, &[logits(5, 0)]).await;
    let (first, second) = (waiting.step_reply().await.unwrap(), waiting.step_reply().await.unwrap());
    assert_eq!((first.step_id, second.step_id), (2, 3));
    assert_eq!(vec![token(&first.work[0])], inline_tokens(&server, 5, 1).await);
    assert_eq!(vec![token(&second.work[0])], inline_tokens(&server, 6, 1).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_rank_0_everything_ends() {
    let server = server().await;
    let (mut worker, mut ranks) = group(&server, &[20, 20, 10]).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    ranks[0].announce(2, &[logits(5, 0)]).await;
    ranks[0].announce(3, &[logits(5, 0)]).await;
    worker.send_step(own_step(&[20, 20, 10], 5, 0)).await;
    server.expect_series("croupier_shards_total{data_path=\"inline\"}", 2.0).await;
    drop(worker);
    for rank in &mut ranks {
        while rank.reply().await.unwrap().is_some() {}
    }
    server.expect_series("croupier_streams", 0.0).await;
    server.expect_series("croupier_shard_ranks", 0.0).await;
    server.expect_series("croupier_shard_bytes", 0.0).await;
    server.expect_series("croupier_in_flight_bytes", 0.0).await;
    server.expect_series("croupier_queue_depth", 0.0).await;
    server.expect_sequences(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_work_may_have_shards() {
    let server = server().await;
    let work = || {
        let verify = VerifyWork {
            draft_token_ids: vec![5, 6],
            draft_distribution: Some(verify_work::DraftDistribution::Deterministic(DeterministicDraft {})),
            ..Default::default()
        };
        let score = ScoreWork { token_ids: vec![3], ..Default::default() };
        vec![
            Work {
                sequence_id: Some(1),
                first_row: None,
                kind: Some(work::Kind::Verify(verify)),
                ..Default::default()
            },
            score_work(None, score),
            Work {
                sequence_id: Some(2),
                first_row: None,
                kind: Some(work::Kind::Draft(DraftWork::default())),
                ..Default::default()
            },
        ]
    };
    let rows: Vec<Vec<f32>> = (0..5).map(|position| logits(5, position)).collect();
    let opens = || open_step(vec![open(1, seeded(5)), open(2, seeded(6))]);
    let mut plain = server.worker().await;
    plain.step(opens()).await;
    let expected = plain.step(Step { work: work(), logits: inline(&rows), ..Default::default() }).await;
    let (mut worker, mut ranks) = group(&server, &TWO).await;
    worker.step(opens()).await;
    ranks[0].announce(2, &rows).await;
    let logits = own_inline(inline_columns(&rows, range(&TWO, 0)));
    assert_eq!(worker.step(Step { work: work(), logits, ..Default::default() }).await, expected);
}

/// A rank leaves by ending its side of the call. It leaves at once, and shards that it announced remain valid.
#[tokio::test(flavor = "multi_thread")]
async fn who_ends_its_side_leaves_without_waiting_for_answers() {
    let server = server().await;
    let expected = inline_tokens(&server, 5, 2).await;
    let (mut worker, mut ranks) = group(&server, &TWO).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    ranks[0].announce(2, &[logits(5, 0)]).await;
    ranks[0].half_close();
    assert!(ranks[0].reply().await.unwrap().is_none(), "the call ends with OK");
    assert_eq!(token(&worker.step(own_step(&TWO, 5, 0)).await.work[0]), expected[0]);
    let failed = worker.step(own_step(&TWO, 5, 1)).await;
    assert_eq!(failure(&failed).0, RowStatus::ShardMissing);
    assert!(failure(&failed).1.starts_with("rank 1 has left"), "{}", failure(&failed).1);
}
