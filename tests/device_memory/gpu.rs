//! The same on a GPU, with two processes: the server, and a worker that maps a region with the driver and writes it on the device. Without
//! a GPU the test is skipped with a message, unless CROUPIER_TEST_GPU requires one.

use super::*;
use crate::open_gpu::open_gpu;
use cudarc::driver::{result, sys};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

const SOCKET: &str = "CROUPIER_TEST_GPU_SOCKET";
const DEVICE: &str = "CROUPIER_TEST_GPU_UUID";
/// If set, the worker lends memory of its second GPU.
const ELSEWHERE: &str = "CROUPIER_TEST_GPU_ELSEWHERE";
const COUNT: u64 = 20;

/// A region, mapped on the device.
struct OnDevice {
    at: sys::CUdeviceptr,
    bytes: usize,
}

impl OnDevice {
    /// Maps the memory behind a descriptor, in the context of a GPU.
    fn map(descriptor: &OwnedFd, bytes: usize, uuid: &str) -> Self {
        result::init().unwrap();
        let devices = (0..result::device::get_count().unwrap()).map(|index| result::device::get(index).unwrap());
        let digits = |text: &str| text.bytes().filter(u8::is_ascii_hexdigit).map(char::from).collect::<String>();
        let hex = |device| {
            let mut own = sys::CUuuid { bytes: [0; 16] };
            // SAFETY: the device came from the driver, which writes a UUID there.
            unsafe { sys::cuDeviceGetUuid_v2(&raw mut own, device) }.result().unwrap();
            own.bytes.map(|b| format!("{:02x}", b as u8)).concat()
        };
        let wanted = digits(uuid.strip_prefix("GPU-").or_else(|| uuid.strip_prefix("MIG-")).unwrap());
        let device = devices.into_iter().find(|&device| hex(device) == wanted).expect("the GPU is seen here");
        let mut mapped = Self { at: 0, bytes };
        // SAFETY: these are the driver's documented calls for memory of another process; what they write to lives.
        unsafe {
            result::ctx::set_current(result::primary_ctx::retain(device).unwrap()).unwrap();
            let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            let (mut handle, number) = (0, descriptor.as_raw_fd() as usize as *mut std::ffi::c_void);
            sys::cuMemImportFromShareableHandle(&raw mut handle, number, kind).result().unwrap();
            sys::cuMemAddressReserve(&raw mut mapped.at, bytes, 0, 0, 0).result().unwrap();
            sys::cuMemMap(mapped.at, bytes, 0, handle, 0).result().unwrap();
            let mut access: sys::CUmemAccessDesc = std::mem::zeroed();
            access.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            access.location.id = device;
            access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            sys::cuMemSetAccess(mapped.at, bytes, &raw const access, 1).result().unwrap();
            sys::cuMemRelease(handle).result().unwrap();
        }
        mapped
    }

    /// The worker's own memory, as from cudaMalloc, and its legacy handle.
    fn own(bytes: usize) -> (Self, Vec<u8>) {
        // SAFETY: plain data, for which zeros are a value.
        let mut handle: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
        // SAFETY: the context is current; what the driver writes to lives.
        let at = unsafe {
            let at = result::malloc_sync(bytes).unwrap();
            sys::cuIpcGetMemHandle(&raw mut handle, at).result().unwrap();
            at
        };
        (Self { at, bytes }, handle.reserved.iter().map(|byte| *byte as u8).collect())
    }

    /// Writes, and waits until the bytes are there.
    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: the range lies in the mapping.
        unsafe { result::memcpy_htod_sync(self.at + offset as u64, bytes).unwrap() };
        result::ctx::synchronize().unwrap();
    }
}

/// Parameters for the kernels, parameters for the CPU, and a chain that one begins and the other ends.
fn roads() -> [SamplingParams; 4] {
    [
        SamplingParams { top_p: Some(0.9), ..seeded(5) },
        SamplingParams { temperature: Some(0.0), ..seeded(5) },
        SamplingParams { typical_p: Some(0.5), ..seeded(5) },
        SamplingParams { engine_order: EngineOrder::LlamaCpp.into(), top_k: Some(5), min_p: Some(0.01), ..seeded(5) },
    ]
}

