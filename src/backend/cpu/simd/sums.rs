//! Sums of masses, several vectors at a time: a power is a chain of operations that each wait for the one before, and a
//! processor looks only so far ahead for others to do meanwhile.

// Vectors of several arrays are counted, so that each step is done for all before the next.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::{Avx512, scaled_exp2_of};
use super::real::Real;
use super::{Simd, portable::Portable};
#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::passes::BLOCK;
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
    /// The sum of the masses of one block.
    type Sum: Copy;
    /// What [shares](Self::shares) are counted in: a power of two of mass.
    const UNIT: f32;

    /// `2^y * 2^40` of each: its integer part is the [mass](Simd::mass).
    unsafe fn powers(y: [Self::Float; GROUP]) -> [Self::Float; GROUP];
    /// The same divided by [`UNIT`](Self::UNIT): masses as they are added up where they are large.
    unsafe fn shares(y: [Self::Float; GROUP]) -> [Self::Float; GROUP];
    /// The value where `x >= bound`, 0 elsewhere.
    unsafe fn where_ge(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float;
    /// The value where `x > bound`, 0 elsewhere.
    unsafe fn where_gt(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float;
    /// What every group of a block is then added to.
    unsafe fn sum_zero() -> Self::Sum;
    /// Adds the masses of a group of the block, of exponents of at most [`MOST_Y`](crate::backend::cpu::passes::MOST_Y).
    unsafe fn sum_add(sum: Self::Sum, shares: [Self::Float; GROUP]) -> Self::Sum;
    /// The sum, to which all of the block was added.
    unsafe fn sum_total(sum: Self::Sum) -> u64;
    /// Adds the integer parts of exponents whose masses are added up as `Narrow`.
    unsafe fn narrow_sum(sum: Self::Narrow, powers: [Self::Float; GROUP]) -> Self::Narrow;

    /// The mass of a share, as a float; -1 where the value that it was made of is −∞.
    unsafe fn weight(share: Self::Float, x: Self::Float) -> Self::Float;

    /// Adds the [entropy terms](crate::sampling::entropy::entropy_term) of exponents of at least
    /// [`Y_FLOOR`], which have these shares.
    unsafe fn terms_add(terms: Self::Mass, y: [Self::Float; GROUP], shares: [Self::Float; GROUP]) -> Self::Mass;
}

// SAFETY (whole impl): as Simd of the same level.
impl Sums for Portable {
    type Sum = Self::Mass;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    unsafe fn powers(y: [Self::Float; GROUP]) -> [Self::Float; GROUP] {
        unsafe { y.map(|y| Self::power(y)) }
    }
    #[inline(always)]
    unsafe fn shares(y: [Self::Float; GROUP]) -> [Self::Float; GROUP] {
        unsafe { Self::powers(y) }
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
    unsafe fn sum_total(sum: Self::Mass) -> u64 {
        unsafe { Self::mass_sum(sum) }
    }
    #[inline(always)]
    unsafe fn narrow_sum(mut sum: Self::Narrow, powers: [Self::Float; GROUP]) -> Self::Narrow {
        for powers in powers {
            sum = unsafe { Self::narrow_add(sum, powers.map(|power| power as u32)) };
        }
        sum
    }
    #[inline(always)]
    unsafe fn terms_add(mut terms: Self::Mass, y: [Self::Float; GROUP], shares: [Self::Float; GROUP]) -> Self::Mass {
        for (y, shares) in y.into_iter().zip(shares) {
            // SAFETY: the portable level needs nothing.
            unsafe {
                let masses = Self::real(shares.map(|share| share as u64));
                terms = Self::mass_add(terms, Self::count(Self::real_mul(masses, Self::widened(y.map(|y| -y)))));
            }
        }
        terms
    }
}

// SAFETY (whole impl): as Simd of the same level.
#[cfg(target_arch = "x86_64")]
impl<const AMD: bool> Sums for Avx512<AMD> {
    /// Whole units, and the rest: the bits of 1 and a fraction of 23 bits, which are added up as integers modulo 2^32. Both hold what
    /// the groups of a block have in a lane, 8 * 2^21 units and 8 * 2^23 parts of one.
    type Sum = (__m512, __m512i);
    /// What is less than a unit is a fraction of 23 bits, as f32 from 1 to 2 have.
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
    unsafe fn sum_zero() -> (__m512, __m512i) {
        // Takes away the bits of 1 that come with every fraction.
        const ONES: u32 = (BLOCK / Avx512::<true>::LANES) as u32;
        let ones = 1f32.to_bits().wrapping_mul(ONES);
        unsafe { (_mm512_setzero_ps(), _mm512_set1_epi32(ones.wrapping_neg().cast_signed())) }
    }
    #[inline(always)]
    unsafe fn sum_add((mut units, mut parts): (__m512, __m512i), shares: [__m512; GROUP]) -> (__m512, __m512i) {
        for share in shares {
            unsafe {
                let whole = _mm512_roundscale_ps::<DOWN>(share);
                let rest = _mm512_add_round_ps::<DOWN>(_mm512_sub_ps(share, whole), _mm512_set1_ps(1.0));
                units = _mm512_add_ps(units, whole);
                parts = _mm512_add_epi32(parts, _mm512_castps_si512(rest));
            }
        }
        (units, parts)
    }
    #[inline(always)]
    unsafe fn sum_total((units, parts): (__m512, __m512i)) -> u64 {
        unsafe {
            // Side by side: what the 16 lanes of each come to fits 32 bits too.
            let units = _mm512_cvttps_epi32(units);
            let both = _mm512_add_epi32(_mm512_unpacklo_epi32(parts, units), _mm512_unpackhi_epi32(parts, units));
            let both = _mm256_add_epi32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64::<1>(both));
            let both = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
            let both = _mm_cvtsi128_si64(_mm_add_epi32(both, _mm_unpackhi_epi64(both, both))).cast_unsigned();
            ((both >> 32) << UNIT_BITS) + (both & u64::from(u32::MAX))
        }
    }
    #[inline(always)]
    unsafe fn narrow_sum(mut sum: __m512i, powers: [__m512; GROUP]) -> __m512i {
        for power in powers {
            sum = unsafe { _mm512_add_epi32(sum, _mm512_cvttps_epi32(power)) };
        }
        sum
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

#[cfg(target_arch = "x86_64")]
const UNIT_BITS: u32 = 23;
#[cfg(target_arch = "x86_64")]
const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;

/// The masses of shares, which f32 hold exactly.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn whole_mass(share: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_roundscale_ps::<DOWN>(_mm512_mul_ps(share, _mm512_set1_ps((1 << UNIT_BITS) as f32))) }
}

/// 2^52, where f64 are the integers.
#[cfg(target_arch = "x86_64")]
const SHIFT: f64 = (1u64 << 52) as f64;
/// What the shift adds to the bits of a group of terms.
#[cfg(target_arch = "x86_64")]
const EXTRA: i64 = SHIFT.to_bits().wrapping_mul(GROUP as u64).cast_signed();

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
    const UNIT: f32 = 1.0;

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
    unsafe fn sum_total(sum: [__m256d; 2]) -> u64 {
        unsafe {
            // A block has less than 2^52, so f64 add up the lanes exactly too.
            let sum = _mm256_add_pd(sum[0], sum[1]);
            let sum = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd::<1>(sum));
            _mm_cvttsd_si64(_mm_add_sd(sum, _mm_unpackhi_pd(sum, sum))).cast_unsigned()
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
    unsafe fn terms_add(terms: [__m256i; 2], y: [__m256; GROUP], shares: [__m256; GROUP]) -> [__m256i; 2] {
        unsafe {
            let shift = _mm256_set1_pd(SHIFT);
            let extra = _mm256_set1_epi64x(EXTRA);
            let mut terms = [_mm256_sub_epi64(terms[0], extra), _mm256_sub_epi64(terms[1], extra)];
            for i in 0..GROUP {
                let (masses, y) = (whole(shares[i]), wide(y[i]));
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
    use crate::backend::cpu::level::Level;
    use crate::backend::cpu::passes::{BLOCK, MOST_Y, Weigh};
    use crate::sampling::logits::Dtype;
    use crate::sampling::mass::mass;

    #[test]
    fn portable_groups_are_masses() {
        let y: [[f32; 8]; GROUP] = std::array::from_fn(|i| {
            std::array::from_fn(|j| -1.7 * (i * 8 + j) as f32 - if i == 3 { 40.0 } else { 0.0 })
        });
        // SAFETY: the portable level needs nothing.
        let (sum, expected) = unsafe {
            let sum = Portable::sum_total(Portable::sum_add(Portable::sum_zero(), Portable::shares(y)));
            let expected = y.iter().fold([0; 8], |all, &y| Portable::mass_add(all, Portable::mass(y)));
            (sum, Portable::mass_sum(expected))
        };
        assert_eq!(sum, expected);
    }

    /// With the largest exponents there may be in every lane, where a sum that is held in too little would not be exact; with some that
    /// end between two integers; and where there is no mass.
    #[test]
    fn sums_of_blocks_are_exact_at_every_level() {
        let mixed = |i: usize| match i % 5 {
            0 => f32::NEG_INFINITY,
            1 => -(i as f32) * 0.37,
            2 => -13.0 - i as f32 * 0.111,
            _ => MOST_Y - (i as f32) * 1e-3,
        };
        let rows: [[f32; BLOCK]; 6] = [
            [MOST_Y; BLOCK],
            [f32::from_bits(MOST_Y.to_bits() - 1); BLOCK],
            [0.0; BLOCK],
            [-1.234_567; BLOCK],
            std::array::from_fn(mixed),
            std::array::from_fn(|i| -40.0 - i as f32),
        ];
        let weigh = Weigh { max: 0.0, scale: 1.0 };
        for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
            for values in &rows {
                let row: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let expected: u64 = values.iter().map(|&y| mass(y)).sum();
                let (passes, mut sums) = (level.passes(Dtype::F32), [0; 1]);
                assert_eq!(passes.sums(&row, &[largest; 16], weigh, &mut sums), expected, "{level:?} {values:?}");
                assert_eq!(sums, [expected], "{level:?}");
                assert_eq!(passes.total(&row, &[largest; 16], weigh), expected, "{level:?} {values:?}");
            }
        }
    }
}
