//! The truncation filters. Each takes candidates in [order](super::order) with their masses, and keeps at least the
//! first.

use super::mass::{min_p_need, top_p_need};
use super::order::Candidate;

/// A candidate with its mass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighted {
    /// Token and logit.
    pub candidate: Candidate,
    /// Its integer weight.
    pub mass: u64,
}

/// The total mass; fits u64 for 2^20 tokens.
#[must_use]
pub fn total(kept: &[Weighted]) -> u64 {
    kept.iter().map(|w| w.mass).sum()
}

/// Top-k (Fan et al. 2018): keeps exactly the `top_k` first. 0 is off.
pub fn top_k(kept: &mut Vec<Weighted>, top_k: u32) {
    if top_k > 0 {
        kept.truncate(top_k as usize);
    }
}

/// Top-p, nucleus sampling (Holtzman et al. 2020): keeps the smallest prefix whose mass reaches `top_p`
/// of the total; the candidate that crosses stays. 1 is off.
pub fn top_p(kept: &mut Vec<Weighted>, top_p: f32) {
    if top_p >= 1.0 {
        return;
    }
    kept.truncate(reaching(kept, top_p_need(top_p, total(kept))));
}

/// How many of the first candidates it takes to reach a mass; all of them if their sum is less.
#[must_use]
pub fn reaching(kept: &[Weighted], need: u64) -> usize {
    crossing(kept, need).unwrap_or(kept.len())
}

/// How many of the first candidates it takes to reach a mass; `None` if their sum is less.
#[must_use]
pub fn crossing(kept: &[Weighted], need: u64) -> Option<usize> {
    let mut sum = 0;
    let last = kept.iter().position(|w| {
        sum += w.mass;
        sum >= need
    });
    last.map(|at| at + 1)
}

/// Min-p (Nguyen et al. 2024): keeps masses of at least `min_p` times the largest. 0 is off. The first
/// candidate's mass is 2^40, the largest there is, so it always stays.
pub fn min_p(kept: &mut Vec<Weighted>, min_p: f32) {
    if min_p > 0.0 {
        let need = min_p_need(min_p);
        kept.retain(|w| w.mass >= need);
    }
}

#[cfg(test)]
mod tests {
    use super::super::mass::MASS_ONE;
    use super::*;

    fn row(masses: &[u64]) -> Vec<Weighted> {
        let weighted = |(token, &mass)| Weighted { candidate: Candidate { token: token as u32, logit: 0.0 }, mass };
        masses.iter().enumerate().map(weighted).collect()
    }

    fn after(masses: &[u64], filter: impl Fn(&mut Vec<Weighted>)) -> usize {
        let mut kept = row(masses);
        filter(&mut kept);
        kept.len()
    }

    #[test]
    fn top_k_keeps_exactly_k() {
        for (k, expected) in [(0, 4), (1, 1), (3, 3), (4, 4), (5, 4), (u32::MAX, 4)] {
            assert_eq!(after(&[4, 4, 4, 4], |r| top_k(r, k)), expected, "top_k {k}");
        }
    }

    #[test]
    fn top_p_keeps_the_crossing_token() {
        // A p that is exactly a sum (0.5 and 0.75 are exact) keeps no more than that prefix.
        for (p, expected) in [(0.0, 1), (0.25, 1), (0.5, 1), (0.500_001, 2), (0.75, 2), (0.76, 3), (0.99, 4), (1.0, 4)]
        {
            assert_eq!(after(&[50, 25, 15, 10], |r| top_p(r, p)), expected, "top_p {p}");
        }
    }

    #[test]
    fn min_p_is_inclusive() {
        for (p, expected) in [(0.0, 4), (0.25, 3), (0.250_1, 2), (0.5, 2), (0.6, 1), (1.0, 1)] {
            let masses = [MASS_ONE, MASS_ONE / 2, MASS_ONE / 4, MASS_ONE / 8];
            assert_eq!(after(&masses, |r| min_p(r, p)), expected, "min_p {p}");
        }
        assert_eq!(after(&[MASS_ONE, MASS_ONE, 5], |r| min_p(r, 1.0)), 2, "ties of the maximum stay at min_p 1");
    }
}
