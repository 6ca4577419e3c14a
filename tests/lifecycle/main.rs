//! From the first connection to the last: limits on connections, readiness, and the end.

#[path = "../common/mod.rs"]
mod common;

mod admin;
mod calls;
mod connections;
mod end;
mod lasting;
mod start;
