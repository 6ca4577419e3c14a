//! Backends: fast implementations of the [specification](crate::sampling), all with the same bits.

// Tokens may not depend on functions that differ from platform to platform: clippy.toml lists them.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cpu;
pub mod cuda;
pub mod device_memory;

pub use crate::sampling::row::RowJob;
pub use crate::speculative::job::{VerifyJob, VerifyResult};
pub use device_memory::DeviceMemory;

use crate::sampling::row::RowResult;
use std::sync::Arc;

/// The thread that brings a batch of at most so many bytes samples it itself, whatever the backend: 40 to 100 us of work. Waking another
/// one takes about as long, in time for the first row and in processor time that others want.
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
    /// What it is.
    fn info(&self) -> BackendInfo;

    /// Results of `jobs`, one per job, in order. A bad row gives its own error and nothing else.
    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult>;

    /// Results of verifying drafts, one per job, in order. A bad target row or draft distribution fails its own
    /// job and nothing else.
    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult>;

    /// Whether any thread may drive it, one at a time.
    fn runs_anywhere(&self) -> bool {
        false
    }

    /// Rows that this backend could not do and handed to another, by reason, since the caller last set them to 0.
    fn handed_over(&mut self) -> &mut [(&'static str, u64)] {
        &mut []
    }

    /// The memory of its device, where workers may have some of it. Asked for once, before the first batch.
    fn device_memory(&self) -> Option<Arc<dyn DeviceMemory>> {
        None
    }
}

/// What a backend panics with when its device is lost: nothing that it would answer could be trusted, so the process
/// ends and is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLost;
