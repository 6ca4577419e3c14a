//! Which device is used, when none is, and what the server reports about it.

use crate::build::{FOLDER, built};
use crate::cuda_host::server::{field, start};
use crate::support::*;
use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;
use croupier::proto::GetServerInfoRequest;
use croupier::proto::sampler_client::SamplerClient;

const TWO: (&str, &str) =
    ("FAKE_CUDA_DEVICES", "9.0,First,0a0b0c0d0000000000000000000000ff;8.6,Second,deadbeef1234123412340123456789ab");
const FIRST: &str = "First (9.0, GPU-0a0b0c0d-0000-0000-0000-0000000000ff)";
const SECOND: &str = "Second (8.6, GPU-deadbeef-1234-1234-1234-0123456789ab)";

#[tokio::test]
async fn auto_takes_the_gpu_and_says_so_once_it_has_proved_itself() {
    let Some(mut server) = start(&["--backend=auto"], &[TWO]) else { return };
    let ready = server.ready();
    assert_eq!((field(&ready, "backend"), field(&ready, "device")), ("cuda".to_owned(), FIRST.to_owned()));
    // All work that warms up the device is done by now.
    let launches = server.calls("cuLaunchKernelEx");
    assert!(launches > 100, "{launches}");
    assert!(server.log().contains("machine code for compute capability 9.0, with clusters"), "{}", server.log());
    // Each of six kernels gets room in shared memory, and the three that weigh prefer all of it.
    assert_eq!(server.calls("cuFuncSetAttribute"), 9);
    let build = server.page("/metrics").await;
    let build = build.lines().find(|line| line.starts_with("croupier_build_info{")).unwrap().to_owned();
    assert!(build.contains("backend=\"cuda\"") && build.contains(FIRST), "{build}");
    let mut client = SamplerClient::new(server.channel().await);
    let info = client.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.backend.as_str(), info.device.as_str()), ("cuda", FIRST));
    assert_eq!(server.calls("cuLaunchKernelEx"), launches);

    // The device samples.
    let mut worker = server.worker(config()).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    token(&worker.step(sample_step(&[(1, logits(1, 0))])).await.work[0]);
    assert_eq!(server.calls("cuLaunchKernelEx"), launches + 1);
}

#[test]
fn a_device_is_found_by_its_uuid() {
    let Some(mut server) = start(&["--backend=cuda", "--device=GPU-DEADBEEF-1234-1234-1234-0123456789AB"], &[TWO])
    else {
        return;
    };
    assert_eq!(field(&server.ready(), "device"), SECOND);
}

/// Two slices of one card. The card's own UUID identifies neither.
const SLICES: (&str, &str) = (
    "FAKE_CUDA_DEVICES",
    "9.0,Slice,11110000000000000000000000000001,c0ffee000000000000000000000000ff;\
     9.0,Slice,22220000000000000000000000000002,c0ffee000000000000000000000000ff",
);
const SLICE: &str = "Slice (9.0, MIG-22220000-0000-0000-0000-000000000002)";

#[test]
fn a_slice_of_a_card_is_found_by_its_own_uuid() {
    for uuid in ["MIG-22220000-0000-0000-0000-000000000002", "GPU-22220000-0000-0000-0000-000000000002"] {
        let Some(mut server) = start(&["--backend=cuda", &format!("--device={uuid}")], &[SLICES]) else { return };
        assert_eq!(field(&server.ready(), "device"), SLICE);
    }
    let first = "0: Slice (9.0, MIG-11110000-0000-0000-0000-000000000001)";
    let card = "GPU-c0ffee00-0000-0000-0000-0000000000ff";
    let named = format!("there is no device {card}");
    refused(&[&format!("--device={card}")], &[SLICES], &[&named, first, &format!("1: {SLICE}")]);
}

/// `--backend=cuda` refuses to start; with `auto` the CPU samples, and the reason is reported.
fn refused(flags: &[&str], driver: &[(&str, &str)], reasons: &[&str]) {
    let cuda = [&["--backend=cuda"], flags].concat();
    let Some(mut server) = start(&cuda, driver) else { return };
    let (code, log) = server.ended();
    assert_eq!(code, 1, "{log}");
    reasons.iter().for_each(|reason| assert!(log.contains(reason), "{reason} is missing in:\n{log}"));
    assert!(!server.socket().exists());

    let mut server = start(&[&["--backend=auto"], flags].concat(), driver).unwrap();
    assert_eq!(field(&server.ready(), "backend"), "cpu");
    let log = server.log();
    reasons.iter().for_each(|reason| assert!(log.contains(reason), "{reason} is missing in:\n{log}"));
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    let list = [format!("0: {FIRST}"), format!("1: {SECOND}")];
    for device in ["2", "7", "GPU-deadbeef-1234-1234-1234-0123456789ac"] {
        let flag = format!("--device={device}");
        let named = format!("there is no device {device}");
        refused(&[&flag], &[TWO], &[&named, &list[0], &list[1]]);
    }
}

