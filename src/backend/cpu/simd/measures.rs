//! What samplers measure of a block besides its mass, in a level's vector instructions where plain loops do not compile
//! to these.

use super::portable::Portable;
use super::sums::Sums;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use crate::backend::cpu::passes::BLOCK;
use crate::sampling::samplers::top_n_sigma::{Moments, least_finite};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Measures of blocks.
///
/// # Safety
/// As [`Simd`](super::Simd).
pub(in crate::backend::cpu) trait Measures: Sums {
    /// The least logit that is not −∞; +∞ if there is none.
    #[inline(always)]
    unsafe fn least(logits: &[f32; BLOCK]) -> f32 {
        least_finite(logits)
    }

    /// Adds logits to the sums of a deviation.
    #[inline(always)]
    unsafe fn moments_add(logits: &[f32; BLOCK], into: &mut Moments) {
        into.add_all(logits);
    }

    /// The sum of the squares of masses.
    #[inline(always)]
    unsafe fn squares(masses: &[u64; BLOCK]) -> u128 {
        masses.iter().map(|&mass| u128::from(mass) * u128::from(mass)).sum()
    }
}

impl Measures for Portable {}

/// The sum of four numbers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sum(a: __m256i) -> u64 {
    let mut lanes = [0u64; 4];
    // SAFETY: the caller has AVX2; four lanes are stored.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), a) };
    lanes.into_iter().sum()
}

/// The sum of eight numbers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sum8(a: __m512i) -> u64 {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_reduce_add_epi64(a).cast_unsigned() }
}

/// The squares of eight numbers of 32 bits, in pairs.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn squares_of(a: __m256i) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let odd = _mm256_srli_epi64::<32>(a);
        _mm256_add_epi64(_mm256_mul_epu32(a, a), _mm256_mul_epu32(odd, odd))
    }
}

/// A mass has at most 41 bits: 20 lower ones, and 21 upper ones.
#[cfg(target_arch = "x86_64")]
const LOW: u32 = 20;

/// The sum of squares, from the sums of squared upper parts, of products of both parts, and of squared lower parts.
#[cfg(target_arch = "x86_64")]
fn put_together(high: u64, mixed: u64, low: u64) -> u128 {
    (u128::from(high) << (2 * LOW)) + (u128::from(mixed) << (LOW + 1)) + u128::from(low)
}

// SAFETY (whole impl): as Simd of the same level; loads stay inside the arrays, which hold whole vectors.
#[cfg(target_arch = "x86_64")]
impl<const AMD: bool> Measures for Avx512<AMD> {
    #[inline(always)]
    unsafe fn least(logits: &[f32; BLOCK]) -> f32 {
        unsafe {
            let mut least = _mm512_set1_ps(f32::INFINITY);
            for v in (0..BLOCK).step_by(16) {
                let x = _mm512_loadu_ps(logits.as_ptr().add(v));
                let is_candidate = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(f32::NEG_INFINITY));
                least = _mm512_mask_min_ps(least, is_candidate, least, x);
            }
            _mm512_reduce_min_ps(least)
        }
    }

    #[inline(always)]
    unsafe fn moments_add(logits: &[f32; BLOCK], into: &mut Moments) {
        unsafe {
            let (max, units) = into.scale();
            let (max, units) = (_mm512_set1_ps(max), _mm512_set1_ps(units));
            let (most, shift) = (_mm512_set1_ps(Moments::MAX as f32), _mm512_set1_ps(Moments::SHIFT));
            let zero = _mm512_setzero_si512();
            let (mut number, mut distance, mut squares) = (0, zero, [zero; 2]);
            for v in (0..BLOCK).step_by(16) {
                let x = _mm512_loadu_ps(logits.as_ptr().add(v));
                let units = _mm512_min_ps(_mm512_mul_ps(_mm512_sub_ps(max, x), units), most);
                let units = _mm512_castps_si512(_mm512_add_ps(units, shift));
                let is_candidate = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(f32::NEG_INFINITY));
                let units = _mm512_maskz_sub_epi32(is_candidate, units, _mm512_castps_si512(shift));
                number += u64::from(is_candidate.count_ones());
                distance = _mm512_add_epi32(distance, units);
                let odd = _mm512_srli_epi64::<32>(units);
                squares[0] = _mm512_add_epi64(squares[0], _mm512_mul_epu32(units, units));
                squares[1] = _mm512_add_epi64(squares[1], _mm512_mul_epu32(odd, odd));
            }
            let low = _mm512_set1_epi64(0xFFFF_FFFF);
            let distance = _mm512_add_epi64(_mm512_and_si512(distance, low), _mm512_srli_epi64::<32>(distance));
            into.add_sums(number, sum8(distance), sum8(_mm512_add_epi64(squares[0], squares[1])));
        }
    }

    #[inline(always)]
    unsafe fn squares(masses: &[u64; BLOCK]) -> u128 {
        unsafe {
            let (mask, zero) = (_mm512_set1_epi64((1 << LOW) - 1), _mm512_setzero_si512());
            let (mut high, mut mixed, mut low) = (zero, zero, zero);
            for v in (0..BLOCK).step_by(8) {
                let mass = _mm512_loadu_si512(masses.as_ptr().add(v).cast());
                let (upper, lower) = (_mm512_srli_epi64::<LOW>(mass), _mm512_and_si512(mass, mask));
                high = _mm512_add_epi64(high, _mm512_mul_epu32(upper, upper));
                mixed = _mm512_add_epi64(mixed, _mm512_mul_epu32(upper, lower));
                low = _mm512_add_epi64(low, _mm512_mul_epu32(lower, lower));
            }
            put_together(sum8(high), sum8(mixed), sum8(low))
        }
    }
}

