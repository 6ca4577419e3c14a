//! Rows in a region give the same results as inline rows, bit for bit, wherever they are.

use super::*;
use croupier::sampling::logits::Dtype;

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_the_same_through_shared_memory() {
    let server = server().await;
    let expected = inline_tokens(&server, 5, 20).await;
    let (mut worker, _side, mut region) = leased(&server, config()).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    for (position, &token) in (0..).zip(&expected) {
        assert_eq!(region_token(&mut worker, &mut region, &logits(5, position)).await, token, "position {position}");
    }
    for (path, steps) in [("shared_memory", 20.0), ("inline", 20.0), ("none", 2.0)] {
        assert_eq!(server.series(&format!("croupier_steps_total{{data_path=\"{path}\"}}")), steps, "{path}");
    }
    assert!(
        server.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().get_ref().data_paths
            == ["inline", "shared_memory", "vocab_shards"]
    );
}

/// Work of every kind on six rows, some of which are shared.
pub(super) fn every_kind(id: u64) -> (Vec<OpenSequence>, Vec<Work>) {
    let kind = |sequence_id, first_row, kind| Work {
        sequence_id: Some(sequence_id),
        first_row,
        kind: Some(kind),
        ..Default::default()
    };
    let logprobs = Some(LogprobsParams { top_n: 5, ..Default::default() });
    let params = |seed, top_p| SamplingParams { top_p: Some(top_p), logprobs: logprobs.clone(), ..seeded(seed) };
    let open = vec![
        open(id, params(1, 0.9)),
        open(id + 1, SamplingParams { presence_penalty: Some(0.5), ..params(2, 1.0) }),
        open(id + 2, params(3, 0.5)),
        open(id + 3, SamplingParams { top_k: Some(7), ..params(4, 1.0) }),
    ];
    let verify = VerifyWork {
        draft_token_ids: vec![3, 4],
        draft_distribution: Some(verify_work::DraftDistribution::Deterministic(DeterministicDraft {})),
        measure: true,
        ..Default::default()
    };
    let score = ScoreWork { token_ids: vec![1, 2], logprobs };
    let work = vec![
        kind(id, Some(0), work::Kind::Sample(SampleWork {})),
        kind(id + 1, Some(0), work::Kind::Score(score)),
        kind(id + 2, Some(2), work::Kind::Verify(verify)),
        kind(id + 3, Some(5), work::Kind::Draft(DraftWork::default())),
    ];
    (open, work)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_work_dtype_stride_and_offset_gives_what_inline_gives() {
    // Once with one thread, and once with several that share each batch.
    let sharing = CpuBackend::new(3).sharing_above(1);
    for backend in [CpuBackend::new(1), sharing] {
        let server = server_with(Box::new(backend), |_| {}).await;
        for (dtype, wire) in
            [(Dtype::F32, LogitsDtype::F32), (Dtype::F16, LogitsDtype::F16), (Dtype::Bf16, LogitsDtype::Bf16)]
        {
            let config = StreamConfig { logits_dtype: wire.into(), ..config() };
            let (mut worker, _side, mut region) = leased(&server, config.clone()).await;
            let rows: Vec<Vec<u8>> = (0..6).map(|row| dtype.encode(&logits(9, row))).collect();
            let (open, work) = every_kind(1);
            let inline = step::Logits::Inline(InlineLogits { data: rows.concat().into(), row_stride: 0 });
            let step = Step { open, work, logits: Some(inline), ..Default::default() };
            let expected = worker.step(step).await;
            assert!(expected.work.iter().all(|result| result.status() == RowStatus::Ok), "{expected:?}");
            let size = dtype.size() as u64;
            for (turn, (offset, row_stride)) in
                (1..).zip([(0, 0), (size, VOCAB), (3 * size, VOCAB + 1), (4096, 64), (7 * size, 101)])
            {
                let stride = u64::from(if row_stride == 0 { VOCAB } else { row_stride }) * size;
                for (row, bytes) in (0..).zip(&rows) {
                    region.window.write((offset + row * stride) as usize, bytes);
                }
                let (open, work) = every_kind(100 * turn);
                let logits = at(RegionLogits { row_stride, ..place(&region, offset, 6) });
                let got = worker.step(Step { open, work, logits, ..Default::default() }).await;
                assert_eq!(got.work, expected.work, "{} from {offset}, stride {row_stride}", dtype.name());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inline_and_region_steps_mix_on_a_stream_and_slots_take_turns() {
    let server = server().await;
    let expected = inline_tokens(&server, 5, 30).await;
    let (mut worker, _side, mut region) = leased(&server, config()).await;
    // Three slots with a text each: a slot is written again once its reply has arrived.
    let opens = (1..4).map(|id| open(id, seeded(5))).collect();
    worker.step(open_step(opens)).await;
    let row_bytes = u64::from(VOCAB) * 4;
    for position in 0..30 {
        for id in 1..4u64 {
            let row = logits(5, position);
            let offset = (id - 1) * row_bytes;
            let logits = if (position + id) % 4 == 0 {
                inline(&[row])
            } else {
                region.window.write(offset as usize, &bytes(&row));
                at(place(&region, offset, 1))
            };
            worker.send_step(Step { work: vec![sample_work(id)], logits, ..Default::default() }).await;
        }
        for _ in 1..4 {
            let result = worker.step_reply().await.unwrap();
            assert_eq!(token(&result.work[0]), expected[position as usize], "position {position}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_does_not_exist_fails_alone() {
    let server = server().await;
    let (mut worker, _side, mut region) = leased(&server, config()).await;
    worker.step(open_step(vec![open(1, seeded(5)), open(2, seeded(6))])).await;
    region.window.write(0, &bytes(&logits(5, 0)));
    let work = vec![sample_work(1), sample_work(2)];
    let result = worker.step(Step { work, logits: at(place(&region, 0, 1)), ..Default::default() }).await;
    let statuses: Vec<_> = result.work.iter().map(WorkResult::status).collect();
    assert_eq!(statuses, [RowStatus::Ok, RowStatus::RowOutOfRange]);
    // No rows at all, at any offset within the region.
    let none = Step { work: vec![sample_work(2)], logits: at(place(&region, REGION, 0)), ..Default::default() };
    assert_eq!(worker.step(none).await.work[0].status(), RowStatus::RowOutOfRange);
}

/// A buffer that was not written again is noticed, without a copy of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_comes_again_is_counted() {
    let server = server().await;
    let (mut worker, _side, mut region) = leased(&server, config()).await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    let again = "croupier_rows_repeated_total{model=\"default\",like=\"earlier\"}";
    for (position, expected) in [(0, 0.0), (1, 0.0), (1, 1.0), (2, 1.0)] {
        region_token(&mut worker, &mut region, &logits(1, position)).await;
        assert_eq!(server.series(again), expected, "position {position}");
    }
}

/// A draft model's rows have one column for each token that it knows.
#[tokio::test(flavor = "multi_thread")]
async fn short_rows_of_a_draft_model_are_read_where_they_lie() {
    let server = server().await;
    let known: Vec<u32> = (0..VOCAB).rev().step_by(3).collect();
    let config = StreamConfig { draft_vocabulary: known.clone(), ..config() };
    let short = |id: u64| -> Vec<f32> { known.iter().map(|&token| logits(id, 1)[token as usize]).collect() };
    let (mut worker, _side, mut region) = leased(&server, config.clone()).await;
    worker.step(open_step([1, 2, 3].map(|id| open(id, seeded(id))).into())).await;
    let step = |logits| {
        let draft = |id| Work {
            sequence_id: Some(id),
            kind: Some(work::Kind::Draft(DraftWork { restart: true, ..Default::default() })),
            ..Default::default()
        };
        Step { work: [1, 2, 3].map(draft).into(), logits, ..Default::default() }
    };
    let expected = worker.step(step(inline(&[1, 2, 3].map(short)))).await.work;
    assert!(expected.iter().all(|work| known.contains(&token(work))), "{expected:?}");
    for (offset, row_stride) in [(0, 0), (4, 0), (4096, 64), (12, VOCAB)] {
        let stride = u64::from(if row_stride == 0 { known.len() as u32 } else { row_stride }) * 4;
        for id in 1..4 {
            region.window.write((offset + (id - 1) * stride) as usize, &bytes(&short(id)));
        }
        let logits = at(RegionLogits { row_stride, ..place(&region, offset, 3) });
        assert_eq!(worker.step(step(logits)).await.work, expected, "from {offset}, stride {row_stride}");
    }
    let wrong = at(RegionLogits { row_stride: known.len() as u32 - 1, ..place(&region, 0, 3) });
    worker.send_step(step(wrong)).await;
    let status = worker.step_reply().await.unwrap_err();
    assert_eq!(violation(&status).0, "step.region.row_stride");
    assert!(status.message().contains("below the size of draft_vocabulary 17"), "{status}");
}
