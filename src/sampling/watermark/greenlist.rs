//! Greenlists (KGW: Kirchenbauer et al., "A Watermark for Large Language Models", ICML 2023; "On the Reliability of
//! Watermarks for Large Language Models", 2024): about a fixed share of the vocabulary is *green*, and green logits get
//! a bias. Which tokens are green depends on a key and the tokens before.
//!
//! | seeding scheme | a token is green where |
//! |---|---|
//! | lefthash | `w < threshold`, `w` its 16 bits of the key and the context |
//! | selfhash | `(m * 40503) mod 2^16 < threshold`, `m` the least of its 16 bits of the key and each token of the context, which stays the same when another of these tokens is changed |
//!
//! `threshold = round(greenlist_ratio * 2^16)`. In this project's own seeding each token is green or not independently
//! of the others, so that one token can be looked up alone, and a list has about `greenlist_ratio` of the vocabulary.
//! The papers shuffle the vocabulary and take exactly that many tokens. So this project does not detect text marked by
//! other programs, nor do they detect text marked here.
//!
//! The 16 bits of token `t`: with `i = t mod 128`, they are half of word `i / 32` of the words (`super::words`) at
//! index `16 * (t / 128) + t mod 16`, the upper half where `i / 16` is odd. So a block of 128 tokens takes 16 Philox
//! blocks side by side.

use super::{Purpose, context, words};
use crate::params::watermark::{KgwParams, MAX_CONTEXT_WIDTH, SeedingScheme};

/// Tokens whose words are made together.
pub const TOKENS: usize = 128;
/// Philox blocks that give the words of these tokens.
pub const LANES: usize = 16;
/// An odd number, 2^16 over the golden ratio: multiplying by it spreads mostly small numbers evenly.
pub const SPREAD: u32 = 40_503;

/// How many values 16 bits have.
pub const VALUES: u32 = 1 << 16;

/// The greenlist of one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Greenlist {
    key: u64,
    seeds: Seeds,
    threshold: u32,
    bias: f32,
}

/// What a greenlist depends on besides its key: one seed for the whole context, or one for each token in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    seeds: [u64; MAX_CONTEXT_WIDTH as usize],
    len: u8,
    is_self: bool,
}

impl Seeds {
    /// The seeds of a context that has the parameters' width.
    #[must_use]
    pub fn new(params: &KgwParams, tokens: impl IntoIterator<Item = u32>) -> Self {
        let mut seeds = Self { seeds: [0; MAX_CONTEXT_WIDTH as usize], len: 0, is_self: false };
        match params.seeding_scheme {
            SeedingScheme::Lefthash => seeds.add(context(params.hashing_key, tokens)),
            SeedingScheme::Selfhash => {
                seeds.is_self = true;
                tokens.into_iter().for_each(|token| seeds.add(context(params.hashing_key, [token])));
            }
        }
        seeds
    }

    /// Adds a seed, unless it is there already.
    fn add(&mut self, seed: u64) {
        let len = self.len as usize;
        if len < self.seeds.len() && !self.as_slice().contains(&seed) {
            self.seeds[len] = seed;
            self.len += 1;
        }
    }

    /// The seeds, each once.
    #[must_use]
    pub fn as_slice(&self) -> &[u64] {
        &self.seeds[..self.len as usize]
    }
}

/// How many of 2^16 values are green at this ratio.
#[must_use]
pub fn threshold(ratio: f32) -> u32 {
    (f64::from(ratio) * f64::from(VALUES)).round() as u32
}

impl Greenlist {
    /// The greenlist of a position with these seeds.
    #[must_use]
    pub fn new(params: &KgwParams, seeds: Seeds) -> Self {
        Self { key: params.hashing_key, seeds, threshold: threshold(params.greenlist_ratio), bias: params.bias }
    }

    /// The key, seeds, threshold and bias.
    #[must_use]
    pub fn parts(&self) -> (u64, &[u64], u32, f32) {
        (self.key, self.seeds.as_slice(), self.threshold, self.bias)
    }

    /// Whether the scheme is selfhash.
    #[must_use]
    pub fn is_self(&self) -> bool {
        self.seeds.is_self
    }

    /// Whether a token is green.
    #[must_use]
    pub fn is_green(&self, token: u32) -> bool {
        self.decided(token).1
    }

    /// The seed that decides whether a token is green, and whether it is.
    #[must_use]
    pub fn decided(&self, token: u32) -> (u64, bool) {
        let bits = self.seeds.as_slice().iter().map(|&seed| (bits(self.key, seed, token), seed)).min();
        let (bits, seed) = bits.unwrap_or_default();
        let value = if self.seeds.is_self { bits.wrapping_mul(SPREAD) % VALUES } else { bits };
        (seed, value < self.threshold)
    }

    /// The token's logit, plus the bias if the token is green.
    #[must_use]
    pub fn raise(&self, token: u32, logit: f32) -> f32 {
        if self.is_green(token) { logit + self.bias } else { logit }
    }

    /// The probability that a token is green, over all keys.
    #[must_use]
    pub fn share(&self) -> f64 {
        share(self.threshold, self.seeds.is_self.then_some(self.seeds.len))
    }
}

