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

use super::mirostat;
use crate::params::{ChainStep, MirostatVersion};
use crate::sampling::chain::Chain;
use crate::sampling::mass::{self, MASS_ONE};
use crate::sampling::row::Filters;

/// What a least mass is computed from: the masses of the candidates that are left. Each is asked for only by the
/// samplers that need it.
pub trait Masses {
    /// The sum of the masses.
    fn total(&self) -> u64;
    /// The entropy in nats, and the sum of the masses.
    fn entropy_and_total(&self) -> (f64, u64);
    /// The sum of the squares of the masses, and the sum of the masses.
    fn squares_and_total(&self) -> (u128, u128);
    /// The number of candidates.
    fn candidates(&self) -> usize;
}

/// The least mass that a step keeps. `None`: the step does not keep masses from one on.
pub fn least_mass(step: &ChainStep, filters: &Filters, chain: &Chain<'_>, left: &impl Masses) -> Option<u64> {
    Some(match *step {
        ChainStep::MinP => mass::min_p_need(filters.min_p),
        ChainStep::MinPAbove => mass::min_p_above(filters.min_p),
        ChainStep::TopA(a) => top_a(a, left.total()),
        ChainStep::EpsilonCutoff(probability) => epsilon(probability, left.total()),
        ChainStep::EtaCutoff(epsilon) => {
            let (entropy, total) = left.entropy_and_total();
            eta(epsilon, entropy, total)
        }
        ChainStep::PLess { norm } => {
            let (squares, total) = left.squares_and_total();
            if norm { p_less_norm(squares, total, left.candidates()) } else { p_less(squares, total) }
        }
        ChainStep::Mirostat { version: MirostatVersion::Two, .. } => {
            chain.state.mirostat_mu.map_or(0, |mu| mirostat::need(mu, left.total()))
        }
        _ => return None,
    })
}

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
pub fn squares(masses: impl Iterator<Item = u64>) -> (u128, u128) {
    masses.fold((0, 0), |(squares, total), mass| {
        let mass = u128::from(mass);
        (squares + mass * mass, total + mass)
    })
}

/// The least mass that p-less keeps, from the sum of the squares of the masses and the sum of the masses:
/// `ceil(squares / total)`. Exact.
#[must_use]
pub fn p_less(squares: u128, total: u128) -> u64 {
    squares.div_ceil(total) as u64
}

/// The least mass that p-less-norm keeps, from the sum of the squares, the sum of the masses and the number of
/// candidates, including those without mass. Exact. A single candidate stays. So do equal ones, for which the sum of the
/// squares is the least there can be. Squares of a whole vocabulary, times their number, have at most 120 bits.
#[must_use]
pub fn p_less_norm(squares: u128, total: u128, candidates: usize) -> u64 {
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
