//! Devices without room, devices that compute wrong results, and devices that fail.

use crate::build::{FOLDER, built};
use crate::cuda_host::server::{Server, WHEN_ARMED, field, start};
use crate::support::*;
use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;
use croupier::backend::{Backend, RowJob};
use croupier::bench::region::SideClient;
use croupier::proto::region_reply::Reply;
use croupier::proto::region_request::Request;
use croupier::proto::{LeaseRegion, RegionDevice};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Exit codes of docs/operations-reference.md.
const START: i32 = 1;
const DEVICE_LOST: i32 = 86;
const DEVICE_MEMORY: i32 = 88;

fn ends(flags: &[&str], driver: &[(&str, &str)]) -> Option<(i32, String)> {
    let mut server = start(flags, driver)?;
    let ended = server.ended();
    assert!(!server.socket().exists() && !ended.1.contains("\"ready\""), "{}", ended.1);
    Some(ended)
}

#[test]
fn no_room_on_the_device_at_the_start_is_code_88() {
    for backend in ["--backend=cuda", "--backend=auto"] {
        let Some((code, log)) = ends(&[backend], &[("FAKE_CUDA_MEMORY", "16777216")]) else { return };
        assert_eq!(code, DEVICE_MEMORY, "{log}");
        assert!(log.contains("out of memory"), "{log}");
    }
    // The same for every allocation up to the proof of the device.
    let mut whole = start(&["--backend=cuda"], &[("FAKE_CUDA_FAULTS", "launch@1=700")]).unwrap();
    whole.ended();
    let allocations = whole.calls("cuMemAlloc") + whole.calls("cuMemHostAlloc");
    assert_eq!(allocations, 10);
    for at in 1..=allocations {
        let fault = format!("allocate@{at}=2");
        let (code, log) = ends(&["--backend=cuda"], &[("FAKE_CUDA_FAULTS", &fault)]).unwrap();
        assert_eq!(code, DEVICE_MEMORY, "{fault}: {log}");
    }
}

/// Faults of a device while it proves itself, and the server's messages. Such a device is never treated as an absent one.
#[test]
fn a_device_that_cannot_prove_itself_is_not_used() {
    let cases = [
        ("launch@1=700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("launch@20=719", "CUDA_ERROR_LAUNCH_FAILED"),
        ("copy@5=214", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        // Codes that are newer than the oldest supported driver.
        ("launch@2=226", "CUDA_ERROR_CONTAINED"),
        ("launch@2=721", "CUDA_ERROR_TENSOR_MEMORY_LEAK"),
        ("spoil@1=0", "computes wrong results"),
        ("spoil@3=0", "computes wrong results"),
    ];
    for (fault, reason) in cases {
        for backend in ["--backend=cuda", "--backend=auto"] {
            let Some((code, log)) = ends(&[backend], &[("FAKE_CUDA_FAULTS", fault)]) else { return };
            assert_eq!(code, START, "{fault}: {log}");
            assert!(log.contains(reason), "{fault}: {log}");
        }
    }
}

/// At its end the process does not wait for such a device either, as the driver would.
#[test]
fn a_device_that_hangs_while_it_proves_itself_does_not_keep_the_process() {
    let Some(mut server) = start(&["--backend=cuda"], &[("FAKE_CUDA_FAULTS", "hang@1=0")]) else { return };
    let (code, log) = server.ended();
    assert!(code == START && log.contains("CUDA_ERROR_LAUNCH_TIMEOUT"), "{code}: {log}");
    assert_eq!(server.calls("exit"), 0);
    // Otherwise the driver is closed like any library.
    let mut server = start(&["--backend=cuda"], &[("FAKE_CUDA_FAULTS", "spoil@1=0")]).unwrap();
    assert_eq!((server.ended().0, server.calls("exit")), (START, 1));
}

/// A server that is ready, on a device that fails once the fault is armed.
fn breaking(fault: &str) -> Option<Server> {
    let planted = format!("{WHEN_ARMED}{fault}");
    let mut server = start(&["--backend=cuda"], &[("FAKE_CUDA_FAULTS", &planted)])?;
    assert_eq!(field(&server.ready(), "backend"), "cuda");
    Some(server)
}

/// Two workers and a health watch are active when the device fails at some call.
async fn breaks_at(fault: &str, reason: &str) {
    let Some(mut server) = breaking(fault) else { return };
    let mut health = HealthClient::new(server.channel().await);
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let mut workers = [server.worker(config()).await, server.worker(config()).await];
    for worker in &mut workers {
        worker.step(open_step(vec![open(1, seeded(5))])).await;
        token(&worker.step(sample_step(&[(1, logits(1, 0))])).await.work[0]);
    }
    server.arm();
    for worker in &mut workers {
        worker.send_step(sample_step(&[(1, logits(1, 1))])).await;
    }
    for worker in &mut workers {
        let lost = worker.step_reply().await.expect_err("an answer from a broken device");
        assert!(matches!(lost.code(), Code::Unavailable | Code::Unknown), "{lost}");
    }
    // The server reports that it no longer serves, or its connection is gone. It never reports that it serves.
    while let Ok(Some(state)) = watch.message().await {
        assert_eq!(state.status(), ServingStatus::NotServing);
    }
    let (code, log) = server.ended();
    assert_eq!(code, DEVICE_LOST, "{log}");
    assert!(log.contains("the CUDA device is lost") && log.contains(reason), "{log}");
    // The driver is not called any more, and the last line of the log is complete.
    assert_eq!(server.calls("exit"), 0);
    assert!(log.trim_end().ends_with('}') && log.contains("its results can no longer be trusted"), "{log}");
}

#[tokio::test]
async fn a_kernel_that_fails_ends_the_process_with_code_86() {
    breaks_at("launch@1=700", "CUDA_ERROR_ILLEGAL_ADDRESS").await;
}

#[tokio::test]
async fn a_copy_that_fails_ends_the_process_with_code_86() {
    // The upload of the first step after the fault is armed. An answer this small is not copied.
    breaks_at("copy@1=214", "CUDA_ERROR_ECC_UNCORRECTABLE").await;
}

/// This happens half a minute after the wait began; until then nobody is told anything.
#[tokio::test]
async fn a_kernel_that_never_ends_ends_the_process_with_code_86() {
    breaks_at("hang@1=0", "CUDA_ERROR_LAUNCH_TIMEOUT").await;
}

/// Leases device memory for a worker. Returns the code and reason of the error.
async fn lease(server: &Server) -> (i32, String) {
    let worker = Worker::over(server.channel().await).await.unwrap();
    let (_worker, offer) = worker.with_regions(config()).await;
    let asked = Request::Lease(LeaseRegion { bytes: 100, device: Some(RegionDevice::default()) });
    let ask = move || SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap().ask(asked).unwrap();
    match tokio::task::spawn_blocking(ask).await.unwrap() {
        (Reply::Error(error), _) => (error.code, error.reason),
        leased => panic!("{leased:?}"),
    }
}

/// No batch is running then, and none may come.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_lost_without_a_batch_ends_the_process_with_code_86() {
    // The failing call fills a worker's new memory with zeros.
    let Some(mut server) = breaking("copy@1=214") else { return };
    server.arm();
    assert_eq!(lease(&server).await, (Code::Internal as i32, "DEVICE".to_owned()));
    let (code, log) = server.ended();
    assert_eq!(code, DEVICE_LOST, "{log}");
    assert!(log.contains("the CUDA device is lost") && log.contains("CUDA_ERROR_ECC_UNCORRECTABLE"), "{log}");
    assert_eq!(server.calls("exit"), 0);
}

/// If the driver refuses a request, the device is not lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_has_no_memory_for_a_worker_goes_on() {
    let Some(server) = breaking("allocate@1=801,allocate@2=2") else { return };
    server.arm();
    assert_eq!(lease(&server).await, (Code::Internal as i32, "DEVICE".to_owned()));
    assert_eq!(lease(&server).await, (Code::ResourceExhausted as i32, "DEVICE_MEMORY".to_owned()));
    // Longer than a lost device may go unnoticed.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut worker = server.worker(config()).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    token(&worker.step(sample_step(&[(1, logits(1, 0))])).await.work[0]);
}

