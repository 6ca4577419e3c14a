//! What a worker sees of the service, over real sockets: a server in this process, most often without the rest of the program
//! ([`support`]). Steps and their results first, then what they carry, then what may be wrong with them.
//!
//! One program of many files, as are the others beside it: each links all of the server, which takes longer than most tests.

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
