//! What verification needs of an instruction set beyond [`Simd`]: masses as f64 and back, and sent probabilities.

use super::{Simd, portable::Portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
#[cfg(target_arch = "x86_64")]
use crate::sampling::mass::MASS_ONE;
use crate::speculative::draft::sent_mass;
use crate::speculative::weights::count;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// `LANES` f64, and conversions to and from them.
///
/// # Safety
/// As [`Simd`].
pub(in crate::backend::cpu) trait Real: Simd {
    /// `LANES` f64.
    type Real: Copy;

    unsafe fn real_splat(value: f64) -> Self::Real;
    unsafe fn real_load(from: *const f64) -> Self::Real;
    unsafe fn real_store(to: *mut f64, from: Self::Real);
    unsafe fn real_mul(a: Self::Real, b: Self::Real) -> Self::Real;
    /// `max(a - b, 0)`.
    unsafe fn real_beyond(a: Self::Real, b: Self::Real) -> Self::Real;
    /// Converts masses below 2^52 to f64, exactly.
    unsafe fn real(mass: Self::Mass) -> Self::Real;
    unsafe fn widened(x: Self::Float) -> Self::Real;
    /// As [`count`].
    unsafe fn count(a: Self::Real) -> Self::Mass;

    /// As [`sent_mass`], for probabilities of at most 2.
    unsafe fn sent(x: Self::Float) -> Self::Mass;
    /// As `sent`, for probabilities of at most 2^-13: the sum of a block of them fits a u32.
    unsafe fn sent_narrow(x: Self::Float) -> Self::Narrow;
    /// Lane maximum of the bits of floats, taken as integers. NaN and negative numbers are then larger than all others.
    unsafe fn most_bits(a: Self::Narrow, x: Self::Float) -> Self::Narrow;
    /// Whether any lane, as an integer, is above `bound`.
    unsafe fn any_above(a: Self::Narrow, bound: u32) -> bool;
}

const N: usize = Portable::LANES;

// SAFETY (whole impl): as Simd of the same level.
impl Real for Portable {
    type Real = [f64; N];

    #[inline(always)]
    unsafe fn real_splat(value: f64) -> [f64; N] {
        [value; N]
    }
    #[inline(always)]
    unsafe fn real_load(from: *const f64) -> [f64; N] {
        unsafe { from.cast::<[f64; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn real_store(to: *mut f64, from: [f64; N]) {
        unsafe { to.cast::<[f64; N]>().write_unaligned(from) }
    }
    #[inline(always)]
    unsafe fn real_mul(a: [f64; N], b: [f64; N]) -> [f64; N] {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn real_beyond(a: [f64; N], b: [f64; N]) -> [f64; N] {
        std::array::from_fn(|i| (a[i] - b[i]).max(0.0))
    }
    #[inline(always)]
    unsafe fn real(mass: [u64; N]) -> [f64; N] {
        mass.map(|mass| mass as f64)
    }
    #[inline(always)]
    unsafe fn widened(x: [f32; N]) -> [f64; N] {
        x.map(f64::from)
    }
    #[inline(always)]
    unsafe fn count(a: [f64; N]) -> [u64; N] {
        a.map(count)
    }
    #[inline(always)]
    unsafe fn sent(x: [f32; N]) -> [u64; N] {
        x.map(sent_mass)
    }
    #[inline(always)]
    unsafe fn sent_narrow(x: [f32; N]) -> [u32; N] {
        x.map(|x| sent_mass(x) as u32)
    }
    #[inline(always)]
    unsafe fn most_bits(a: [u32; N], x: [f32; N]) -> [u32; N] {
        std::array::from_fn(|i| a[i].max(x[i].to_bits()))
    }
    #[inline(always)]
    unsafe fn any_above(a: [u32; N], bound: u32) -> bool {
        a.into_iter().any(|bits| bits > bound)
    }
}

// SAFETY (whole impl): as Simd of the same level.
#[cfg(target_arch = "x86_64")]
impl<const AMD: bool> Real for Avx512<AMD> {
    type Real = [__m512d; 2];

    #[inline(always)]
    unsafe fn real_splat(value: f64) -> [__m512d; 2] {
        unsafe { [_mm512_set1_pd(value); 2] }
    }
    #[inline(always)]
    unsafe fn real_load(from: *const f64) -> [__m512d; 2] {
        unsafe { [_mm512_loadu_pd(from), _mm512_loadu_pd(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn real_store(to: *mut f64, from: [__m512d; 2]) {
        unsafe {
            _mm512_storeu_pd(to, from[0]);
            _mm512_storeu_pd(to.add(8), from[1]);
        }
    }
    #[inline(always)]
    unsafe fn real_mul(a: [__m512d; 2], b: [__m512d; 2]) -> [__m512d; 2] {
        unsafe { [_mm512_mul_pd(a[0], b[0]), _mm512_mul_pd(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn real_beyond(a: [__m512d; 2], b: [__m512d; 2]) -> [__m512d; 2] {
        unsafe {
            let zero = _mm512_setzero_pd();
            [_mm512_max_pd(_mm512_sub_pd(a[0], b[0]), zero), _mm512_max_pd(_mm512_sub_pd(a[1], b[1]), zero)]
        }
    }
    #[inline(always)]
    unsafe fn real(mass: [__m512i; 2]) -> [__m512d; 2] {
        unsafe { [_mm512_cvtepi64_pd(mass[0]), _mm512_cvtepi64_pd(mass[1])] }
    }
    #[inline(always)]
    unsafe fn widened(x: __m512) -> [__m512d; 2] {
        unsafe { [_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(x))] }
    }
    #[inline(always)]
    unsafe fn count(a: [__m512d; 2]) -> [__m512i; 2] {
        // The conversion rounds to the nearest, ties to even.
        unsafe { [_mm512_cvtpd_epi64(a[0]), _mm512_cvtpd_epi64(a[1])] }
    }
    #[inline(always)]
    unsafe fn sent(x: __m512) -> [__m512i; 2] {
        unsafe {
            const UP: i32 = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
            let e = _mm512_mul_ps(x, _mm512_set1_ps(MASS_ONE as f32));
            let (low, high) = (_mm512_castps512_ps256(e), _mm512_extractf32x8_ps::<1>(e));
            [_mm512_cvt_roundps_epi64::<UP>(low), _mm512_cvt_roundps_epi64::<UP>(high)]
        }
    }
    #[inline(always)]
    unsafe fn sent_narrow(x: __m512) -> __m512i {
        unsafe {
            let e = _mm512_mul_ps(x, _mm512_set1_ps(MASS_ONE as f32));
            _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(e)
        }
    }
    #[inline(always)]
    unsafe fn most_bits(a: __m512i, x: __m512) -> __m512i {
        unsafe { _mm512_max_epu32(a, _mm512_castps_si512(x)) }
    }
    #[inline(always)]
    unsafe fn any_above(a: __m512i, bound: u32) -> bool {
        unsafe { _mm512_cmpgt_epu32_mask(a, _mm512_set1_epi32(bound.cast_signed())) != 0 }
    }
}

/// 2^52: from here on f64 are integers.
#[cfg(target_arch = "x86_64")]
const SHIFT: f64 = (1u64 << 52) as f64;

/// The upper and the lower four lanes as f64.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn wide(x: __m256) -> [__m256d; 2] {
    // SAFETY: the caller has AVX2.
    unsafe { [_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(x))] }
}

/// Rounds reals of at most 2^52 to the nearest integer.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn integers(a: __m256d) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let shift = _mm256_set1_pd(SHIFT);
        _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(a, shift)), _mm256_castpd_si256(shift))
    }
}

// SAFETY (whole impl): as Simd of the same level.
#[cfg(target_arch = "x86_64")]
impl Real for Avx2 {
    type Real = [__m256d; 2];

    #[inline(always)]
    unsafe fn real_splat(value: f64) -> [__m256d; 2] {
        unsafe { [_mm256_set1_pd(value); 2] }
    }
    #[inline(always)]
    unsafe fn real_load(from: *const f64) -> [__m256d; 2] {
        unsafe { [_mm256_loadu_pd(from), _mm256_loadu_pd(from.add(4))] }
    }
    #[inline(always)]
    unsafe fn real_store(to: *mut f64, from: [__m256d; 2]) {
        unsafe {
            _mm256_storeu_pd(to, from[0]);
            _mm256_storeu_pd(to.add(4), from[1]);
        }
    }
    #[inline(always)]
    unsafe fn real_mul(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] {
        unsafe { [_mm256_mul_pd(a[0], b[0]), _mm256_mul_pd(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn real_beyond(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] {
        unsafe {
            let zero = _mm256_setzero_pd();
            [_mm256_max_pd(_mm256_sub_pd(a[0], b[0]), zero), _mm256_max_pd(_mm256_sub_pd(a[1], b[1]), zero)]
        }
    }
    #[inline(always)]
    unsafe fn real(mass: [__m256i; 2]) -> [__m256d; 2] {
        unsafe {
            let shift = _mm256_set1_pd(SHIFT);
            let real =
                |mass| _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(mass, _mm256_castpd_si256(shift))), shift);
            [real(mass[0]), real(mass[1])]
        }
    }
    #[inline(always)]
    unsafe fn widened(x: __m256) -> [__m256d; 2] {
        unsafe { wide(x) }
    }
    #[inline(always)]
    unsafe fn count(a: [__m256d; 2]) -> [__m256i; 2] {
        unsafe { [integers(a[0]), integers(a[1])] }
    }
    #[inline(always)]
    unsafe fn sent(x: __m256) -> [__m256i; 2] {
        unsafe {
            let [low, high] = wide(_mm256_mul_ps(x, _mm256_set1_ps(MASS_ONE as f32)));
            [integers(_mm256_ceil_pd(low)), integers(_mm256_ceil_pd(high))]
        }
    }
    #[inline(always)]
    unsafe fn sent_narrow(x: __m256) -> __m256i {
        unsafe { _mm256_cvttps_epi32(_mm256_ceil_ps(_mm256_mul_ps(x, _mm256_set1_ps(MASS_ONE as f32)))) }
    }
    #[inline(always)]
    unsafe fn most_bits(a: __m256i, x: __m256) -> __m256i {
        unsafe { _mm256_max_epu32(a, _mm256_castps_si256(x)) }
    }
    #[inline(always)]
    unsafe fn any_above(a: __m256i, bound: u32) -> bool {
        unsafe {
            let bound = _mm256_set1_epi32(bound.cast_signed());
            let within = _mm256_cmpeq_epi32(_mm256_max_epu32(a, bound), bound);
            _mm256_movemask_epi8(within) != -1
        }
    }
}
