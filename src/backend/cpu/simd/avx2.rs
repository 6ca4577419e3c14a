//! AVX2 with FMA, F16C, BMI1 and POPCNT: 8 lanes. Haswell and later, Zen and later.

use super::{LINE, Simd};
use crate::backend::cpu::memory;
use crate::backend::cpu::passes::Words;
use crate::sampling::mass::{EXP2, MASS_ONE, Y_FLOOR};
use crate::sampling::philox::{MULTIPLIERS, ROUNDS, WEYL};
use std::arch::x86_64::*;

pub(in crate::backend::cpu) struct Avx2;

/// Near this number f32 are the integers, and its own low bits are 0.
pub(super) const INTEGERS: f32 = 1.5 * (1 << 23) as f32;

/// `2^y * 2^40` per lane. At y = −∞ it is below 2^-23, so its integer part is 0.
#[inline(always)]
unsafe fn scaled_exp2(y: __m256) -> __m256 {
    // SAFETY: the caller has AVX2 and FMA.
    unsafe {
        // Keeps the exponent arithmetic below in range; every mass is 0 at the floor already.
        let y = _mm256_max_ps(y, _mm256_set1_ps(Y_FLOOR));
        // Adding a number near which f32 are the integers rounds to the nearest, ties to even, and leaves it in the low
        // bits.
        let shift = _mm256_set1_ps(INTEGERS);
        let shifted = _mm256_add_ps(y, shift);
        let f = _mm256_sub_ps(y, _mm256_sub_ps(shifted, shift));
        let coefficient = |i: usize| _mm256_set1_ps(EXP2[i] * MASS_ONE as f32);
        let mut p = coefficient(5);
        for i in (0..5).rev() {
            p = _mm256_fmadd_ps(p, f, coefficient(i));
        }
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent))
    }
}

/// Four integers in [0, 2^52), as u64.
#[inline(always)]
unsafe fn integers(e: __m128) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        // Adding 2^52 puts the integer into the low mantissa bits.
        let magic = _mm256_set1_pd((1u64 << 52) as f64);
        _mm256_castpd_si256(_mm256_xor_pd(_mm256_add_pd(_mm256_cvtps_pd(e), magic), magic))
    }
}

/// For each set of lanes: which lane goes to each place when they are packed one after another.
static PACKED: Packed = Packed(packed());

#[repr(align(32))]
struct Packed([[u32; 8]; 256]);

const fn packed() -> [[u32; 8]; 256] {
    let mut all = [[0; 8]; 256];
    let mut lanes = 0;
    while lanes < all.len() {
        let (mut lane, mut at) = (0, 0);
        while lane < 8 {
            if lanes >> lane & 1 == 1 {
                all[lanes][at] = lane;
                at += 1;
            }
            lane += 1;
        }
        lanes += 1;
    }
    all
}

/// Expands one bit per lane to a full mask.
#[inline(always)]
unsafe fn spread(lanes: u32) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let bits = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
        let all = _mm256_set1_epi32(lanes.cast_signed());
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, bits), bits))
    }
}

#[inline(always)]
unsafe fn halves(a: __m256) -> [__m128; 2] {
    // SAFETY: the caller has AVX2.
    unsafe { [_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a)] }
}

/// Two times four Philox blocks, each word in the lower half of a 64-bit lane. The upper halves are arbitrary, since a
/// product takes the lower halves. Two at a time, since each round waits for the one before.
///
/// Only the first words of the counters differ. So in each of the first two rounds one product is the same for all
/// blocks, and is computed once for any number of loops over these.
#[inline(always)]
unsafe fn philox8(firsts: [__m256i; 2], rest: [__m256i; 3], keys: &[[__m256i; 2]; ROUNDS]) -> [[__m256i; 4]; 2] {
    // SAFETY: the caller has AVX2.
    unsafe {
        let factors = MULTIPLIERS.map(i64::from);
        let factors = [_mm256_set1_epi64x(factors[0]), _mm256_set1_epi64x(factors[1])];
        let two = _mm256_mul_epu32(rest[1], factors[1]);
        let mixed = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64::<32>(two), rest[0]), keys[0][0]);
        let one = _mm256_mul_epu32(mixed, factors[0]);
        let (other, second) = (_mm256_xor_si256(rest[2], keys[0][1]), _mm256_xor_si256(two, keys[1][0]));
        let third = _mm256_xor_si256(_mm256_srli_epi64::<32>(one), keys[1][1]);
        let mut counters = [[one; 4]; 2];
        for (counter, first) in counters.iter_mut().zip(firsts) {
            let product = _mm256_mul_epu32(first, factors[0]);
            let two = _mm256_mul_epu32(_mm256_xor_si256(_mm256_srli_epi64::<32>(product), other), factors[1]);
            let first = _mm256_xor_si256(_mm256_srli_epi64::<32>(two), second);
            *counter = [first, two, _mm256_xor_si256(product, third), one];
        }
        for key in &keys[2..] {
            for counter in &mut counters {
                let [first, second, third, fourth] = *counter;
                let (one, two) = (_mm256_mul_epu32(first, factors[0]), _mm256_mul_epu32(third, factors[1]));
                let mixed = _mm256_xor_si256(_mm256_srli_epi64::<32>(two), second);
                let other = _mm256_xor_si256(_mm256_srli_epi64::<32>(one), fourth);
                *counter = [_mm256_xor_si256(mixed, key[0]), two, _mm256_xor_si256(other, key[1]), one];
            }
        }
        counters
    }
}

