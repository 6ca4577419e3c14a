//! Tail-free sampling (Ficler; Aphrodite `tfs`, text-generation-webui `TailFreeLogitsWarper`): cuts where the curve of sorted
//! probabilities has become flat.
//!
//! With candidates in order, `d_i = |(m_i - m_{i+1}) - (m_{i+1} - m_{i+2})|` in integer masses. The first candidate
//! stays, the last two go, and candidate `i + 1` stays while `d_0 + ... + d_i <= z` of the sum of all `d`. 1 is off; 0
//! keeps what has no curvature before it. A mass below 2^-20 of the largest counts as 0 here: slopes add up to the mass
//! they begin with, so all of the tail's curvature is less than 2^-19 of the largest mass, and no backend has to sort
//! the tail. With fewer than three candidates, or where all `d` are 0, all stay (text-generation-webui divides by 0
//! there, KoboldCpp takes equal weights).
//!
//! This is the rule of ExLlamaV2, which drops probabilities below 1e-8 first: it looks only at the candidates that are
//! left. KoboldCpp, and llama.cpp while it had this sampler, look at the same, and keep the candidates before the place
//! at which the sum exceeds `z`: one fewer, at least one, and of three all. text-generation-webui and Aphrodite sort
//! the whole vocabulary, in which tokens that a mask or a filter removed are probabilities of 0. So the curvature down
//! to 0 counts too, the last token of the vocabulary is the one that always goes, and one or two candidates of a longer
//! row have a curvature as well: of two, the second stays if its `d_0` is at most `z` of the sum.

use crate::params::TfsRule;
use crate::sampling::candidates::Candidates;
use crate::sampling::mass::{MASS_ONE, fraction};

/// Masses below this count as 0.
pub const LEAST: u64 = MASS_ONE >> 20;

/// The least mass that is looked at: half of the least that counts. Which of two neighbours is heavier by a unit must
/// not decide what stands between those that count.
pub const LISTED: u64 = LEAST / 2;

/// The value that a mass counts with.
#[must_use]
#[inline]
pub fn counted(mass: u64) -> u64 {
    if mass >= LEAST { mass } else { 0 }
}

/// How many tokens the rule looks at, of the candidates or of the whole row.
#[must_use]
pub fn looked_at(rule: TfsRule, candidates: usize, vocab_size: usize) -> usize {
    if rule == TfsRule::WithRemoved { vocab_size } else { candidates }
}

/// How many of `tokens` stay by this rule, where the first rule keeps `kept`. KoboldCpp never cuts at the first place,
/// and three tokens have no other.
#[must_use]
pub fn kept_by(rule: TfsRule, kept: usize, tokens: usize) -> usize {
    match rule {
        TfsRule::OneFewer if tokens <= 3 => tokens,
        TfsRule::OneFewer if kept < tokens => kept.saturating_sub(1).max(1),
        _ => kept,
    }
}

/// How many of `tokens` stay, from their counted masses in order. Zeros at the end may be left out.
#[must_use]
pub fn kept(masses: &[u64], tokens: usize, z: f32) -> usize {
    // Neighbours' masses may stand in the wrong order by one unit. They count as equal then.
    let slope = |at: usize| {
        let mass = |at: usize| masses.get(at).copied().unwrap_or(0);
        mass(at).saturating_sub(mass(at + 1))
    };
    let curvature = |at: usize| slope(at).abs_diff(slope(at + 1));
    let places = 0..masses.len().min(tokens.saturating_sub(2));
    let total: u64 = places.clone().map(curvature).sum();
    if total == 0 {
        return tokens;
    }
    let most = u128::from(fraction(z)) * u128::from(total);
    let mut sum = 0u64;
    let flat = places.clone().find(|&at| {
        sum += curvature(at);
        u128::from(sum) << 32 > most
    });
    flat.map_or(tokens - 1, |at| at + 1)
}

/// Applies the rule. In a whole vocabulary all tokens beyond the candidates have no mass.
pub fn apply(left: &mut Candidates, rule: TfsRule, z: f32) {
    let tokens = looked_at(rule, left.kept().len(), left.vocab_size());
    let masses: Vec<u64> = left.kept().iter().map(|w| counted(w.mass)).collect();
    left.keep_first(kept_by(rule, kept(&masses, tokens, z), tokens));
}
