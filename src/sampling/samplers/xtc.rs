//! Exclude top choices (XTC; p-e-w, text-generation-webui; llama.cpp `llama_sampler_xtc`).
//!
//! At a position, with `probability`: of the candidates with at least `threshold` of the probability all but the last go,
//! those excepted that are protected. With fewer than two such candidates nothing happens, so a threshold above 0.5 is
//! off. Whether it happens at a position is a random number of the sequence's own
//! ([`Purpose::Xtc`](crate::sampling::philox::Purpose::Xtc)), the same for a draft token and for the row that verifies it. 0 is
//! off.

use super::cutoffs;
use crate::sampling::candidates::Candidates;

/// Whether it happens, by a uniform number.
#[must_use]
pub fn happens(probability: f32, uniform: u64) -> bool {
    // 24 bits: all that an f32 below 1 can tell apart, without a rounding.
    ((uniform >> 40) as f32) < probability * 16_777_216.0
}

/// The least mass of a top choice.
#[must_use]
pub fn need(threshold: f32, total: u64) -> u64 {
    cutoffs::mass_of(f64::from(threshold), total)
}

/// Excludes them.
pub fn apply(left: &mut Candidates, threshold: f32, protected: &[u32]) {
    let need = need(threshold, left.total());
    let Some(last) = left.kept().iter().rposition(|w| w.mass >= need) else { return };
    left.remove(|at, w| at < last && w.mass >= need && protected.binary_search(&w.candidate.token).is_err());
}
