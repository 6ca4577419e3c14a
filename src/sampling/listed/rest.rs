//! What is known of tokens that are not listed: none comes before an edge of the order, and together they weigh between two
//! bounds.
//!
//! Each was sent as at most the least listed logit. Bias, penalties and marks move one by a function that never falls when
//! its logit rises, so what they make of the least logit bounds what they make of the token.
//!
//! For the masses: with `m` the least listed logit, `w = exp(x - m) <= 1` for each of `N` others, and `S` their sum, which the
//! log-sum-exp gives. At temperature `T`, `a = 1 / T`, the sum of `w^a` lies between `S` and `N^(1-a) S^a`: the first is the
//! larger where `a >= 1` (each `w^a <= w`, and the mean of powers is at least the power of the mean), the smaller else.

use super::Listed;
use crate::sampling::adjust::TokenAdjust;
use crate::sampling::mark::greenlist::Greenlist;
use crate::sampling::mass::{self, MASS_ONE};
use crate::sampling::order::Candidate;
use crate::sampling::row::RowSpec;

/// Below this exponent every mass is 0: with room for what the polynomial of 2^y is off by.
const NO_MASS: f32 = -40.001;
/// More than a worker's log-sum-exp in f32 is off by.
const REST_ERROR: f64 = 1e-4;
/// More than masses are off by, relative to exact ones: the exponent's roundings and the polynomial.
const MASS_ERROR: f64 = 1e-4;

/// What the tokens that are not listed can be, after masks, bias and penalties.
#[derive(Debug, Clone)]
pub(super) struct Rest {
    /// None comes before this in the order.
    pub(super) edge: Candidate,
    /// The least logit as sent.
    least: f64,
    /// Whether a greenlist moves them.
    is_moved: bool,
    /// The sum of `exp(logit - least)`, and how many have part in it; no tokens where only some are allowed.
    sum: f64,
    count: f64,
    /// Tokens of which more is known, that have part in the sum: at most so much each of it is not theirs.
    known: f64,
    /// The largest logits that these can have.
    each: Vec<f32>,
}

impl Rest {
    /// `None`: no token can be emitted that is not listed.
    pub(super) fn of(row: &Listed, spec: &RowSpec<'_>) -> Option<Self> {
        if !row.has_rest() {
            return None;
        }
        let least = row.least();
        let (each, known) = singles(row, spec, least);
        let others = spec.allowed.is_none().then(|| generic(row, spec.greens(), least));
        let edges = others.iter().copied().chain(each.iter().copied());
        let edge = edges.reduce(|first, next| if next.precedes(&first) { next } else { first })?;
        let sum = libm::exp(f64::from(row.rest) - f64::from(least));
        let is_moved = spec.greens().is_some();
        let count = if others.is_some() { row.others() as f64 } else { 0.0 };
        let each = each.into_iter().map(|each| each.logit).collect();
        Some(Self { edge, least: f64::from(least), is_moved, sum: sum.min(row.others() as f64), count, known, each })
    }

    /// Whether all of them have mass 0, at this largest logit and scale.
    pub(super) fn has_no_mass(&self, max: f32, scale: f32) -> bool {
        mass::exponent(self.edge.logit, max, scale) < NO_MASS
    }

    /// The most that one of them can weigh. Neighbouring exponents may have masses in the wrong order, by a unit of the
    /// polynomial.
    pub(super) fn most_of_one(&self, max: f32, scale: f32) -> f64 {
        if self.has_no_mass(max, scale) {
            return 0.0;
        }
        mass::mass(mass::exponent(self.edge.logit, max, scale)) as f64 * (1.0 + 1e-6) + 1.0
    }

