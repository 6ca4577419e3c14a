//! Prefers an end of the text that is likely (Transformers `BarkEosPrioritizerLogitsProcessor`): where the probability
//! of one of the EOS tokens is above `p`, only EOS tokens stay, with their own logits. Their probabilities are not
//! added up: two with 0.3 each are not above 0.5.
//!
//! The probability is the token's among the candidates that are left before this step. Where fewer than `min_keep` EOS
//! tokens are left nothing happens; so nothing happens where masks left none.

use crate::sampling::candidates::Candidates;

/// The least mass that is above a probability.
#[must_use]
pub fn need(p: f32, total: u64) -> u64 {
    (f64::from(p) * total as f64).floor() as u64 + 1
}

/// Removes all but EOS tokens where one of them is likely enough.
pub fn apply(left: &mut Candidates, p: f32, eos: &[u32]) {
    let need = need(p, left.total());
    let is_likely = left.kept().iter().any(|w| w.mass >= need && eos.contains(&w.candidate.token));
    if is_likely {
        left.remove(|_, weighted| !eos.contains(&weighted.candidate.token));
    }
}
