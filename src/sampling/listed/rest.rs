//! Bounds on the tokens that are not listed: none of them comes before an edge of the order, and their masses add up to
//! a sum between two bounds.
//!
//! The logit of each as sent is at most the least listed logit. Bias, penalties and watermarks change a logit by a
//! function that never falls when the logit rises, so what they make of the least listed logit bounds what they make of
//! an unlisted one.
//!
//! For the masses: with `m` the least listed logit, let `w = exp(x - m) <= 1` for each of `N` others, and `S` their
//! sum, which the log-sum-exp gives. At temperature `T`, with `a = 1 / T`, the sum of `w^a` lies between `S` and
//! `N^(1-a) S^a`. Where `a >= 1` the first is the upper bound (each `w^a <= w`, and the mean of powers is at least the
//! power of the mean), else the lower.

use super::Listed;
use crate::sampling::adjust::{Adjusted, TokenAdjust};
use crate::sampling::mass::{self, MASS_ONE};
use crate::sampling::order::Candidate;
use crate::sampling::row::RowSpec;
use crate::sampling::steps::step;
use crate::sampling::watermark::greenlist::Greenlist;

/// Below this exponent every mass is 0, with room for the error of the polynomial of 2^y.
const NO_MASS: f32 = -40.001;
/// More than the relative error of the sum that a worker takes the logarithm of.
const REST_ERROR: f64 = 1e-4;
/// More than the relative error of the log-sum-exp from being an f32.
const REST_ROUNDING: f64 = f32::EPSILON as f64;
/// More than the relative error of masses: the exponent's roundings and the polynomial.
const MASS_ERROR: f64 = 1e-4;
/// How many allowed tokens are looked up in a greenlist to find the first that is green; it hardly ever comes later.
const GREENS: usize = 1024;

/// Bounds on the unlisted tokens, after masks, bias and penalties.
#[derive(Debug, Clone)]
pub(super) struct Rest {
    /// No unlisted token comes before this in the order.
    pub(super) edge: Candidate,
    /// The least listed logit, as sent.
    least: f64,
    /// Whether a greenlist moves the unlisted tokens.
    is_moved: bool,
    /// Whether a mask removes some of them. Then none of their mass is certain to be left.
    is_masked: bool,
    /// The sum of `exp(logit - least)`, and how many tokens it counts: none where only some tokens are allowed.
    sum: f64,
    /// The factor by which the sum may be too large or too small.
    error: f64,
    count: f64,
    /// How many tokens in the sum have a ban or an adjustment of their own. At most 1 of the sum belongs to each of
    /// them.
    known: f64,
    /// The largest logits that these tokens and the allowed ones can have, and how many tokens have each.
    each: Vec<(f32, usize)>,
}

impl Rest {
    /// Bounds the unlisted tokens; `None`: no unlisted token can be emitted.
    pub(super) fn bound(row: &Listed, spec: &RowSpec<'_>) -> Option<Self> {
        if !row.has_rest() || spec.mask.is_some_and(|mask| row.lists_all_of(mask)) {
            return None;
        }
        let least = row.least();
        let Singles { edge, each, known } = singles(row, spec, least);
        let others = spec.allowed.is_none().then(|| generic(row, spec.greens(), least));
        let edges = others.iter().copied().chain(edge);
        let edge = edges.reduce(|first, next| if next.precedes(&first) { next } else { first })?;
        let sum = libm::exp(f64::from(row.rest) - f64::from(least));
        let is_moved = spec.greens().is_some();
        let count = if others.is_some() { row.others() as f64 } else { 0.0 };
        let error = libm::exp(REST_ERROR + f64::from(row.rest).abs() * REST_ROUNDING);
        let sum = sum.min(row.others() as f64 * error);
        let is_masked = spec.mask.is_some();
        Some(Self { edge, least: f64::from(least), is_moved, is_masked, sum, error, count, known, each })
    }