#[inline(always)]
unsafe fn sum_u64(a: __m256i) -> u64 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let pair = _mm_add_epi64(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
        let high = _mm_unpackhi_epi64(pair, pair);
        _mm_cvtsi128_si64(_mm_add_epi64(pair, high)).cast_unsigned()
    }
}

#[inline(always)]
unsafe fn widen_bf16(halves: __m128i) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))) }
}

#[inline(always)]
unsafe fn fetch_halves<const KEEP: bool>(from: *const u8, to: *mut u8) -> __m128i {
    // SAFETY: the caller has AVX2; `from` is aligned and readable, and `to` has room for a vector with `KEEP`.
    unsafe {
        let values = from.cast::<__m128i>().read_volatile();
        if KEEP {
            _mm_storeu_si128(to.cast(), values);
        }
        values
    }
}

// SAFETY (whole impl): the caller promises AVX2, FMA and F16C, and that pointers cover the lanes.
impl Simd for Avx2 {
    const LANES: usize = 8;
    const SPREADS: bool = false;
    type Float = __m256;
    type Mass = [__m256i; 2];
    type Narrow = __m256i;
    type Keys = [[__m256i; 2]; ROUNDS];

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> __m256 {
        unsafe { _mm256_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m256 {
        unsafe { widen_bf16(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn fetch_f32<const KEEP: bool>(from: *const u8, to: *mut u8) -> __m256 {
        unsafe {
            let values = from.cast::<__m256>().read_volatile();
            if KEEP {
                _mm256_storeu_ps(to.cast(), values);
            }
            values
        }
    }
    #[inline(always)]
    unsafe fn fetch_f16<const KEEP: bool>(from: *const u8, to: *mut u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(fetch_halves::<KEEP>(from, to)) }
    }
    #[inline(always)]
    unsafe fn fetch_bf16<const KEEP: bool>(from: *const u8, to: *mut u8) -> __m256 {
        unsafe { widen_bf16(fetch_halves::<KEEP>(from, to)) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, from: __m256) {
        unsafe { _mm256_storeu_ps(to, from) }
    }
    #[inline(always)]
    unsafe fn ahead(from: *const u8, distance: usize, bytes: usize) {
        if !memory::wants_hints() {
            return;
        }
        for line in (0..bytes).step_by(LINE) {
            // SAFETY: a prefetch of no matter what address does nothing that can be seen.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(distance + line).cast()) };
        }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn reduce_max(a: __m256) -> f32 {
        unsafe {
            let [low, high] = halves(a);
            let m = _mm_max_ps(low, high);
            let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
            _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps::<1>(m, m)))
        }
    }
    #[inline(always)]
    unsafe fn either_nan(a: __m256, b: __m256) -> u32 {
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, b)).cast_unsigned() }
    }
    #[inline(always)]
    unsafe fn ge(a: __m256, b: __m256) -> u32 {
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a, b)).cast_unsigned() }
    }
    #[inline(always)]
    unsafe fn gt(a: __m256, b: __m256) -> u32 {
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b)).cast_unsigned() }
    }
    #[inline(always)]
    unsafe fn within(a: __m256, low: __m256, high: __m256) -> u32 {
        unsafe {
            let (reaches, below) = (_mm256_cmp_ps::<_CMP_GE_OQ>(a, low), _mm256_cmp_ps::<_CMP_LT_OQ>(a, high));
            _mm256_movemask_ps(_mm256_and_ps(reaches, below)).cast_unsigned()
        }
    }
    #[inline(always)]
    unsafe fn only(a: __m256, lanes: u32) -> __m256 {
        unsafe { _mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), a, spread(lanes)) }
    }
    #[inline(always)]
    unsafe fn pack(to: *mut f32, a: __m256, lanes: u32) {
        // SAFETY: eight lanes have no more than 256 patterns.
        unsafe {
            let places = _mm256_load_si256(PACKED.0.as_ptr().add((lanes & 255) as usize).cast());
            _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(a, places));
        }
    }
    #[inline(always)]
    unsafe fn add_lanes(sum: __m256, a: __m256, lanes: u32) -> __m256 {
        unsafe { _mm256_add_ps(sum, _mm256_and_ps(a, spread(lanes))) }
    }
    #[inline(always)]
    unsafe fn power(y: __m256) -> __m256 {
        unsafe { scaled_exp2(y) }
    }
    #[inline(always)]
    unsafe fn mass(y: __m256) -> [__m256i; 2] {
        unsafe {
            let [low, high] = halves(_mm256_floor_ps(scaled_exp2(y)));
            [integers(low), integers(high)]
        }
    }
    #[inline(always)]
    unsafe fn mass_zero() -> [__m256i; 2] {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn mass_add(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { [_mm256_add_epi64(a[0], b[0]), _mm256_add_epi64(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mass_add_ge(sum: [__m256i; 2], a: [__m256i; 2], need: u64) -> [__m256i; 2] {
        unsafe {
            // Signed comparison: masses and needs are below 2^63.
            let need = _mm256_set1_epi64x(need.cast_signed());
            let add = |sum, a| _mm256_add_epi64(sum, _mm256_andnot_si256(_mm256_cmpgt_epi64(need, a), a));
            [add(sum[0], a[0]), add(sum[1], a[1])]
        }
    }
    #[inline(always)]
    unsafe fn mass_sum(a: [__m256i; 2]) -> u64 {
        unsafe { sum_u64(_mm256_add_epi64(a[0], a[1])) }
    }
    #[inline(always)]
    unsafe fn mass_load(from: *const u64) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(4).cast())] }
    }
    #[inline(always)]
    unsafe fn mass_store(to: *mut u64, from: [__m256i; 2]) {
        unsafe {
            _mm256_storeu_si256(to.cast(), from[0]);
            _mm256_storeu_si256(to.add(4).cast(), from[1]);
        }
    }
    #[inline(always)]
    unsafe fn mass_add_lanes(sum: [__m256i; 2], a: [__m256i; 2], lanes: u32) -> [__m256i; 2] {
        unsafe {
            // Expands one bit per lane to a full mask.
            let all = _mm256_set1_epi64x(i64::from(lanes));
            let bits = [_mm256_set_epi64x(8, 4, 2, 1), _mm256_set_epi64x(128, 64, 32, 16)];
            let mask = |bit| _mm256_cmpeq_epi64(_mm256_and_si256(all, bit), bit);
            let add = |sum, a, bit| _mm256_add_epi64(sum, _mm256_and_si256(a, mask(bit)));
            [add(sum[0], a[0], bits[0]), add(sum[1], a[1], bits[1])]
        }
    }
    #[inline(always)]
    unsafe fn narrow_zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn narrow_add(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn keys(mut key: [u32; 2]) -> [[__m256i; 2]; ROUNDS] {
        unsafe {
            let mut keys = [[_mm256_setzero_si256(); 2]; ROUNDS];
            for round in &mut keys {
                *round = [_mm256_set1_epi64x(i64::from(key[0])), _mm256_set1_epi64x(i64::from(key[1]))];
                key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
            }
            keys
        }
    }
    #[inline(always)]
    unsafe fn philox(first: u32, rest: [u32; 3], keys: &[[__m256i; 2]; ROUNDS]) -> Words {
        unsafe {
            let rest = rest.map(|word| _mm256_set1_epi64x(i64::from(word)));
            let mut words = Words::default();
            for part in 0..2 {
                let from = first.wrapping_add(8 * part as u32);
                let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let counters = _mm256_add_epi32(_mm256_set1_epi32(from.cast_signed()), lanes);
                // Even lanes stay where they are, odd ones are shifted down.
                let shifted = _mm256_srli_epi64::<32>(counters);
                let [even, odd] = philox8([counters, shifted], rest, keys);
                for word in 0..4 {
                    let both = _mm256_blend_epi32::<0b1010_1010>(even[word], _mm256_slli_epi64::<32>(odd[word]));
                    _mm256_storeu_si256(words[word][8 * part..].as_mut_ptr().cast(), both);
                }
            }
            words
        }
    }
    #[inline(always)]
    unsafe fn narrow_widen(a: __m256i) -> [__m256i; 2] {
        unsafe {
            let high = _mm256_extracti128_si256::<1>(a);
            [_mm256_cvtepu32_epi64(_mm256_castsi256_si128(a)), _mm256_cvtepu32_epi64(high)]
        }
    }
}
