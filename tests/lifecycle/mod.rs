//! From the first connection to the last: limits on connections, readiness, and the end.

mod admin;
mod calls;
mod connections;
mod end;
mod lasting;
mod start;
