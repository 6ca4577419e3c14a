//! Detects SynthID's tournaments (Dathathri et al. 2024, `mean_score` and `weighted_mean_score` of their program) by
//! the mean of bits over layers and tokens. The first layers carry the most evidence and have the largest weights: 10
//! for the first, 1 for the last, and linear in between.
//!
//! Without the mark, a token's bits are those of a random place in the table, so their distribution is that over all
//! places. This is exact if the size of the table is a power of two. Otherwise each layer's bit counts as independent,
//! and is one with the table's share of ones. So a table with a few more ones, or keys that are alike, are not taken
//! for evidence.
//!
//! The weights are whole numbers over a common denominator. For a few tokens the tail of their sum is exact ([`Sums`]):
//! up to 512 tokens with one or two layers, 93 with 10, 22 with 20, 9 with 30, 2 with 64. For more tokens the sum is
//! taken as normal.

use super::sums::Sums;
use super::tails::normal;
use super::{Evidence, Found, Text};
use crate::params::watermark::SynthidParams;
use crate::sampling::watermark::tournament::{Table, Tournament, context};
use std::sync::Arc;

/// The weights of the heaviest and the lightest layer.
const WEIGHTS: (u32, u32) = (10, 1);

/// Examines the bits of tokens.
#[derive(Debug)]
pub struct Bits<'a> {
    params: &'a SynthidParams,
    table: Arc<Table>,
    /// The layers' weights, as whole numbers.
    weights: Vec<u32>,
    /// Mean and variance of a token's weight in unmarked text.
    plain: (f64, f64),
    /// Sums of the weights of a few tokens in unmarked text.
    sums: Sums,
}

impl<'a> Bits<'a> {
    /// A detector with these parameters.
    #[must_use]
    pub fn new(params: &'a SynthidParams) -> Self {
        let (layers, table) = (params.keys.len() as u32, Table::of(params));
        // Each layer is (heaviest - lightest) / (layers - 1) lighter than the one before. All weights are multiplied by
        // layers - 1.
        let (heaviest, lightest) = WEIGHTS;
        let steps = layers.max(2) - 1;
        let weights = (0..layers).map(|layer| heaviest * steps - (heaviest - lightest) * layer).collect();
        let none = Sums::new(vec![1.0]);
        let mut bits = Self { params, table, weights, plain: (0.0, 0.0), sums: none };
        let one = bits.without_mark();
        bits.plain = moments(&one);
        bits.sums = Sums::new(one);
        bits
    }

    /// The probabilities of a token's weights in unmarked text, from 0 on.
    fn without_mark(&self) -> Vec<f64> {
        let (size, all) = (self.params.sampling_table_size, self.weights.iter().sum::<u32>() as usize);
        let mut chances = vec![0.0; all + 1];
        if !size.is_power_of_two() {
            let share = self.table.share();
            chances[0] = 1.0;
            for weight in self.weights.iter().map(|&weight| weight as usize) {
                for at in (0..=all).rev() {
                    let set = at.checked_sub(weight).map_or(0.0, |before| chances[before]);
                    chances[at] = chances[at] * (1.0 - share) + set * share;
                }
            }
            return chances;
        }
        // The hash of a token is its number times an odd constant, plus another constant. So each place gets the same
        // number of tokens.
        let played = self.tournament(&[]);
        let mut places = vec![0u32; all + 1];
        (0..size).for_each(|token| places[self.weight(played.bits(token)) as usize] += 1);
        // Exact: the size is a power of two.
        chances.iter_mut().zip(places).for_each(|(chance, places)| *chance = f64::from(places) / f64::from(size));
        chances
    }

