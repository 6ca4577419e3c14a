//! Backends: fast implementations of the [specification](crate::sampling), all with the same bits.

pub mod cpu;

use crate::sampling::logits::Logits;
use crate::sampling::row::{RowResult, RowSpec};

/// One row to sample or score: its logits and what is asked of it.
#[derive(Debug, Clone, Copy)]
pub struct RowJob<'a> {
    /// The logits, as they arrived.
    pub logits: Logits<'a>,
    /// What is asked.
    pub spec: RowSpec<'a>,
}

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

/// A device that samples batches of rows. Driven by one thread, which it may block.
pub trait Backend: Send {
    /// What it is.
    fn info(&self) -> BackendInfo;

    /// Results of `jobs`, one per job, in order. A bad row gives its own error and nothing else.
    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult>;
}
