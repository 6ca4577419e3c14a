//! Passes for watermarks: random words for whole blocks. See the [module](super) for safety.

use super::{BLOCK, Blocks, load};
use crate::backend::cpu::simd::greens::{Green, Greens, Numbers};
use crate::backend::cpu::simd::{Format, Simd};
use crate::sampling::watermark::greenlist::{self, Greenlist, SPREAD};
use crate::sampling::watermark::race::{self, Race};
use crate::sampling::watermark::{Purpose, greenlist::LANES};

const _: () = assert!(BLOCK == greenlist::TOKENS && BLOCK == race::TOKENS && race::LANES == 2 * LANES);

/// The words of a vector of Philox blocks: by word, then by block.
pub(in crate::backend::cpu) type Words = [[u32; LANES]; 4];

fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// The words at `LANES` indices from `first` on.
#[inline(always)]
unsafe fn words<S: Simd>(keys: &S::Keys, context: u64, purpose: Purpose, first: u32) -> Words {
    let [low, high] = halves(context);
    // SAFETY: see the module.
    unsafe { S::philox(first, [purpose as u32, low, high], keys) }
}

/// Adds the bias to green logits of whole blocks, from token 0 on.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn raise<S: Greens>(greens: &Greenlist, values: &mut [f32]) {
    // SAFETY: passed on.
    unsafe {
        let keys = S::keys(halves(greens.parts().0));
        for (block, values) in values.chunks_exact_mut(BLOCK).enumerate() {
            raise_block::<S>(greens, &keys, block, values);
        }
    }
}

/// How logits are to be raised.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Raise<'a> {
    pub(in crate::backend::cpu) greens: &'a Greenlist,
    /// Block maxima of the row.
    pub(in crate::backend::cpu) maxima: &'a [f32],
    /// Blocks that do not reach this even when raised stay as they are.
    pub(in crate::backend::cpu) from: f32,
}

/// Writes the row with its green logits raised, and the block maxima of that, in one read of the row.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn raised<S: Greens, F: Format>(
    row: &[u8],
    by: Raise<'_>,
    values: &mut [f32],
    maxima: &mut [f32],
) {
    // SAFETY: see the module; BLOCK values are stored and loaded.
    unsafe {
        let Raise { greens, from, .. } = by;
        let (key, _, _, bias) = greens.parts();
        let (rows, keys) = (Blocks::<F>::new(row), S::keys(halves(key)));
        for ((block, values), most) in values.chunks_exact_mut(BLOCK).enumerate().zip(maxima) {
            let at = rows.get(block);
            for v in 0..BLOCK / S::LANES {
                S::store(values[v * S::LANES..].as_mut_ptr(), load::<S, F>(at, v));
            }
            if by.maxima[block] + bias < from {
                *most = by.maxima[block];
                continue;
            }
            raise_block::<S>(greens, &keys, block, values);
            let mut max = S::splat(f32::NEG_INFINITY);
            for vector in values.chunks_exact(S::LANES) {
                max = S::max(max, S::load_f32(vector.as_ptr().cast()));
            }
            *most = S::reduce_max(max);
        }
    }
}

/// Raises the green logits of a block.
#[inline(always)]
unsafe fn raise_block<S: Greens>(greens: &Greenlist, keys: &S::Keys, block: usize, values: &mut [f32]) {
    let (_, seeds, threshold, bias) = greens.parts();
    let first = (block * LANES) as u32;
    // The 16 bits of each token: the least over all seeds. No closure, since it might be compiled without the level's
    // instructions.
    let mut least = Numbers::default();
    for (at, &seed) in seeds.iter().enumerate() {
        // SAFETY: see the module.
        let numbers = unsafe { S::halves(&words::<S>(keys, seed, Purpose::Green, first)) };
        if at == 0 {
            least = numbers;
        } else {
            // SAFETY: see the module.
            unsafe { S::least(&mut least, &numbers) };
        }
    }
    let spread = if greens.is_self() { SPREAD } else { 1 };
    // SAFETY: see the module.
    unsafe { S::raise(&least, Green { spread, threshold, bias }, values) };
}

/// Writes the words of a block's tokens in a race. Returns the largest of them.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn race_words<S: Simd>(race: Race, block: usize, out: &mut [u32; BLOCK]) -> u32 {
    // SAFETY: see the module.
    let (mut most, keys) = ([0; LANES], unsafe { S::keys(halves(race.key)) });
    for part in 0..2 {
        let first = (block * race::LANES + part * LANES) as u32;
        // SAFETY: see the module.
        let words = unsafe { words::<S>(&keys, race.context, Purpose::Race, first) };
        for (word, out) in words.iter().zip(out.chunks_exact_mut(race::LANES)) {
            out[part * LANES..][..LANES].copy_from_slice(word);
            most.iter_mut().zip(word).for_each(|(most, &word)| *most = word.max(*most));
        }
    }
    most.into_iter().fold(0, u32::max)
}
