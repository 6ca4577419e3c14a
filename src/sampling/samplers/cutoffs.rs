//! Samplers that keep every probability from a threshold on. The threshold becomes a least mass, which is never above
//! the largest mass: that one stays, with its ties.
//!
//! | sampler | least probability | source |
//! |---|---|---|
//! | `top_a` | `a * p_max^2` | KoboldAI; Aphrodite `ops/top_a.py` |
//! | `epsilon_cutoff` | `epsilon` | Hewitt et al. 2022; Transformers `EpsilonLogitsWarper` |
//! | `p_less` | the sum of the squares of all, `s` | Tan et al. 2025, "p-less sampling" |
//! | `p_less` with `p_less_norm` | `(V s - 1) / (V - 1)`, `V` the candidates | the same, "p-less-norm" |
//! | `eta_cutoff` | `min(epsilon, sqrt(epsilon) * exp(-H))`, `H` the entropy | the same; `EtaLogitsWarper` |
//!
//! text-generation-webui gives epsilon and eta in units of 1e-4.

use crate::sampling::mass::MASS_ONE;

/// The least mass that has this probability.
#[must_use]
pub fn mass_of(probability: f64, total: u64) -> u64 {
    (probability * total as f64).ceil() as u64
}

/// The least mass that top-a keeps, from the total mass.
#[must_use]
pub fn top_a(a: f32, total: u64) -> u64 {
    let one = MASS_ONE as f64;
    ((f64::from(a) * one * (one / total as f64)).ceil() as u64).min(MASS_ONE)
}

/// The sum of the squares of the masses, and the sum of the masses.
fn sums(masses: impl Iterator<Item = u64>) -> (u128, u128) {
    masses.fold((0, 0), |(squares, total), mass| {
        let mass = u128::from(mass);
        (squares + mass * mass, total + mass)
    })
}

/// The least mass that p-less keeps, from all masses: `ceil(sum of squares / sum)`. Exact.
#[must_use]
pub fn p_less(masses: impl Iterator<Item = u64>) -> u64 {
    let (squares, total) = sums(masses);
    p_less_of(squares, total)
}

/// The same, from the sum of the squares and the sum of the masses.
#[must_use]
pub fn p_less_of(squares: u128, total: u128) -> u64 {
    squares.div_ceil(total) as u64
}

/// The least mass that p-less-norm keeps, from all masses, including those that are 0. Exact.
#[must_use]
pub fn p_less_norm(masses: impl ExactSizeIterator<Item = u64>) -> u64 {
    let candidates = masses.len();
    let (squares, total) = sums(masses);
    p_less_norm_of(squares, total, candidates)
}

/// The same, from the sum of the squares, the sum of the masses and the number of candidates. A single candidate stays.
/// So do equal ones, for which the sum of the squares is the least there can be. Squares of a whole vocabulary, times
/// their number, have at most 120 bits.
#[must_use]
pub fn p_less_norm_of(squares: u128, total: u128, candidates: usize) -> u64 {
    let Some(others) = (candidates as u128).checked_sub(1).filter(|&others| others > 0) else { return 0 };
    ((others + 1) * squares - total * total).div_ceil(total * others) as u64
}

/// The least mass that an epsilon cutoff keeps.
#[must_use]
pub fn epsilon(epsilon: f32, total: u64) -> u64 {
    mass_of(f64::from(epsilon), total).min(MASS_ONE)
}

/// The least mass that eta sampling keeps, from the entropy in nats and the total mass.
#[must_use]
pub fn eta(epsilon: f32, entropy: f64, total: u64) -> u64 {
    let epsilon = f64::from(epsilon);
    mass_of(epsilon.min(epsilon.sqrt() * libm::exp(-entropy)), total).min(MASS_ONE)
}
