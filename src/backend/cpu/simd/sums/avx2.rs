//! [`Sums`] with AVX2.

// Vectors of several arrays are counted, so that each step is done for all of them before the next.
#![allow(clippy::needless_range_loop)]

use super::{EXTRA, GROUP, SHIFT, Sums};
use crate::backend::cpu::passes::NARROW_Y;
use crate::backend::cpu::simd::Simd;
use crate::backend::cpu::simd::avx2::{Avx2, INTEGERS};
use crate::sampling::mass::{EXP2, MASS_ONE, Y_FLOOR};
use std::arch::x86_64::*;

/// The integer parts of eight powers as f64.
#[inline(always)]
unsafe fn whole(power: __m256) -> [__m256d; 2] {
    // SAFETY: the caller has AVX2.
    unsafe { wide(_mm256_floor_ps(power)) }
}

#[inline(always)]
unsafe fn wide(x: __m256) -> [__m256d; 2] {
    // SAFETY: the caller has AVX2.
    unsafe { [_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(x))] }
}

// SAFETY (whole impl): as Simd of the same level.
impl Sums for Avx2 {
    /// Masses are integers of at most 2^40, and a lane takes 16 of them from each block, so f64 add them exactly.
    type Sum = [__m256d; 2];
    type Small = __m256i;
    /// Narrow blocks are added up separately.
    type Lot = ([__m256d; 2], [__m256i; 2]);
    const SMALL_Y: f32 = NARROW_Y;
    const UNIT: f32 = 1.0;

    /// As [`power`](Simd::power), each step for all vectors before the next.
    #[inline(always)]
    unsafe fn powers(mut y: [__m256; GROUP]) -> [__m256; GROUP] {
        unsafe {
            let (floor, shift) = (_mm256_set1_ps(Y_FLOOR), _mm256_set1_ps(INTEGERS));
            let (mut shifted, mut p) = (y, [_mm256_set1_ps(EXP2[5] * MASS_ONE as f32); GROUP]);
            for i in 0..GROUP {
                y[i] = _mm256_max_ps(y[i], floor);
            }
            for i in 0..GROUP {
                shifted[i] = _mm256_add_ps(y[i], shift);
            }
            for i in 0..GROUP {
                y[i] = _mm256_sub_ps(y[i], _mm256_sub_ps(shifted[i], shift));
            }
            for coefficient in EXP2[..5].iter().rev() {
                let coefficient = _mm256_set1_ps(coefficient * MASS_ONE as f32);
                for i in 0..GROUP {
                    p[i] = _mm256_fmadd_ps(p[i], y[i], coefficient);
                }
            }
            for i in 0..GROUP {
                let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[i]));
                p[i] = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p[i]), exponent));
            }
            p
        }
    }
    #[inline(always)]
    unsafe fn shares(y: [__m256; GROUP]) -> [__m256; GROUP] {
        unsafe { Self::powers(y) }
    }
    #[inline(always)]
    unsafe fn where_ge(value: __m256, x: __m256, bound: __m256) -> __m256 {
        unsafe { _mm256_and_ps(value, _mm256_cmp_ps::<_CMP_GE_OQ>(x, bound)) }
    }
    #[inline(always)]
    unsafe fn where_gt(value: __m256, x: __m256, bound: __m256) -> __m256 {
        unsafe { _mm256_and_ps(value, _mm256_cmp_ps::<_CMP_GT_OQ>(x, bound)) }
    }
    #[inline(always)]
    unsafe fn weight(power: __m256, x: __m256) -> __m256 {
        unsafe {
            let is_there = _mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_set1_ps(f32::NEG_INFINITY));
            _mm256_blendv_ps(_mm256_set1_ps(-1.0), _mm256_floor_ps(power), is_there)
        }
    }
    #[inline(always)]
    unsafe fn sum_zero() -> [__m256d; 2] {
        unsafe { [_mm256_setzero_pd(); 2] }
    }
    #[inline(always)]
    unsafe fn sum_add(mut sum: [__m256d; 2], powers: [__m256; GROUP]) -> [__m256d; 2] {
        for power in powers {
            unsafe {
                let [low, high] = whole(power);
                sum = [_mm256_add_pd(sum[0], low), _mm256_add_pd(sum[1], high)];
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn small_zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn small_add(sum: __m256i, powers: [__m256; GROUP]) -> __m256i {
        unsafe { Self::narrow_sum(sum, powers) }
    }
    #[inline(always)]
    unsafe fn small_most(a: __m256i, _: __m256i) -> __m256i {
        a
    }
    #[inline(always)]
    unsafe fn small_holds(_: __m256i) -> bool {
        true
    }
    #[inline(always)]
    unsafe fn lot_zero() -> ([__m256d; 2], [__m256i; 2]) {
        unsafe { ([_mm256_setzero_pd(); 2], [_mm256_setzero_si256(); 2]) }
    }
    #[inline(always)]
    unsafe fn lot_add((all, narrow): Self::Lot, sum: [__m256d; 2]) -> Self::Lot {
        unsafe { ([_mm256_add_pd(all[0], sum[0]), _mm256_add_pd(all[1], sum[1])], narrow) }
    }
    #[inline(always)]
    unsafe fn lot_add_small(lot: Self::Lot, sum: __m256i) -> Self::Lot {
        unsafe { Self::lot_add_narrow(lot, sum) }
    }
    #[inline(always)]
    unsafe fn narrow_sum(mut sum: __m256i, powers: [__m256; GROUP]) -> __m256i {
        for power in powers {
            sum = unsafe { _mm256_add_epi32(sum, _mm256_cvttps_epi32(power)) };
        }
        sum
    }
    #[inline(always)]
    unsafe fn lot_add_narrow((all, narrow): Self::Lot, sum: __m256i) -> Self::Lot {
        unsafe { (all, Self::mass_add(narrow, Self::narrow_widen(sum))) }
    }
    #[inline(always)]
    unsafe fn lot_total((sum, narrow): Self::Lot) -> u64 {
        unsafe {
            // A lot has at most 2^50, so f64 also add up the lanes exactly.
            let sum = _mm256_add_pd(sum[0], sum[1]);
            let sum = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd::<1>(sum));
            _mm_cvttsd_si64(_mm_add_sd(sum, _mm_unpackhi_pd(sum, sum))).cast_unsigned() + Self::mass_sum(narrow)
        }
    }
    #[inline(always)]
    unsafe fn terms_add(terms: [__m256i; 2], y: [__m256; GROUP], shares: [__m256; GROUP]) -> [__m256i; 2] {
        unsafe {
            let shift = _mm256_set1_pd(SHIFT);
            let extra = _mm256_set1_epi64x(EXTRA);
            let mut terms = [_mm256_sub_epi64(terms[0], extra), _mm256_sub_epi64(terms[1], extra)];
            for i in 0..GROUP {
                let (masses, y) = (whole(shares[i]), wide(y[i]));
                // A product of two f32 is exact in f64, so this rounds once: to the nearest integer, ties to even.
                let low = _mm256_castpd_si256(_mm256_fnmadd_pd(masses[0], y[0], shift));
                let high = _mm256_castpd_si256(_mm256_fnmadd_pd(masses[1], y[1], shift));
                terms = [_mm256_add_epi64(terms[0], low), _mm256_add_epi64(terms[1], high)];
            }
            terms
        }
    }
}
