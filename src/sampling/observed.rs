//! What samplers learn from a token: how likely it was, as integers.

use super::samplers::{adaptive_p, mirostat};
use crate::params::ChainStep;
use crate::params::state::SamplerState;

/// A token's share of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The token's mass.
    pub mass: u64,
    /// The mass of all tokens.
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
    /// A token's share of it.
    #[must_use]
    pub fn share(&self, token: u32) -> Share {
        let mass = self.masses.binary_search_by_key(&token, |entry| entry.0).map_or(0, |at| self.masses[at].1);
        Share { mass, total: self.total }
    }
}

/// A token's shares of the distributions that samplers learn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Its share of the distribution it was drawn from. Where a [skew](super::samplers::skew) is the last step: of the
    /// one before the skew.
    pub drawn: Share,
    /// Its share of the distribution that adaptive-p saw; the same as `drawn` where adaptive-p is off.
    pub seen: Share,
}

/// The samplers' state once this token is known.
#[must_use]
pub fn learned(state: SamplerState, steps: &[ChainStep], token: Observed) -> SamplerState {
    let mut next = state;
    for step in steps {
        match *step {
            ChainStep::Mirostat { tau, eta, .. } => {
                next.mirostat_mu = state.mirostat_mu.map(|mu| mirostat::learned(mu, tau, eta, token.drawn));
            }
            ChainStep::AdaptiveP { decay, .. } => {
                next.adaptive = state.adaptive.map(|average| adaptive_p::learned(average, decay, token.seen));
            }
            _ => {}
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::MirostatVersion;
    use crate::params::state::Average;

    /// Mirostat learns from the distribution of the draw, adaptive-p from the probabilities before it.
    #[test]
    fn each_sampler_learns_from_a_share_of_its_own() {
        let state = |mu, sum| SamplerState { mirostat_mu: Some(mu), adaptive: Some(Average { sum, weight: 2.0 }) };
        let steps = [
            ChainStep::AdaptiveP { target: 0.5, decay: 0.5 },
            ChainStep::Mirostat { version: MirostatVersion::Two, tau: 5.0, eta: 0.5 },
        ];
        let token = Observed { drawn: Share { mass: 1, total: 8 }, seen: Share { mass: 1, total: 4 } };
        // A surprise of 3 bits is 2 below tau. A quarter is added to half of the previous sum.
        assert_eq!(learned(state(10.0, 1.0), &steps, token), state(11.0, 0.75));
    }
}
