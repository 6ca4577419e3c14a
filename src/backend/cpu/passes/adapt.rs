//! Passes that give new logits by mass: adaptive-p on a whole row. See the [module](super) for safety.

// Blocks and vectors are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::{BLOCK, Blocks, Weigh, exponents, has_mass, load};
use crate::backend::cpu::simd::Format;
use crate::backend::cpu::simd::sums::{GROUP, Sums};
use crate::sampling::samplers::adaptive_p::Near;

/// How masses become logits, and these become masses again.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Adapt<'a> {
    pub(in crate::backend::cpu) near: Near,
    /// The new logit of any mass. Used where `near` is not certain.
    pub(in crate::backend::cpu) exact: &'a dyn Fn(u64) -> f32,
    /// The largest new logit, and the scale for the new masses.
    pub(in crate::backend::cpu) weigh: Weigh,
}

/// The mass of each value of whole blocks, as a float, which holds it exactly; -1 for a value of −∞. Returns the sum of
/// the masses.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn weights<S: Sums, F: Format>(
    row: &[u8],
    maxima: &[f32],
    weigh: Weigh,
    out: &mut [f32],
) -> u64 {
    // SAFETY: see the module; a block is stored to a chunk of its size.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale) = (S::splat(weigh.max), S::splat(weigh.scale));
        let mut total = 0;
        for (b, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            if maxima[b] == f32::NEG_INFINITY {
                out.fill(-1.0);
                continue;
            }
            let (at, mut sum) = (rows.get(b), S::sum_zero());
            let has_mass = has_mass(weigh.largest(maxima[b]));
            for v in (0..BLOCK / S::LANES).step_by(GROUP) {
                let mut shares = [S::splat(0.0); GROUP];
                if has_mass {
                    shares = S::shares(exponents::<S, F>(at, v, max, scale));
                    sum = S::sum_add(sum, shares);
                }
                for i in 0..GROUP {
                    let weight = S::weight(shares[i], load::<S, F>(at, v + i));
                    S::store(out.as_mut_ptr().add((v + i) * S::LANES), weight);
                }
            }
            if has_mass {
                total += S::sum_total(sum);
            }
        }
        total
    }
}

/// Masses by block after the new logits, from the result of [weights], and their total. Loops over arrays compile to
/// vectors.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn adapted<S: Sums>(weights: &[f32], by: Adapt<'_>, sums: &mut [u64]) -> u64 {
    let Adapt { near, weigh: Weigh { max, scale }, .. } = by;
    let (mut y, mut total) = ([0.0f32; BLOCK], 0);
    for (weights, sum) in weights.chunks_exact(BLOCK).zip(sums) {
        let (mut doubts, mut most) = (0, i32::MIN);
        for i in 0..BLOCK {
            let [low, high] = near.bounds(weights[i]);
            doubts |= low.to_bits() ^ high.to_bits();
            most = most.max(weights[i].to_bits().cast_signed());
            y[i] = (low - max) * scale;
        }
        // Floats of the same sign are ordered like their bits.
        if doubts != 0 || most > near.most.to_bits().cast_signed() {
            patch(weights, by, &mut y);
        }
        // SAFETY: see the module; the chunks are whole vectors.
        unsafe {
            let (mut all, zero) = (S::sum_zero(), S::splat(0.0));
            for v in (0..BLOCK / S::LANES).step_by(GROUP) {
                let load = |from: &[f32], i: usize| S::load_f32(from[(v + i) * S::LANES..].as_ptr().cast());
                let mut shares = S::shares(std::array::from_fn(|i| load(&y, i)));
                for i in 0..GROUP {
                    shares[i] = S::where_ge(shares[i], load(weights, i), zero);
                }
                all = S::sum_add(all, shares);
            }
            *sum = S::sum_total(all);
        }
        total += *sum;
    }
    total
}

/// Computes the exponents that the quick way leaves uncertain.
#[cold]
fn patch(weights: &[f32], by: Adapt<'_>, y: &mut [f32; BLOCK]) {
    for (y, &weight) in y.iter_mut().zip(weights).filter(|(_, weight)| **weight >= 0.0) {
        let [low, high] = by.near.bounds(weight);
        if low.to_bits() != high.to_bits() || weight > by.near.most {
            *y = ((by.exact)(weight as u64) - by.weigh.max) * by.weigh.scale;
        }
    }
}
