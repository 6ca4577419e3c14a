//! Rows in device memory give the same results as inline rows, bit for bit, and wrong references get their status.

use super::*;
use croupier::sampling::logits::Dtype;

/// Work of every kind on six rows.
fn every_kind(id: u64) -> (Vec<OpenSequence>, Vec<Work>) {
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
        open(id + 1, SamplingParams { typical_p: Some(0.5), ..params(2, 1.0) }),
        open(id + 2, params(3, 0.5)),
        open(id + 3, SamplingParams { top_k: Some(7), ..params(4, 1.0) }),
    ];
    let verify = VerifyWork {
        draft_token_ids: vec![3, 4],
        draft_distribution: Some(verify_work::DraftDistribution::Deterministic(DeterministicDraft {})),
        measure: true,
        ..Default::default()
    };
    let work = vec![
        kind(id, Some(0), work::Kind::Sample(SampleWork {})),
        kind(id + 1, Some(1), work::Kind::Sample(SampleWork {})),
        kind(id + 2, Some(2), work::Kind::Verify(verify)),
        kind(id + 3, Some(5), work::Kind::Draft(DraftWork::default())),
    ];
    (open, work)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_work_dtype_stride_and_offset_gives_what_inline_gives() {
    let (server, _device) = server().await;
    for (dtype, wire) in
        [(Dtype::F32, LogitsDtype::F32), (Dtype::F16, LogitsDtype::F16), (Dtype::Bf16, LogitsDtype::Bf16)]
    {
        let config = StreamConfig { logits_dtype: wire.into(), ..config() };
        let (mut worker, mut side) = connected(&server, config).await;
        let mut region = asked(&mut side, on(UUID, REGION)).unwrap();
        let rows: Vec<Vec<u8>> = (0..6).map(|row| dtype.encode(&logits(9, row))).collect();
        let (open, work) = every_kind(1);
        let inline = step::Logits::Inline(InlineLogits { data: rows.concat().into(), row_stride: 0 });
        let expected = worker.step(Step { open, work, logits: Some(inline), ..Default::default() }).await;
        assert!(expected.work.iter().all(|result| result.status() == RowStatus::Ok), "{expected:?}");
        let size = dtype.size() as u64;
        for (turn, (offset, row_stride)) in (1..).zip([(0, 0), (size, VOCAB), (3 * size, VOCAB + 1), (7 * size, 101)]) {
            let stride = u64::from(if row_stride == 0 { VOCAB } else { row_stride }) * size;
            for (row, bytes) in (0..).zip(&rows) {
                region.window.write((offset + row * stride) as usize, bytes);
            }
            let (open, work) = every_kind(100 * turn);
            let Some(step::Logits::Region(place)) = at(&region.lease, offset, 6) else { unreachable!() };
            let logits = Some(step::Logits::Region(RegionLogits { row_stride, ..place }));
            let got = worker.step(Step { open, work, logits, ..Default::default() }).await;
            assert_eq!(got.work, expected.work, "{} from {offset}, stride {row_stride}", dtype.name());
        }
    }
    assert_eq!(server.series("croupier_steps_total{data_path=\"device_memory\"}"), 12.0);
    assert_eq!(server.series("croupier_steps_total{data_path=\"shared_memory\"}"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_reference_ends_the_stream_and_names_the_field() {
    let (server, device) = server().await;
    let row = u64::from(VOCAB) * 4;
    let wrong: &[(Code, &str, &dyn Fn(RegionLogits) -> RegionLogits)] = &[
        (Code::InvalidArgument, "offset", &|p| RegionLogits { offset: 1, ..p }),
        (Code::InvalidArgument, "offset", &|p| RegionLogits { offset: REGION - row + 4, ..p }),
        (Code::InvalidArgument, "offset", &|p| RegionLogits { offset: u64::MAX - 3, ..p }),
        (Code::InvalidArgument, "rows", &|p| RegionLogits { rows: (REGION / row) as u32 + 1, ..p }),
        (Code::InvalidArgument, "row_stride", &|p| RegionLogits { row_stride: VOCAB - 1, ..p }),
        (Code::NotFound, "region_id", &|p| RegionLogits { region_id: 2, ..p }),
        (Code::FailedPrecondition, "generation", &|p| RegionLogits { generation: p.generation + 1, ..p }),
    ];
    for (code, field, change) in wrong {
        let (mut worker, mut side) = connected(&server, config()).await;
        let region = asked(&mut side, on("", REGION)).unwrap();
        let Some(step::Logits::Region(place)) = at(&region.lease, 0, 1) else { unreachable!() };
        let logits = Some(step::Logits::Region(change(place)));
        let status = worker.failing_step(Step { work: vec![sample_work(1)], logits, ..Default::default() }).await;
        assert_eq!((status.code(), violation(&status).0), (*code, format!("step.region.{field}")));
    }
    server.expect_series(DEVICE_BYTES, 0.0).await;
    assert_eq!(device.live(), 0);
}

/// A step under way is finished first, whatever happens to the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_region_released_in_use_is_read_to_the_end() {
    let gate = Gate::default();
    let (server, device) = server_with(Box::new(gate.clone()), |_| {}).await;
    let (mut worker, mut side) = connected(&server, config()).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let mut region = asked(&mut side, on(UUID, 1)).unwrap();
    region.window.write(0, &bytes(&logits(5, 0)));
    let step = Step { work: vec![sample_work(1)], logits: at(&region.lease, 0, 1), ..Default::default() };
    worker.send_step(step.clone()).await;
    gate.wait_for_batch().await;
    blocking(|| side.release(&region.lease).unwrap());
    assert_eq!((device.live(), server.series(DEVICE_BYTES)), (1, GRANULARITY as f64), "it is still read");
    gate.open();
    let got = token(&worker.step_reply().await.unwrap().work[0]);
    assert_eq!(got, inline_tokens(&server, 5, 1).await[0]);
    server.expect_series(DEVICE_BYTES, 0.0).await;
    let again = asked(&mut side, on(UUID, 1)).unwrap();
    assert_eq!(again.lease.region_id, region.lease.region_id);
    let status = worker.failing_step(step).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::FailedPrecondition, "step.region.generation"));
}

/// The server's threads write slots, and they cannot write to a device.
#[tokio::test(flavor = "multi_thread")]
async fn slots_on_the_device_are_refused() {
    let (server, device) = server().await;
    let (mut worker, mut side) = connected(&server, config()).await;
    let RegionLease { region_id, generation, .. } = asked(&mut side, on(UUID, REGION)).unwrap().lease;
    let slots = TokenSlots { region_id, generation, offset: 0, instead_of_result: false };
    let step = Step { token_slots: Some(slots), ..sample_step(&[(1, logits(1, 0))]) };
    let status = worker.failing_step(Step { open: vec![open(1, seeded(1))], ..step }).await;
    let refused = (status.code(), violation(&status).0);
    assert_eq!(refused, (Code::InvalidArgument, "step.token_slots.region_id".to_owned()));
    let message = status.message();
    assert!(message.contains(UUID) && message.contains("lease a region without a device"), "{message}");
    server.expect_series(DEVICE_BYTES, 0.0).await;
    assert_eq!(device.live(), 0);
}
