//! Draft models that know only some of the tokens: their rows are short, and the text is that of whole rows.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;
use tonic::{Code, Status};

/// The draft model's tokens, not in the order of their ids.
fn known() -> Vec<u32> {
    (0..VOCAB).filter(|token| token % 3 != 1).map(|token| (token * 7 + 20) % VOCAB).collect()
}

fn with_vocabulary(draft_vocabulary: Vec<u32>) -> StreamConfig {
    StreamConfig { draft_vocabulary, ..config() }
}

/// What the draft model says of its own tokens.
fn short(row: &[f32]) -> Vec<f32> {
    known().iter().map(|&token| row[token as usize]).collect()
}

/// The same as a row of the whole vocabulary.
fn whole(row: &[f32]) -> Vec<f32> {
    (0..VOCAB).map(|token| if known().contains(&token) { row[token as usize] } else { f32::NEG_INFINITY }).collect()
}

fn params() -> Vec<SamplingParams> {
    let filtered = SamplingParams { top_k: Some(9), top_p: Some(0.9), temperature: Some(1.4), ..seeded(3) };
    vec![
        seeded(1),
        SamplingParams { temperature: Some(0.0), ..seeded(2) },
        filtered.clone(),
        SamplingParams {
            repetition_penalty: Some(1.3),
            presence_penalty: Some(0.4),
            logit_bias: vec![LogitBias { token_id: known()[0], bias: 2.0 }, LogitBias { token_id: 1, bias: 9.0 }],
            banned_token_ids: vec![known()[5]],
            min_p: Some(0.02),
            ..seeded(4)
        },
        SamplingParams { typical_p: Some(0.9), xtc_probability: Some(0.5), xtc_threshold: Some(0.05), ..seeded(5) },
        SamplingParams { dry_multiplier: Some(0.8), mirostat: Some(2), ..seeded(6) },
        SamplingParams {
            acceptance: Some(AcceptanceParams { rule: AcceptanceRule::Block.into(), ..Default::default() }),
            ..filtered
        },
    ]
}

/// A mask that allows the even tokens.
fn even() -> Vec<u8> {
    [0x55; 4].repeat((VOCAB as usize).div_ceil(32))
}

/// A round: three draft tokens of each sequence, drawn from these rows, and their verification.
async fn round(worker: &mut Worker, ids: &[u64], turn: u64, row: fn(&[f32]) -> Vec<f32>) -> Vec<WorkResult> {
    let mut drafts = vec![Vec::new(); ids.len()];
    let mut results = Vec::new();
    for place in 0..3 {
        let rows: Vec<_> = ids.iter().map(|id| row(&logits(*id, 100 * turn + place))).collect();
        let work = |id: &u64| {
            let masked = (id + turn + place).is_multiple_of(4);
            Work {
                token_masks: if masked { even().into() } else { Default::default() },
                ..draft_work(*id, DraftWork::default())
            }
        };
        let step = Step { work: ids.iter().map(work).collect(), logits: inline(&rows), ..Default::default() };
        let result = worker.step(step).await;
        for (draft, work) in drafts.iter_mut().zip(&result.work) {
            draft.push(token(work));
        }
        results.extend(result.work);
    }
    let near = |id: u64, place: u64| -> Vec<f32> {
        let draft = logits(id, 100 * turn + place.min(2));
        draft.iter().zip(logits(id, 100 * turn + 50 + place)).map(|(x, noise)| x + noise / 3.0).collect()
    };
    let rows: Vec<_> = ids.iter().flat_map(|&id| (0..4).map(move |place| near(id, place))).collect();
    let verify =
        |(id, draft): (&u64, &Vec<u32>)| verify_work(*id, VerifyWork { measure: true, ..chain(draft, kept()) });
    let work = ids.iter().zip(&drafts).map(verify).collect();
    results.extend(worker.step(Step { work, logits: inline(&rows), ..Default::default() }).await.work);
    results
}

#[tokio::test]
async fn short_rows_give_the_text_of_whole_rows() {
    let server = TestServer::start().await;
    let (mut one, mut other) = (server.worker_with(with_vocabulary(known())).await, server.worker().await);
    let ids: Vec<u64> = (1..).zip(params()).map(|(id, _)| id).collect();
    for worker in [&mut one, &mut other] {
        worker.step(open_step(ids.iter().zip(params()).map(|(&id, params)| open(id, params)).collect())).await;
    }
    let mut accepted = 0;
    for turn in 0..12 {
        let expected = round(&mut other, &ids, turn, whole).await;
        assert!(expected.iter().all(|work| work.status() == RowStatus::Ok), "{expected:?}");
        assert_eq!(round(&mut one, &ids, turn, short).await, expected, "round {turn}");
        accepted +=
            expected.iter().filter_map(|work| work.verify.as_ref()).map(|verify| verify.accepted_count).sum::<u32>();
    }
    assert!(accepted > 20, "{accepted}: drafts and their rejection are both compared");
    // Rows of the target, and tokens that the draft model does not know, are as ever.
    let only_unknown: Vec<f32> =
        whole(&[0.0; 50]).iter().map(|&x| if x == 0.0 { f32::NEG_INFINITY } else { 1.0 }).collect();
    let token = token(&one.step(sample_step(&[(1, only_unknown)])).await.work[0]);
    assert!(!known().contains(&token));
}

