//! Top-H (Baghaei Potraghloo et al. 2025; Transformers `TopHLogitsWarper`): bounds the entropy of what is kept by a
//! share of that of the row.
//!
//! Of the [`MAX_CANDIDATES`] first candidates, renormalised, keeps the prefix whose terms `-p ln p` sum to at most
//! `top_h * H`; the first always stays. 0 is off.

use crate::sampling::candidates::Candidates;
use crate::sampling::entropy::entropy_term;
use crate::sampling::mass::log_total;

/// How many candidates are looked at; the others go.
pub const MAX_CANDIDATES: usize = 100;

/// How many candidates stay, from the exponents and masses of the first [`MAX_CANDIDATES`].
#[must_use]
pub fn kept(first: impl Iterator<Item = (f32, u64)> + Clone, top_h: f32) -> usize {
    let total: u64 = first.clone().map(|(_, mass)| mass).sum();
    let terms: u64 = first.clone().map(|(y, mass)| entropy_term(y, mass)).sum();
    let (log_total, per_mass) = (log_total(total), 1.0 / total as f64);
    // The entropy of all of them is computed by the very same operations.
    let of = |masses: u64, terms: u64| (log_total * masses as f64 + std::f64::consts::LN_2 * terms as f64) * per_mass;
    let most = f64::from(top_h) * of(total, terms);
    let (mut masses, mut terms) = (0u64, 0u64);
    let within = first.take_while(|&(y, mass)| {
        masses += mass;
        terms += entropy_term(y, mass);
        of(masses, terms) <= most
    });
    within.count().max(1)
}

/// Keeps the first candidates, as many as top-H says.
pub fn apply(left: &mut Candidates, top_h: f32) {
    let first: Vec<(f32, u64)> = left.kept().iter().take(MAX_CANDIDATES).map(|w| (left.exponent(w), w.mass)).collect();
    left.keep_first(kept(first.into_iter(), top_h));
}
