//! Rows of which only the largest logits are sent, over a real socket: the same tokens, or an exact answer why there is none.

mod drafts;

use crate::support::*;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;
use tonic::Code;

/// The `n` largest logits of each row, in order.
fn top_n(rows: &[Vec<f32>], n: usize, beyond: BeyondTopN) -> TopNRows {
    let mut wire = TopNRows { beyond: vec![beyond.into(); rows.len()], ties_in_order: true, ..Default::default() };
    let mut logits = Vec::new();
    for row in rows {
        let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let others = all.split_off(n);
        wire.counts.push(n as u32);
        wire.token_ids.extend(all.iter().map(|(token, _)| token));
        logits.extend(all.iter().map(|(_, logit)| *logit));
        wire.rest_logsumexp.push(others.iter().map(|(_, x)| x.exp()).sum::<f32>().ln());
    }
    wire.logits = Dtype::F32.encode(&logits);
    wire
}

fn top_k(k: u32, seed: u64) -> SamplingParams {
    SamplingParams { top_k: Some(k), ..seeded(seed) }
}

fn listed_step(ids: &[u64], rows: &[Vec<f32>], n: usize, beyond: BeyondTopN) -> Step {
    let work = ids.iter().map(|&id| sample_work(id)).collect();
    Step { work, top_n: Some(top_n(rows, n, beyond)), ..Default::default() }
}

#[tokio::test]
async fn whole_and_listed_rows_in_one_step_give_the_tokens_of_whole_rows() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let params = |id: u64| SamplingParams { presence_penalty: Some(0.5), ..top_k(6, id % 10) };
    worker.step(open_step([1, 2, 3, 11, 12, 13].map(|id| open(id, params(id))).to_vec())).await;
    for position in 0..20 {
        let rows: Vec<_> = (1..4).map(|text| logits(text, position)).collect();
        let whole = worker.step(sample_step(&[(1, rows[0].clone()), (2, rows[1].clone()), (3, rows[2].clone())])).await;
        let step = Step {
            logits: inline(&rows[..1]),
            top_n: Some(top_n(&rows[1..], 24, BeyondTopN::Refuse)),
            ..listed_step(&[11, 12, 13], &[], 24, BeyondTopN::Refuse)
        };
        let mixed = worker.step(step).await;
        let tokens = |result: &StepResult| result.work.iter().map(token).collect::<Vec<_>>();
        assert_eq!(tokens(&whole), tokens(&mixed), "{position}");
        assert!(mixed.work.iter().all(|work| !work.truncated));
    }
    assert_eq!(server.series("croupier_rows_truncated_total{model=\"default\"}"), 0.0);
}

#[tokio::test]
async fn a_row_that_is_reached_beyond_is_refused_and_the_whole_row_then_gives_its_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(5)), open(2, seeded(5)), open(3, top_k(3, 5))])).await;
    let row = logits(5, 0);
    let expected = token(&worker.step(sample_step(&[(1, row.clone())])).await.work[0]);
    let rows = [row.clone(), row.clone()];
    let refused = worker.step(listed_step(&[2, 3], &rows, 10, BeyondTopN::Refuse)).await;
    assert_eq!(refused.work[0].status(), RowStatus::BeyondTopN);
    assert!(refused.work[0].message.contains("send the whole row"), "{}", refused.work[0].message);
    assert_eq!(refused.work[1].status(), RowStatus::Ok, "its neighbour goes on");
    assert_eq!(token(&worker.step(sample_step(&[(2, row)])).await.work[0]), expected);
    let series = "croupier_rows_invalid_total{model=\"default\",reason=\"beyond_top_n\"}";
    server.expect_series(series, 1.0).await;
    server.expect_series("croupier_steps_total{data_path=\"top_n\"}", 1.0).await;
}

#[tokio::test]
async fn a_marked_row_is_that_of_minus_infinity_elsewhere() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(8)), open(2, seeded(8))])).await;
    for position in 0..10 {
        let row = logits(9, position);
        let rows = [row.clone()];
        let marked = worker.step(listed_step(&[1], &rows, 3, BeyondTopN::Mark)).await;
        assert!(marked.work[0].truncated);
        let largest = top_n(&rows, 3, BeyondTopN::Mark).token_ids;
        let cut = (0..VOCAB).map(|t| if largest.contains(&t) { row[t as usize] } else { f32::NEG_INFINITY }).collect();
        let cut = worker.step(sample_step(&[(2, cut)])).await;
        assert_eq!(token(&marked.work[0]), token(&cut.work[0]), "{position}");
    }
    server.expect_series("croupier_rows_truncated_total{model=\"default\"}", 10.0).await;
}

