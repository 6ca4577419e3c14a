//! Marks: text without one is not found, text with one is, and text is none the worse for those that say so.
//!
//! Seeds and keys are fixed, so a run is repeatable; each test says how often it would raise a false alarm had they been random.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../support/chi_square.rs"]
mod chi_square;
#[path = "../support/mod.rs"]
mod support;

mod detection;
mod quality;
mod texts;
mod wire;
#[allow(dead_code, unreachable_pub)] // Written for the tests of drafts.
#[path = "../drafts/work.rs"]
mod work;
