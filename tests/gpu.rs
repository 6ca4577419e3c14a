//! Tests of the CUDA backend without a GPU: its kernels in an emulator, its host code on a CUDA driver that runs them there, and
//! device memory that is shared with workers. Where there is a GPU, `device_memory` runs on it, too.

#![allow(clippy::unwrap_used, unreachable_pub)] // A test may stop at the first surprise, and has no users.
#![allow(clippy::print_stdout, clippy::print_stderr)] // What was measured or skipped is worth reading.

#[path = "support/emulator.rs"]
mod build;
mod cases;
#[path = "support/draft_jobs.rs"]
mod draft_jobs;
#[path = "support/open_gpu.rs"]
mod open_gpu;
#[path = "support/rows.rs"]
mod rows;
mod support;

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod cuda_host;
#[cfg(target_os = "linux")]
mod device_memory;
mod emulator;
