//! Random parameters and messages over real sockets. This is a program of its own, because it counts panics and other tests plant some.

#![allow(clippy::unwrap_used, clippy::print_stdout, unreachable_pub)] // A test may stop at the first surprise, and has no users.

#[path = "support/draft_jobs.rs"]
mod draft_jobs;
#[path = "support/raw.rs"]
mod raw;
#[path = "support/rows.rs"]
mod rows;
mod support;

#[cfg(target_os = "linux")]
mod mutations;
mod whole;
