//! [`Sums`] with AVX-512.

// Vectors of several arrays are counted, so that each step is done for all of them before the next.
#![allow(clippy::needless_range_loop)]

use super::{EXTRA, GROUP, SHIFT, Sums};
use crate::backend::cpu::passes::BLOCK;
use crate::backend::cpu::simd::Simd;
use crate::backend::cpu::simd::avx512::{Avx512, scaled_exp2_of};
use crate::backend::cpu::simd::real::Real;
use std::arch::x86_64::*;

/// The sum of several blocks, by lane.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Lot {
    units: __m512i,
    parts: __m512i,
    /// How many blocks had units and parts.
    large: u32,
    /// How many small blocks there were, which have parts alone.
    small: u32,
}

/// [`SURELY_SMALL_Y`](super::SURELY_SMALL_Y) relies on this.
const _: () = assert!(BLOCK / <Avx512<false> as Simd>::LANES <= 8);
const UNIT_BITS: u32 = 20;
/// The number that sums of units begin at, and sums of small masses.
const UNITS: f32 = (1 << 23) as f32;
/// The number that sums of parts begin at: from here to twice as much, the last bit of an f32 is 2^-20.
const PARTS: f32 = 8.0;
const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;

/// The masses of shares. F32 hold them exactly.
#[inline(always)]
unsafe fn whole_mass(share: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_roundscale_ps::<DOWN>(_mm512_mul_ps(share, _mm512_set1_ps((1 << UNIT_BITS) as f32))) }
}

// SAFETY (whole impl): as Simd of the same level.
impl<const AMD: bool> Sums for Avx512<AMD> {
    /// Sums of units, which begin at 2^23, and of parts of a unit, which begin at 8. There the last bit of an f32 is
    /// one of what is added up, and smaller parts are lost by rounding down. A block has at most 8 * 2^20 units in a
    /// lane, and less than 8 in parts, so both stay below the next power of two.
    type Sum = [__m512; 2];
    /// Sums of masses, which begin at 2^23. A lane may have less than as much again.
    type Small = __m512;
    /// The bits of all units and of all parts, and how many blocks began with which bits.
    type Lot = Lot;
    /// Up to this exponent a lane rarely has two of the largest possible masses, 2^22.
    const SMALL_Y: f32 = -18.0;
    const UNIT: f32 = (1 << UNIT_BITS) as f32;

