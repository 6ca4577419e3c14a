//! Speculative verification is exact: what it emits has the target's distribution, tested as a distribution
//! against an f64 reference written from the papers and the parameters' definitions, not from the code under
//! test.
//!
//! Read [`reference`] (the papers), [`world`] (models, workers, rounds of drafting and verifying), [`rounds`] (of
//! drafts whose shapes alternate), then the proofs: [`lossless`] (chi-square, and that [`planted`] errors are seen),
//! [`papers`] (decision by decision), [`replay`] (texts that do not change), [`rules`] (those that are not lossless, stops, bad input),
//! [`stateful`] (chi-square where rows depend on more than counts of tokens).

#![allow(clippy::print_stdout)] // what was measured is worth reading
#![allow(clippy::unwrap_used, unreachable_pub)] // a test program may stop at the first surprise, and has no users

#[path = "../support/chi_square.rs"]
mod chi_square;
mod lossless;
mod papers;
mod planted;
mod reference;
mod replay;
mod rounds;
mod rules;
mod stateful;
mod world;
