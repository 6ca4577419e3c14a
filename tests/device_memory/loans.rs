//! Buffers that workers lend by legacy handles.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

fn lend(ipc_handle: Vec<u8>, offset: u64, bytes: u64) -> Request {
    Request::Lend(LendRegion { uuid: UUID.to_owned(), ipc_handle, offset, bytes })
}

/// Lends a buffer. No descriptor comes with the reply.
fn lent(side: &mut SideClient, request: Request) -> RegionLease {
    match blocking(|| side.ask(request).unwrap()) {
        (Reply::Leased(lease), descriptors) if descriptors.is_empty() => lease,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffer_of_the_workers_gives_what_inline_gives() {
    let (server, device) = server().await;
    let expected = inline_tokens(&server, 5, 3).await;
    let (mut worker, mut side) = connected(&server, config()).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let row = VOCAB as u64 * 4;
    let rows: Vec<u8> = (0..3).flat_map(|position| bytes(&logits(5, position))).collect();
    let handle = device.buffer([vec![0; 100], rows].concat());
    let lease = lent(&mut side, lend(handle, 100, 3 * row));
    assert_eq!((lease.bytes, lease.device_uuid.as_str(), lease.granularity), (3 * row, UUID, 0));
    assert_eq!(
        (server.series(DEVICE_BYTES), server.series("croupier_regions")),
        (0.0, 1.0),
        "its bytes are the worker's"
    );
    for (position, token_id) in (0..).zip(expected) {
        let step = Step { work: vec![sample_work(1)], logits: at(&lease, position * row, 1), ..Default::default() };
        assert_eq!(token(&worker.step(step).await.work[0]), token_id);
    }
    let attach = Request::Attach(AttachRegion { region_id: lease.region_id, generation: lease.generation });
    let expected = (Code::FailedPrecondition, "LENT_REGION".to_owned(), "attach.region_id".to_owned());
    assert_eq!(refused(asked(&mut side, attach)), expected);
    blocking(|| side.release(&lease).unwrap());
    assert_eq!(device.live(), 0, "when the release is answered the buffer is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_opened_is_refused() {
    let (server, device) = server().await;
    let (_worker, mut side) = connected(&server, config()).await;
    let handle = device.buffer(vec![0; 1000]);
    let mut expect = |request, code, reason: &str, field: &str| {
        let expected = (code, reason.to_owned(), field.to_owned());
        assert_eq!(refused(asked(&mut side, request)), expected);
    };
    for len in [0, 1, 63, 65, 128] {
        expect(lend(vec![1; len], 0, 10), Code::InvalidArgument, "INVALID_FIELD", "lend.ipc_handle");
    }
    expect(lend(vec![77; 64], 0, 10), Code::FailedPrecondition, "IPC_HANDLE", "lend.ipc_handle");
    for (offset, bytes) in [(0, 1001), (1000, 1), (u64::MAX, 1), (u64::MAX - 9, 10)] {
        expect(lend(handle.clone(), offset, bytes), Code::InvalidArgument, "INVALID_FIELD", "lend.bytes");
    }
    for bytes in [0, (1 << 20) + 1, u64::MAX] {
        expect(lend(handle.clone(), 0, bytes), Code::InvalidArgument, "INVALID_FIELD", "lend.bytes");
    }
    assert_eq!((device.live(), server.series("croupier_regions")), (0, 0.0));
}

/// The worker may free its buffer once the release is answered: no step reads it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_answered_when_no_step_reads_the_buffer() {
    let gate = Gate::default();
    let (server, device) = server_with(Box::new(gate.clone()), |_| {}).await;
    let (mut worker, mut side) = connected(&server, config()).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let lease = lent(&mut side, lend(device.buffer(bytes(&logits(5, 0))), 0, VOCAB as u64 * 4));
    let step = Step { work: vec![sample_work(1)], logits: at(&lease, 0, 1), ..Default::default() };
    worker.send_step(step).await;
    gate.wait_for_batch().await;
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            side.release(&lease).unwrap();
            answered.store(true, Ordering::SeqCst);
        });
        // The test cannot prove that the release is never answered too early, but a moment is enough to notice code that does not wait.
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(!answered.load(Ordering::SeqCst) && device.live() == 1, "a step still reads it");
        gate.open();
    });
    assert_eq!(device.live(), 0);
    let expected = inline_tokens(&server, 5, 1).await[0];
    assert_eq!(token(&worker.step_reply().await.unwrap().work[0]), expected);
}
