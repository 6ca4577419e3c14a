//! Rows like those of language models, and the reference that every figure is divided by.

use croupier::backend::cpu::Level;
use croupier::sampling::logits::Dtype;

/// How probability is spread over a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A few tokens hold most of the mass, as in fluent text: the nucleus of 0.9 has tens of tokens.
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

/// A row of this shape; the same for the same seed.
pub(crate) fn row(shape: Shape, vocab: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 12345;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state ^ state >> 31) >> 32) as u32 as f32 / u32::MAX as f32
    };
    // Sum of twelve uniforms: close to normal within four deviations.
    let mut normal = || (0..12).map(|_| unit()).sum::<f32>() - 6.0;
    let mut row: Vec<f32> = (0..vocab).map(|_| normal()).collect();
    if shape == Shape::Peaked {
        row.iter_mut().for_each(|x| *x *= 2.5);
        // Candidates stand out over the bulk, each less likely than the last, at scattered ids.
        for i in 0..200usize {
            let token = (i * 7919 + seed as usize * 104_729) % vocab;
            row[token] = 19.0 - 1.6 * ((i + 1) as f32).ln() + 0.7 * normal();
        }
    }
    row
}

/// The largest value of a row: one read, one comparison per value, nothing kept.
pub(crate) fn reference_max(level: Level, dtype: Dtype, row: &[u8]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512 && dtype != Dtype::F16 {
        // SAFETY: the level was detected.
        return unsafe { if dtype == Dtype::F32 { x86::max_f32(row) } else { x86::max_bf16(row) } };
    }
    let _ = level;
    let logits = croupier::sampling::logits::Logits::new(dtype, row);
    (0..logits.vocab_size() as u32).map(|t| logits.get(t)).fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    macro_rules! max_pass {
        ($name:ident, $size:literal, $load:expr) => {
            #[target_feature(enable = "avx512f,avx512bw")]
            pub(super) unsafe fn $name(row: &[u8]) -> f32 {
                // SAFETY: whole chunks of 128 values are read; the tail is left out, below 0.1 % of a row.
                unsafe {
                    let mut max = [_mm512_set1_ps(f32::NEG_INFINITY); 8];
                    for chunk in row.chunks_exact(128 * $size) {
                        for (i, max) in max.iter_mut().enumerate() {
                            *max = _mm512_max_ps(*max, $load(chunk.as_ptr().add(16 * $size * i)));
                        }
                    }
                    let all = max.into_iter().fold(max[0], |a, b| _mm512_max_ps(a, b));
                    _mm512_reduce_max_ps(all)
                }
            }
        };
    }

    max_pass!(max_f32, 4, |at: *const u8| _mm512_loadu_ps(at.cast()));
    max_pass!(max_bf16, 2, |at: *const u8| {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    });
}
