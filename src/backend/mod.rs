//! Backends: fast implementations of the [specification](crate::sampling). All give the same bits.

// Some functions of the standard library give different results on different platforms, and no token may depend on
// them. clippy.toml lists them.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cpu;
pub mod cuda;
pub mod device_memory;

pub use crate::sampling::row::RowJob;
pub use crate::speculative::job::{VerifyJob, VerifyResult};
pub use device_memory::DeviceMemory;

use crate::sampling::row::RowResult;
use std::sync::Arc;

/// A batch of at most this many bytes is sampled by the thread that brings it, whatever the backend: 40 to 100 us of
/// work. Waking another thread takes about as long, both until the first row is sampled and in processor time that
/// others want.
pub const ALONE_BYTES: usize = 2 << 20;

/// What a backend is, for logs, `GetServerInfo` and the info metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendInfo {
    /// "cpu" or "cuda".
    pub name: &'static str,
    /// Processor or GPU and the instruction set or compute capability chosen, in words.
    pub device: String,
    /// Threads or multiprocessors that sample.
    pub parallelism: usize,
}

/// A device that samples batches of rows. Driven by one thread, which it may block, unless it says that it
/// [runs anywhere](Self::runs_anywhere).
pub trait Backend: Send {
    /// What the backend is.
    fn info(&self) -> BackendInfo;

    /// Results of `jobs`, one per job, in order. A bad row gives its own error and affects no other.
    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult>;

    /// Results of verifying drafts, one per job, in order. A bad target row or draft distribution fails its own job and
    /// no other.
    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult>;

    /// Whether any thread may drive it, one at a time.
    fn runs_anywhere(&self) -> bool {
        false
    }

    /// Rows that this backend could not sample and handed to another backend, by reason, since the caller last set the
    /// counts to 0.
    fn handed_over(&mut self) -> &mut [(&'static str, u64)] {
        &mut []
    }

    /// The memory of its device, if workers may have some of it. Called once, before the first batch.
    fn device_memory(&self) -> Option<Arc<dyn DeviceMemory>> {
        None
    }
}

/// What a backend panics with when its device is lost. No later answer could be trusted, so the process ends and is
/// started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLost;