/// The tokens that the draft model knows, in no order.
fn known() -> Vec<u32> {
    (0..VOCAB).filter(|token| token % 3 != 1).map(|token| (token * 7 + 20) % VOCAB).collect()
}

fn drafting() -> StreamConfig {
    StreamConfig { draft_vocabulary: known(), ..config() }
}

/// All tokens of those texts, and a draft token before each. `place` returns the logits of a step, with one row for all
/// texts, of the whole vocabulary or of the draft model's.
async fn texts(worker: &mut Worker, first: u64, mut place: impl FnMut(&[f32]) -> Option<step::Logits>) -> Vec<u32> {
    let opens = (first..).zip(roads()).map(|(id, params)| open(id, params)).collect();
    worker.step(open_step(opens)).await;
    let mut tokens = Vec::new();
    for position in 0..COUNT {
        let verify = VerifyWork {
            draft_token_ids: vec![],
            draft_distribution: Some(verify_work::DraftDistribution::Deterministic(DeterministicDraft {})),
            ..Default::default()
        };
        let mut work: Vec<Work> =
            (first..first + roads().len() as u64).map(|id| Work { first_row: Some(0), ..sample_work(id) }).collect();
        if position % 2 == 1 {
            work[0].kind = Some(work::Kind::Verify(verify));
        }
        let row = logits(5, position);
        let draft = DraftWork { restart: true, ..Default::default() };
        let drafts = work.iter().map(|work| Work { kind: Some(work::Kind::Draft(draft)), ..work.clone() }).collect();
        let of_draft: Vec<f32> = known().iter().map(|&token| row[token as usize]).collect();
        for (work, row) in [(drafts, of_draft), (work, row)] {
            let logits = place(&row);
            let result = worker.step(Step { work, logits, ..Default::default() }).await;
            tokens.extend(result.work.iter().map(token));
        }
    }
    tokens
}

/// Not a test: the worker process.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test below"]
async fn worker_process() {
    let (Ok(socket), Ok(uuid)) = (std::env::var(SOCKET), std::env::var(DEVICE)) else { return };
    let channel = tonic::transport::Endpoint::from_shared(format!("unix://{socket}")).unwrap().connect().await.unwrap();
    let (mut worker, offer) = Worker::over(channel).await.unwrap().with_regions(drafting()).await;
    let mut side = SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap();
    let (Reply::Leased(lease), descriptors) = blocking(|| side.ask(on(&uuid, REGION)).unwrap()) else { panic!() };
    let region = OnDevice::map(&descriptors[0], lease.bytes as usize, &uuid);
    let mut position = 0u64;
    let tokens = texts(&mut worker, 1, |row| {
        // Two slots in turn, at odd offsets.
        let offset = 4 + (position % 2) * 4000;
        position += 1;
        region.write(offset as usize, &bytes(row));
        at(&lease, offset, 1)
    });
    println!("\ntokens {:?}", tokens.await);
    if std::env::var(ELSEWHERE).is_ok() {
        let second = result::device::get(1).unwrap();
        // SAFETY: the device came from the driver, and its context is kept.
        unsafe { result::ctx::set_current(result::primary_ctx::retain(second).unwrap()).unwrap() };
    }
    let (own, ipc_handle) = OnDevice::own(1 << 16);
    let request = Request::Lend(LendRegion { uuid, ipc_handle, offset: 256, bytes: 10_000 });
    let loan = match blocking(|| side.ask(request).unwrap()) {
        (Reply::Leased(loan), _) => loan,
        (Reply::Error(error), _) => {
            println!("refused {} {}", error.reason, error.field);
            park()
        }
        (other, _) => panic!("{other:?}"),
    };
    let tokens = texts(&mut worker, 11, |row| {
        own.write(256, &bytes(row));
        at(&loan, 0, 1)
    });
    println!("tokens {:?}", tokens.await);
    blocking(|| side.release(&loan).unwrap());
    // SAFETY: the server has let go of it.
    unsafe { result::free_sync(own.at).unwrap() };
    println!("freed");
    park()
}