    #[inline(always)]
    unsafe fn powers(y: [__m512; GROUP]) -> [__m512; GROUP] {
        unsafe { scaled_exp2_of::<AMD, GROUP>(y, 1.0) }
    }
    #[inline(always)]
    unsafe fn shares(y: [__m512; GROUP]) -> [__m512; GROUP] {
        unsafe { scaled_exp2_of::<AMD, GROUP>(y, Self::UNIT) }
    }
    #[inline(always)]
    unsafe fn where_ge(value: __m512, x: __m512, bound: __m512) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, bound), value) }
    }
    #[inline(always)]
    unsafe fn where_gt(value: __m512, x: __m512, bound: __m512) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, bound), value) }
    }
    #[inline(always)]
    unsafe fn weight(share: __m512, x: __m512) -> __m512 {
        unsafe {
            let is_there = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(f32::NEG_INFINITY));
            _mm512_mask_mov_ps(_mm512_set1_ps(-1.0), is_there, whole_mass(share))
        }
    }
    #[inline(always)]
    unsafe fn sum_zero() -> [__m512; 2] {
        unsafe { [_mm512_set1_ps(UNITS), _mm512_set1_ps(PARTS)] }
    }
    #[inline(always)]
    unsafe fn sum_add([mut units, mut parts]: [__m512; 2], shares: [__m512; GROUP]) -> [__m512; 2] {
        for share in shares {
            unsafe {
                let sum = _mm512_add_round_ps::<DOWN>(units, share);
                // Both differences are exact.
                let rest = _mm512_sub_ps(share, _mm512_sub_ps(sum, units));
                parts = _mm512_add_round_ps::<DOWN>(parts, rest);
                units = sum;
            }
        }
        [units, parts]
    }
    #[inline(always)]
    unsafe fn small_zero() -> __m512 {
        unsafe { _mm512_set1_ps(UNITS) }
    }
    #[inline(always)]
    unsafe fn small_add(mut sum: __m512, powers: [__m512; GROUP]) -> __m512 {
        for power in powers {
            sum = unsafe { _mm512_add_round_ps::<DOWN>(sum, power) };
        }
        sum
    }
    #[inline(always)]
    unsafe fn small_most(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn small_holds(most: __m512) -> bool {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(most, _mm512_set1_ps(2.0 * UNITS)) == 0 }
    }
    #[inline(always)]
    unsafe fn lot_zero() -> Lot {
        unsafe { Lot { units: _mm512_setzero_si512(), parts: _mm512_setzero_si512(), large: 0, small: 0 } }
    }
    #[inline(always)]
    unsafe fn lot_add(lot: Lot, [units, parts]: [__m512; 2]) -> Lot {
        unsafe {
            let units = _mm512_add_epi32(lot.units, _mm512_castps_si512(units));
            let parts = _mm512_add_epi32(lot.parts, _mm512_castps_si512(parts));
            Lot { units, parts, large: lot.large + 1, ..lot }
        }
    }
    #[inline(always)]
    unsafe fn lot_add_small(lot: Lot, sum: __m512) -> Lot {
        let parts = unsafe { _mm512_add_epi32(lot.parts, _mm512_castps_si512(sum)) };
        Lot { parts, small: lot.small + 1, ..lot }
    }
    #[inline(always)]
    unsafe fn narrow_sum(mut sum: __m512i, powers: [__m512; GROUP]) -> __m512i {
        for power in powers {
            sum = unsafe { _mm512_add_epi32(sum, _mm512_cvttps_epi32(power)) };
        }
        sum
    }
    #[inline(always)]
    unsafe fn lot_add_narrow(lot: Lot, sum: __m512i) -> Lot {
        unsafe {
            let parts = _mm512_and_si512(sum, _mm512_set1_epi32((1 << UNIT_BITS) - 1));
            let units = _mm512_add_epi32(lot.units, _mm512_srli_epi32::<UNIT_BITS>(sum));
            Lot { units, parts: _mm512_add_epi32(lot.parts, parts), ..lot }
        }
    }
    #[inline(always)]
    unsafe fn lot_total(Lot { units, parts, large, small }: Lot) -> u64 {
        // All modulo 2^32: the sum of the 16 lanes of a lot is less, above the bits with which they began.
        const LANES: u32 = Avx512::<true>::LANES as u32;
        let begun = |blocks: u32, at: f32| blocks.wrapping_mul(LANES.wrapping_mul(at.to_bits()));
        unsafe {
            // Parts and units, next to each other.
            let both = _mm512_add_epi32(_mm512_unpacklo_epi32(parts, units), _mm512_unpackhi_epi32(parts, units));
            let both = _mm256_add_epi32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64::<1>(both));
            let both = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
            let both = _mm_cvtsi128_si64(_mm_add_epi32(both, _mm_unpackhi_epi64(both, both))).cast_unsigned();
            let units = ((both >> 32) as u32).wrapping_sub(begun(large, UNITS));
            let parts = (both as u32).wrapping_sub(begun(large, PARTS)).wrapping_sub(begun(small, UNITS));
            (u64::from(units) << UNIT_BITS) + u64::from(parts)
        }
    }
    #[inline(always)]
    unsafe fn terms_add(terms: [__m512i; 2], y: [__m512; GROUP], shares: [__m512; GROUP]) -> [__m512i; 2] {
        unsafe {
            let shift = _mm512_set1_pd(SHIFT);
            let extra = _mm512_set1_epi64(EXTRA);
            let mut terms = [_mm512_sub_epi64(terms[0], extra), _mm512_sub_epi64(terms[1], extra)];
            for i in 0..GROUP {
                let (masses, y) = (Self::widened(whole_mass(shares[i])), Self::widened(y[i]));
                // A product of two f32 is exact in f64, so this rounds once: to the nearest integer, the even one of two.
                let low = _mm512_castpd_si512(_mm512_fnmadd_pd(masses[0], y[0], shift));
                let high = _mm512_castpd_si512(_mm512_fnmadd_pd(masses[1], y[1], shift));
                terms = [_mm512_add_epi64(terms[0], low), _mm512_add_epi64(terms[1], high)];
            }
            terms
        }
    }
}
