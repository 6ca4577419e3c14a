//! Speculative verification is exact: what it emits has the target's distribution, tested as a distribution
//! against an f64 reference written from the papers and the parameters' definitions, not from the code under
//! test.
//!
//! Read [`reference`] (the papers), [`world`] (models, workers, rounds of drafting and verifying), [`rounds`] (of
//! drafts whose shapes alternate), then the proofs: [`lossless`] (chi-square, and that [`planted`] errors are seen),
//! [`papers`] (decision by decision), [`replay`] (texts that do not change), [`rules`] (those that are not lossless, stops, bad input),
//! [`stateful`] (chi-square where rows depend on more than counts of tokens).

mod lossless;
mod papers;
mod planted;
mod reference;
mod replay;
mod rounds;
mod rules;
mod stateful;
mod world;