/// Waits until the server's process ends this one.
fn park() -> ! {
    loop {
        std::thread::park();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_rows_on_a_gpu_are_those_of_inline_rows() {
    let Some(backend) = open_gpu() else { return };
    let server = TestServer::with(Transport::Unix, Limits::default(), Box::new(backend)).await;
    let info = server.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert!(info.data_paths.iter().any(|path| path == "device_memory"), "{info:?}");
    let mut inline_worker = server.worker_with(drafting()).await;
    let expected = texts(&mut inline_worker, 1, |row| inline(&[row.to_vec()])).await;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "device_memory::gpu::worker_process", "--ignored", "--nocapture"]);
    command.env(SOCKET, server.socket()).env(DEVICE, &info.device_uuid).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let got: Vec<String> = blocking(|| {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut told = Vec::new();
        for line in lines.filter(|line| ["tokens ", "freed", "refused "].iter().any(|word| line.starts_with(word))) {
            told.push(line);
            if !told[told.len() - 1].starts_with("tokens ") {
                break;
            }
        }
        told
    });
    let tokens = format!("tokens {expected:?}");
    if std::env::var(ELSEWHERE).is_ok() {
        assert_eq!(got, [tokens.as_str(), "refused WRONG_DEVICE lend.ipc_handle"]);
    } else {
        assert_eq!(got, [tokens.as_str(), &tokens, "freed"], "in a leased region, and in a buffer that was lent");
    }
    assert!(server.series(DEVICE_BYTES) > 0.0);
    child.kill().unwrap();
    child.wait().unwrap();
    server.expect_series(DEVICE_BYTES, 0.0).await;
    server.expect_series("croupier_regions", 0.0).await;
}

/// Runs that test on a driver without a GPU that runs the kernels on the CPU (tests/cuda_driver). Clusters are required.
fn on_a_driver_without_a_gpu(settings: &[(&str, &str)]) -> Option<(bool, String)> {
    crate::build::built().then(|| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "device_memory::gpu::tokens_of_rows_on_a_gpu_are_those_of_inline_rows",
            "--nocapture",
        ]);
        command.env("LD_LIBRARY_PATH", format!("{}/driver", crate::build::FOLDER)).envs(settings.iter().copied());
        command.env("CROUPIER_TEST_GPU", "required-clusters");
        let output =
            command.env("FAKE_CUDA_ANSWERS", format!("{}/driver/answers", crate::build::FOLDER)).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.success(), told.into_owned())
    })
}

#[test]
fn so_are_they_on_a_driver_without_a_gpu() {
    let slice = "9.0,Slice,11110000000000000000000000000001,c0ffee000000000000000000000000ff";
    let settings: [&[(&str, &str)]; 4] = [
        &[],
        // On a slice of a card, which has its own UUID.
        &[("FAKE_CUDA_DEVICES", slice)],
        // The first attempt to ask where another process's allocation ends fails.
        &[("FAKE_CUDA_FAULTS", "range@1=1")],
        &[("FAKE_CUDA_FAULTS", "range@1=500")],
    ];
    for settings in settings {
        let Some((is_well, told)) = on_a_driver_without_a_gpu(settings) else { return };
        assert!(is_well && told.contains("1 passed") && told.contains("9.0, with clusters"), "{settings:?}: {told}");
    }
}

/// The driver opens this memory, because one card can reach the memory of another.
#[test]
fn memory_of_another_gpu_is_refused_on_a_driver_without_a_gpu() {
    let Some((is_well, told)) = on_a_driver_without_a_gpu(&[("FAKE_CUDA_DEVICES", "9.0;9.0"), (ELSEWHERE, "1")]) else {
        return;
    };
    assert!(is_well && told.contains("1 passed"), "{told}");
}

#[test]
fn a_buffer_whose_end_nobody_tells_is_refused_on_a_driver_without_a_gpu() {
    let Some((is_well, told)) = on_a_driver_without_a_gpu(&[("FAKE_CUDA_FAULTS", "range@1=999")]) else { return };
    assert!(!is_well && told.contains("refused DEVICE"), "{told}");
}

/// Tests that did not run must not look as if they had.
#[test]
fn kernels_without_clusters_are_not_those_that_were_required() {
    let Some((is_well, told)) =
        on_a_driver_without_a_gpu(&[("FAKE_CUDA_VERSION", "12020"), ("FAKE_CUDA_DEVICES", "8.0")])
    else {
        return;
    };
    assert!(!is_well && told.contains("there have to be clusters: PTX, without clusters"), "{told}");
    assert!(told.contains("CUDA_ERROR_NO_BINARY_FOR_GPU"), "{told}");
}