#[tokio::test]
async fn every_number_format_and_stride_is_read() {
    let server = TestServer::start().await;
    for (dtype, wire) in
        [(Dtype::F32, LogitsDtype::F32), (Dtype::F16, LogitsDtype::F16), (Dtype::Bf16, LogitsDtype::Bf16)]
    {
        let config = StreamConfig { logits_dtype: wire.into(), ..with_vocabulary(known()) };
        let mut worker = server.worker_with(config.clone()).await;
        let mut as_whole = server.worker_with(StreamConfig { draft_vocabulary: vec![], ..config }).await;
        let ids = [1, 2, 3];
        for worker in [&mut worker, &mut as_whole] {
            worker.step(open_step(ids.map(|id| open(id, seeded(id))).into())).await;
        }
        let step = |row: fn(&[f32]) -> Vec<f32>, row_stride: u32| {
            let mut data = Vec::new();
            for id in ids {
                let mut row = row(&logits(id, 7));
                // Padding that would be drawn.
                row.resize(row.len().max(row_stride as usize), 99.0);
                data.extend(dtype.encode(&row));
            }
            let logits = Some(step::Logits::Inline(InlineLogits { data: data.into(), row_stride }));
            let work = ids.map(|id| draft_work(id, DraftWork { restart: true, ..Default::default() })).into();
            Step { work, logits, ..Default::default() }
        };
        let expected = as_whole.step(step(whole, 0)).await.work;
        for row_stride in [0, known().len() as u32, 40, VOCAB, 77] {
            assert_eq!(worker.step(step(short, row_stride)).await.work, expected, "{dtype:?}, stride {row_stride}");
        }
    }
}

#[tokio::test]
async fn a_bad_row_fails_alone() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_vocabulary(known())).await;
    worker.step(open_step([1, 2, 3, 4].map(|id| open(id, seeded(id))).into())).await;
    let (mut nan, mut infinite) = (short(&logits(1, 0)), short(&logits(2, 0)));
    *nan.last_mut().unwrap() = f32::NAN;
    infinite[0] = f32::INFINITY;
    let rows = [nan, infinite, vec![f32::NEG_INFINITY; known().len()], short(&logits(4, 0))];
    let drafts = || (1..5).map(|id| draft_work(id, DraftWork::default())).collect();
    let result = worker.step(Step { work: drafts(), logits: inline(&rows), ..Default::default() }).await;
    let statuses: Vec<_> = result.work.iter().map(WorkResult::status).collect();
    assert_eq!(statuses, [RowStatus::NanLogits, RowStatus::PositiveInfinity, RowStatus::AllMasked, RowStatus::Ok]);
    // The tokens of the text are named, not columns.
    let (last, first) = (*known().last().unwrap(), known()[0]);
    assert_eq!(result.work[0].message, format!("the row has a NaN logit, at token {last}"));
    assert_eq!(result.work[1].message, format!("the row has a +infinity logit as sent, at token {first}"));
    assert_eq!(result.work[2].message, "no token of the row is left: all 50 logits are -infinity as sent");
    // There are as many rows as there are, and the next step is as ever.
    let missing = worker.step(Step { work: drafts(), logits: inline(&rows[3..]), ..Default::default() }).await;
    let statuses: Vec<_> = missing.work.iter().map(WorkResult::status).collect();
    assert_eq!(statuses, [RowStatus::Ok, RowStatus::RowOutOfRange, RowStatus::RowOutOfRange, RowStatus::RowOutOfRange]);
}

