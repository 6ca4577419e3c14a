//! Rows like those of language models, and the reference by which every figure is divided.

use croupier::backend::cpu::Level;
use croupier::sampling::logits::Dtype;

/// The distribution of probability over a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A few tokens have most of the mass, as in fluent text: the nucleus of 0.9 has tens of tokens.
    Peaked,
    /// Standard deviation 1: the nucleus of 0.9 is more than half of the vocabulary.
    Flat,
}

impl Shape {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Shape::Peaked => "peaked",
            Shape::Flat => "flat",
        }
    }
}

/// A row of this shape. The same seed gives the same row.
pub(crate) fn row(shape: Shape, vocab: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 12345;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state ^ state >> 31) >> 32) as u32 as f32 / u32::MAX as f32
    };
    // The sum of twelve uniform numbers is nearly normal within four deviations.
    let mut normal = || (0..12).map(|_| unit()).sum::<f32>() - 6.0;
    let mut row: Vec<f32> = (0..vocab).map(|_| normal()).collect();
    if shape == Shape::Peaked {
        row.iter_mut().for_each(|x| *x *= 2.5);
        // Candidates stand out from the bulk, each less likely than the one before, at scattered ids.
        for i in 0..200usize {
            let token = (i * 7919 + seed as usize * 104_729) % vocab;
            row[token] = 19.0 - 1.6 * ((i + 1) as f32).ln() + 0.7 * normal();
        }
    }
    row
}

/// A mask that leaves this share of the tokens, scattered over the vocabulary. The same seed gives the same mask.
#[allow(dead_code)] // Not every bench has masks.
pub(crate) fn mask(vocab: usize, left: f32, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 54321;
    let mut bit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state ^ state >> 31) >> 32) as u32 as f32 / u32::MAX as f32
    };
    let bytes = croupier::sampling::mask::TokenMask::bytes_for(vocab);
    (0..bytes).map(|_| (0..8).fold(0, |byte, place| byte | u8::from(bit() < left) << place)).collect()
}

/// The largest value of a row: one read and one comparison per value, nothing stored, with the instructions of `level`.
pub(crate) fn reference_max(level: Level, dtype: Dtype, row: &[u8]) -> f32 {
    // SAFETY: the level was detected.
    #[cfg(target_arch = "x86_64")]
    match (level, dtype) {
        (Level::Avx512 | Level::Avx512Amd, Dtype::F32) => return unsafe { x86::avx512_f32(row) },
        (Level::Avx512 | Level::Avx512Amd, Dtype::Bf16) => return unsafe { x86::avx512_bf16(row) },
        (Level::Avx2, Dtype::F32) => return unsafe { x86::avx2_f32(row) },
        (Level::Avx2, Dtype::Bf16) => return unsafe { x86::avx2_bf16(row) },
        _ => {}
    }
    match dtype {
        Dtype::F32 => portable_f32(row),
        _ => {
            let logits = croupier::sampling::logits::Logits::new(dtype, row);
            (0..logits.vocab_size() as u32).map(|t| logits.get(t)).fold(f32::NEG_INFINITY, f32::max)
        }
    }
}

/// Written so that compilers vectorise it. The tail, less than 0.1 % of a row, is left out.
fn portable_f32(row: &[u8]) -> f32 {
    let mut max = [f32::NEG_INFINITY; 32];
    for chunk in row.chunks_exact(4 * max.len()) {
        for (max, value) in max.iter_mut().zip(chunk.chunks_exact(4)) {
            let value = f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
            *max = if value > *max { value } else { *max };
        }
    }
    max.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    macro_rules! max_pass {
        ($name:ident, $features:literal, $lanes:literal, $size:literal, $load:expr, $least:expr, $max:ident, $reduce:expr) => {
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(row: &[u8]) -> f32 {
                // SAFETY: whole chunks of 8 vectors are read; the tail is left out, below 0.1 % of a row.
                unsafe {
                    let mut max = [$least; 8];
                    for chunk in row.chunks_exact(8 * $lanes * $size) {
                        for (i, max) in max.iter_mut().enumerate() {
                            *max = $max(*max, $load(chunk.as_ptr().add($lanes * $size * i)));
                        }
                    }
                    let all = max.into_iter().fold(max[0], |a, b| $max(a, b));
                    $reduce(all)
                }
            }
        };
    }

    macro_rules! avx512_max {
        ($name:ident, $size:literal, $load:expr) => {
            max_pass!(
                $name,
                "avx512f,avx512bw",
                16,
                $size,
                $load,
                _mm512_set1_ps(f32::NEG_INFINITY),
                _mm512_max_ps,
                |all| _mm512_reduce_max_ps(all)
            );
        };
    }

    macro_rules! avx2_max {
        ($name:ident, $size:literal, $load:expr) => {
            max_pass!(
                $name,
                "avx2",
                8,
                $size,
                $load,
                _mm256_set1_ps(f32::NEG_INFINITY),
                _mm256_max_ps,
                |all: __m256| {
                    std::mem::transmute::<__m256, [f32; 8]>(all).into_iter().fold(f32::NEG_INFINITY, f32::max)
                }
            );
        };
    }

    avx512_max!(avx512_f32, 4, |at: *const u8| _mm512_loadu_ps(at.cast()));
    avx512_max!(avx512_bf16, 2, |at: *const u8| {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    });
    avx2_max!(avx2_f32, 4, |at: *const u8| _mm256_loadu_ps(at.cast()));
    avx2_max!(avx2_bf16, 2, |at: *const u8| {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    });
}
