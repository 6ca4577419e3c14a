//! Tournaments (SynthID-Text: Dathathri et al., "Scalable watermarking for identifying large language model outputs",
//! Nature 634, 2024): in each layer every token has a bit `g`, a function of a key and the context, and probability
//! moves to tokens whose bit is set, as if the better of two draws were taken: `p' = p * (1 + g - sum of p * g)`. Over
//! all keys a token keeps its probability.
//!
//! The bits are those of Hugging Face Transformers (`SynthIDTextWatermarkLogitsProcessor` on the CPU), bit for bit. All
//! arithmetic is modulo 2^64:
//!
//! | | |
//! |---|---|
//! | hash | begins at 1; takes in a number `n` as `h' = (h + n) * 6364136223846793005 + 1` |
//! | takes in | the `ngram_len - 1` tokens before, the oldest first, then the token, then the layer's key |
//! | bit | the table's bit at the hash, taken as a signed number, modulo the table's size |
//! | table | the lowest bits of MT19937's words |
//!
//! Probabilities are integer weights. They begin as `w = mass << s`, with `s` such that their sum is below 2^62. In
//! each layer, with `W` the sum of all weights and `A` the sum of those whose bit is set,
//! `w' = floor(w * (f + g * 2^62) / 2^62)`, `f = floor((W - A) * 2^62 / W)`. The last layer's weights become logits
//! again, at temperature 1: `ln w - ln W`, in f64, by the `libm` crate, rounded to f32 once. A token without weight is
//! removed. The result is within 1e-6 of the probability.

use super::twister::Twister;
use crate::params::watermark::SynthidParams;
use std::sync::{Arc, LazyLock, OnceLock};

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
/// The inverse of the multiplier: their product is 1. Each step of Newton's method doubles the number of right bits. It
/// begins with three: in these an odd number is its own inverse.
const INVERSE: u64 = {
    let (mut inverse, mut step) = (MULTIPLIER, 0);
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
};
/// Fractional bits of the factors.
pub const BITS: u32 = 62;
const ONE: u64 = 1 << BITS;

/// The table that most sequences use.
static USUAL: LazyLock<Arc<Table>> = LazyLock::new(|| Arc::new(Table::new(1 << 16, 0)));

/// Tokens that may be looked up side by side.
pub const TOKENS: usize = 128;

/// The table of bits, by hash.
#[derive(Debug)]
pub struct Table {
    bits: Vec<u64>,
    size: u32,
    turned: OnceLock<Box<[u8]>>,
}

impl PartialEq for Table {
    fn eq(&self, other: &Self) -> bool {
        (&self.bits, self.size) == (&other.bits, other.size)
    }
}

impl Table {
    fn new(size: u32, seed: u32) -> Self {
        let mut words = Twister::new(seed);
        let mut bits = vec![0u64; (size as usize).div_ceil(64)];
        for at in 0..size as usize {
            bits[at / 64] |= u64::from(words.word() & 1) << (at % 64);
        }
        Self { bits, size, turned: OnceLock::new() }
    }

    /// The table for these parameters. The usual one exists once and is shared.
    #[must_use]
    pub fn of(params: &SynthidParams) -> Arc<Self> {
        if (params.sampling_table_size, params.sampling_table_seed) == (USUAL.size, 0) {
            return Arc::clone(&USUAL);
        }
        Arc::new(Self::new(params.sampling_table_size, params.sampling_table_seed))
    }

    /// Bytes of memory that the table takes; none for the usual one, which is shared.
    #[must_use]
    pub fn bytes(self: &Arc<Self>) -> usize {
        if Arc::ptr_eq(self, &USUAL) {
            return 0;
        }
        let turned = if self.size.is_power_of_two() { self.size as usize + TOKENS } else { 0 };
        size_of::<Self>() + self.bits.capacity() * size_of::<u64>() + turned
    }

    /// The table's bits, a byte each, in the order in which consecutive tokens ask for them, if the size is a power of
    /// two. Then the hash of token `t` is `MULTIPLIER^2 * (t + begin) + 1` modulo the size, so the bits of consecutive
    /// tokens are consecutive. The first [`TOKENS`] are repeated after the last.
    #[must_use]
    pub fn turned(&self) -> Option<&[u8]> {
        let turned = || {
            let hash = |at: u64| MULTIPLIER.wrapping_mul(MULTIPLIER).wrapping_mul(at).wrapping_add(1);
            (0..self.size as usize + TOKENS).map(|at| self.bit(hash(at as u64)) as u8).collect()
        };
        self.size.is_power_of_two().then(|| &**self.turned.get_or_init(turned))
    }

    /// The bit of a hash.
    #[must_use]
    fn bit(&self, hash: u64) -> u64 {
        // The remainder of a signed number is taken as in Python. For a power of two that is the last bits.
        let size = u64::from(self.size);
        let at = if size.is_power_of_two() {
            hash & (size - 1)
        } else {
            hash.cast_signed().rem_euclid(size.cast_signed()).cast_unsigned()
        };
        self.bits[(at / 64) as usize] >> (at % 64) & 1
    }

