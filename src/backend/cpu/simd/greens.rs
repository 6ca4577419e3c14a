//! What greenlists do to a block, in a level's vector instructions where plain loops do not compile to these.

use super::Simd;
use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use crate::backend::cpu::passes::Words;
use crate::sampling::watermark::greenlist::{LANES, VALUES};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// A 16-bit number for each token of a block.
pub(in crate::backend::cpu) type Numbers = [[u32; LANES]; 8];

/// Which numbers are green, and the bias that their tokens get.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Green {
    /// Numbers are multiplied by this, modulo [`VALUES`].
    pub(in crate::backend::cpu) spread: u32,
    /// Numbers below this are green.
    pub(in crate::backend::cpu) threshold: u32,
    pub(in crate::backend::cpu) bias: f32,
}

/// Operations on the numbers of tokens.
///
/// # Safety
/// As [`Simd`].
pub(in crate::backend::cpu) trait Greens: Simd {
    /// Splits words into halves. Each half is the number of a token.
    #[inline(always)]
    unsafe fn halves(words: &Words) -> Numbers {
        let mut numbers = Numbers::default();
        for (numbers, words) in numbers.as_chunks_mut::<2>().0.iter_mut().zip(words) {
            for lane in 0..LANES {
                [numbers[0][lane], numbers[1][lane]] = [words[lane] & (VALUES - 1), words[lane] >> 16];
            }
        }
        numbers
    }

    /// Sets each number to the lesser of itself and the other one.
    #[inline(always)]
    unsafe fn least(numbers: &mut Numbers, others: &Numbers) {
        for (number, &other) in numbers.as_flattened_mut().iter_mut().zip(others.as_flattened()) {
            *number = other.min(*number);
        }
    }

    /// Adds the bias to the values of green tokens.
    #[inline(always)]
    unsafe fn raise(numbers: &Numbers, by: Green, values: &mut [f32]) {
        for (numbers, values) in numbers.iter().zip(values.chunks_exact_mut(LANES)) {
            for lane in 0..LANES {
                let is_green = (numbers[lane].wrapping_mul(by.spread) & (VALUES - 1)) < by.threshold;
                // Adding -0 changes no number.
                values[lane] += if is_green { by.bias } else { -0.0 };
            }
        }
    }
}

impl Greens for Portable {}

// SAFETY (whole impl): as Simd of the same level; loads and stores stay inside the arrays, which hold whole vectors.
#[cfg(target_arch = "x86_64")]
impl Greens for Avx2 {
    #[inline(always)]
    unsafe fn halves(words: &Words) -> Numbers {
        unsafe {
            let (mut numbers, low) = (Numbers::default(), _mm256_set1_epi32((VALUES - 1).cast_signed()));
            for (numbers, words) in numbers.as_chunks_mut::<2>().0.iter_mut().zip(words) {
                for v in (0..LANES).step_by(8) {
                    let word = _mm256_loadu_si256(words.as_ptr().add(v).cast());
                    _mm256_storeu_si256(numbers[0].as_mut_ptr().add(v).cast(), _mm256_and_si256(word, low));
                    _mm256_storeu_si256(numbers[1].as_mut_ptr().add(v).cast(), _mm256_srli_epi32::<16>(word));
                }
            }
            numbers
        }
    }

    #[inline(always)]
    unsafe fn raise(numbers: &Numbers, by: Green, values: &mut [f32]) {
        unsafe {
            let all = |number: u32| _mm256_set1_epi32(number.cast_signed());
            let numbers = numbers.as_flattened();
            for (numbers, values) in numbers.chunks_exact(8).zip(values.chunks_exact_mut(8)) {
                let mut number = _mm256_loadu_si256(numbers.as_ptr().cast());
                if by.spread != 1 {
                    number = _mm256_and_si256(_mm256_mullo_epi32(number, all(by.spread)), all(VALUES - 1));
                }
                // A signed comparison is right here: neither number is negative.
                let is_green = _mm256_castsi256_ps(_mm256_cmpgt_epi32(all(by.threshold), number));
                let bias = _mm256_blendv_ps(_mm256_set1_ps(-0.0), _mm256_set1_ps(by.bias), is_green);
                let value = _mm256_loadu_ps(values.as_ptr());
                _mm256_storeu_ps(values.as_mut_ptr(), _mm256_add_ps(value, bias));
            }
        }
    }
}

// SAFETY (whole impl): as Simd of the same level; loads and stores stay inside the arrays, which hold whole vectors.
#[cfg(target_arch = "x86_64")]
impl<const AMD: bool> Greens for Avx512<AMD> {
    #[inline(always)]
    unsafe fn halves(words: &Words) -> Numbers {
        unsafe {
            let (mut numbers, low) = (Numbers::default(), _mm512_set1_epi32((VALUES - 1).cast_signed()));
            for (numbers, words) in numbers.as_chunks_mut::<2>().0.iter_mut().zip(words) {
                let word = _mm512_loadu_si512(words.as_ptr().cast());
                _mm512_storeu_si512(numbers[0].as_mut_ptr().cast(), _mm512_and_si512(word, low));
                _mm512_storeu_si512(numbers[1].as_mut_ptr().cast(), _mm512_srli_epi32::<16>(word));
            }
            numbers
        }
    }

    #[inline(always)]
    unsafe fn least(numbers: &mut Numbers, others: &Numbers) {
        unsafe {
            for (number, other) in numbers.iter_mut().zip(others) {
                let before = _mm512_loadu_si512(number.as_ptr().cast());
                let least = _mm512_min_epu32(before, _mm512_loadu_si512(other.as_ptr().cast()));
                _mm512_storeu_si512(number.as_mut_ptr().cast(), least);
            }
        }
    }

    #[inline(always)]
    unsafe fn raise(numbers: &Numbers, by: Green, values: &mut [f32]) {
        unsafe {
            let all = |number: u32| _mm512_set1_epi32(number.cast_signed());
            for (numbers, values) in numbers.iter().zip(values.chunks_exact_mut(LANES)) {
                let mut number = _mm512_loadu_si512(numbers.as_ptr().cast());
                if by.spread != 1 {
                    number = _mm512_and_si512(_mm512_mullo_epi32(number, all(by.spread)), all(VALUES - 1));
                }
                let is_green = _mm512_cmplt_epu32_mask(number, all(by.threshold));
                let value = _mm512_loadu_ps(values.as_ptr());
                let raised = _mm512_mask_add_ps(value, is_green, value, _mm512_set1_ps(by.bias));
                _mm512_storeu_ps(values.as_mut_ptr(), raised);
            }
        }
    }
}
