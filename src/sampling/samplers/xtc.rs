//! Exclude top choices (XTC; p-e-w, text-generation-webui; llama.cpp `llama_sampler_xtc`).
//!
//! At each position, with `probability`, XTC happens: of the candidates with at least `threshold` of the probability
//! all but the last go. Protected tokens do not count as such candidates, whatever their probability (ExLlamaV2
//! `xtc_cpu`, ExLlamaV3 `SS_XTC`): they stay, and the last of the others stays as well, even where a protected one
//! comes after it. With fewer than two such candidates nothing happens, so a threshold above 0.5 is off. A random
//! number of the sequence's own ([`Purpose::Xtc`](crate::sampling::philox::Purpose::Xtc)) decides whether XTC happens
//! at a position; a draft token and the row that verifies it have the same one. Probability 0 is off.
//!
//! In text-generation-webui nothing happens where a protected token would go. In all forms nothing happens where fewer
//! than `min_keep` would stay.
//!
//! ExLlama's expected form happens at every position, with the effect that the other form has on average: candidates
//! that would go have their probability times `(1 - probability) / (1 + probability * m / (1 - m))`, `m` being their
//! probability together (X2, X3 `SS_XTC`). It is computed from integer masses in f64, as a logit added in f32 to the
//! distance to the largest; the temperature so far has then been used up. With probability 1 these candidates go; where
//! the others have no mass nothing happens.

use super::cutoffs;
use crate::params::XtcRule;
use crate::sampling::candidates::Candidates;
use crate::sampling::filters::Weighted;

/// Whether XTC happens, decided by a uniform number.
#[must_use]
pub fn happens(probability: f32, uniform: u64) -> bool {
    // An f32 below 1 distinguishes 24 bits, so nothing is rounded.
    ((uniform >> 40) as f32) < probability * 16_777_216.0
}

/// The least mass of a top choice.
#[must_use]
pub fn need(threshold: f32, total: u64) -> u64 {
    cutoffs::mass_of(f64::from(threshold), total)
}

/// What the expected form adds to the logit of each choice, where all choices have `excluded` of `total`; for a
/// probability below 1. `None`: nothing happens.
#[must_use]
pub fn lowered(probability: f32, excluded: u64, total: u64) -> Option<f32> {
    let (probability, rest) = (f64::from(probability), total - excluded);
    let odds = excluded as f64 / rest as f64;
    (rest > 0 && excluded > 0).then(|| libm::log((1.0 - probability) / (1.0 + probability * odds)) as f32)
}

/// How XTC treats the tokens that it is told to ignore; ascending.
#[derive(Debug, Clone, Copy)]
pub enum Ignored<'p> {
    /// They do not count as choices.
    Spared(&'p [u32]),
    /// Nothing happens where one of them would go.
    Stop(&'p [u32]),
}

impl<'p> Ignored<'p> {
    /// As the rule says.
    #[must_use]
    pub fn by(rule: XtcRule, tokens: &'p [u32]) -> Self {
        if rule.unless_ignored { Self::Stop(tokens) } else { Self::Spared(tokens) }
    }

    /// Whether this token does not count as a choice.
    #[must_use]
    pub fn spares(&self, token: u32) -> bool {
        matches!(self, Self::Spared(tokens) if tokens.binary_search(&token).is_ok())
    }

    /// Whether nothing happens where this token would go.
    #[must_use]
    pub fn stops(&self, token: u32) -> bool {
        matches!(self, Self::Stop(tokens) if tokens.binary_search(&token).is_ok())
    }
}

/// Which candidates would go, by place and candidate; `None`: nothing happens.
fn excluded<'p>(
    left: &Candidates,
    threshold: f32,
    ignored: Ignored<'p>,
) -> Option<impl Fn(usize, &Weighted) -> bool + use<'p>> {
    let need = need(threshold, left.total());
    let is_choice = move |w: &Weighted| w.mass >= need && !ignored.spares(w.candidate.token);
    let last = left.kept().iter().rposition(is_choice)?;
    let excluded = move |at: usize, w: &Weighted| at < last && is_choice(w);
    let gone = left.kept().iter().enumerate().filter(|&(at, w)| excluded(at, w));
    let stops = gone.clone().any(|(_, w)| ignored.stops(w.candidate.token));
    (!stops && left.kept().len() - gone.count() >= left.min_keep()).then_some(excluded)
}

/// Removes the top choices.
pub fn apply(left: &mut Candidates, threshold: f32, ignored: Ignored<'_>) {
    if let Some(excluded) = excluded(left, threshold, ignored) {
        left.remove(excluded);
    }
}

/// Applies the expected form.
pub fn apply_expected(left: &mut Candidates, probability: f32, threshold: f32, ignored: Ignored<'_>) {
    if probability >= 1.0 {
        return apply(left, threshold, ignored);
    }
    let Some(excluded) = excluded(left, threshold, ignored) else { return };
    let masses = left.kept().iter().enumerate().filter(|&(at, w)| excluded(at, w)).map(|(_, w)| w.mass);
    let (gone, total) = (masses.sum(), left.total());
    if let Some(lowered) = lowered(probability, gone, total) {
        left.reshape_each(|at, w, distance| if excluded(at, w) { distance + lowered } else { distance });
    }
}