/// The probability that a token is green: by lefthash, or by selfhash with this number of different context tokens.
#[must_use]
pub fn share(threshold: u32, selfhash: Option<u8>) -> f64 {
    let values = f64::from(VALUES);
    let Some(seeds) = selfhash else { return f64::from(threshold) / values };
    // The least of `seeds` values is at least m with probability ((2^16 - m) / 2^16)^seeds.
    let at_least = |m: u32| (0..seeds).map(|_| f64::from(VALUES - m) / values).product::<f64>();
    let green = (0..VALUES).filter(|m| m.wrapping_mul(SPREAD) % VALUES < threshold);
    green.map(|m| at_least(m) - at_least(m + 1)).sum()
}

/// A token's 16 bits.
fn bits(key: u64, seed: u64, token: u32) -> u32 {
    let (tokens, lanes) = (TOKENS as u32, LANES as u32);
    let place = token % tokens;
    let words = words(key, seed, Purpose::Green, token / tokens * lanes + token % lanes);
    let half = place / lanes % 2;
    words[(place / lanes / 2) as usize] >> (16 * half) & (VALUES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(params: &KgwParams, tokens: &[u32]) -> Greenlist {
        Greenlist::new(params, Seeds::new(params, tokens.iter().copied()))
    }

    #[test]
    fn about_the_share_is_green() {
        for (scheme, width) in
            [(SeedingScheme::Lefthash, 1), (SeedingScheme::Lefthash, 4), (SeedingScheme::Selfhash, 4)]
        {
            for ratio in [0.05f32, 0.25, 0.5, 0.9] {
                let params = KgwParams {
                    greenlist_ratio: ratio,
                    seeding_scheme: scheme,
                    context_width: width,
                    ..KgwParams::default()
                };
                let greens = list(&params, &[3, 1, 4, 1][..width as usize]);
                let green = (0..100_000).filter(|&token| greens.is_green(token)).count() as f64 / 1e5;
                // Five standard deviations: one list in two million would be further off.
                let off = (green - greens.share()).abs();
                assert!(
                    off < 5.0 * (greens.share() * (1.0 - greens.share()) / 1e5).sqrt(),
                    "{scheme:?} {ratio} {green}"
                );
                assert!((greens.share() - f64::from(ratio)).abs() < 2e-3, "{scheme:?} {ratio} {}", greens.share());
            }
        }
    }

    #[test]
    fn a_list_depends_on_key_and_context() {
        let params = KgwParams { context_width: 2, ..KgwParams::default() };
        let greens = |params: &KgwParams, tokens: &[u32]| {
            let list = list(params, tokens);
            (0..500).map(|token| list.is_green(token)).collect::<Vec<_>>()
        };
        let base = greens(&params, &[5, 6]);
        assert_eq!(base, greens(&params, &[5, 6]));
        assert_ne!(base, greens(&params, &[6, 5]));
        assert_ne!(base, greens(&params, &[4, 6]));
        assert_ne!(base, greens(&KgwParams { hashing_key: 1, ..params.clone() }, &[5, 6]));
        // With selfhash the order of the context does not matter, and changing one token changes part of the list.
        let own = KgwParams { seeding_scheme: SeedingScheme::Selfhash, context_width: 4, ..KgwParams::default() };
        let base = greens(&own, &[5, 6, 7, 8]);
        assert_eq!(base, greens(&own, &[8, 6, 5, 7]));
        let changed = base.iter().zip(greens(&own, &[5, 6, 7, 9])).filter(|(a, b)| **a != *b).count();
        // A quarter of the tokens get another smallest number, of which 2 * 1/4 * 3/4 change colour: about 47. Some more get a new smallest
        // number.
        assert!((30..160).contains(&changed), "{changed}");
    }

    #[test]
    fn a_green_logit_gets_the_bias() {
        let params = KgwParams::default();
        let greens = list(&params, &[7]);
        let (green, red) =
            ((0..).find(|&t| greens.is_green(t)).unwrap(), (0..).find(|&t| !greens.is_green(t)).unwrap());
        assert_eq!((greens.raise(green, 1.0), greens.raise(red, 1.0)), (3.0, 1.0));
        assert_eq!(greens.raise(green, f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert_eq!(greens.raise(red, -0.0).to_bits(), (-0.0f32).to_bits());
    }

    /// From a short Python program that was written from the table above.
    #[test]
    fn known_bits() {
        let (key, seed) = (7 | 1 << 32, 0x580c_773e_c4d7_f5d3);
        let tokens = [0, 15, 16, 31, 32, 127, 128, 145, 128_255];
        let expected = [10_867, 7608, 53_615, 51_560, 64_455, 5852, 35_203, 10_418, 30_247];
        assert_eq!(tokens.map(|token| bits(key, seed, token)), expected);
        assert_eq!([0.25, 0.1, 0.3].map(threshold), [16_384, 6554, 19_661], "the nearest");
    }

    /// These never change: they are what a key means.
    #[test]
    fn known_answers() {
        let params = KgwParams { greenlist_ratio: 0.5, ..KgwParams::default() };
        let greens = list(&params, &[42]);
        let found: Vec<u32> = (0..24).filter(|&token| greens.is_green(token)).collect();
        let by_hand: Vec<u32> = (0..24)
            .filter(|&token| {
                let seed = words(15_485_863, 0, Purpose::Context, 42);
                let seed = u64::from(seed[0]) | u64::from(seed[1]) << 32;
                let word = words(15_485_863, seed, Purpose::Green, token % 16)[0];
                (if token < 16 { word & 0xFFFF } else { word >> 16 }) < 1 << 15
            })
            .collect();
        assert_eq!(found, by_hand);
    }
}