    fn tournament(&self, before: &[u32]) -> Tournament<'_> {
        Tournament { context: context(before.iter().copied()), keys: &self.params.keys, table: &self.table }
    }

    /// The weight of a token's bits.
    fn weight(&self, bits: u64) -> u32 {
        let set = self.weights.iter().enumerate().filter(|(layer, _)| bits >> layer & 1 == 1);
        set.map(|(_, weight)| weight).sum()
    }

    /// Examines the n-grams of a text that lie entirely behind the prompt.
    #[must_use]
    pub fn look(&self, text: &Text<'_>) -> Found {
        let output = Text { tokens: &text.tokens[text.prompt_tokens.min(text.tokens.len())..], prompt_tokens: 0 };
        let width = self.params.ngram_len as usize - 1;
        let ngrams = output.ngrams(width, self.params.context_history_size as usize);
        let (mut set, mut weight) = (0, 0u64);
        for ngram in &ngrams {
            let bits = self.tournament(&ngram[..width]).bits(ngram[width]);
            set += bits.count_ones();
            weight += u64::from(self.weight(bits));
        }
        let (scored, (mean, variance)) = (ngrams.len(), self.plain);
        // A table whose bits are all equal marks nothing, so nothing can be found. Its variance is only rounding error.
        if scored == 0 || variance < 1e-12 * mean.max(1.0) * mean.max(1.0) {
            let evidence = Evidence::Layers { mean_g: 0.0, weighted_mean_g: 0.0 };
            return Found { scored, evidence, z: 0.0, p_value: 1.0 };
        }
        let count = scored as f64;
        let z = (weight as f64 / count - mean) / (variance / count).sqrt();
        let mean_g = f64::from(set) / (count * self.weights.len() as f64);
        let all = self.weights.iter().map(|&weight| f64::from(weight)).sum::<f64>();
        let evidence = Evidence::Layers { mean_g, weighted_mean_g: weight as f64 / count / all };
        let p_value = self.sums.tail(scored, weight as usize).unwrap_or_else(|| normal(z));
        Found { scored, evidence, z, p_value }
    }
}