/// Draws from rows, each with a report of `top_n` tokens.
fn reporting<'a>(rows: &'a [Vec<u8>], top_n: u32) -> Vec<RowJob<'a>> {
    let spec = RowSpec {
        logprobs: Some(LogprobsSpec { mode: LogprobsMode::Raw, top_n, tokens: &[] }),
        ..RowSpec::plain(Filters::OFF, Action::Draw { uniform: 1 << 60 })
    };
    rows.iter().map(|row| RowJob { logits: Logits::new(Dtype::F32, row), spec }).collect()
}

/// Not a test: runs in a separate process that finds the driver. Results are written to the host or copied. For each kind, the second
/// launch leaves out a result, so that the first one's is still there.
#[test]
#[ignore = "started by the test below"]
#[allow(clippy::print_stdout)]
fn leave_rows_out() {
    let mut backend = CudaBackend::open_unproved("0", Box::new(CpuBackend::new(1)), 4 << 20).unwrap();
    for top_n in [1, 900] {
        let mut before = None;
        for seed in 0..2 {
            let rows: Vec<_> = (0..12).map(|text| Dtype::F32.encode(&row(text + 100 * seed))).collect();
            let jobs = reporting(&rows, top_n);
            let (got, expected) = (backend.run(&jobs), CpuBackend::new(1).run(&jobs));
            assert!(got == expected, "{top_n} tokens are told, launch {seed}");
            let handed_over: u64 = backend.handed_over().iter_mut().map(|(_, rows)| std::mem::take(rows)).sum();
            assert_eq!(handed_over, seed);
            // Otherwise an old result would not be noticed.
            assert_ne!(before.replace(got), Some(expected));
        }
    }
    println!("left out");
}

fn row(text: u64) -> Vec<f32> {
    (0..32).flat_map(|part| logits(text + 1000 * part, 1)).collect()
}

#[test]
fn a_row_that_a_launch_leaves_out_has_no_result() {
    if !built() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cuda_host::faults::leave_rows_out", "--ignored", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", format!("{FOLDER}/driver")).env("FAKE_CUDA_FAULTS", "leave@2=0,leave@4=0");
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("\nleft out\n"), "{told}");
}
