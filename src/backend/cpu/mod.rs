//! The CPU backend.

use super::{Backend, BackendInfo, RowJob};
use crate::sampling::{row::RowResult, sample_row};

/// Samples on the CPU.
#[derive(Debug)]
pub struct CpuBackend {
    threads: usize,
}

impl CpuBackend {
    /// A backend with `threads` threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { threads }
    }
}

impl Backend for CpuBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo { name: "cpu", device: "specification".to_owned(), parallelism: self.threads }
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        jobs.iter().map(|job| sample_row(&job.logits, &job.spec)).collect()
    }
}
