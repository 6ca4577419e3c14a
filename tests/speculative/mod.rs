//! Speculative verification is exact: what it emits has the target's distribution, tested as a distribution
//! against an f64 reference written from the papers and the parameters' definitions, not from the code under
//! test.
//!
//! Read [`reference`] (the papers), [`world`] (models, workers, rounds of drafting and verifying), [`rounds`] (drafts whose shapes
//! alternate). Then read the proofs: [`lossless`] (chi-square, and that [`planted`] errors are noticed), [`papers`] (decision by decision),
//! [`replay`] (texts that do not change), [`rules`] (rules that are not lossless, stops, bad input), [`stateful`] (chi-square for rows that
//! depend on more than counts of tokens).

mod lossless;
mod papers;
mod planted;
mod reference;
mod replay;
mod rounds;
mod rules;
mod stateful;
mod world;
