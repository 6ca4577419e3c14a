//! Whatever a worker does to its own memory and sockets, it harms nobody else.

use super::*;
use croupier::region::pass;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Random numbers; any will do.
fn noise(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    match *state >> 60 {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        3 => f32::from_bits((*state >> 16) as u32),
        _ => ((*state >> 40) as f32 / (1 << 24) as f32) * 60.0 - 30.0,
    }
}

/// Parameters that take every path through the backend.
fn roads() -> Vec<SamplingParams> {
    let with = |change: &dyn Fn(&mut SamplingParams)| {
        let mut params = seeded(1);
        change(&mut params);
        params
    };
    vec![
        with(&|p| p.temperature = Some(0.0)),
        with(&|_| {}),
        with(&|p| p.top_p = Some(0.9)),
        with(&|p| (p.top_k, p.top_p) = (Some(2000), Some(0.7))),
        with(&|p| p.min_p = Some(0.01)),
        with(&|p| p.typical_p = Some(0.5)),
        with(&|p| {
            (p.presence_penalty, p.logprobs) = (Some(1.0), Some(LogprobsParams { top_n: 20, ..Default::default() }))
        }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_overwritten_while_they_are_read_give_a_token_or_a_row_error() {
    const WIDE: u32 = 20_000;
    let server = server_with(Box::new(CpuBackend::new(2).sharing_above(1)), |_| {}).await;
    let (mut worker, mut side, _other) = leased(&server, StreamConfig { vocab_size: WIDE, ..config() }).await;
    let mut region = blocking(|| side.lease(8 * u64::from(WIDE) * 4).unwrap());
    let stop = AtomicBool::new(false);
    let lease = region.lease.clone();
    let opens = (1..).zip(roads()).map(|(id, params)| open(id, params)).collect();
    assert!(worker.step(open_step(opens)).await.open.iter().all(|open| open.status() == OpenStatus::Ok));
    let (mut tokens, mut errors) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1;
            let mut calm = vec![0.0f32; WIDE as usize];
            while !stop.load(Ordering::Relaxed) {
                // Sometimes a row has only moderate numbers, so that many of the mixtures are finite.
                for row in 0..8 {
                    let spoilt = state % 3 == 0;
                    calm.iter_mut().for_each(|x| {
                        let next = noise(&mut state);
                        *x = if spoilt || (next < 40.0 && next > -40.0) { next } else { 0.0 };
                    });
                    region.window.write(row * WIDE as usize * 4, &bytes(&calm));
                }
            }
        });
        blocking(|| {
            tokio::runtime::Handle::current().block_on(async {
                for _ in 0..150 {
                    let works = (1..=roads().len() as u64).map(sample_work);
                    let verify = VerifyWork {
                        draft_token_ids: vec![5],
                        draft_distribution: Some(verify_work::DraftDistribution::Deterministic(DeterministicDraft {})),
                        ..Default::default()
                    };
                    let mut work: Vec<Work> = works.collect();
                    work[1].kind = Some(work::Kind::Verify(verify));
                    (1..).zip(&mut work).for_each(|(row, work)| work.first_row = Some(row % 7));
                    let RegionLease { region_id, generation, .. } = lease;
                    let logits = at(RegionLogits { region_id, generation, offset: 0, rows: 8, row_stride: WIDE });
                    for result in worker.step(Step { work, logits, ..Default::default() }).await.work {
                        match result.status() {
                            RowStatus::Ok => tokens += 1,
                            RowStatus::NanLogits | RowStatus::PositiveInfinity | RowStatus::AllMasked => errors += 1,
                            other => panic!("{other:?}: {}", result.message),
                        }
                    }
                }
            });
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert!(tokens > 0 && errors > 0, "{tokens} tokens, {errors} errors: both were to be seen");
    assert_eq!(server.series("croupier_rows_invalid_total{model=\"default\",reason=\"internal\"}"), 0.0);
    // A row that does not change is sampled correctly.
    worker.step(open_step(vec![open(99, SamplingParams { temperature: Some(0.0), ..seeded(1) })])).await;
    let mut row = vec![0.0; WIDE as usize];
    row[77] = 1.0;
    region.window.write(0, &bytes(&row));
    let step = Step { work: vec![sample_work(99)], logits: at(place(&region, 0, 1)), ..Default::default() };
    assert_eq!(token(&worker.step(step).await.work[0]), 77);
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_and_lost_mappings_are_the_workers_own_loss() {
    use rustix::fs::FallocateFlags;
    let server = server().await;
    let (mut worker, _side, mut region) = leased(&server, config()).await;
    worker.step(open_step(vec![open(1, SamplingParams { temperature: Some(0.0), ..seeded(1) })])).await;
    let mut row = vec![0.0; VOCAB as usize];
    row[7] = 1.0;
    assert_eq!(region_token(&mut worker, &mut region, &row).await, 7);
    assert!(rustix::fs::ftruncate(&region.descriptor, 0).is_err(), "sealed");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&region.descriptor, punch, 0, REGION).unwrap();
    // The row is all zeros, so the smallest id wins.
    let step = Step { work: vec![sample_work(1)], logits: at(place(&region, 0, 1)), ..Default::default() };
    assert_eq!(token(&worker.step(step.clone()).await.work[0]), 0);
    let lease = region.lease.clone();
    drop(region);
    assert_eq!(token(&worker.step(step).await.work[0]), 0, "unmapped by the worker, {lease:?} is still leased");
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_that_a_worker_sends_are_dropped_by_the_kernel() {
    let server = server().await;
    let (_worker, offer) = server.region_worker(config()).await;
    let mut side = blocking(|| SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let file: OwnedFd = std::fs::File::create(dir.path().join("f")).unwrap().into();
    let (read_end, pipe) = std::io::pipe().unwrap();
    let pipe: OwnedFd = pipe.into();
    let null: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
    let folder: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
    let message = {
        use prost::Message;
        let request = region_request::Request::Lease(LeaseRegion { bytes: 4096, device: None });
        let message = RegionRequest { request: Some(request) }.encode_to_vec();
        [&(message.len() as u32).to_le_bytes()[..], &message].concat()
    };
    for descriptor in [&file, &pipe, &null, &folder] {
        blocking(|| {
            let sent = pass::send(side.socket(), &message, Some(descriptor.as_fd())).unwrap();
            side.socket().write_all(&message[sent..]).unwrap();
            let (reply, descriptors) = side.reply().unwrap();
            assert!(matches!(reply, region_reply::Reply::Leased(_)), "{reply:?}");
            assert_eq!(descriptors.len(), 1);
        });
    }
    // No other copy of the pipe's end exists: once this one is closed, its other end sees the end of the stream.
    drop(pipe);
    blocking(|| {
        let mut end = read_end;
        assert_eq!(std::io::Read::read(&mut end, &mut [0]).unwrap(), 0);
    });
}
