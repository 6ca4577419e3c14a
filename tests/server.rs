//! The program as its operator sees it: its commands, its configuration, its start and its end, TLS, traces.

#![allow(clippy::unwrap_used, unreachable_pub)] // A test may stop at the first surprise, and has no users.

mod common;

mod bench;
mod configuration;
mod descriptors;
mod drain;
mod inject;
mod lifecycle;
mod parameters;
mod process;
mod recovery;
mod tls;
mod top;
mod traces;
