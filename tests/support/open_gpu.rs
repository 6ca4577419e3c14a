//! The machine's GPU, and whether a test may go without.

use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;

/// More than the tests' rows.
const ROOM: usize = 64 << 20;

/// A GPU that has proved itself; none if there is none. CROUPIER_TEST_GPU=required says that there has to be one, and
/// =required-clusters that its kernels are those with clusters besides: on a driver that takes only PTX they are not. With
/// CROUPIER_TEST_GPU_PROOF=skip it need not prove itself first, which under a sanitizer would take longer than the tests.
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