#[tokio::test]
async fn scores_and_logprobs_count_the_others() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let row = logits(2, 0);
    let listed = top_n(&[row.clone(), row.clone()], 20, BeyondTopN::Refuse);
    let least = *listed.token_ids.last().unwrap();
    let other = (0..VOCAB).find(|token| !listed.token_ids.contains(token)).unwrap();
    let score = |token: u32| {
        let logprobs = Some(LogprobsParams { top_n: 20, ..Default::default() });
        score_work(None, ScoreWork { token_ids: vec![token], logprobs })
    };
    let work = vec![score(least), score(other)];
    let told = worker.step(Step { work, top_n: Some(listed), ..Default::default() }).await;
    let whole = worker.step(Step { work: vec![score(least)], logits: inline(&[row]), ..Default::default() }).await;
    let (told_token, whole_token) = (&told.work[0].tokens[0], &whole.work[0].tokens[0]);
    assert!(told_token.rounded_logprobs && !whole_token.rounded_logprobs);
    assert_eq!((told_token.rank, &told_token.top_token_ids), (whole_token.rank, &whole_token.top_token_ids));
    let values = |token: &Token| [vec![token.logprob.unwrap()], token.top_logprobs.clone()].concat();
    let near = |(a, b): (f32, f32)| (a - b).abs() < 2e-6;
    assert!(values(told_token).into_iter().zip(values(whole_token)).all(near), "{told_token:?} {whole_token:?}");
    assert_eq!(told.work[1].status(), RowStatus::BeyondTopN);
}

#[tokio::test]
async fn a_stateless_batch_takes_listed_rows() {
    let server = TestServer::start().await;
    let rows = [logits(1, 0), logits(2, 0)];
    let sampled = |top_n, logits| SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        rows: (1..3).map(|seed| SampleRow { params: Some(top_k(4, seed)), ..Default::default() }).collect(),
        top_n,
        logits,
        ..Default::default()
    };
    let Some(step::Logits::Inline(whole)) = inline(&rows) else { unreachable!() };
    let mut client = server.client().await;
    let whole = client.sample(sampled(None, Some(whole))).await.unwrap().into_inner();
    let listed = client.sample(sampled(Some(top_n(&rows, 12, BeyondTopN::Refuse)), None)).await.unwrap().into_inner();
    assert_eq!(whole, listed);
    let marked = client.sample(sampled(Some(top_n(&rows, 2, BeyondTopN::Mark)), None)).await.unwrap().into_inner();
    assert!(marked.rows.iter().all(|row| row.truncated), "{marked:?}");
}

#[tokio::test]
async fn a_wrong_row_fails_alone_and_names_the_field() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step((1..3).map(|id| open(id, top_k(3, id))).collect())).await;
    let rows = [logits(1, 0), logits(2, 0)];
    let of = |change: fn(&mut TopNRows)| {
        let mut wire = top_n(&rows, 10, BeyondTopN::Refuse);
        change(&mut wire);
        wire
    };
    let cases = [
        ("top_n.token_ids[1]: has token id 50, must be below vocab_size 50", of(|rows| rows.token_ids[13] = VOCAB)),
        ("twice in one row", of(|rows| rows.token_ids[13] = rows.token_ids[14])),
        ("top_n.rest_logsumexp[1]: is NaN", of(|rows| rows.rest_logsumexp[1] = f32::NAN)),
        ("top_n.rest_logsumexp[1]: is inf", of(|rows| rows.rest_logsumexp[1] = f32::INFINITY)),
        ("top_n.rest_logsumexp[1]: is 90", of(|rows| rows.rest_logsumexp[1] = 90.0)),
        (
            "top_n.counts[1]: is 0, must be in 1 ..= 50",
            of(|rows| {
                rows.counts[1] = 0;
                rows.token_ids.truncate(10);
                rows.logits.truncate(40);
            }),
        ),
    ];
    for (message, wire) in cases {
        let work = vec![sample_work(1), sample_work(2)];
        let result = worker.step(Step { work, top_n: Some(wire), ..Default::default() }).await;
        assert_eq!(result.work[0].status(), RowStatus::Ok, "{}", result.work[0].message);
        assert_eq!(result.work[1].status(), RowStatus::InvalidWork, "{message}");
        assert!(result.work[1].message.contains(message), "{} for {message}", result.work[1].message);
    }
    for (status, logit) in [(RowStatus::NanLogits, f32::NAN), (RowStatus::PositiveInfinity, f32::INFINITY)] {
        let mut wire = top_n(&rows[..1], 10, BeyondTopN::Refuse);
        wire.logits = Dtype::F32.encode(&[[logit].as_slice(), &[0.5; 9]].concat());
        let result = worker.step(Step { work: vec![sample_work(2)], top_n: Some(wire), ..Default::default() }).await;
        assert_eq!(result.work[0].status(), status);
    }
    let out_of_range = Step {
        top_n: Some(top_n(&rows[..1], 9, BeyondTopN::Refuse)),
        ..listed_step(&[1, 2], &[], 9, BeyondTopN::Refuse)
    };
    let result = worker.step(out_of_range).await;
    assert_eq!(result.work[1].status(), RowStatus::RowOutOfRange);
}

