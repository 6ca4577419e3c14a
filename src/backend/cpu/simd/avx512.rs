//! AVX-512 (F, BW, DQ, VL): 16 lanes. Zen 4 and later, Skylake-SP and later. The fastest way to compute a power differs
//! between the two.

use super::{LINE, Simd};
use crate::backend::cpu::memory;
use crate::backend::cpu::passes::{NO_MASS_Y, Words};
use crate::sampling::mass::{EXP2, MASS_ONE};
use crate::sampling::philox::{MULTIPLIERS, ROUNDS, WEYL};
use std::arch::x86_64::*;

/// In the form that is fastest on AMD's processors, or on Intel's. Both give the same bits.
pub(in crate::backend::cpu) struct Avx512<const AMD: bool>;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// `2^y * 2^40` per lane: its integer part is the mass, which is 0 at y = −∞.
#[inline(always)]
unsafe fn scaled_exp2<const AMD: bool>(y: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512.
    let [power] = unsafe { scaled_exp2_of::<AMD, 1>([y], 1.0) };
    power
}

/// The same, divided by a power of two, for several vectors in parallel.
#[inline(always)]
pub(super) unsafe fn scaled_exp2_of<const AMD: bool, const N: usize>(y: [__m512; N], unit: f32) -> [__m512; N] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        // Multiplying every coefficient by a power of two scales the result exactly, so the factor costs nothing.
        let coefficient = |i: usize| _mm512_set1_ps(EXP2[i] * (MASS_ONE as f32 / unit));
        let (mut f, mut n, mut p) = (y, y, [coefficient(5); N]);
        for i in 0..N {
            if AMD {
                n[i] = _mm512_roundscale_ps::<NEAREST>(y[i]);
                f[i] = _mm512_sub_ps(y[i], n[i]);
            } else {
                // Everything below 1 has mass 0. Without this bound the result could be a subnormal number, below
                // 2^-126, for which Intel's processors take hundreds of cycles in scalef.
                let y = _mm512_max_ps(y[i], _mm512_set1_ps(NO_MASS_Y));
                // Computes f first, in one instruction, which is two on AMD's processors. Both subtractions are exact.
                f[i] = _mm512_reduce_ps::<NEAREST>(y);
                n[i] = _mm512_sub_ps(y, f[i]);
            }
        }
        for c in (0..5).rev() {
            for i in 0..N {
                p[i] = _mm512_fmadd_ps(p[i], f[i], coefficient(c));
            }
        }
        for i in 0..N {
            // At y = −∞ f is NaN; scalef of NaN by −∞ is 0.
            p[i] = _mm512_scalef_ps(p[i], n[i]);
        }
        p
    }
}

/// Eight Philox blocks, each word in the lower half of a 64-bit lane. The upper halves are arbitrary, since a product
/// takes the lower halves.
#[inline(always)]
unsafe fn philox8(mut counter: [__m512i; 4], keys: &[[__m512i; 2]; ROUNDS]) -> [__m512i; 4] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let all = |number: u32| _mm512_set1_epi64(i64::from(number));
        for key in keys {
            let one = _mm512_mul_epu32(counter[0], all(MULTIPLIERS[0]));
            let two = _mm512_mul_epu32(counter[2], all(MULTIPLIERS[1]));
            // 0x96: the exclusive or of three operands.
            let mixed =
                |product, word, key| _mm512_ternarylogic_epi64::<0x96>(_mm512_srli_epi64::<32>(product), word, key);
            counter = [mixed(two, counter[1], key[0]), two, mixed(one, counter[3], key[1]), one];
        }
        counter
    }
}

#[inline(always)]
unsafe fn widen_bf16(halves: __m256i) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))) }
}

#[inline(always)]
unsafe fn fetch_halves<const KEEP: bool>(from: *const u8, to: *mut u8) -> __m256i {
    // SAFETY: the caller has AVX-512; `from` is aligned and readable, and `to` has room for a vector with `KEEP`.
    unsafe {
        let values = from.cast::<__m256i>().read_volatile();
        if KEEP {
            _mm256_storeu_si256(to.cast(), values);
        }
        values
    }
}

