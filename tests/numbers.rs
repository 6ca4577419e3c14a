//! Rows and drafts without a server: the specification has the distributions that the documentation promises, and each fast path (with a
//! GPU, the GPU's too) gives the same bits as the specification.

#![allow(clippy::unwrap_used, unreachable_pub)] // A test may stop at the first surprise, and has no users.
#![allow(clippy::print_stdout)] // What was measured or skipped is worth reading.

#[path = "support/emulator.rs"]
mod build;
mod cases;
#[path = "support/chi_square.rs"]
mod chi_square;
#[path = "support/draft_jobs.rs"]
mod draft_jobs;
#[path = "support/gpu.rs"]
mod gpu;
#[path = "support/open_gpu.rs"]
mod open_gpu;
#[path = "support/rows.rs"]
mod rows;

mod backends;
mod cuts;
mod listed;
mod ngram_model;
mod samplers;
mod speculative;
mod statistics;
mod vectors;
mod verification;