/// Which kernels run, by the driver's CUDA version and the compute capability.
#[test]
fn a_driver_gets_the_best_image_that_it_takes() {
    let hopper = "machine code of CUDA 12.2 for compute capability 9.0, with clusters, because the driver refuses";
    let cases = [
        ("13000", "9.0", "machine code for compute capability 9.0, with clusters"),
        ("12090", "9.0", hopper),
        ("12020", "9.0", hopper),
        ("13000", "8.6", "machine code for compute capability 8.6, without clusters"),
        ("12020", "8.0", "PTX, without clusters, because the driver refuses the machine code"),
        ("13000", "10.0", "machine code for compute capability 10.0, with clusters"),
        ("12080", "10.0", "PTX, without clusters, because the driver refuses the machine code"),
        ("13000", "12.0", "PTX, without clusters, because the driver refuses the machine code"),
    ];
    for (version, capability, image) in cases {
        let driver = [
            ("FAKE_CUDA_VERSION", version),
            ("FAKE_CUDA_DEVICES", capability),
            // The image was chosen before this fault.
            ("FAKE_CUDA_FAULTS", "launch@1=700"),
        ];
        let Some(mut server) = start(&["--backend=cuda"], &driver) else { return };
        let (_, log) = server.ended();
        assert!(log.contains(image), "CUDA {version}, {capability}: {image} is missing in:\n{log}");
        let is_slower = log.contains("slower than this GPU allows");
        assert_eq!(is_slower, image.starts_with("PTX") && !capability.starts_with('8'), "{log}");
        // The driver checks that blocks can meet as the launch says: a launch that it refuses fails with another error.
        assert!(log.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{log}");
    }
}

/// A driver that loads lazily does this.
#[test]
fn an_image_that_is_refused_only_when_it_is_asked_for_kernels_is_not_the_last() {
    let hopper = "machine code of CUDA 12.2 for compute capability 9.0, with clusters, because the driver refuses";
    let cases = [
        ("function@1=209", "9.0", hopper, 1),
        // The last kernel of the first image.
        ("function@6=209", "9.0", hopper, 1),
        (
            "function@1=209,function@2=200",
            "9.0",
            "PTX, without clusters, because the driver refuses the machine code",
            2,
        ),
        ("function@1=209", "8.0", "PTX, without clusters, because the driver refuses the machine code", 1),
    ];
    for (fault, capability, image, unloaded) in cases {
        let faults = format!("{fault},launch@1=700");
        let driver = [("FAKE_CUDA_FAULTS", faults.as_str()), ("FAKE_CUDA_DEVICES", capability)];
        let Some(mut server) = start(&["--backend=cuda"], &driver) else { return };
        let (_, log) = server.ended();
        assert!(log.contains(image), "{fault}, {capability}: {image} is missing in:\n{log}");
        assert!(log.contains("CUDA_ERROR_NO_BINARY_FOR_GPU") || log.contains("CUDA_ERROR_INVALID_IMAGE"), "{log}");
        assert!(log.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{log}");
        assert_eq!(server.calls("cuModuleUnload"), unloaded);
    }
    // If there is no memory now, there is none for another image either.
    let (code, log) = start(&["--backend=cuda"], &[("FAKE_CUDA_FAULTS", "function@1=2")]).unwrap().ended();
    assert!(code == 88 && log.contains("out of memory"), "{code}: {log}");
}

#[test]
fn a_driver_that_is_too_old_is_refused() {
    refused(&[], &[("FAKE_CUDA_VERSION", "12010")], &["the driver supports CUDA 12.1", "12.2 (R535)"]);
}

#[test]
fn a_device_that_is_too_old_is_refused() {
    let reasons = ["Fake GPU 0 (7.5, GPU-", "is too old; compute capability 8.0"];
    refused(&[], &[("FAKE_CUDA_DEVICES", "7.5")], &reasons);
}

#[test]
fn a_driver_that_does_not_start_is_refused() {
    // There may be a GPU, so `auto` warns. (If the driver has no text for a code, the code is reported by its name.)
    let level = "\"level\":\"WARN\"";
    for (fault, name) in [
        ("init@1=802", "CUDA_ERROR_SYSTEM_NOT_READY"),
        ("init@1=803", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        ("init@1=999", "CUDA_ERROR_UNKNOWN"),
        ("init@1=46", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ] {
        refused(&[], &[("FAKE_CUDA_FAULTS", fault)], &["the CUDA driver does not start", name]);
        let Some(mut server) = start(&["--backend=auto"], &[("FAKE_CUDA_FAULTS", fault)]) else { return };
        server.ready();
        let warned = |line: &str| line.contains(level) && line.contains(name) && line.contains("there may be a GPU");
        assert!(server.log().lines().any(warned), "{}", server.log());
    }
    let none = [
        ("FAKE_CUDA_DEVICES", "", "CUDA_ERROR_NO_DEVICE"),
        ("FAKE_CUDA_FAULTS", "init@1=34", "CUDA_ERROR_STUB_LIBRARY"),
    ];
    for (name, value, reason) in none {
        refused(&[], &[(name, value)], &["no CUDA device", reason]);
        let mut server = start(&["--backend=auto"], &[(name, value)]).unwrap();
        server.ready();
        assert!(!server.log().contains(level), "{}", server.log());
    }
}

/// Not a test: runs in a separate process that finds the driver.
#[test]
#[ignore = "started by the test below"]
#[allow(clippy::print_stdout)]
fn does_not_open() {
    let reason = CudaBackend::open_unproved("0", Box::new(CpuBackend::new(1)), 1 << 20).unwrap_err();
    println!("\nabsent: {} ({reason})", reason.is_absence());
}

/// A bench relies on this: it succeeds if there is nothing to measure.
#[test]
fn a_driver_that_does_not_start_is_not_taken_for_none() {
    let absent = |faults: &str| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "cuda_host::choice::does_not_open", "--ignored", "--nocapture"])
            .env("FAKE_CUDA_FAULTS", faults);
        let output = command.env("LD_LIBRARY_PATH", format!("{FOLDER}/driver")).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    if built() {
        for (fault, is_absent) in
            [("init@1=100", true), ("init@1=34", true), ("init@1=802", false), ("init@1=3", false)]
        {
            let told = absent(fault);
            assert!(told.contains(&format!("\nabsent: {is_absent} (")), "{fault}: {told}");
        }
    }
}
