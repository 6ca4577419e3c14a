//! The passes of tournaments. See the [module](super) for safety; loops over arrays compile to vectors.

// Tokens are counted, since their number is also their place in several lists.
#![allow(clippy::needless_range_loop)]

use super::BLOCK;
use crate::sampling::watermark::tournament::{BITS, TOKENS};

const _: () = assert!(BLOCK == TOKENS);

/// How many layers' bits make one pattern of a token, the first layer's lowest.
pub(in crate::backend::cpu) const LAYERS: usize = 10;
/// How many patterns there are.
pub(in crate::backend::cpu) const PATTERNS: usize = 1 << LAYERS;

/// How many bits fit the integers in which they are collected.
const PART: usize = 8;

/// How many sums are kept in parallel, since an addition waits for the one before.
const LANES: usize = 8;

/// The patterns of tokens from 0 on, in whole blocks, for the layers whose bits begin at `begins` in a
/// [turned](crate::sampling::watermark::tournament::Table::turned) table.
#[inline(always)]
pub(in crate::backend::cpu) fn patterns(turned: &[u8], begins: &[u32], out: &mut [u16]) {
    let (low, high) = begins.split_at(begins.len().min(PART));
    for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
        let low = part(turned, low, block);
        if high.is_empty() {
            for i in 0..BLOCK {
                out[i] = u16::from(low[i]);
            }
        } else {
            let high = part(turned, high, block);
            for i in 0..BLOCK {
                out[i] = u16::from(low[i]) | u16::from(high[i]) << PART;
            }
        }
    }
}

/// The same, for a few layers of one block.
#[inline(always)]
fn part(turned: &[u8], begins: &[u32], block: usize) -> [u8; BLOCK] {
    let (size, first) = (turned.len() - TOKENS, block * BLOCK);
    let mut out = [0u8; BLOCK];
    for &begin in begins.iter().rev() {
        let bits = &turned[(begin as usize + first) & (size - 1)..][..BLOCK];
        for i in 0..BLOCK {
            out[i] = out[i] + out[i] + bits[i];
        }
    }
    out
}

/// A mass as f64. Masked values have a negative one, which becomes 0.
#[inline(always)]
fn real(mass: f32) -> f64 {
    f64::from(if mass > 0.0 { mass } else { 0.0 })
}

/// Adds up masses by class: those that stand as many places apart as there are sums. Both lists are whole blocks.
#[inline(always)]
pub(in crate::backend::cpu) fn merge(masses: &[f32], sums: &mut [f64]) {
    let classes = sums.len();
    for (block, sums) in sums.chunks_exact_mut(BLOCK).enumerate() {
        let mut all = [0.0; BLOCK];
        for masses in masses[block * BLOCK..].chunks(classes) {
            let masses = &masses[..BLOCK];
            for i in 0..BLOCK {
                all[i] += real(masses[i]);
            }
        }
        sums.copy_from_slice(&all);
    }
}

/// For each block, the sum of masses times the products of their classes.
#[inline(always)]
pub(in crate::backend::cpu) fn weigh_classes(masses: &[f32], products: &[f64], sums: &mut [f64]) {
    for ((block, sum), masses) in sums.iter_mut().enumerate().zip(masses.chunks_exact(BLOCK)) {
        let products = &products[block * BLOCK % products.len()..][..BLOCK];
        let mut lanes = [0.0; LANES];
        for (masses, products) in masses.chunks_exact(LANES).zip(products.chunks_exact(LANES)) {
            for i in 0..LANES {
                lanes[i] += real(masses[i]) * products[i];
            }
        }
        *sum = lanes.into_iter().sum();
    }
}

/// Factors and weights are cut into halves, since processors have vector instructions for products of these.
const HALF: u32 = 32;
const LOW: u64 = (1 << HALF) - 1;

/// Plays a layer in place, as [`Tournament::play`](crate::sampling::watermark::tournament::Tournament::play) does. Returns
/// the sum of the new weights, and the sum of those whose next bit is set.
#[inline(always)]
pub(in crate::backend::cpu) fn layer(weights: &mut [u64], bits: &[u64], layer: u32, factor: u64) -> [u64; 2] {
    let [low, high] = [factor & LOW, factor >> HALF & LOW];
    let (mut total, mut set) = (0, 0);
    for (weight, bits) in weights.iter_mut().zip(bits) {
        let (lower, upper, bits) = (*weight & LOW, *weight >> HALF, *bits >> layer);
        let middle = upper * low + lower * high + ((lower * low) >> HALF);
        let share = ((upper * high) << (2 * HALF - BITS)) + (middle >> (BITS - HALF));
        *weight = share + (*weight & (bits & 1).wrapping_neg());
        total += *weight;
        set += *weight & (bits >> 1 & 1).wrapping_neg();
    }
    [total, set]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_the_product_of_all_bits() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ state >> 29
        };
        let most = (1u64 << BITS) - 1;
        let mut numbers: Vec<u64> = (0..3000).map(|i| (random() >> 2) >> (i % 60)).collect();
        numbers.extend([0, 1, LOW, LOW + 1, most, most - 1, most >> 1, (most >> 1) + 1]);
        let bits: Vec<u64> = numbers.iter().map(|_| random()).collect();
        for factor in numbers.iter().copied().step_by(41).chain([0, LOW, LOW + 1, most, 1 << BITS]) {
            for place in [0, 17, 63] {
                let mut weights = numbers.clone();
                // They are not added up, because the sum would be too large.
                let each = weights.iter_mut().zip(&bits).map(|(weight, &bits)| {
                    let sums = layer(std::slice::from_mut(weight), &[bits], place, factor);
                    (*weight, sums)
                });
                for ((found, sums), (&weight, &bits)) in each.zip(numbers.iter().zip(&bits)) {
                    let set = u128::from(bits >> place & 1) << BITS;
                    let expected = ((u128::from(weight) * (u128::from(factor) + set)) >> BITS) as u64;
                    let next = if place < 63 { bits >> (place + 1) & 1 } else { 0 };
                    assert_eq!((found, sums), (expected, [expected, expected * next]), "{weight} {factor} {place}");
                }
            }
        }
    }
}