    /// The share of bits that are set.
    #[must_use]
    pub fn share(&self) -> f64 {
        let set: u32 = self.bits.iter().map(|word| word.count_ones()).sum();
        f64::from(set) / f64::from(self.size)
    }
}

/// Mixes a number into a hash.
fn accumulate(hash: u64, number: u64) -> u64 {
    hash.wrapping_add(number).wrapping_mul(MULTIPLIER).wrapping_add(1)
}

/// The hash of a context.
#[must_use]
pub fn context(tokens: impl IntoIterator<Item = u32>) -> u64 {
    tokens.into_iter().fold(1, |hash, token| accumulate(hash, u64::from(token)))
}

/// The tournament of one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tournament<'a> {
    /// From [`context`].
    pub context: u64,
    /// One for each layer; at most 64.
    pub keys: &'a [u64],
    /// The table of bits.
    pub table: &'a Table,
}

impl Tournament<'_> {
    /// The place of token 0's bit in [`Table::turned`], for each layer.
    pub fn begins(&self) -> impl Iterator<Item = u32> {
        let begin = |key: &u64| self.context.wrapping_add(key.wrapping_add(1).wrapping_mul(INVERSE));
        self.keys.iter().map(move |key| (begin(key) & u64::from(self.table.size - 1)) as u32)
    }

    /// A token's bits, one for each layer, the first layer's lowest.
    #[must_use]
    pub fn bits(&self, token: u32) -> u64 {
        let hash = accumulate(self.context, u64::from(token));
        let bits = self.keys.iter().enumerate().map(|(layer, &key)| self.table.bit(accumulate(hash, key)) << layer);
        bits.fold(0, |all, bit| all | bit)
    }

    /// Plays the tournament. Takes tokens with their masses, at least one of which is not 0; returns their weights, and
    /// the sum of these.
    pub fn play(&self, tokens: impl Iterator<Item = (u32, u64)>) -> (Vec<u64>, u64) {
        let mut players: Vec<(u64, u64)> = tokens.map(|(token, mass)| (mass, self.bits(token))).collect();
        let mut total: u64 = players.iter().map(|player| player.0).sum();
        let shift = room(total);
        players.iter_mut().for_each(|player| player.0 <<= shift);
        total <<= shift;
        for layer in 0..self.keys.len() {
            let set: u64 = players.iter().map(|&(weight, bits)| weight & (bits >> layer & 1).wrapping_neg()).sum();
            let factor = factor(total, set);
            total = 0;
            for (weight, bits) in &mut players {
                let factor = factor + (*bits >> layer & 1) * ONE;
                *weight = ((u128::from(*weight) * u128::from(factor)) >> BITS) as u64;
                total += *weight;
            }
        }
        (players.into_iter().map(|player| player.0).collect(), total)
    }
}

/// How many bits masses with this total are shifted left to become weights. There is room above, since a layer may
/// double a weight, though not the sum.
#[must_use]
pub fn room(total: u64) -> u32 {
    total.leading_zeros().saturating_sub(u64::BITS - BITS)
}

/// The factor of a layer in which `set` of the total have their bit set. It multiplies all weights; those with their
/// bit set also keep what they had.
#[must_use]
pub fn factor(total: u64, set: u64) -> u64 {
    ((u128::from(total - set) << BITS) / u128::from(total)) as u64
}

/// The logit of a weight above 0 at temperature 1: the logarithm of its share.
#[must_use]
pub fn logit(weight: u64, total: u64) -> f32 {
    logit_below(weight, libm::log(total as f64))
}