    /// Whether all unlisted tokens have mass 0, at this largest logit and scale.
    pub(super) fn has_no_mass(&self, max: f32, scale: f32) -> bool {
        mass::exponent(self.edge.logit, max, scale) < NO_MASS
    }

    /// The largest mass that one of them can have. Neighbouring exponents may have masses in the wrong order, by a unit
    /// of the polynomial.
    pub(super) fn most_of_one(&self, max: f32, scale: f32) -> f64 {
        if self.has_no_mass(max, scale) {
            return 0.0;
        }
        mass::mass(mass::exponent(self.edge.logit, max, scale)) as f64 * (1.0 + 1e-6) + 1.0
    }

    /// Bounds on the sum of all their masses, at this temperature and largest logit, which the edge is not above.
    pub(super) fn masses(&self, max: f32, scale: f32, temperature: f64) -> (u64, u64) {
        if self.has_no_mass(max, scale) {
            return (0, 0);
        }
        // Whatever they are, none of them is heavier than the edge.
        let singles: usize = self.each.iter().map(|&(_, count)| count).sum();
        let one_by_one = self.most_of_one(max, scale) * (self.count + singles as f64) + 1.0;
        if self.is_moved {
            return (0, one_by_one as u64);
        }
        let (a, max) = (1.0 / temperature, f64::from(max));
        let (least, most) = (self.sum / self.error, (self.sum * self.error).min(self.count));
        let powers = |sum: f64| libm::pow(self.count.max(1.0), 1.0 - a) * libm::pow(sum, a);
        let (low, high) = if a >= 1.0 { (powers(least), most) } else { (least, powers(most)) };
        // The tokens with a ban or an adjustment have at most 1 each of the sum, whatever their logit was.
        let at = |logit: f64| libm::exp((logit - max) * a);
        let each: f64 = self.each.iter().map(|&(logit, count)| count as f64 * at(f64::from(logit))).sum();
        let low = (low - self.known) * at(self.least) * MASS_ONE as f64 * (1.0 - MASS_ERROR) - self.count;
        let high = (high * at(self.least) + each) * MASS_ONE as f64 * (1.0 + MASS_ERROR) + 1.0;
        // Below 2^62: at most 2^21 tokens, none much heavier than the first.
        let is_certain = self.count > 0.0 && !self.is_masked;
        (if is_certain { low.max(0.0) as u64 } else { 0 }, high.min(one_by_one) as u64)
    }
}

/// The edge of the unlisted tokens that have no ban or adjustment of their own.
fn generic(row: &Listed, greens: Option<&Greenlist>, least: f32) -> Candidate {
    let raised = greens.map_or(0.0, |greens| greens.parts().3);
    if raised != 0.0 {
        // The sum may round to the same number as the sum of a smaller logit, so ids do not order tokens any more.
        return Candidate { token: 0, logit: least.max(least + raised) };
    }
    let last = || row.entries.iter().rev().find(|entry| entry.logit == least).map_or(0, |last| last.token + 1);
    Candidate { token: if row.ties_in_order { last() } else { 0 }, logit: least }
}

/// Bounds on the unlisted tokens that have an adjustment, or that are allowed by a list.
struct Singles {
    /// None of them comes before this in the order.
    edge: Option<Candidate>,
    /// The largest logits that they can have, and how many tokens have each.
    each: Vec<(f32, usize)>,
    /// How many tokens in the sum have a ban or an adjustment of their own.
    known: f64,
}

