//! Prefers an end of the text that is likely (Transformers `BarkEosPrioritizerLogitsProcessor`): where the probability of one
//! of the EOS tokens is above `p`, only EOS tokens stay, with their own logits. Several count one by one: two with 0.3 each are
//! not above 0.5.
//!
//! The probability is that of what is left where the step stands. Where fewer than `min_keep` EOS tokens are left nothing
//! happens, so nothing does where masks left none.

use crate::sampling::candidates::Candidates;

/// The least mass that is above a probability.
#[must_use]
pub fn need(p: f32, total: u64) -> u64 {
    (f64::from(p) * total as f64).floor() as u64 + 1
}

/// Removes all but EOS tokens where one of these is likely enough.
pub fn apply(left: &mut Candidates, p: f32, eos: &[u32]) {
    let need = need(p, left.total());
    let is_likely = left.kept().iter().any(|w| w.mass >= need && eos.contains(&w.candidate.token));
    if is_likely {
        left.remove(|_, weighted| !eos.contains(&weighted.candidate.token));
    }
}