/// The same, from the logarithm of the total.
#[must_use]
pub fn logit_below(weight: u64, total: f64) -> f32 {
    (libm::log(weight as f64) - total) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [u64; 30] = [
        654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468, 990, 966, 226, 324, 585, 118, 504, 421,
        521, 129, 669, 732, 225, 90, 960,
    ];

    fn usual() -> Arc<Table> {
        Table::of(&SynthidParams::new(vec![1]))
    }

    /// The formula in 128-bit arithmetic, modulo 2^64.
    fn by_formula(table: &Table, tokens: &[u32], key: u64) -> u64 {
        let numbers = tokens.iter().map(|&token| u128::from(token)).chain([u128::from(key)]);
        let hash = numbers.fold(1u128, |hash, n| ((hash + n) * u128::from(MULTIPLIER) + 1) % (1 << 64));
        let at = (i128::from((hash as u64).cast_signed())).rem_euclid(i128::from(table.size)) as u64;
        table.bits[(at / 64) as usize] >> (at % 64) & 1
    }

    #[test]
    fn bits_are_those_of_the_formula() {
        for table in [usual(), Arc::new(Table::new(1000, 3))] {
            for tokens in [[0, 0, 0, 0, 17], [5, 128_000, 3, 9, 0], [1, 2, 3, 4, 127_999]] {
                let (&token, before) = tokens.split_last().unwrap();
                let played = Tournament { context: context(before.iter().copied()), keys: &KEYS, table: &table };
                let bits = played.bits(token);
                for (layer, &key) in KEYS.iter().enumerate() {
                    assert_eq!(bits >> layer & 1, by_formula(&table, &tokens, key), "{tokens:?} {layer}");
                }
            }
        }
    }

    #[test]
    fn bits_of_tokens_in_a_row_stand_in_a_row() {
        assert_eq!(MULTIPLIER.wrapping_mul(INVERSE), 1);
        assert_eq!(Table::new(1000, 3).turned(), None);
        for size in [2, 4, 64, 128, 256, 1 << 16, 1 << 20] {
            let table = Table::new(size, 3);
            let turned = table.turned().unwrap();
            assert_eq!(turned.len(), size as usize + TOKENS);
            for context in [1, 7 << 40 | 3, u64::MAX] {
                let played = Tournament { context, keys: &[0, 654, u64::MAX, 1 << 63 | 5], table: &table };
                for token in [0, 1, 127, 128, 65_535, 128_255, (1 << 20) - 1] {
                    for (layer, begin) in played.begins().enumerate() {
                        let bit = turned[(begin + token) as usize % size as usize];
                        assert_eq!(u64::from(bit), played.bits(token) >> layer & 1, "{size} {context} {token} {layer}");
                    }
                }
            }
        }
    }

    /// From a short Python program that was written from the formula.
    #[test]
    fn known_answers() {
        let table = usual();
        assert_eq!((0..16).fold(0, |bits, at| bits | table.bit(at) << at), 0b0010_0111_1111_0110);
        assert_eq!(table.share() * 65_536.0, 32_743.0);
        for (tokens, expected) in [
            ([0, 0, 0, 0, 17], 330_947_679),
            ([5, 128_000, 3, 9, 0], 882_882_381),
            ([1, 2, 3, 4, 127_999], 790_037_098),
        ] {
            let (&token, before) = tokens.split_last().unwrap();
            let played = Tournament { context: context(before.iter().copied()), keys: &KEYS, table: &table };
            assert_eq!(played.bits(token), expected, "{tokens:?}");
        }
    }

    #[test]
    fn a_layer_by_hand() {
        let table = usual();
        let token_with = |bit: u64, from: u32| {
            let one = Tournament { context: 7, keys: &KEYS[..1], table: &table };
            (from..).find(|&token| one.bits(token) == bit).unwrap()
        };
        let (set, clear) = (token_with(1, 0), token_with(0, 0));
        let one = Tournament { context: 7, keys: &KEYS[..1], table: &table };
        // p = 1/4 set, 3/4 clear: 1/4 * (2 - 1/4) and 3/4 * (1 - 1/4).
        let (weights, total) = one.play([(set, 1), (clear, 3)].into_iter());
        let shares = |weights: &[u64], total: u64| -> Vec<f64> {
            weights.iter().map(|&weight| weight as f64 / total as f64).collect()
        };
        let found = shares(&weights, total);
        assert!((found[0] - 7.0 / 16.0).abs() < 1e-15 && (found[1] - 9.0 / 16.0).abs() < 1e-15, "{found:?}");
        assert!((f64::from(logit(weights[0], total)).exp() - 7.0 / 16.0).abs() < 1e-7);
        // If all tokens have the same bit, nothing changes, and a token without mass stays without.
        let other = token_with(1, set + 1);
        let (weights, total) = one.play([(set, 5), (other, 3), (clear, 0)].into_iter());
        assert_eq!(shares(&weights, total), [0.625, 0.375, 0.0]);
    }

    #[test]
    fn weights_are_the_formula_in_reals() {
        let (table, masses) = (usual(), [1u64 << 40, 1 << 39, 12_345_678, 1, 0, 987_654_321_012]);
        let played = Tournament { context: 99, keys: &KEYS, table: &table };
        let tokens = masses.iter().enumerate().map(|(at, &mass)| (at as u32 * 1000, mass));
        let (weights, total) = played.play(tokens.clone());
        let sum: u64 = masses.iter().sum();
        let mut exact: Vec<f64> = masses.iter().map(|&mass| mass as f64 / sum as f64).collect();
        for layer in 0..KEYS.len() {
            let g = |token: u32| (played.bits(token) >> layer & 1) as f64;
            let set: f64 = tokens.clone().zip(&exact).map(|((token, _), p)| g(token) * p).sum();
            tokens.clone().zip(&mut exact).for_each(|((token, _), p)| *p *= 1.0 + g(token) - set);
        }
        for (weight, exact) in weights.iter().zip(&exact) {
            assert!((*weight as f64 / total as f64 - exact).abs() < 1e-12, "{weight} {exact}");
        }
    }

    /// One token, the largest possible masses, and as many layers as allowed: nothing overflows.
    #[test]
    fn edges() {
        let table = usual();
        let played = Tournament { context: 1, keys: &[u64::MAX; 64], table: &table };
        let (weights, total) = played.play(std::iter::once((3, 1)));
        assert_eq!((weights[0], logit(weights[0], total)), (total, 0.0));
        let (weights, total) = played.play((0..1 << 20).map(|token| (token, 1 << 40)));
        assert_eq!(weights.iter().sum::<u64>(), total);
    }
}