    /// Between what all of them weigh, at this largest logit, which the edge is not above, and temperature.
    pub(super) fn masses(&self, (max, scale): (f32, f32), temperature: f64) -> (u64, u64) {
        if self.has_no_mass(max, scale) {
            return (0, 0);
        }
        // Whatever they are, none is heavier than the edge.
        let one_by_one = self.most_of_one(max, scale) * (self.count + self.each.len() as f64) + 1.0;
        if self.is_moved {
            return (0, one_by_one as u64);
        }
        let (a, max) = (1.0 / temperature, f64::from(max));
        let (least, most) = (self.sum * (1.0 - REST_ERROR), (self.sum * (1.0 + REST_ERROR)).min(self.count));
        let powers = |sum: f64| libm::pow(self.count.max(1.0), 1.0 - a) * libm::pow(sum, a);
        let (low, high) = if a >= 1.0 { (powers(least), most) } else { (least, powers(most)) };
        // Those of which more is known have at most 1 each of the sum, whatever they were sent as.
        let at = |logit: f64| libm::exp((logit - max) * a);
        let each: f64 = self.each.iter().map(|&logit| at(f64::from(logit))).sum();
        let low = (low - self.known) * at(self.least) * MASS_ONE as f64 * (1.0 - MASS_ERROR) - self.count;
        let high = (high * at(self.least) + each) * MASS_ONE as f64 * (1.0 + MASS_ERROR) + 1.0;
        // Below 2^62: at most 2^21 tokens, none much heavier than the first.
        (if self.count > 0.0 { low.max(0.0) as u64 } else { 0 }, high.min(one_by_one) as u64)
    }
}

/// The edge of tokens of which nothing is known.
fn generic(row: &Listed, greens: Option<&Greenlist>, least: f32) -> Candidate {
    let raised = greens.map_or(0.0, |greens| greens.parts().3);
    if raised != 0.0 {
        // A sum may round to the same as that of a smaller logit, so ids say nothing any more.
        return Candidate { token: 0, logit: least.max(least + raised) };
    }
    let last = || row.entries.iter().rev().find(|entry| entry.logit == least).map_or(0, |last| last.token + 1);
    Candidate { token: if row.ties_in_order { last() } else { 0 }, logit: least }
}

/// The edges of tokens of which something is known and that are not banned, and how many have part in the sum.
fn singles(row: &Listed, spec: &RowSpec<'_>, least: f32) -> (Vec<Candidate>, f64) {
    let is_banned = |token: u32| spec.banned.binary_search(&token).is_ok();
    let is_allowed = |token: u32| spec.allowed.is_none_or(|allowed| allowed.binary_search(&token).is_ok());
    let raise = |token: u32, logit: f32| spec.greens().map_or(logit, |greens| greens.raise(token, logit));
    let mut known: f64 = spec.banned.iter().filter(|&&token| row.find(token).is_none()).count() as f64;
    let mut edges = Vec::new();
    // Ascending, as the allowed ones are.
    let mut adjusted = Vec::new();
    for adjust in spec.adjusts.iter().filter(|adjust| row.find(adjust.token).is_none()) {
        known += 1.0;
        adjusted.push(adjust.token);
        if !is_banned(adjust.token) && is_allowed(adjust.token) {
            edges.extend(
                highest(&adjust, spec, least)
                    .map(|logit| raise(adjust.token, logit))
                    .map(|logit| Candidate { token: adjust.token, logit }),
            );
        }
    }
    for &token in spec.allowed.unwrap_or_default() {
        if row.find(token).is_none() && !is_banned(token) && adjusted.binary_search(&token).is_err() {
            edges.push(Candidate { token, logit: raise(token, least) });
        }
    }
    (edges, known)
}

/// The largest logit that an adjusted token can have; `None`: it is banned.
fn highest(adjust: &TokenAdjust, spec: &RowSpec<'_>, least: f32) -> Option<f32> {
    if adjust.flags & TokenAdjust::BANNED != 0 {
        return None;
    }
    // The length penalty alone may raise a smaller logit above a larger one.
    let lengthened = adjust.flags & TokenAdjust::END != 0 && spec.penalties.length != 0.0;
    Some(if lengthened { f32::INFINITY } else { adjust.apply(least, &spec.penalties) })
}
