//! Who gets device memory, who does not, and when it becomes free again.

use super::*;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const OTHER: &str = "GPU-99999999-2222-3333-4444-555555555555";

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_leased_in_whole_granules_and_comes_back() {
    let (server, device) = server().await;
    let info = server.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.data_paths.last().unwrap().as_str(), info.device_uuid.as_str()), ("device_memory", UUID));
    assert_eq!(info.limits.unwrap().max_device_region_bytes, 4 * REGION);
    let (_worker, mut side) = connected(&server, config()).await;
    for (turn, uuid) in (1..).zip([UUID.to_owned(), UUID.to_lowercase(), String::new()]) {
        let region = asked(&mut side, on(&uuid, GRANULARITY as u64 + 1)).unwrap();
        let lease = &region.lease;
        assert_eq!((lease.region_id, lease.generation, lease.bytes), (1, turn, REGION));
        assert_eq!((lease.device_uuid.as_str(), lease.granularity), (UUID, GRANULARITY as u64));
        assert_eq!((server.series(DEVICE_BYTES), server.series("croupier_regions")), (REGION as f64, 1.0));
        assert_eq!(server.series("croupier_region_bytes"), 0.0, "the host's memory is another matter");
        blocking(|| side.release(lease).unwrap());
        server.expect_series(DEVICE_BYTES, 0.0).await;
        assert_eq!(device.live(), 0);
    }
    // Host memory is leased as before, on the same connection.
    let host = blocking(|| side.lease(100).unwrap());
    assert_eq!((host.lease.device_uuid.as_str(), host.lease.granularity), ("", 0));
    assert_eq!((server.series("croupier_region_bytes"), server.series(DEVICE_BYTES)), (4096.0, 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_device_is_refused_and_both_are_named() {
    let (server, device) = server().await;
    let (_worker, mut side) = connected(&server, config()).await;
    for uuid in [OTHER, "0", "GPU-", "MIG-1"] {
        let error = asked(&mut side, on(uuid, 100)).unwrap_err();
        assert!(error.message.contains(uuid) && error.message.contains(UUID), "{}", error.message);
        let expected = (Code::FailedPrecondition, "WRONG_DEVICE".to_owned(), "lease.device.uuid".to_owned());
        assert_eq!(refused(Err::<(), _>(error)), expected);
    }
    let lend = |uuid: &str| Request::Lend(LendRegion { uuid: uuid.to_owned(), ..Default::default() });
    let expected = (Code::FailedPrecondition, "WRONG_DEVICE".to_owned(), "lend.uuid".to_owned());
    assert_eq!(refused(asked(&mut side, lend(OTHER))), expected);
    assert_eq!(server.series("croupier_region_leases_total{result=\"wrong_device\"}"), 5.0);
    // A server without a GPU.
    let cpu = TestServer::with(Transport::Unix, Limits::default(), Box::new(CpuBackend::new(1))).await;
    let info = cpu.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.data_paths.len(), info.device_uuid.as_str()), (3, ""));
    assert_eq!(info.limits.unwrap().max_device_region_bytes, 0);
    let (_worker, mut side) = connected(&cpu, config()).await;
    for uuid in [UUID, ""] {
        let expected = (Code::Unimplemented, "NO_DEVICE".to_owned(), "lease.device".to_owned());
        assert_eq!(refused(asked(&mut side, on(uuid, 100))), expected);
        let expected = (Code::Unimplemented, "NO_DEVICE".to_owned(), "lend.uuid".to_owned());
        assert_eq!(refused(asked(&mut side, lend(uuid))), expected);
    }
    assert_eq!(device.live(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_device_are_its_own() {
    let (server, device) = server_with(Box::new(CpuBackend::new(1)), |limits| limits.max_regions_per_stream = 3).await;
    let (_worker, mut side) = connected(&server, config()).await;
    for bytes in [0, (1 << 20) + 1, u64::MAX] {
        let expected = (Code::InvalidArgument, "INVALID_FIELD".to_owned(), "lease.bytes".to_owned());
        assert_eq!(refused(asked(&mut side, on("", bytes))), expected, "{bytes}");
    }
    let two = asked(&mut side, on("", 2 * REGION)).unwrap();
    let room = (Code::ResourceExhausted, "DEVICE_REGION_BYTES".to_owned(), String::new());
    assert_eq!(refused(asked(&mut side, on("", 2 * REGION + 1))), room);
    *device.room.lock().unwrap() = Some(0);
    let full = (Code::ResourceExhausted, "DEVICE_MEMORY".to_owned(), String::new());
    assert_eq!(refused(asked(&mut side, on("", 1))), full);
    assert_eq!((device.live(), server.series(DEVICE_BYTES)), (1, 2.0 * REGION as f64), "nothing is kept of it");
    *device.room.lock().unwrap() = None;
    let _one = asked(&mut side, on("", 1)).unwrap();
    let _host = blocking(|| side.lease(1).unwrap());
    let count = (Code::ResourceExhausted, "TOO_MANY_REGIONS".to_owned(), String::new());
    assert_eq!(refused(asked(&mut side, on("", 1))), count);
    // Another stream can use what the first releases.
    let (_other, mut theirs) = connected(&server, config()).await;
    assert_eq!(refused(asked(&mut theirs, on("", 3 * REGION))), room);
    blocking(|| side.release(&two.lease).unwrap());
    asked(&mut theirs, on("", 3 * REGION)).unwrap();
    for (result, count) in [("invalid", 3.0), ("device_region_bytes", 2.0), ("device", 1.0), ("granted", 4.0)] {
        assert_eq!(server.series(&format!("croupier_region_leases_total{{result=\"{result}\"}}")), count, "{result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_goes_with_its_stream_and_with_its_connection() {
    let (server, device) = server().await;
    let (worker, mut side) = connected(&server, config()).await;
    let _region = asked(&mut side, on("", 1)).unwrap();
    drop(worker);
    server.expect_series(DEVICE_BYTES, 0.0).await;
    let (mut worker, mut side) = connected(&server, config()).await;
    let region = asked(&mut side, on("", 1)).unwrap();
    drop(side);
    server.expect_series(DEVICE_BYTES, 0.0).await;
    assert_eq!((device.live(), server.series("croupier_regions")), (0, 0.0));
    let step = Step { work: vec![sample_work(1)], logits: at(&region.lease, 0, 1), ..Default::default() };
    assert_eq!(worker.failing_step(step).await.code(), Code::NotFound);
}

const SOCKET: &str = "CROUPIER_TEST_DEVICE_SOCKET";

/// Not a test: a worker for the test below.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test below"]
#[allow(clippy::print_stdout)]
async fn worker_process() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let channel = tonic::transport::Endpoint::from_shared(format!("unix://{socket}")).unwrap().connect().await.unwrap();
    let (mut worker, offer) = Worker::over(channel).await.unwrap().with_regions(config()).await;
    let mut side = SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap();
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    for _ in 0..2 {
        let mut region = asked(&mut side, on(UUID, 1)).unwrap();
        region.window.write(0, &bytes(&logits(5, 0)));
        sampled(&mut worker, &region.lease).await;
    }
    println!("\nat the point");
    loop {
        std::thread::park();
    }
}

fn descriptors() -> usize {
    Path::new("/proc/self/fd").read_dir().unwrap().count()
}

/// Runs alone in its process, because it counts descriptors.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test below"]
async fn server_of_killed_workers() {
    let (server, device) = server().await;
    let killed = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "device_memory::leases::worker_process", "--ignored", "--nocapture"]);
        let mut child = command.env(SOCKET, server.socket()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("at the point")));
        assert_eq!((device.live(), server.series(DEVICE_BYTES)), (2, 2.0 * GRANULARITY as f64));
        child.kill().unwrap();
        child.wait().unwrap();
        let start = Instant::now();
        while device.live() > 0 || server.series("croupier_connections{transport=\"region\"}") > 0.0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it is kept");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    blocking(killed);
    server.expect_series("croupier_streams", 0.0).await;
    let before = descriptors();
    for _ in 0..5 {
        blocking(killed);
    }
    server.expect_series("croupier_streams", 0.0).await;
    server.expect_series(DEVICE_BYTES, 0.0).await;
    server.expect_series("croupier_regions", 0.0).await;
    let start = Instant::now();
    while descriptors() > before {
        assert!(start.elapsed() < Duration::from_secs(60), "{} descriptors, {before} before", descriptors());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nothing_is_left_of_workers_that_are_killed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "device_memory::leases::server_of_killed_workers", "--ignored"]);
    assert!(command.status().unwrap().success());
}
