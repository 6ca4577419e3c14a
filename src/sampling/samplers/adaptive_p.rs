//! Adaptive-p (MrJackSpade; llama.cpp `llama_sampler_adaptive_p`): favours tokens whose probability is near a target.
//! The target is adapted to make up for the probabilities of earlier tokens.
//!
//! With `p = mass / total` of a candidate, `d = |p - t'| / 0.3` and `t' = clamp(2 target - sum / weight, 0, 1)`, the
//! target itself where the weight is 0, its new logit is `-10 d^2 / (1 + d)`; the temperature has then been used up.
//! After a token: `sum = p + decay * sum`, `weight = 1 + decay * weight`, where `p` is the token's probability before
//! this step. `sum` and `weight` begin at `target / (1 - decay)` and `1 / (1 - decay)`.
//!
//! Every candidate gets a logit, even one of mass 0, so put a min-p before this step, as its author says. All in f64,
//! rounded to f32 once. llama.cpp adds 5 to every logit, which changes nothing but roundings, and has the step stand
//! last.

use crate::params::state::Average;
use crate::sampling::candidates::Candidates;
use crate::sampling::entropy::real;
use crate::sampling::observed::Share;

/// The width of the curve around the target.
const WIDTH: f64 = 0.3;
/// How steep it is.
const SHARPNESS: f64 = 10.0;

/// The target, adapted to the probabilities of earlier tokens.
#[must_use]
pub fn adapted(target: f32, average: Average) -> f64 {
    let target = f64::from(target);
    let wanted = if average.weight == 0.0 { target } else { 2.0 * target - average.sum / average.weight };
    wanted.clamp(0.0, 1.0)
}

/// The function that makes a new logit from a mass, where the sum of all masses is `total`.
pub fn curve(adapted: f64, total: u64) -> impl Fn(u64) -> f32 + Copy {
    let total = total as f64;
    move |mass| {
        let d = (real(mass) / total - adapted).abs() / WIDTH;
        (-SHARPNESS * d * d / (1.0 + d)) as f32
    }
}

/// [`curve`] with a single division, for loops over many masses.
///
/// For an adapted target above 0 it takes masses up to [`most`](Self::most): these are so far from the target that
/// subtracting two rounded numbers is accurate enough. The f64 that is rounded to f32 here is then within 26 roundings
/// of an f64 of the one in `curve`, which is less than 2^-48 of it; [`bounds`](Self::bounds) leave 2^-46 on both sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Near {
    per_mass: f64,
    target: f64,
    /// The largest mass that it takes.
    pub most: f32,
}

impl Near {
    const LOW: f64 = -SHARPNESS * (1.0 + 1.0 / (1u64 << 46) as f64);
    const HIGH: f64 = -SHARPNESS * (1.0 - 1.0 / (1u64 << 46) as f64);

    /// The same curve as [`curve`] with these arguments.
    #[must_use]
    pub fn new(adapted: f64, total: u64) -> Self {
        let most = if adapted > 0.0 { (0.49 * adapted * total as f64) as f32 } else { f32::INFINITY };
        Self { per_mass: 1.0 / (total as f64 * WIDTH), target: adapted / WIDTH, most }
    }

    /// Two numbers between which the new logit of a mass lies. Where they are equal, they are the new logit.
    #[must_use]
    #[inline(always)]
    pub fn bounds(&self, mass: f32) -> [f32; 2] {
        let d = (f64::from(mass) * self.per_mass - self.target).abs();
        let quotient = d * d / (1.0 + d);
        [(quotient * Self::LOW) as f32, (quotient * Self::HIGH) as f32]
    }
}

/// The average after a token that had this share.
#[must_use]
pub fn learned(average: Average, decay: f32, share: Share) -> Average {
    let (decay, p) = (f64::from(decay), share.mass as f64 / share.total as f64);
    Average { sum: p + decay * average.sum, weight: 1.0 + decay * average.weight }
}

/// Gives candidates their new logits.
pub fn apply(left: &mut Candidates, adapted: f64) {
    left.reshape_by_mass(curve(adapted, left.total()));
}
