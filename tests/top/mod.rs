//! `croupier top`: what it shows of recorded pages, and what it tells of a live server.
//!
//! `pages` were recorded from running servers: `empty` at a start, `load` under `croupier bench` 2 s apart, `drafts` from
//! the example `speculative`, one of whose drafts is broken, 4 s apart. `screens` is what they must look like;
//! `BLESS=1 cargo test --test server top::` writes them anew.

mod live;
mod refused;
mod screens;
