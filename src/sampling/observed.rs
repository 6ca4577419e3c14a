//! What samplers learn from a token: how likely it was, as integers.

use super::samplers::{adaptive_p, mirostat};
use crate::params::Step;
use crate::params::state::SamplerState;

/// A token's part of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Its mass.
    pub mass: u64,
    /// That of all tokens.
    pub total: u64,
}

/// A distribution as a sampler in the middle of a chain saw it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Tokens and masses, ascending ids.
    pub masses: Vec<(u32, u64)>,
    /// The sum of all masses.
    pub total: u64,
}

impl Seen {
    /// A token's part of it.
    #[must_use]
    pub fn share(&self, token: u32) -> Share {
        let mass = self.masses.binary_search_by_key(&token, |entry| entry.0).map_or(0, |at| self.masses[at].1);
        Share { mass, total: self.total }
    }
}

/// What a token had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// In what it was drawn from.
    pub drawn: Share,
    /// In what adaptive-p saw; as `drawn` where that is off.
    pub seen: Share,
}

/// What samplers remember once they know this token.
#[must_use]
pub fn learned(state: SamplerState, steps: &[Step], token: Observed) -> SamplerState {
    let mut next = state;
    for step in steps {
        match *step {
            Step::MirostatV1 { tau, eta } | Step::MirostatV2 { tau, eta } => {
                next.mirostat_mu = state.mirostat_mu.map(|mu| mirostat::learned(mu, tau, eta, token.drawn));
            }
            Step::AdaptiveP { decay, .. } => {
                next.adaptive = state.adaptive.map(|average| adaptive_p::learned(average, decay, token.seen));
            }
            _ => {}
        }
    }
    next
}