#[tokio::test]
async fn top_n_rows_name_tokens_of_the_text() {
    let server = TestServer::start().await;
    let (mut one, mut other) = (server.worker_with(with_vocabulary(known())).await, server.worker().await);
    let ids = [1, 2, 3];
    for worker in [&mut one, &mut other] {
        worker.step(open_step(ids.map(|id| open(id, SamplingParams { top_k: Some(2), ..seeded(id) })).into())).await;
    }
    // All that the row may emit, in no order.
    let listed = || TopNRows {
        counts: vec![3],
        token_ids: vec![9, 1, 30],
        logits: Dtype::F32.encode(&[1.0, 1.2, 1.1]),
        rest_logsumexp: vec![f32::NEG_INFINITY],
        ..Default::default()
    };
    let rows = |row: fn(&[f32]) -> Vec<f32>| inline(&[row(&logits(1, 5)), row(&logits(2, 5))]);
    let step = |logits| Step {
        work: ids.map(|id| draft_work(id, DraftWork { restart: true, ..Default::default() })).into(),
        logits,
        top_n: Some(listed()),
        ..Default::default()
    };
    let expected = other.step(step(rows(whole))).await.work;
    assert!(expected.iter().all(|work| work.status() == RowStatus::Ok), "{expected:?}");
    assert_eq!(one.step(step(rows(short))).await.work, expected);
    // Lists alone, also beside no rows: of any work.
    let mixed = |logits| Step {
        work: vec![
            Work { first_row: Some(0), ..draft_work(1, DraftWork::default()) },
            Work { first_row: Some(0), ..sample_work(2) },
        ],
        logits,
        top_n: Some(listed()),
        ..Default::default()
    };
    assert_eq!(one.step(mixed(None)).await.work, other.step(mixed(None)).await.work);
    let none = || Some(step::Logits::Inline(InlineLogits::default()));
    let drafts = || Step { work: mixed(None).work.into_iter().take(1).collect(), ..mixed(none()) };
    assert_eq!(one.step(drafts()).await.work, other.step(drafts()).await.work);
    server.expect_series("croupier_steps_total{data_path=\"top_n\"}", 4.0).await;
}

/// How a stream with this configuration ends.
async fn refused(server: &TestServer, config: StreamConfig) -> Status {
    let mut worker = server.stream().await.unwrap();
    worker.send(decode_request::Request::Config(config)).await;
    worker.reply().await.expect_err("a mistake")
}

#[tokio::test]
async fn a_list_that_is_no_vocabulary_is_refused() {
    let server = TestServer::start().await;
    // The offsets of a table d2t, sent as they are.
    let offsets = vec![0, 0, 1, 1, 3];
    for (field, message, tokens) in [
        ("config.draft_vocabulary", "has 51 entries, must have 1 ..= vocab_size 50", vec![0; 51]),
        ("config.draft_vocabulary[2]", "token id 50 is outside the vocabulary of 50", vec![1, 2, 50]),
        (
            "config.draft_vocabulary[1]",
            "is 0, as draft_vocabulary[0] is; each token has one column. Of a table of",
            offsets,
        ),
    ] {
        let status = refused(&server, with_vocabulary(tokens)).await;
        assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, field));
        assert!(status.message().contains(message), "{status:?}");
    }
}

#[tokio::test]
async fn a_vocabulary_counts_as_state() {
    let bytes = 4 * known().len();
    let server = TestServer::start().await;
    let plain = server.worker().await;
    let of_plain = server.series("croupier_state_bytes");
    let worker = server.worker_with(with_vocabulary(known())).await;
    assert_eq!(server.series("croupier_state_bytes"), 2.0 * of_plain + bytes as f64);
    drop((plain, worker));
    server.expect_series("croupier_state_bytes", 0.0).await;
    let small = TestServer::with_limits(|limits| limits.max_state_bytes = bytes - 1).await;
    let status = refused(&small, with_vocabulary(known())).await;
    assert_eq!(violation(&status).0, "config.draft_vocabulary", "{status:?}");
    assert!(status.message().contains("so it never fits"), "{status:?}");
}

#[tokio::test]
async fn rows_of_two_models_in_one_step_end_the_stream() {
    let server = TestServer::start().await;
    let columns = known().len() as u32;
    let at = |text| short(&logits(text, 0));
    let draft = || draft_work(1, DraftWork::default());
    let rows = |count: u64| (1..=count).map(at).collect::<Vec<_>>();
    let strided = |row_stride| {
        let Some(step::Logits::Inline(inline)) = inline(&rows(1)) else { unreachable!() };
        Some(step::Logits::Inline(InlineLogits { row_stride, ..inline }))
    };
    let named = |work, logits| Step { work, logits, ..Default::default() };
    for (field, message, step) in [
        (
            "step.work[1]",
            "is no draft work, but work[0] is: with draft_vocabulary, a step's rows are those of one model",
            named(vec![draft(), sample_work(2)], inline(&rows(2))),
        ),
        ("step.work[1]", "is draft work, but work[0] is not", named(vec![sample_work(2), draft()], inline(&rows(2)))),
        ("step.inline.row_stride", "below the size of draft_vocabulary", named(vec![draft()], strided(columns - 1))),
        // Rows as long as the target's.
        (
            "step.inline.data",
            "check logits_dtype, the size of draft_vocabulary and row_stride",
            named(vec![draft()], inline(&rows(3))),
        ),
        (
            "step.inline.data",
            "but the last row may end at the size of draft_vocabulary",
            named(vec![draft()], inline(&[logits(1, 0)])),
        ),
    ] {
        let mut worker = server.worker_with(with_vocabulary(known())).await;
        worker.step(open_step(vec![open(1, seeded(1)), open(2, seeded(2))])).await;
        worker.send_step(step).await;
        let status = worker.step_reply().await.expect_err("a mistake");
        assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, field), "{status:?}");
        assert!(status.message().contains(message), "{status:?}");
    }
}
