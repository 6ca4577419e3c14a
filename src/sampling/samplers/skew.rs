//! Skewed sampling (turboderp; ExLlamaV2 `skew`, `ext_sampling.cpp`): draws less likely tokens more often than it would, or more
//! likely ones.
//!
//! ExLlamaV2 draws along falling probabilities and takes the uniform number `u` to `u^exp(-skew)` first. That is a draw from
//! other probabilities, `C_i^a - C_(i-1)^a` with `a = exp(skew)`, `C_i` the share of the first `i` candidates: these are what
//! candidates have here, so that the draw is that of any row, logprobs say what was drawn from, and drafts are judged by it.
//!
//! The new logit is `a ln C_i + ln(1 - (1 - m_i / c_i)^a)`, with integer masses `m_i` and sums `c_i`, in f64 and rounded to f32
//! once; the temperature so far has then been used up. A candidate without mass goes: no number draws it. Equal candidates
//! stand in order, so that of two the first is changed as if it were more likely. 0 is off.

use crate::sampling::candidates::Candidates;

/// The power of shares.
#[must_use]
pub fn power(skew: f32) -> f64 {
    libm::exp(f64::from(skew))
}

/// The logit of a candidate of this mass above 0, which together with all before it has `up_to` of `total`.
#[must_use]
pub fn logit(power: f64, mass: u64, up_to: u64, total: u64) -> f32 {
    let before = libm::log1p(-(mass as f64 / up_to as f64));
    let own = -libm::expm1(power * before);
    (power * libm::log(up_to as f64 / total as f64) + libm::log(own)) as f32
}

/// Gives candidates their new logits.
pub fn apply(left: &mut Candidates, skew: f32) {
    let (power, total) = (power(skew), left.total());
    left.reshape_along(|mass, up_to| logit(power, mass, up_to, total));
}
