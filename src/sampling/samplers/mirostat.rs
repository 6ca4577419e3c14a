//! Mirostat (Basu et al., ICLR 2021; llama.cpp `llama_sampler_mirostat`, `llama_sampler_mirostat_v2`): keeps the
//! surprise of tokens near a target, by a limit `mu` that each token corrects.
//!
//! | | keeps |
//! |---|---|
//! | 1 | the `k` first: `k = ((s - 1) * 2^mu / (1 - n^(1 - s)))^(1 / s)`, at least 1, `n` the number of candidates, `s` the slope of the [`LOOKED_AT`] first: `s = sum(t_i b_i) / sum(t_i^2)`, `t_i = ln((i + 2) / (i + 1))`, `b_i = ln(p_i / p_(i + 1))`, `i` from 0 |
//! | 2 | `-log2 p <= mu`: masses of at least `ceil(2^-mu * total)`; the largest and its ties always stay |
//!
//! After a token: `mu = mu - eta * (surprise - tau)`, where `surprise = log2(total / mass)` of the token in the
//! distribution it was drawn from, before a [skew](super::skew) that is the last step. `mu` begins at `2 * tau` and
//! stays within ±1e9. A token without mass, which only a verification rule that is not lossless emits, has the surprise
//! of mass 1.
//!
//! Edges. Version 1: at `s = 1` the formula takes its limit, `2^mu / ln n`; exponents are cut at -64, so that no `b` is
//! infinite; with fewer than two candidates nothing is removed. llama.cpp takes the whole vocabulary for `n`, including
//! masked tokens, in f32, and its version 2 keeps one of several that are equally the largest.

use super::cutoffs;
use crate::params::state::MAX_MU;
use crate::sampling::candidates::Candidates;
use crate::sampling::mass::{MASS_ONE, Y_FLOOR};
use crate::sampling::observed::Share;

/// How many of the first candidates version 1 looks at.
pub const LOOKED_AT: usize = 100;

/// How many candidates version 1 keeps, from the exponents of the first candidates in order and the number of all
/// candidates.
#[must_use]
pub fn first(mut exponents: impl Iterator<Item = f32>, candidates: usize, mu: f64) -> usize {
    let Some(mut before) = exponents.next().map(cut) else { return candidates };
    let (mut products, mut squares) = (0.0, 0.0);
    for (i, y) in (0u32..).zip(exponents.take(LOOKED_AT - 1)) {
        let y = cut(y);
        let t = libm::log(f64::from(i + 2) / f64::from(i + 1));
        products += t * ((before - y) * std::f64::consts::LN_2);
        squares += t * t;
        before = y;
    }
    if squares == 0.0 {
        return candidates;
    }
    // Exponents fall in the order, so the slope is at least 0.
    let slope = products / squares;
    let (epsilon, log) = (slope - 1.0, libm::log(candidates as f64));
    let ratio = if epsilon == 0.0 { 1.0 / log } else { epsilon / -libm::expm1(-epsilon * log) };
    (libm::pow(ratio * libm::exp2(mu), 1.0 / slope) as usize).max(1)
}

fn cut(y: f32) -> f64 {
    f64::from(y.max(Y_FLOOR))
}

/// The least mass that version 2 keeps.
#[must_use]
pub fn need(mu: f64, total: u64) -> u64 {
    cutoffs::mass_of(libm::exp2(-mu), total).min(MASS_ONE)
}

/// The limit after a token that had this share.
#[must_use]
pub fn learned(mu: f64, tau: f32, eta: f32, share: Share) -> f64 {
    let surprise = libm::log2(share.total as f64 / share.mass.max(1) as f64);
    (mu - f64::from(eta) * (surprise - f64::from(tau))).clamp(-MAX_MU, MAX_MU)
}

/// Version 1.
pub fn apply_first(left: &mut Candidates, mu: f64) {
    let exponents: Vec<f32> = left.kept().iter().take(LOOKED_AT).map(|w| left.exponent(w)).collect();
    left.keep_first(first(exponents.into_iter(), left.kept().len(), mu));
}
