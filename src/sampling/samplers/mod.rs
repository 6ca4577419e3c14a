//! The samplers of a [chain](super::chain), each with its formula, its source and its edges.
//!
//! What decides is a number made once for the row (a need, a threshold, a temperature), by a function that the
//! specification and the backends share; how candidates are compared with it is each backend's own way. Masses are
//! integers; reals are f64, through the `libm` crate where a function could differ from platform to platform.

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
