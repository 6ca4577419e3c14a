//! The samplers of a [chain](super::chain), each with its formula, its source and its edges.
//!
//! Each sampler's decision depends on a number computed once for the row (a need, a threshold, a temperature), by a
//! function that the specification and the backends share. How candidates are compared with that number is up to each
//! backend. Masses are integers; reals are f64, and functions that could differ from platform to platform come from the
//! `libm` crate.

pub mod adaptive_p;
pub mod cutoffs;
pub mod infill;
pub mod min_eos_p;
pub mod min_k;
pub mod mirostat;
pub mod skew;
pub mod smoothing;
pub mod tail_free;
pub mod temperature;
pub mod top_h;
pub mod top_n_sigma;
pub mod top_p_decay;
pub mod typical;
pub mod xtc;

#[cfg(test)]
mod tests;
