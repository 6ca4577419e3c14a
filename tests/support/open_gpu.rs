//! The machine's GPU, and whether a test may run without one.

use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;

/// More bytes than the tests' rows have.
const ROOM: usize = 64 << 20;

/// Opens a GPU that has proved itself, or returns none if there is none. CROUPIER_TEST_GPU=required demands one.
/// CROUPIER_TEST_GPU=required-clusters also demands kernels with clusters, which a driver that takes only PTX does not run. With
/// CROUPIER_TEST_GPU_PROOF=skip the GPU need not prove itself first, which under a sanitizer would take longer than the tests.
pub(crate) fn open_gpu() -> Option<CudaBackend> {
    let wanted = std::env::var("CROUPIER_TEST_GPU").unwrap_or_default();
    assert!(["", "required", "required-clusters"].contains(&wanted.as_str()), "CROUPIER_TEST_GPU={wanted}");
    let cpu = Box::new(CpuBackend::new(1));
    let skips_proof = std::env::var("CROUPIER_TEST_GPU_PROOF").is_ok_and(|value| value == "skip");
    let opened = if skips_proof { CudaBackend::open_unproved("0", cpu, ROOM) } else { CudaBackend::open("0", cpu) };
    match opened {
        Ok(backend) => {
            let image = backend.image();
            println!("kernels: {image}");
            assert!(wanted != "required-clusters" || image.has_clusters(), "there have to be clusters: {image}");
            Some(backend)
        }
        Err(reason) => {
            println!("SKIPPED cuda: {reason}");
            assert!(wanted.is_empty(), "there has to be a GPU: {reason}");
            None
        }
    }
}
