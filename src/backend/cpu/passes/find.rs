//! Passes that search: for maxima, candidates, samples and ranks. See the [module](super) for safety.

// Blocks and vectors are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::{
    AHEAD, BLOCK, Blocks, PAD, Range, SAMPLE_PAD, SAMPLE_STRIDE, Sample, Scan, Skip, Values, Weigh, exponent, load,
    spread,
};
use crate::backend::cpu::keys::key;
use crate::backend::cpu::simd::{Format, Simd};

/// How many words hold a block's bits.
const WORDS: usize = BLOCK / 64;

/// Block maxima and NaN check in one read of the row.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn scan<S: Simd, F: Format>(row: &[u8], maxima: &mut [f32]) -> Scan {
    // SAFETY: passed on.
    unsafe { scan_in_order::<S, F, false>(row, maxima) }
}

/// As [`scan`], for a row that comes from memory.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn far_scan<S: Simd, F: Format>(row: &[u8], maxima: &mut [f32]) -> Scan {
    // SAFETY: passed on.
    unsafe { scan_in_order::<S, F, true>(row, maxima) }
}

#[inline(always)]
unsafe fn scan_in_order<S: Simd, F: Format, const FAR: bool>(row: &[u8], maxima: &mut [f32]) -> Scan {
    // SAFETY: see the module; a hint may be any address.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (mut all, mut nan, count) = (S::splat(f32::NEG_INFINITY), 0, rows.count());
        for i in 0..count {
            let b = if FAR { spread(i, count) } else { i };
            let at = rows.get(b);
            if FAR {
                S::ahead(at, AHEAD, BLOCK * F::SIZE);
            }
            let mut max = S::splat(f32::NEG_INFINITY);
            for v in (0..BLOCK / S::LANES).step_by(2) {
                let (x0, x1) = (load::<S, F>(at, v), load::<S, F>(at, v + 1));
                // One comparison sees a NaN in either vector.
                nan |= S::either_nan(x0, x1);
                max = S::max(max, S::max(x0, x1));
            }
            maxima[b] = S::reduce_max(max);
            all = S::max(all, max);
        }
        Scan { max: S::reduce_max(all), nan: nan != 0 }
    }
}

/// Keys of the values at or above `at_least`, which is finite; token ids ascend.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn collect<S: Simd, F: Format>(
    row: &[u8],
    maxima: &[f32],
    at_least: f32,
    keys: &mut Vec<u64>,
) {
    // SAFETY: see the module; the store fits `values`, whose length is that of the longest vector.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let bound = S::splat(at_least);
        let mut values = [0.0f32; PAD];
        for b in 0..rows.count() {
            if maxima[b] < at_least {
                continue;
            }
            let at = rows.get(b);
            for v in 0..BLOCK / S::LANES {
                let x = load::<S, F>(at, v);
                let mut lanes = S::ge(x, bound);
                if lanes != 0 {
                    S::store(values.as_mut_ptr(), x);
                }
                while lanes != 0 {
                    let lane = lanes.trailing_zeros() as usize;
                    keys.push(key((b * BLOCK + v * S::LANES + lane) as u32, values[lane & (PAD - 1)]));
                    lanes &= lanes - 1;
                }
            }
        }
    }
}

/// Appends the values in `range`, with their tokens ascending. The caller computes their masses.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn between<S: Simd, F: Format>(
    row: &[u8],
    maxima: &[f32],
    range: Range,
    inside: &mut Values,
) {
    // SAFETY: see the module. What is listed is not padding, since the range is finite, so it lies in the row.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (low, high) = (S::splat(range.low), S::splat(range.high));
        // First sets a bit for each value of the blocks that are looked at, then makes the list from the bits: a branch
        // for each vector would be mispredicted a third of the time.
        inside.blocks.clear();
        inside.bits.clear();
        inside.bits.resize(rows.count() * WORDS, 0);
        if range.high == f32::INFINITY {
            mark::<S, F>(&rows, maxima, range, inside, |x| S::ge(x, low));
        } else {
            mark::<S, F>(&rows, maxima, range, inside, |x| S::within(x, low, high));
        }
        let words = &inside.bits[..inside.blocks.len() * WORDS];
        let count = words.iter().map(|word| word.count_ones() as usize).sum();
        let from = inside.tokens.len();
        list_bits(words, &inside.blocks, count, &mut inside.tokens);
        inside.logits.extend(inside.tokens[from..].iter().map(|&t| F::value(row.as_ptr().add(t as usize * F::SIZE))));
    }
}

/// Sets the bit of each value that `wanted` finds, in the blocks that reach `range`, and notes these blocks.
#[inline(always)]
unsafe fn mark<S: Simd, F: Format>(
    rows: &Blocks<'_, F>,
    maxima: &[f32],
    range: Range,
    inside: &mut Values,
    wanted: impl Fn(S::Float) -> u32,
) {
    // SAFETY: see the module; the bits of a block lie in its words.
    unsafe {
        inside.blocks.reserve(rows.count());
        for b in 0..rows.count() {
            if maxima[b] < range.low {
                continue;
            }
            let (at, words) = (rows.get(b), inside.blocks.len() * WORDS);
            inside.blocks.push(b as u32);
            let bits = inside.bits[words..][..WORDS].as_mut_ptr().cast::<u8>();
            for v in 0..BLOCK / S::LANES {
                let lanes = wanted(load::<S, F>(at, v));
                match S::LANES {
                    16 => bits.add(2 * v).cast::<u16>().write_unaligned((lanes as u16).to_le()),
                    _ => bits.add(v).write(lanes as u8),
                }
            }
        }
    }
}

