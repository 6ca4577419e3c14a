//! Exclude top choices (XTC; p-e-w, text-generation-webui; llama.cpp `llama_sampler_xtc`).
//!
//! At a position, with `probability`: of the candidates with at least `threshold` of the probability all but the last go.
//! Protected ones are none of these, whatever their probability (ExLlamaV2 `xtc_cpu`, ExLlamaV3 `SS_XTC`): they stay, and where
//! one of them comes last another one stays beside it. With fewer than two such candidates nothing happens, so a threshold
//! above 0.5 is off. Whether it happens at a position is a random number of the sequence's own
//! ([`Purpose::Xtc`](crate::sampling::philox::Purpose::Xtc)), the same for a draft token and for the row that verifies it. 0 is
//! off.
//!
//! In text-generation-webui nothing happens where a protected one would go. Nowhere does anything happen where fewer than
//! `min_keep` would stay.
//!
//! ExLlama's expected form happens wherever the other could, as much as it would on average: those that would go have their probability
//! times `(1 - probability) / (1 + probability * m / (1 - m))`, `m` what they have together (X2, X3 `SS_XTC`). By
//! integer masses in f64, as a logit added in f32 to the distance to the largest; the temperature so far has then been used
//! up. With probability 1 they go; where the others have no mass nothing happens.

use super::cutoffs;
use crate::sampling::candidates::Candidates;
use crate::sampling::filters::Weighted;

/// Whether it happens, by a uniform number.
#[must_use]
pub fn happens(probability: f32, uniform: u64) -> bool {
    // 24 bits: all that an f32 below 1 can tell apart, without a rounding.
    ((uniform >> 40) as f32) < probability * 16_777_216.0
}

/// The least mass of a top choice.
#[must_use]
pub fn need(threshold: f32, total: u64) -> u64 {
    cutoffs::mass_of(f64::from(threshold), total)
}

/// What is added to the logit of choices with `excluded` of `total`, in the expected form with a probability below 1; `None`:
/// nothing happens.
#[must_use]
pub fn lowered(probability: f32, excluded: u64, total: u64) -> Option<f32> {
    let (probability, rest) = (f64::from(probability), total - excluded);
    let odds = excluded as f64 / rest as f64;
    (rest > 0 && excluded > 0).then(|| libm::log((1.0 - probability) / (1.0 + probability * odds)) as f32)
}

/// What becomes of the tokens that it is told to ignore, ascending.
#[derive(Debug, Clone, Copy)]
pub enum Ignored<'p> {
    /// They are no choices.
    Spared(&'p [u32]),
    /// Nothing happens where one of them would go.
    Stop(&'p [u32]),
}

impl Ignored<'_> {
    /// Whether this token is no choice.
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

/// Which candidates would go, by their places and themselves; `None`: nothing happens.
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

/// Excludes them.
pub fn apply(left: &mut Candidates, threshold: f32, ignored: Ignored<'_>) {
    if let Some(excluded) = excluded(left, threshold, ignored) {
        left.remove(excluded);
    }
}

/// The expected form.
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
