//! Tools that work on a text's history, over real sockets: what they do, that they do the same in every kind of work,
//! and what they refuse.

#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code)] // Written for the tests of drafts.
#[path = "../drafts/work.rs"]
mod work;

mod defaults;
mod effects;
mod everywhere;
mod mistakes;
mod tools;
