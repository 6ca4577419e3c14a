//! The GPU among the backends that are compared, where there is one.

use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::sampling::row::RowResult;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The machine's GPU, opened once. With CROUPIER_TEST_GPU=required there has to be one.
pub(crate) struct Gpu;

impl Gpu {
    /// None if there is none.
    pub(crate) fn opened() -> Option<MutexGuard<'static, CudaBackend>> {
        static OPENED: OnceLock<Option<Mutex<CudaBackend>>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| match CudaBackend::open("0", Box::new(CpuBackend::new(1))) {
            Ok(backend) => Some(Mutex::new(backend)),
            Err(reason) => {
                println!("SKIPPED cuda: {reason}");
                let required = std::env::var("CROUPIER_TEST_GPU").is_ok_and(|value| value == "required");
                assert!(!required, "there has to be a GPU: {reason}");
                None
            }
        });
        opened.as_ref().map(|backend| backend.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn backend(&self) -> MutexGuard<'static, CudaBackend> {
        Self::opened().expect("it was opened before")
    }
}

impl Backend for Gpu {
    fn info(&self) -> BackendInfo {
        self.backend().info()
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        self.backend().run(jobs)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        self.backend().verify(jobs)
    }
}
