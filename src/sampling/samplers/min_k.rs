//! Min-k (Ding et al. 2026, "Min-k Sampling: Decoupling Truncation from Temperature Scaling via Relative Logit
//! Dynamics", arXiv 2604.11012; proposed for vLLM as `min_k`, `min_k_tau`): cuts where sorted logits fall most. Falls
//! further down the order count less.
//!
//! Of the candidates' logits in order, `l_1 >= l_2 >= ... >= l_V`, with `R = l_1 - l_V + 1e-8`, the first
//! `max(cliff, floor(tau / R))` stay, and at most all. The cliff is the place `i` of `1 ..= V - 1` with the largest
//! `(l_i - l_{i+1}) / i`, the first of several. The paper divides falls by R too. That is the same for all of them and
//! would not change which is the largest, but it rounds, so it is left out. All is f64, from the logits' own f32.
//!
//! Temperature does not change what is kept, wherever it stands: min-k looks at logits before any temperature that no
//! other step has used up, as top-n-sigma does. For tempered logits the cliff would be the same, but not `tau / R`.
//!
//! Edges: where all logits are equal every fall is 0 and the cliff is 1, but R is 1e-8, so that all stay with any tau of
//! at least V * 1e-8. A single candidate stays. With a tau of 0 the cliff alone decides. A logit of −∞ is no candidate:
//! it is neither `l_V` nor the foot of a cliff, and goes. Of equal logits the lower token ids stay.

use crate::sampling::candidates::Candidates;

/// Added to the distance from the first logit to the last, so that it can be divided by.
const LEAST_RANGE: f64 = 1e-8;

/// How far logits fall after a place, counted from 1, divided by that place.
#[must_use]
#[inline]
pub fn fall(place: usize, above: f32, below: f32) -> f64 {
    (f64::from(above) - f64::from(below)) / place as f64
}

/// How many of `candidates`, with logits from `first` down to `last`, stay wherever the cliff is.
#[must_use]
pub fn at_least(tau: f32, first: f32, last: f32, candidates: usize) -> usize {
    let range = f64::from(first) - f64::from(last) + LEAST_RANGE;
    // The minimum is taken of floats: the quotient may be above all integers.
    (f64::from(tau) / range).floor().min(candidates as f64) as usize
}

/// How many candidates stand before the cliff, from their logits in order.
#[must_use]
pub fn cliff(logits: &[f32]) -> usize {
    let falls = logits.windows(2).zip(1..).map(|(pair, place)| (place, fall(place, pair[0], pair[1])));
    // Only a larger fall replaces an earlier one.
    falls.reduce(|best, next| if next.1 > best.1 { next } else { best }).map_or(1, |(place, _)| place)
}

/// How many candidates stay, from their logits in order.
#[must_use]
pub fn kept(logits: &[f32], tau: f32) -> usize {
    let ends = logits.first().zip(logits.last());
    ends.map_or(0, |(&first, &last)| cliff(logits).max(at_least(tau, first, last, logits.len())))
}

/// Keeps the first candidates, as many as min-k says.
pub fn apply(left: &mut Candidates, tau: f32) {
    let logits = left.kept().iter().map(|w| w.candidate.logit).filter(|&logit| logit > f32::NEG_INFINITY);
    left.keep_first(kept(&logits.collect::<Vec<_>>(), tau));
}
