//! Devices without room, devices that compute something else, and devices that break.

use crate::server::{Server, WHEN_ARMED, field, start};
use crate::support::*;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Exit codes of docs/operations.md.
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
    // Whichever allocation it is; there are so many until the device proves itself.
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

/// What a device does while it proves itself, and what is said then. It is never taken for one that is simply not there.
#[test]
fn a_device_that_cannot_prove_itself_is_not_used() {
    let cases = [
        ("launch@1=700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("launch@20=719", "CUDA_ERROR_LAUNCH_FAILED"),
        ("copy@5=214", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        ("spoil@1=0", "does not compute what it should"),
        ("spoil@3=0", "does not compute what it should"),
    ];
    for (fault, reason) in cases {
        for backend in ["--backend=cuda", "--backend=auto"] {
            let Some((code, log)) = ends(&[backend], &[("FAKE_CUDA_FAULTS", fault)]) else { return };
            assert_eq!(code, START, "{fault}: {log}");
            assert!(log.contains(reason), "{fault}: {log}");
        }
    }
}

/// A server that is ready, on a device which breaks once it is armed.
fn breaking(fault: &str) -> Option<Server> {
    let planted = format!("{WHEN_ARMED}{fault}");
    let mut server = start(&["--backend=cuda"], &[("FAKE_CUDA_FAULTS", &planted)])?;
    assert_eq!(field(&server.ready(), "backend"), "cuda");
    Some(server)
}

/// Two workers at work, and a health watch, when the device breaks at some call.
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
    // It says so before it cuts the connection, or the connection is gone: it never says that it serves.
    while let Ok(Some(state)) = watch.message().await {
        assert_eq!(state.status(), ServingStatus::NotServing);
    }
    let (code, log) = server.ended();
    assert_eq!(code, DEVICE_LOST, "{log}");
    assert!(log.contains("the CUDA device is lost") && log.contains(reason), "{log}");
}

#[tokio::test]
async fn a_kernel_that_fails_ends_the_process_with_code_86() {
    breaks_at("launch@1=700", "CUDA_ERROR_ILLEGAL_ADDRESS").await;
}

#[tokio::test]
async fn a_copy_that_fails_ends_the_process_with_code_86() {
    // The upload of what is sent once it is armed. So small an answer is no copy.
    breaks_at("copy@1=214", "CUDA_ERROR_ECC_UNCORRECTABLE").await;
}