#[tokio::test]
async fn lists_that_do_not_fit_end_the_stream() {
    let server = TestServer::with_limits(|limits| limits.max_rows_per_step = 3).await;
    let rows = [logits(1, 0), logits(2, 0)];
    let cases: [(&str, fn(&mut TopNRows)); 6] = [
        ("step.top_n.counts", |rows| rows.counts[0] = 11),
        ("step.top_n.counts", |rows| rows.counts = vec![0; 4]),
        ("step.top_n.logits", |rows| rows.logits.truncate(77)),
        ("step.top_n.rest_logsumexp", |rows| rows.rest_logsumexp.truncate(1)),
        ("step.top_n.beyond", |rows| rows.beyond.truncate(1)),
        ("step.top_n.beyond[1]", |rows| rows.beyond[1] = 77),
    ];
    for (field, change) in cases {
        let mut worker = server.worker().await;
        let mut wire = top_n(&rows, 10, BeyondTopN::Refuse);
        change(&mut wire);
        let status = worker.failing_step(Step { top_n: Some(wire), ..Default::default() }).await;
        assert_eq!(
            (status.code(), violation(&status).0.as_str()),
            (Code::InvalidArgument, field),
            "{}",
            status.message()
        );
    }
}

#[tokio::test]
async fn a_token_counts_64_bytes_towards_the_rows_of_a_step() {
    // Ten tokens fit, eleven do not. A row of 50 logits would have 200 bytes.
    let server = TestServer::with_limits(|limits| limits.max_row_bytes_per_step = 640).await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, top_k(3, 1))])).await;
    let rows = [logits(1, 0)];
    token(&worker.step(listed_step(&[1], &rows, 10, BeyondTopN::Refuse)).await.work[0]);
    let status = worker.failing_step(listed_step(&[1], &rows, 11, BeyondTopN::Refuse)).await;
    assert_eq!(violation(&status).0, "step.top_n.counts");
    assert!(status.message().contains("max_row_bytes_per_step"), "{}", status.message());
    // A row that two works share counts twice.
    let mut worker = server.worker().await;
    let work = (1..3).map(|id| Work { first_row: Some(0), ..sample_work(id) }).collect();
    let shared = Step { work, ..listed_step(&[], &rows, 6, BeyondTopN::Refuse) };
    let status = worker.failing_step(shared).await;
    assert_eq!(violation(&status).0, "step.work");
    let info = server.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.limits.unwrap().max_top_n, 16_384);
}

#[tokio::test]
async fn a_step_goes_through_so_many_entries_of_lists() {
    let server = TestServer::start().await;
    let (vocab_size, entries) = (1 << 20, 1 << 17);
    let logit_bias = (0..entries).map(|token_id| LogitBias { token_id, bias: -1.0 }).collect();
    let default_params = Some(SamplingParams { temperature: Some(0.0), logit_bias, ..Default::default() });
    let mut worker = server.worker_with(StreamConfig { vocab_size, default_params, ..config() }).await;
    worker.step(open_step((1..=129).map(|id| open(id, seeded(id))).collect())).await;
    let listed = |rest: f32| TopNRows {
        counts: vec![2],
        token_ids: vec![vocab_size - 1, vocab_size - 2],
        logits: Dtype::F32.encode(&[5.0, 4.0]),
        rest_logsumexp: vec![rest],
        ..Default::default()
    };
    let step = |ids: std::ops::RangeInclusive<u64>, rest: f32| Step {
        work: ids.map(|id| Work { first_row: Some(0), ..sample_work(id) }).collect(),
        top_n: Some(listed(rest)),
        ..Default::default()
    };
    // 128 rows of 2^17 entries are the most that a step may go through.
    let result = worker.step(step(1..=129, 1.0)).await;
    assert!(result.work[..128].iter().all(|work| token(work) == vocab_size - 1));
    assert_eq!(result.work[128].status(), RowStatus::InvalidWork);
    assert!(result.work[128].message.contains("top_n: would go through"), "{}", result.work[128].message);
    // The next step has room again. If no other token can be emitted, no row is gone through.
    assert_eq!(token(&worker.step(step(129..=129, 1.0)).await.work[0]), vocab_size - 1);
    assert!(worker.step(step(1..=129, f32::NEG_INFINITY)).await.work.iter().all(|work| token(work) == vocab_size - 1));
}
