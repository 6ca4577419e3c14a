//! Passes of marks: random words for whole blocks. See the [module](super) for safety.

use super::BLOCK;
use crate::backend::cpu::simd::Simd;
use crate::sampling::mark::greenlist::{self, Greenlist, SPREAD};
use crate::sampling::mark::race::{self, Race};
use crate::sampling::mark::{Purpose, greenlist::LANES};

const _: () = assert!(BLOCK == greenlist::TOKENS && BLOCK == race::TOKENS && race::LANES == 2 * LANES);

/// Words that a vector of Philox blocks has: by word, by block.
pub(in crate::backend::cpu) type Words = [[u32; LANES]; 4];

fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// The words at `LANES` indices from `first` on.
#[inline(always)]
unsafe fn words<S: Simd>(key: u64, context: u64, purpose: Purpose, first: u32) -> Words {
    let [low, high] = halves(context);
    // SAFETY: see the module.
    unsafe { S::philox(first, [purpose as u32, low, high], halves(key)) }
}

/// Gives green logits their bias: those of whole blocks, from token 0 on.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn raise<S: Simd>(greens: &Greenlist, values: &mut [f32]) {
    let (key, seeds, threshold, bias) = greens.parts();
    for (block, values) in values.chunks_exact_mut(BLOCK).enumerate() {
        let first = (block * LANES) as u32;
        if let [seed] = seeds
            && !greens.is_self()
        {
            // SAFETY: see the module.
            let words = unsafe { words::<S>(key, *seed, Purpose::Green, first) };
            each(&words, values, |bits, value| if bits < threshold { value + bias } else { value });
            continue;
        }
        // The least of both halves of each word, over all seeds.
        let mut least = [[u16::MAX; LANES]; 8];
        for &seed in seeds {
            // SAFETY: see the module.
            let words = unsafe { words::<S>(key, seed, Purpose::Green, first) };
            for (least, words) in least.chunks_exact_mut(2).zip(&words) {
                for lane in 0..LANES {
                    least[0][lane] = least[0][lane].min(words[lane] as u16);
                    least[1][lane] = least[1][lane].min((words[lane] >> 16) as u16);
                }
            }
        }
        for (least, values) in least.iter().zip(values.chunks_exact_mut(LANES)) {
            for (&bits, value) in least.iter().zip(values) {
                let green = u32::from(bits.wrapping_mul(SPREAD as u16)) < threshold;
                *value = if green { *value + bias } else { *value };
            }
        }
    }
}

/// Each value of a block, by its 16 bits.
#[inline(always)]
fn each(words: &Words, values: &mut [f32], value: impl Fn(u32, f32) -> f32) {
    for (words, values) in words.iter().zip(values.chunks_exact_mut(2 * LANES)) {
        let (low, high) = values.split_at_mut(LANES);
        for lane in 0..LANES {
            low[lane] = value(words[lane] & 0xFFFF, low[lane]);
            high[lane] = value(words[lane] >> 16, high[lane]);
        }
    }
}

/// The words of a block's tokens in a race.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn race_words<S: Simd>(race: Race, block: usize, out: &mut [u32; BLOCK]) {
    for part in 0..2 {
        let first = (block * race::LANES + part * LANES) as u32;
        // SAFETY: see the module.
        let words = unsafe { words::<S>(race.key, race.context, Purpose::Race, first) };
        for (word, out) in words.iter().zip(out.chunks_exact_mut(race::LANES)) {
            out[part * LANES..][..LANES].copy_from_slice(word);
        }
    }
}