// SAFETY (whole impl): as Simd of the same level; loads stay inside the arrays, which hold whole vectors.
#[cfg(target_arch = "x86_64")]
impl Measures for Avx2 {
    #[inline(always)]
    unsafe fn least(logits: &[f32; BLOCK]) -> f32 {
        unsafe {
            let none = _mm256_set1_ps(f32::INFINITY);
            let mut least = none;
            for v in (0..BLOCK).step_by(8) {
                let x = _mm256_loadu_ps(logits.as_ptr().add(v));
                let is_masked = _mm256_cmp_ps::<_CMP_EQ_OQ>(x, _mm256_set1_ps(f32::NEG_INFINITY));
                least = _mm256_min_ps(least, _mm256_blendv_ps(x, none, is_masked));
            }
            let mut lanes = [0.0f32; 8];
            _mm256_storeu_ps(lanes.as_mut_ptr(), least);
            lanes.into_iter().fold(f32::INFINITY, f32::min)
        }
    }

    #[inline(always)]
    unsafe fn moments_add(logits: &[f32; BLOCK], into: &mut Moments) {
        unsafe {
            let (max, units) = into.scale();
            let (max, units) = (_mm256_set1_ps(max), _mm256_set1_ps(units));
            let (most, shift) = (_mm256_set1_ps(Moments::MAX as f32), _mm256_set1_ps(Moments::SHIFT));
            let zero = _mm256_setzero_si256();
            let (mut number, mut distance, mut squares) = (zero, zero, zero);
            for v in (0..BLOCK).step_by(8) {
                let x = _mm256_loadu_ps(logits.as_ptr().add(v));
                let units = _mm256_min_ps(_mm256_mul_ps(_mm256_sub_ps(max, x), units), most);
                let units = _mm256_castps_si256(_mm256_add_ps(units, shift));
                let is_candidate = _mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_set1_ps(f32::NEG_INFINITY));
                let is_candidate = _mm256_castps_si256(is_candidate);
                let units = _mm256_and_si256(_mm256_sub_epi32(units, _mm256_castps_si256(shift)), is_candidate);
                number = _mm256_sub_epi32(number, is_candidate);
                distance = _mm256_add_epi32(distance, units);
                squares = _mm256_add_epi64(squares, squares_of(units));
            }
            let low = _mm256_set1_epi64x(0xFFFF_FFFF);
            let both = |a| _mm256_add_epi64(_mm256_and_si256(a, low), _mm256_srli_epi64::<32>(a));
            into.add_sums(sum(both(number)), sum(both(distance)), sum(squares));
        }
    }

    #[inline(always)]
    unsafe fn squares(masses: &[u64; BLOCK]) -> u128 {
        unsafe {
            let (mask, zero) = (_mm256_set1_epi64x((1 << LOW) - 1), _mm256_setzero_si256());
            let (mut high, mut mixed, mut low) = (zero, zero, zero);
            for v in (0..BLOCK).step_by(4) {
                let mass = _mm256_loadu_si256(masses.as_ptr().add(v).cast());
                let (upper, lower) = (_mm256_srli_epi64::<{ LOW as i32 }>(mass), _mm256_and_si256(mass, mask));
                high = _mm256_add_epi64(high, _mm256_mul_epu32(upper, upper));
                mixed = _mm256_add_epi64(mixed, _mm256_mul_epu32(upper, lower));
                low = _mm256_add_epi64(low, _mm256_mul_epu32(lower, lower));
            }
            put_together(sum(high), sum(mixed), sum(low))
        }
    }
}