// SAFETY (whole impl): the caller promises AVX-512 F, BW, DQ and VL, and that pointers cover the lanes.
impl<const AMD: bool> Simd for Avx512<AMD> {
    const LANES: usize = 16;
    const SPREADS: bool = true;
    type Float = __m512;
    type Mass = [__m512i; 2];
    type Narrow = __m512i;
    type Keys = [[__m512i; 2]; ROUNDS];

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> __m512 {
        unsafe { _mm512_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m512 {
        unsafe { widen_bf16(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn fetch_f32<const KEEP: bool>(from: *const u8, to: *mut u8) -> __m512 {
        unsafe {
            let values = from.cast::<__m512>().read_volatile();
            if KEEP {
                _mm512_storeu_ps(to.cast(), values);
            }
            values
        }
    }
    #[inline(always)]
    unsafe fn fetch_f16<const KEEP: bool>(from: *const u8, to: *mut u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(fetch_halves::<KEEP>(from, to)) }
    }
    #[inline(always)]
    unsafe fn fetch_bf16<const KEEP: bool>(from: *const u8, to: *mut u8) -> __m512 {
        unsafe { widen_bf16(fetch_halves::<KEEP>(from, to)) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, from: __m512) {
        unsafe { _mm512_storeu_ps(to, from) }
    }
    #[inline(always)]
    unsafe fn ahead(from: *const u8, distance: usize, bytes: usize) {
        if AMD || !memory::wants_hints() {
            return;
        }
        for line in (0..bytes).step_by(LINE) {
            // SAFETY: a prefetch of no matter what address does nothing that can be seen.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(distance + line).cast()) };
        }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn reduce_max(a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    unsafe fn either_nan(a: __m512, b: __m512) -> u32 {
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b)) }
    }
    #[inline(always)]
    unsafe fn ge(a: __m512, b: __m512) -> u32 {
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b)) }
    }
    #[inline(always)]
    unsafe fn gt(a: __m512, b: __m512) -> u32 {
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)) }
    }
    #[inline(always)]
    unsafe fn within(a: __m512, low: __m512, high: __m512) -> u32 {
        unsafe {
            let reaches = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, low);
            u32::from(_mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(reaches, a, high))
        }
    }
    #[inline(always)]
    unsafe fn only(a: __m512, lanes: u32) -> __m512 {
        unsafe { _mm512_mask_blend_ps(lanes as u16, _mm512_set1_ps(f32::NEG_INFINITY), a) }
    }
    #[inline(always)]
    unsafe fn pack(to: *mut f32, a: __m512, lanes: u32) {
        // The values are packed in a register: packing straight to memory takes some hundred cycles on Zen 4.
        unsafe { _mm512_storeu_ps(to, _mm512_maskz_compress_ps(lanes as u16, a)) }
    }
    #[inline(always)]
    unsafe fn add_lanes(sum: __m512, a: __m512, lanes: u32) -> __m512 {
        unsafe { _mm512_mask_add_ps(sum, lanes as u16, sum, a) }
    }
    #[inline(always)]
    unsafe fn power(y: __m512) -> __m512 {
        unsafe { scaled_exp2::<AMD>(y) }
    }
    #[inline(always)]
    unsafe fn mass(y: __m512) -> [__m512i; 2] {
        unsafe {
            let e = Self::power(y);
            // The conversion truncates, which is the floor of a mass.
            [_mm512_cvttps_epi64(_mm512_castps512_ps256(e)), _mm512_cvttps_epi64(_mm512_extractf32x8_ps::<1>(e))]
        }
    }
    #[inline(always)]
    unsafe fn mass_zero() -> [__m512i; 2] {
        unsafe { [_mm512_setzero_si512(); 2] }
    }
    #[inline(always)]
    unsafe fn mass_add(a: [__m512i; 2], b: [__m512i; 2]) -> [__m512i; 2] {
        unsafe { [_mm512_add_epi64(a[0], b[0]), _mm512_add_epi64(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mass_add_ge(sum: [__m512i; 2], a: [__m512i; 2], need: u64) -> [__m512i; 2] {
        unsafe {
            let need = _mm512_set1_epi64(need.cast_signed());
            let add = |sum, a| _mm512_mask_add_epi64(sum, _mm512_cmpge_epu64_mask(a, need), sum, a);
            [add(sum[0], a[0]), add(sum[1], a[1])]
        }
    }
    #[inline(always)]
    unsafe fn mass_sum(a: [__m512i; 2]) -> u64 {
        unsafe { _mm512_reduce_add_epi64(_mm512_add_epi64(a[0], a[1])).cast_unsigned() }
    }
    #[inline(always)]
    unsafe fn mass_load(from: *const u64) -> [__m512i; 2] {
        unsafe { [_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn mass_store(to: *mut u64, from: [__m512i; 2]) {
        unsafe {
            _mm512_storeu_si512(to.cast(), from[0]);
            _mm512_storeu_si512(to.add(8).cast(), from[1]);
        }
    }
    #[inline(always)]
    unsafe fn mass_add_lanes(sum: [__m512i; 2], a: [__m512i; 2], lanes: u32) -> [__m512i; 2] {
        unsafe {
            let add = |sum, a, lanes| _mm512_mask_add_epi64(sum, lanes, sum, a);
            [add(sum[0], a[0], lanes as u8), add(sum[1], a[1], (lanes >> 8) as u8)]
        }
    }
    #[inline(always)]
    unsafe fn narrow_zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn narrow_add(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn keys(mut key: [u32; 2]) -> [[__m512i; 2]; ROUNDS] {
        unsafe {
            let mut keys = [[_mm512_setzero_si512(); 2]; ROUNDS];
            for round in &mut keys {
                *round = [_mm512_set1_epi64(i64::from(key[0])), _mm512_set1_epi64(i64::from(key[1]))];
                key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
            }
            keys
        }
    }
    #[inline(always)]
    unsafe fn philox(first: u32, rest: [u32; 3], keys: &[[__m512i; 2]; ROUNDS]) -> Words {
        unsafe {
            let rest = rest.map(|word| _mm512_set1_epi64(i64::from(word)));
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let counters = _mm512_add_epi32(_mm512_set1_epi32(first.cast_signed()), lanes);
            // Even lanes stay where they are, odd ones are shifted down.
            let even = philox8([counters, rest[0], rest[1], rest[2]], keys);
            let odd = philox8([_mm512_srli_epi64::<32>(counters), rest[0], rest[1], rest[2]], keys);
            let mut words = Words::default();
            for word in 0..4 {
                let odd = _mm512_slli_epi64::<32>(odd[word]);
                let both = _mm512_mask_blend_epi32(0b1010_1010_1010_1010, even[word], odd);
                _mm512_storeu_si512(words[word].as_mut_ptr().cast(), both);
            }
            words
        }
    }
    #[inline(always)]
    unsafe fn narrow_widen(a: __m512i) -> [__m512i; 2] {
        unsafe {
            let high = _mm512_extracti64x4_epi64::<1>(a);
            [_mm512_cvtepu32_epi64(_mm512_castsi512_si256(a)), _mm512_cvtepu32_epi64(high)]
        }
    }
}
