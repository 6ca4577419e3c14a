//! Skewed sampling (turboderp; ExLlamaV2 `skew`, `ext_sampling.cpp`): draws less likely tokens more often than their
//! probability says, or more likely ones.
//!
//! ExLlamaV2 raises the uniform number `u` to `u^exp(-skew)`, and then draws along the candidates in order of falling
//! probability. That is a draw from other probabilities, `C_i^a - C_(i-1)^a` with `a = exp(skew)` and `C_i` the share
//! of the first `i` candidates. Candidates get these probabilities here, so that logprobs describe what was drawn from,
//! and drafts are verified against it.
//!
//! Where the skew is the last step, a row is drawn from in that very way: the draw takes the first candidate, in order,
//! with which the mass exceeds `u^(1/a)` of the total. So only one power is computed, and no backend has to sort all
//! candidates. What is left of a row beyond a draft, and any row with a step after the skew, is drawn from by token ids
//! like all others.
//!
//! The new logit is `a ln C_i + ln(1 - (1 - m_i / c_i)^a)`, with integer masses `m_i` and sums `c_i`, in f64 and
//! rounded to f32 once; the temperature so far has then been used up. A candidate without mass is removed: no number
//! draws it. Equal candidates stand in order, so the first of two is changed as if it were more likely. 0 is off.
//!
//! Mirostat learns from a token's share of the distribution before the skew, as in ExLlamaV2 (`mirostat_post_cpu`),
//! whose probabilities a skew does not change. Where a step comes after the skew, mirostat learns from what that step
//! leaves.

use crate::sampling::candidates::Candidates;
use crate::sampling::observed::Share;

/// The power that shares are raised to.
#[must_use]
pub fn power(skew: f32) -> f64 {
    libm::exp(f64::from(skew))
}

/// The logit of a candidate of this mass above 0. Together with all before it, it has `up_to` of `total`.
#[must_use]
pub fn logit(power: f64, mass: u64, up_to: u64, total: u64) -> f32 {
    let before = libm::log1p(-(mass as f64 / up_to as f64));
    let own = -libm::expm1(power * before);
    (power * libm::log(up_to as f64 / total as f64) + libm::log(own)) as f32
}

/// The share of the total mass at which a uniform number draws.
#[must_use]
pub fn share(power: f64, uniform: u64) -> f64 {
    libm::pow((uniform as f64 + 0.5) / 18_446_744_073_709_551_616.0, 1.0 / power)
}

/// The point of `total` at which this share draws; always below `total`.
#[must_use]
pub fn point(share: f64, total: u64) -> u64 {
    ((share * total as f64) as u64).min(total - 1)
}

/// Candidates in order, as they were before the skew, to draw along.
#[derive(Debug, Clone, PartialEq)]
pub struct Along {
    power: f64,
    /// Tokens in order, each with the cumulative mass up to and including it.
    tokens: Vec<(u32, u64)>,
}

impl Along {
    /// From tokens in order, each with the cumulative mass up to and including it.
    #[must_use]
    pub fn new(power: f64, tokens: Vec<(u32, u64)>) -> Self {
        Self { power, tokens }
    }

    /// A token's share of their mass.
    #[must_use]
    pub fn share(&self, token: u32) -> Share {
        let total = self.tokens.last().map_or(0, |last| last.1);
        let at = self.tokens.iter().position(|entry| entry.0 == token);
        let before = |at: usize| at.checked_sub(1).map_or(0, |before| self.tokens[before].1);
        Share { mass: at.map_or(0, |at| self.tokens[at].1 - before(at)), total }
    }

    /// The token that a uniform number draws.
    ///
    /// # Panics
    /// If there is no token.
    #[must_use]
    pub fn draw(&self, uniform: u64) -> u32 {
        let total = self.tokens.last().expect("a row has a token; this is a bug").1;
        let point = point(share(self.power, uniform), total);
        self.tokens[self.tokens.partition_point(|&(_, up_to)| up_to <= point)].0
    }
}

/// Gives candidates their new logits.
pub fn apply(left: &mut Candidates, skew: f32) {
    let (power, total) = (power(skew), left.total());
    left.reshape_along(power, |mass, up_to| logit(power, mass, up_to, total));
}
