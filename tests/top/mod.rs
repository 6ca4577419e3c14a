//! `croupier top`: its screens for recorded pages, and its numbers for a live server.
//!
//! `pages` were recorded from running servers: `empty` at a start, `load` under `croupier bench` 2 s apart, `drafts` from the example
//! `speculative`, one of whose drafts is broken, 4 s apart. `screens` are the expected screens. `BLESS=1 cargo test --test server top::`
//! writes them again.

mod live;
mod refused;
mod screens;
