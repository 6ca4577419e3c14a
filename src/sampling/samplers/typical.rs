//! Locally typical sampling (Meister et al. 2023): keeps the tokens whose surprise is nearest to the entropy.
//!
//! Takes candidates by `|-ln p - H|` ascending, equal ones in order, and keeps the fewest whose mass reaches
//! `typical_p` of the total; the one that crosses stays (ExLlamaV2 and Aphrodite drop it). llama.cpp goes on until the
//! mass is above that share, and Transformers keeps all that deviate as much as the last: in their
//! [orders](crate::params::EngineRules) this sampler does the same. 1 is off; 0 keeps one. Deviations are compared in
//! powers of two and f32: `|y - y_H|`, with `y` the exponent of a token and `y_H = (ln(total / 2^40) - H) / ln 2` that
//! of a token whose surprise is the entropy.

use crate::params::TypicalRule;
use crate::sampling::candidates::Candidates;
use crate::sampling::mass::{above_need, log_total, top_p_need};

/// The exponent of a token whose surprise is the entropy.
#[must_use]
pub fn centre(entropy: f64, total: u64) -> f32 {
    ((log_total(total) - entropy) / std::f64::consts::LN_2) as f32
}

/// How far a token's exponent is from that centre.
#[must_use]
#[inline]
pub fn deviation(y: f32, centre: f32) -> f32 {
    (y - centre).abs()
}

/// The mass that the kept candidates have to reach.
#[must_use]
pub fn need(rule: TypicalRule, typical_p: f32, total: u64) -> u64 {
    match rule {
        TypicalRule::Reached | TypicalRule::Ties => top_p_need(typical_p, total),
        TypicalRule::Above => above_need(typical_p, total),
    }
}

/// Keeps typical candidates.
pub fn apply(left: &mut Candidates, rule: TypicalRule, typical_p: f32) {
    let total = left.total();
    let centre = centre(left.entropy(), total);
    let ties = rule == TypicalRule::Ties;
    left.keep_nearest(need(rule, typical_p, total), ties, |left, w| deviation(left.exponent(w), centre));
}
