//! The service as a worker sees it, over real sockets: a server in this process, mostly without the rest of the program ([`support`]).
//! Steps and their results come first, then what they carry, then what may be wrong with them.
//!
//! This program has many files, as have the other test programs: each program links the whole server, which takes longer than most tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, unreachable_pub)] // A test may stop at the first surprise, and has no users.

#[path = "support/call.rs"]
mod call;
#[path = "support/chi_square.rs"]
mod chi_square;
mod common;
#[path = "support/raw.rs"]
mod raw;
mod support;
#[path = "support/work.rs"]
mod work;

mod bad_input;
mod closed_windows;
mod decode;
mod determinism;
mod drafts;
mod grammars;
mod history;
mod infill;
mod likely_ends;
mod limits;
mod masks;
mod memory;
mod metrics;
mod peers;
mod presets;
mod protocol;
mod receive;
#[cfg(target_os = "linux")]
mod regions;
mod repeated;
mod report;
mod sample;
#[cfg(target_os = "linux")]
mod shards;
mod stateful;
mod top_n;
mod unread;
mod watermarks;
