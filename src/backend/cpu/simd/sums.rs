//! Sums of masses, several vectors at a time: a power is a chain of operations that each wait for the one before, and a
//! processor looks only so far ahead for others to do meanwhile.

// Vectors of several arrays are counted, so that each step is done for all before the next.
#![allow(clippy::needless_range_loop)]

use super::real::Real;
use super::{Simd, portable::Portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
#[cfg(target_arch = "x86_64")]
use crate::sampling::mass::{EXP2, MASS_ONE, Y_FLOOR};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Vectors that are worked on side by side. A block has whole groups.
pub(in crate::backend::cpu) const GROUP: usize = 4;

/// What weighs a block.
///
/// # Safety
/// As [`Simd`].
pub(in crate::backend::cpu) trait Sums: Real {
    /// A sum of masses, of those of a block at most.
    type Sum: Copy;

    /// `2^y * 2^40` of each: its integer part is the [mass](Simd::mass).
    unsafe fn powers(y: [Self::Float; GROUP]) -> [Self::Float; GROUP];
    /// The value where `x >= bound`, 0 elsewhere.
    unsafe fn where_ge(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float;
    /// The value where `x > bound`, 0 elsewhere.
    unsafe fn where_gt(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float;
    unsafe fn sum_zero() -> Self::Sum;
    /// Adds the integer parts.
    unsafe fn sum_add(sum: Self::Sum, powers: [Self::Float; GROUP]) -> Self::Sum;
    /// Masses with the same sum.
    unsafe fn sum_mass(sum: Self::Sum) -> Self::Mass;
    /// Adds the integer parts of exponents whose masses are added up as `Narrow`.
    unsafe fn narrow_sum(sum: Self::Narrow, powers: [Self::Float; GROUP]) -> Self::Narrow;

    /// The integer part of a power, as a float; -1 where the value that it was made of is −∞.
    unsafe fn weight(power: Self::Float, x: Self::Float) -> Self::Float;

    /// Adds the [entropy terms](crate::sampling::entropy::entropy_term) of exponents of at least
    /// [`Y_FLOOR`], which have these powers.
    #[inline(always)]
    unsafe fn terms_add(mut terms: Self::Mass, y: [Self::Float; GROUP], _powers: [Self::Float; GROUP]) -> Self::Mass {
        // SAFETY: passed on.
        unsafe {
            for y in y {
                // Its power is there already: the compiler makes it once.
                let distance = Self::widened(Self::sub(Self::splat(0.0), y));
                let term = Self::real_mul(Self::real(Self::mass(y)), distance);
                terms = Self::mass_add(terms, Self::count(term));
            }
            terms
        }
    }
}

// SAFETY (whole impl): as Simd of the same level.
impl Sums for Portable {
    type Sum = Self::Mass;

    #[inline(always)]
    unsafe fn powers(y: [Self::Float; GROUP]) -> [Self::Float; GROUP] {
        unsafe { y.map(|y| Self::power(y)) }
    }
    #[inline(always)]
    unsafe fn where_ge(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float {
        std::array::from_fn(|i| if x[i] >= bound[i] { value[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn where_gt(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float {
        std::array::from_fn(|i| if x[i] > bound[i] { value[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn weight(power: Self::Float, x: Self::Float) -> Self::Float {
        std::array::from_fn(|i| if x[i] > f32::NEG_INFINITY { (power[i] as u64) as f32 } else { -1.0 })
    }
    #[inline(always)]
    unsafe fn sum_zero() -> Self::Mass {
        unsafe { Self::mass_zero() }
    }
    #[inline(always)]
    unsafe fn sum_add(mut sum: Self::Mass, powers: [Self::Float; GROUP]) -> Self::Mass {
        for powers in powers {
            sum = unsafe { Self::mass_add(sum, powers.map(|power| power as u64)) };
        }
        sum
    }
    #[inline(always)]
    unsafe fn sum_mass(sum: Self::Mass) -> Self::Mass {
        sum
    }
    #[inline(always)]
    unsafe fn narrow_sum(mut sum: Self::Narrow, powers: [Self::Float; GROUP]) -> Self::Narrow {
        for powers in powers {
            sum = unsafe { Self::narrow_add(sum, powers.map(|power| power as u32)) };
        }
        sum
    }
}

// SAFETY (whole impl): as Simd of the same level.
#[cfg(target_arch = "x86_64")]
impl Sums for Avx512 {
    type Sum = [__m512i; 2];

    #[inline(always)]
    unsafe fn powers(mut y: [__m512; GROUP]) -> [__m512; GROUP] {
        for y in &mut y {
            *y = unsafe { Self::power(*y) };
        }
        y
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
    unsafe fn weight(power: __m512, x: __m512) -> __m512 {
        unsafe {
            let floor = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(power);
            let is_there = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(f32::NEG_INFINITY));
            _mm512_mask_mov_ps(_mm512_set1_ps(-1.0), is_there, floor)
        }
    }
    #[inline(always)]
    unsafe fn sum_zero() -> [__m512i; 2] {
        unsafe { Self::mass_zero() }
    }
    #[inline(always)]
    unsafe fn sum_add(mut sum: [__m512i; 2], powers: [__m512; GROUP]) -> [__m512i; 2] {
        for power in powers {
            // Conversion truncates.
            unsafe {
                let (low, high) = (_mm512_castps512_ps256(power), _mm512_extractf32x8_ps::<1>(power));
                sum = Self::mass_add(sum, [_mm512_cvttps_epi64(low), _mm512_cvttps_epi64(high)]);
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn sum_mass(sum: [__m512i; 2]) -> [__m512i; 2] {
        sum
    }
    #[inline(always)]
    unsafe fn narrow_sum(mut sum: __m512i, powers: [__m512; GROUP]) -> __m512i {
        for power in powers {
            sum = unsafe { _mm512_add_epi32(sum, _mm512_cvttps_epi32(power)) };
        }
        sum
    }
}

/// 2^52, where f64 are the integers.
#[cfg(target_arch = "x86_64")]
const SHIFT: f64 = (1u64 << 52) as f64;

/// The integer parts of eight powers as f64.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn whole(power: __m256) -> [__m256d; 2] {
    // SAFETY: the caller has AVX2.
    unsafe { wide(_mm256_floor_ps(power)) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn wide(x: __m256) -> [__m256d; 2] {
    // SAFETY: the caller has AVX2.
    unsafe { [_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(x))] }
}

// SAFETY (whole impl): as Simd of the same level.
#[cfg(target_arch = "x86_64")]
impl Sums for Avx2 {
    /// Masses are integers of at most 2^40 and a lane takes 16 of them, so that f64 add them exactly.
    type Sum = [__m256d; 2];

    /// As [`power`](Simd::power), step by step for all.
    #[inline(always)]
    unsafe fn powers(mut y: [__m256; GROUP]) -> [__m256; GROUP] {
        unsafe {
            let (floor, shift) = (_mm256_set1_ps(Y_FLOOR), _mm256_set1_ps(super::avx2::INTEGERS));
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
    unsafe fn sum_mass(sum: [__m256d; 2]) -> [__m256i; 2] {
        unsafe {
            // Adding 2^52 puts the integer into the low mantissa bits.
            let shift = _mm256_set1_pd(SHIFT);
            let (low, high) = (_mm256_add_pd(sum[0], shift), _mm256_add_pd(sum[1], shift));
            [_mm256_castpd_si256(_mm256_xor_pd(low, shift)), _mm256_castpd_si256(_mm256_xor_pd(high, shift))]
        }
    }
    #[inline(always)]
    unsafe fn narrow_sum(mut sum: __m256i, powers: [__m256; GROUP]) -> __m256i {
        for power in powers {
            sum = unsafe { _mm256_add_epi32(sum, _mm256_cvttps_epi32(power)) };
        }
        sum
    }
    #[inline(always)]
    unsafe fn terms_add(terms: [__m256i; 2], y: [__m256; GROUP], powers: [__m256; GROUP]) -> [__m256i; 2] {
        unsafe {
            let shift = _mm256_set1_pd(SHIFT);
            // What the shift adds to the bits of each.
            let extra = _mm256_set1_epi64x((SHIFT.to_bits().wrapping_mul(GROUP as u64)).cast_signed());
            let mut terms = [_mm256_sub_epi64(terms[0], extra), _mm256_sub_epi64(terms[1], extra)];
            for i in 0..GROUP {
                let (masses, y) = (whole(powers[i]), wide(y[i]));
                // A product of two f32 is exact in f64, so this rounds once: to the nearest integer, the even one of two.
                let low = _mm256_castpd_si256(_mm256_fnmadd_pd(masses[0], y[0], shift));
                let high = _mm256_castpd_si256(_mm256_fnmadd_pd(masses[1], y[1], shift));
                terms = [_mm256_add_epi64(terms[0], low), _mm256_add_epi64(terms[1], high)];
            }
            terms
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_groups_are_masses() {
        let y: [[f32; 8]; GROUP] = std::array::from_fn(|i| {
            std::array::from_fn(|j| -1.7 * (i * 8 + j) as f32 - if i == 3 { 40.0 } else { 0.0 })
        });
        // SAFETY: the portable level needs nothing.
        let (sum, expected) = unsafe {
            let sum = Portable::sum_mass(Portable::sum_add(Portable::sum_zero(), Portable::powers(y)));
            let expected = y.iter().fold([0; 8], |all, &y| Portable::mass_add(all, Portable::mass(y)));
            (sum, expected)
        };
        assert_eq!(sum, expected);
    }
}