/// Mean and variance of a distribution.
fn moments(chances: &[f64]) -> (f64, f64) {
    let sum = |of: &dyn Fn(f64) -> f64| {
        chances.iter().enumerate().map(|(value, chance)| chance * of(value as f64)).fold(0.0, |sum, part| sum + part)
    };
    let mean = sum(&|value| value);
    (mean, sum(&|value| (value - mean) * (value - mean)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text of this many tokens, each with the wanted bits where possible.
    fn text(bits: &Bits<'_>, len: usize, wanted: impl Fn(usize, u64) -> bool) -> Vec<u32> {
        let width = bits.params.ngram_len as usize - 1;
        let mut tokens: Vec<u32> = (0..width as u32).collect();
        for at in 0..len {
            let played = bits.tournament(&tokens[at..]);
            let found = (0..1 << 20).find(|&token| !tokens.contains(&token) && wanted(at, played.bits(token)));
            tokens.push(found.expect("one in a million"));
        }
        tokens
    }

    fn look(bits: &Bits<'_>, tokens: &[u32]) -> Found {
        bits.look(&Text { tokens, prompt_tokens: 0 })
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found:e} {expected:e}");
    }

    #[test]
    fn a_handful_of_bits_by_hand() {
        let params = SynthidParams { ngram_len: 2, sampling_table_size: 2, ..SynthidParams::new(vec![5]) };
        // A table of two places, with a one and a zero: half of all tokens have the bit.
        let params = (0..99).map(|seed| SynthidParams { sampling_table_seed: seed, ..params.clone() });
        let params = params.clone().find(|params| Table::of(params).share() == 0.5).expect("one in two");
        let bits = Bits::new(&params);
        let found = look(&bits, &text(&bits, 3, |_, bits| bits == 1));
        assert_eq!((found.scored, found.p_value), (3, 0.125), "normal says 0.042");
        assert_eq!(found.evidence, Evidence::Layers { mean_g: 1.0, weighted_mean_g: 1.0 });
        let found = look(&bits, &text(&bits, 3, |at, bits| bits == u64::from(at > 0)));
        assert_eq!(found.p_value, 0.5);
        let found = look(&bits, &text(&bits, 10, |at, bits| bits == u64::from(at > 0)));
        near(found.p_value, 11.0 / 1024.0);
        assert_eq!(look(&bits, &text(&bits, 10, |_, bits| bits == 0)).p_value, 1.0);
    }

    /// Enumerates texts with tokens at every place of the table.
    #[test]
    fn few_tokens_by_going_through_all_places() {
        let cases: [(&[u64], u32, usize); 4] =
            [(&[3], 16, 3), (&[3, 8], 16, 3), (&[3, 8, 11], 32, 2), (&[1, 2, 3, 4, 5], 8, 4)];
        for (keys, size, len) in cases {
            let params = SynthidParams { ngram_len: 2, sampling_table_size: size, ..SynthidParams::new(keys.to_vec()) };
            let bits = Bits::new(&params);
            let played = bits.tournament(&[]);
            let one: Vec<u32> = (0..size).map(|token| bits.weight(played.bits(token))).collect();
            let mut sums = vec![0];
            for _ in 0..len {
                sums = sums.iter().flat_map(|sum| one.iter().map(move |weight| sum + weight)).collect();
            }
            for seed in 0..20u32 {
                let tokens: Vec<u32> = (0..=len as u32).map(|at| at * 64 + (seed * (2 * at + 7)) % 61).collect();
                let found = look(&bits, &tokens);
                let weight: u32 =
                    tokens.windows(2).map(|pair| bits.weight(bits.tournament(&pair[..1]).bits(pair[1]))).sum();
                let as_much = sums.iter().filter(|sum| **sum >= weight).count();
                assert_eq!(found.scored, len);
                near(found.p_value, as_much as f64 / sums.len() as f64);
            }
        }
    }

    /// If the size of the table is not a power of two, the bits count as independent.
    #[test]
    fn few_tokens_by_going_through_all_bits() {
        let params = SynthidParams { ngram_len: 2, sampling_table_size: 21, ..SynthidParams::new(vec![3, 8, 9]) };
        let bits = Bits::new(&params);
        let share = bits.table.share();
        assert!(share > 0.2 && share < 0.8, "{share}");
        let chance = |set: u32| share.powi(set as i32) * (1.0 - share).powi(3 - set as i32);
        let one: Vec<(u32, f64)> = (0..8u64).map(|set| (bits.weight(set), chance(set.count_ones()))).collect();
        for seed in 0..20u32 {
            let tokens = [seed, 100 + seed * 3, 200 + seed * 5];
            let weight: u32 =
                tokens.windows(2).map(|pair| bits.weight(bits.tournament(&pair[..1]).bits(pair[1]))).sum();
            let pairs = one.iter().flat_map(|a| one.iter().map(move |b| (a.0 + b.0, a.1 * b.1)));
            near(look(&bits, &tokens).p_value, pairs.filter(|(sum, _)| *sum >= weight).map(|(_, chance)| chance).sum());
        }
    }

    #[test]
    fn beyond_the_bound_it_is_normal_and_not_far_from_it_before() {
        for (layers, most) in [(1, 512), (2, 512), (10, 93), (20, 22), (30, 9), (64, 2)] {
            let params = SynthidParams { ngram_len: 2, ..SynthidParams::new((1..=layers).collect()) };
            let bits = Bits::new(&params);
            assert_eq!(bits.sums.most(), most, "{layers}");
            let tokens: Vec<u32> = (0..most as u32 + 2).map(|at| at.wrapping_mul(40_503) % 100_003).collect();
            let beyond = look(&bits, &tokens);
            assert_eq!((beyond.scored, beyond.p_value), (most + 1, normal(beyond.z)), "{layers}");
            let within = look(&bits, &tokens[..most + 1]);
            assert_eq!(within.scored, most);
            assert_ne!(within.p_value, normal(within.z));
            assert!((within.p_value - normal(within.z)).abs() < 0.03, "{layers}: {} {}", within.p_value, within.z);
        }
    }
}