/// Appends the tokens of the `count` set bits of these blocks.
#[inline(always)]
unsafe fn list_bits(words: &[u64], blocks: &[u32], count: usize, tokens: &mut Vec<u32>) {
    const AT_ONCE: usize = 4;
    let mut len = tokens.len();
    tokens.reserve(count + AT_ONCE);
    for (i, word) in words.iter().enumerate() {
        let mut word = u64::from_le(*word);
        let first = blocks[i / WORDS] * BLOCK as u32 + (i % WORDS * 64) as u32;
        let (mut at, end) = (len, len + word.count_ones() as usize);
        loop {
            // Writes several without checking what is left, since their number cannot be predicted. Surplus ones are
            // overwritten later.
            for k in 0..AT_ONCE {
                // SAFETY: at most AT_ONCE past the last, which was reserved.
                unsafe { tokens.as_mut_ptr().add(at + k).write(first + word.trailing_zeros()) };
                word &= word.wrapping_sub(1);
            }
            at += AT_ONCE;
            if word == 0 {
                break;
            }
        }
        len = end;
    }
    // SAFETY: all up to here were written.
    unsafe { tokens.set_len(len) };
}

/// Takes one vector of every [`SAMPLE_STRIDE`]th block, to estimate how the values below `below` are distributed.
/// Values at or above it appear as −∞ without weight.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn sample<S: Simd, F: Format>(
    row: &[u8],
    weigh: Weigh,
    below: f32,
    spread: &mut Sample,
) {
    // SAFETY: see the module; the lists have room for every vector stored.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let (max, scale, bound) = (S::splat(weigh.max), S::splat(weigh.scale), S::splat(below));
        let vectors = rows.count().div_ceil(SAMPLE_STRIDE);
        spread.taken = vectors * S::LANES;
        let padded = spread.taken.next_multiple_of(SAMPLE_PAD);
        spread.logits.clear();
        spread.logits.resize(padded, f32::NEG_INFINITY);
        spread.weights.clear();
        spread.weights.resize(padded, 0.0);
        for i in 0..vectors {
            let x = load::<S, F>(rows.get(SAMPLE_STRIDE * i), i % (BLOCK / S::LANES));
            let x = S::only(x, S::gt(bound, x));
            S::store(spread.logits[i * S::LANES..].as_mut_ptr(), x);
            S::store(spread.weights[i * S::LANES..].as_mut_ptr(), S::power(exponent::<S>(x, max, scale)));
        }
    }
}

/// The weight of the sampled values at or above `bound`.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn sampled_ge<S: Simd>(spread: &Sample, bound: f32) -> f32 {
    // SAFETY: see the module; the chunks are whole vectors.
    unsafe {
        let bound = S::splat(bound);
        let mut sums = [S::splat(0.0); SAMPLE_PAD / PAD];
        let step = sums.len() * S::LANES;
        for (values, weights) in spread.logits.chunks_exact(step).zip(spread.weights.chunks_exact(step)) {
            for (i, sum) in sums.iter_mut().enumerate() {
                let lanes = S::ge(S::load_f32(values[i * S::LANES..].as_ptr().cast()), bound);
                *sum = S::add_lanes(*sum, S::load_f32(weights[i * S::LANES..].as_ptr().cast()), lanes);
            }
        }
        let mut lanes = [0.0f32; PAD];
        sums.into_iter().fold(0.0, |all, sum| {
            S::store(lanes.as_mut_ptr(), sum);
            all + lanes[..S::LANES].iter().sum::<f32>()
        })
    }
}

/// How many values are at or above `value` in blocks before `skip`, plus how many are above it in blocks after `skip`.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn preceding<S: Simd, F: Format>(
    row: &[u8],
    maxima: &[f32],
    skip: Skip,
    value: f32,
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let bound = S::splat(value);
        let mut count = 0;
        for b in 0..rows.count() {
            if (skip.from..skip.to).contains(&b) || maxima[b] < value {
                continue;
            }
            let at = rows.get(b);
            for v in 0..BLOCK / S::LANES {
                let x = load::<S, F>(at, v);
                // Equal values precede when their ids are smaller.
                let lanes = if b < skip.from { S::ge(x, bound) } else { S::gt(x, bound) };
                count += u64::from(lanes.count_ones());
            }
        }
        count
    }
}

/// Number of values at or above `bound`, in a list padded to whole vectors.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn count_ge<S: Simd>(values: &[f32], bound: f32) -> usize {
    // SAFETY: see the module; the chunks are whole vectors.
    unsafe {
        let bound = S::splat(bound);
        let mut count = 0;
        for chunk in values.chunks_exact(S::LANES) {
            count += S::ge(S::load_f32(chunk.as_ptr().cast()), bound).count_ones() as usize;
        }
        count
    }
}

/// Sum of the masses whose value is at or above `bound`, in lists padded to whole vectors.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn sum_ge<S: Simd>(values: &[f32], masses: &[u64], bound: f32) -> u64 {
    // SAFETY: see the module; the chunks are whole vectors.
    unsafe {
        let bound = S::splat(bound);
        let mut sum = S::mass_zero();
        for (values, masses) in values.chunks_exact(S::LANES).zip(masses.chunks_exact(S::LANES)) {
            let lanes = S::ge(S::load_f32(values.as_ptr().cast()), bound);
            sum = S::mass_add_lanes(sum, S::mass_load(masses.as_ptr()), lanes);
        }
        S::mass_sum(sum)
    }
}
