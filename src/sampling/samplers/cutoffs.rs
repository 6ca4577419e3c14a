//! Samplers that keep probabilities from a least one on, as the least mass. That is never above
//! the largest, which stays with its ties.
//!
//! | sampler | least probability | source |
//! |---|---|---|
//! | `top_a` | `a * p_max^2` | KoboldAI; Aphrodite `ops/top_a.py` |
//! | `epsilon_cutoff` | `epsilon` | Hewitt et al. 2022; Transformers `EpsilonLogitsWarper` |
//! | `p_less` | the sum of the squares of all | Tan et al. 2025, "p-less sampling" |
//! | `eta_cutoff` | `min(epsilon, sqrt(epsilon) * exp(-H))`, `H` the entropy | the same; `EtaLogitsWarper` |
//!
//! text-generation-webui and Aphrodite give epsilon and eta in units of 1e-4.

use crate::sampling::mass::MASS_ONE;

/// The least mass of a probability.
#[must_use]
pub fn mass_of(probability: f64, total: u64) -> u64 {
    (probability * total as f64).ceil() as u64
}

/// Of top-a, by the total mass.
#[must_use]
pub fn top_a(a: f32, total: u64) -> u64 {
    let one = MASS_ONE as f64;
    ((f64::from(a) * one * (one / total as f64)).ceil() as u64).min(MASS_ONE)
}

/// Of p-less, by all masses: `ceil(sum of squares / sum)`. Exact.
#[must_use]
pub fn p_less(masses: impl Iterator<Item = u64>) -> u64 {
    let (squares, total) = masses.fold((0u128, 0u128), |(squares, total), mass| {
        let mass = u128::from(mass);
        (squares + mass * mass, total + mass)
    });
    p_less_of(squares, total)
}

/// The same, by the sums of the squares and of the masses.
#[must_use]
pub fn p_less_of(squares: u128, total: u128) -> u64 {
    squares.div_ceil(total) as u64
}

/// Of an epsilon cutoff.
#[must_use]
pub fn epsilon(epsilon: f32, total: u64) -> u64 {
    mass_of(f64::from(epsilon), total).min(MASS_ONE)
}

/// Of eta sampling, by entropy in nats and total mass.
#[must_use]
pub fn eta(epsilon: f32, entropy: f64, total: u64) -> u64 {
    let epsilon = f64::from(epsilon);
    mass_of(epsilon.min(epsilon.sqrt() * libm::exp(-entropy)), total).min(MASS_ONE)
}
