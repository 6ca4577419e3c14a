//! Tail-free sampling (Ficler; Aphrodite `tfs`, text-generation-webui `TailFreeLogitsWarper`): cuts where the curve of sorted
//! probabilities has become flat.
//!
//! Of the candidates in order, `d_i = |(m_i - m_{i+1}) - (m_{i+1} - m_{i+2})|` in integer masses. The first candidate stays, the
//! last goes, and candidate `i + 1` stays while `d_0 + ... + d_i <= z` of the sum of all `d`. 1 is off; 0 keeps what has no
//! curvature before it. With fewer than three candidates, or where all `d` are 0, all stay (text-generation-webui divides by
//! 0 there, KoboldCpp takes equal weights).

use crate::sampling::candidates::Candidates;
use crate::sampling::mass::fraction;

/// How many candidates stay, of masses in order.
#[must_use]
pub fn kept(masses: &[u64], z: f32) -> usize {
    // Masses of neighbours may stand the wrong way round by a unit: they are equal then.
    let curvature = |w: &[u64]| w[0].saturating_sub(w[1]).abs_diff(w[1].saturating_sub(w[2]));
    let total: u64 = masses.windows(3).map(curvature).sum();
    if total == 0 {
        return masses.len();
    }
    let most = u128::from(fraction(z)) * u128::from(total);
    let mut sum = 0u64;
    let flat = masses.windows(3).position(|w| {
        sum += curvature(w);
        u128::from(sum) << 32 > most
    });
    1 + flat.unwrap_or(masses.len() - 2)
}

/// Keeps them.
pub fn apply(left: &mut Candidates, z: f32) {
    let masses: Vec<u64> = left.kept().iter().map(|w| w.mass).collect();
    left.keep_first(kept(&masses, z));
}
