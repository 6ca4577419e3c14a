//! Adaptive-p (MrJackSpade; llama.cpp `llama_sampler_adaptive_p`): favours tokens whose probability is near a target that makes up for
//! what the tokens before had.
//!
//! With `p = mass / total` of a candidate, `d = |p - t'| / 0.3` and `t' = clamp(2 target - sum / weight, 0, 1)`, the target
//! itself where the weight is 0, its new logit is `-10 d^2 / (1 + d)`; the temperature has then been used up. After a token: `sum = p + decay * sum`,
//! `weight = 1 + decay * weight`, `p` its probability before. They begin at `target / (1 - decay)` and `1 / (1 - decay)`.
//!
//! Every candidate gets a logit, also one of mass 0: put a min-p before, as its author says. All in f64, rounded to f32 once.
//! llama.cpp adds 5 to every logit, which changes nothing but roundings, and has it stand last.

use crate::params::state::Average;
use crate::sampling::candidates::Candidates;
use crate::sampling::observed::Share;

/// The width of the curve around the target.
const WIDTH: f64 = 0.3;
/// How steep it is.
const SHARPNESS: f64 = 10.0;

/// The target by what tokens before had.
#[must_use]
pub fn adapted(target: f32, average: Average) -> f64 {
    let target = f64::from(target);
    let wanted = if average.weight == 0.0 { target } else { 2.0 * target - average.sum / average.weight };
    wanted.clamp(0.0, 1.0)
}

/// What makes a new logit of a mass, where all have `total`.
pub fn curve(adapted: f64, total: u64) -> impl Fn(u64) -> f32 + Copy {
    let total = total as f64;
    move |mass| {
        let d = (mass as f64 / total - adapted).abs() / WIDTH;
        (-SHARPNESS * d * d / (1.0 + d)) as f32
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