/// Looks at each adjusted and each banned token. Of tokens that are only allowed it looks at no more than one, or with
/// a greenlist at [`GREENS`].
fn singles(row: &Listed, spec: &RowSpec<'_>, least: f32) -> Singles {
    let listed_bans = row.entries.iter().filter(|entry| spec.banned.binary_search(&entry.token).is_ok()).count();
    let mut found = Singles { edge: None, each: Vec::new(), known: spec.banned.len() as f64 - listed_bans as f64 };
    // In ascending order, like the allowed tokens.
    let mut adjusted = Vec::new();
    // Both lists ascend, and are followed in step with the adjusted tokens.
    let (mut listed, mut banned) = (row.entries.iter().peekable(), spec.banned.iter().peekable());
    for adjust in spec.adjusts.iter() {
        step();
        let token = adjust.token();
        while listed.next_if(|entry| entry.token < token).is_some() {}
        while banned.next_if(|&&banned| banned < token).is_some() {}
        if listed.peek().is_some_and(|entry| entry.token == token) {
            continue;
        }
        found.known += 1.0;
        adjusted.push(token);
        if banned.peek() != Some(&&token)
            && !spec.forbids(token)
            && let Some(logit) = highest(&adjust, spec, least)
        {
            let logit = spec.greens().map_or(logit, |greens| greens.raise(token, logit));
            found.add(Candidate { token, logit }, 1);
        }
    }
    if let Some(allowed) = spec.allowed {
        found.add_allowed(row, spec, allowed, &adjusted, least);
    }
    found
}

/// The first in order among tokens with ascending ids and logits of at most `most`. Where that takes long to find: a
/// candidate that may come before it.
fn first_of(tokens: impl Iterator<Item = u32>, logit: impl Fn(u32) -> f32, most: f32) -> Option<Candidate> {
    let mut first: Option<Candidate> = None;
    for (seen, token) in tokens.enumerate() {
        step();
        let next = Candidate { token, logit: if seen < GREENS { logit(token) } else { most } };
        if first.is_none_or(|first| next.precedes(&first)) {
            first = Some(next);
        }
        if next.logit >= most {
            break;
        }
    }
    first
}

impl Singles {
    /// Adds `count` tokens, of which `first` comes first.
    fn add(&mut self, first: Candidate, count: usize) {
        if self.edge.is_none_or(|edge| first.precedes(&edge)) {
            self.edge = Some(first);
        }
        if count > 0 {
            self.each.push((first.logit, count));
        }
    }

    /// Adds the tokens of which only one thing is known, that they are allowed: they are not listed, adjusted or
    /// banned.
    fn add_allowed(&mut self, row: &Listed, spec: &RowSpec<'_>, allowed: &[u32], adjusted: &[u32], least: f32) {
        let is_more = |token: u32| {
            step();
            row.find(token).is_some()
                || adjusted.binary_search(&token).is_ok()
                || spec.banned.binary_search(&token).is_ok()
        };
        let more =
            spec.banned.iter().filter(|token| adjusted.binary_search(token).is_err() && row.find(**token).is_none());
        let more = row.entries.iter().map(|entry| &entry.token).chain(adjusted).chain(more);
        let only_allowed = allowed.len() - more.filter(|token| allowed.binary_search(token).is_ok()).count();
        let raise = |token: u32| spec.greens().map_or(least, |greens| greens.raise(token, least));
        let most = spec.greens().map_or(least, |greens| least + greens.parts().3);
        let others = allowed.iter().copied().filter(|&token| !spec.is_masked(token) && !is_more(token));
        if let Some(first) = first_of(others, raise, most) {
            self.add(first, 0);
            self.each.push((least, only_allowed));
        }
    }
}

/// Whether a token cannot be emitted, whatever its logit.
pub(super) fn cannot_be(token: u32, spec: &RowSpec<'_>) -> bool {
    let is_banned = || spec.adjusts.get(token).is_some_and(|adjust| adjust.is_banned());
    spec.banned.binary_search(&token).is_ok() || spec.forbids(token) || is_banned()
}

/// The largest logit that an adjusted token can have; `None`: it is banned.
fn highest(adjust: &Adjusted, spec: &RowSpec<'_>, least: f32) -> Option<f32> {
    if adjust.is_banned() {
        return None;
    }
    // The length penalty alone may raise a smaller logit above a larger one.
    let lengthened = adjust.known.flags & TokenAdjust::END != 0 && spec.penalties.length != 0.0;
    Some(if lengthened { f32::INFINITY } else { adjust.apply(least, &spec.penalties) })
}

#[cfg(test)]
mod tests;
