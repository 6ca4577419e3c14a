//! The GPU as one of the compared backends, if there is one.

use croupier::backend::cuda::CudaBackend;
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::sampling::row::RowResult;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The machine's GPU, opened once.
pub(crate) struct Gpu;

impl Gpu {
    /// None if there is no GPU.
    pub(crate) fn opened() -> Option<MutexGuard<'static, CudaBackend>> {
        static OPENED: OnceLock<Option<Mutex<CudaBackend>>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| crate::open_gpu::open_gpu().map(Mutex::new));
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
