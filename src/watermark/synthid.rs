//! Bits of tournaments (Dathathri et al. 2024, `mean_score` and `weighted_mean_score` of their program): the mean over layers and tokens, where
//! the first layers, which say most, weigh most: 10 for the first, 1 for the last, on a straight line.
//!
//! Without the mark a token's bits are those of a random place in the table. Their mean and variance are those over all
//! places, which is exact where the size of the table is a power of two: so nothing is read into a table with a few ones more, or into keys
//! that are alike. The sum over tokens is taken for normal.

use super::tails::normal;
use super::{Evidence, Found, Text};
use crate::params::watermark::SynthidParams;
use crate::sampling::mark::tournament::{Table, Tournament, context};
use std::sync::Arc;

/// The heaviest and the lightest layer's weights.
const WEIGHTS: (f64, f64) = (10.0, 1.0);

/// Looks at the bits.
#[derive(Debug)]
pub struct Bits<'a> {
    params: &'a SynthidParams,
    table: Arc<Table>,
    /// Of the layers; their mean is 1.
    weights: Vec<f64>,
    /// Mean and variance of a token's weighted mean without the mark.
    plain: (f64, f64),
}

impl<'a> Bits<'a> {
    /// By these parameters.
    #[must_use]
    pub fn new(params: &'a SynthidParams) -> Self {
        let (layers, table) = (params.keys.len(), Table::of(params));
        let step = (WEIGHTS.0 - WEIGHTS.1) / (layers.max(2) - 1) as f64;
        let weights: Vec<f64> = (0..layers).map(|layer| WEIGHTS.0 - step * layer as f64).collect();
        let mean = weights.iter().sum::<f64>() / layers as f64;
        let weights = weights.into_iter().map(|weight| weight / mean).collect();
        let mut bits = Self { params, table, weights, plain: (0.0, 0.0) };
        bits.plain = bits.without_mark();
        bits
    }

    fn without_mark(&self) -> (f64, f64) {
        let size = self.params.sampling_table_size;
        if !size.is_power_of_two() {
            let (share, layers) = (self.table.share(), self.weights.len() as f64);
            let squares: f64 = self.weights.iter().map(|weight| weight * weight).sum();
            return (share, share * (1.0 - share) * squares / (layers * layers));
        }
        // The hash of a token is its number times something odd and something more, so so many tokens come to every place.
        let played = self.tournament(&[]);
        let means = (0..size).map(|token| self.weighted(played.bits(token)));
        let (sum, squares) = means.fold((0.0, 0.0), |(sum, squares), mean| (sum + mean, squares + mean * mean));
        let mean = sum / f64::from(size);
        (mean, (squares / f64::from(size) - mean * mean).max(f64::MIN_POSITIVE))
    }

    fn tournament(&self, before: &[u32]) -> Tournament<'_> {
        Tournament { context: context(before.iter().copied()), keys: &self.params.keys, table: &self.table }
    }

    /// The weighted mean of a token's bits.
    fn weighted(&self, bits: u64) -> f64 {
        let set = self.weights.iter().enumerate().filter(|(layer, _)| bits >> layer & 1 == 1);
        set.map(|(_, weight)| weight).sum::<f64>() / self.weights.len() as f64
    }

    /// Looks at a text: at the n-grams that lie behind the prompt.
    #[must_use]
    pub fn look(&self, text: &Text<'_>) -> Found {
        let output = Text { tokens: &text.tokens[text.prompt_tokens.min(text.tokens.len())..], prompt_tokens: 0 };
        let width = self.params.ngram_len as usize - 1;
        let ngrams = output.ngrams(width, self.params.context_history_size as usize);
        let (mut set, mut weighted) = (0, 0.0);
        for ngram in &ngrams {
            let bits = self.tournament(&ngram[..width]).bits(ngram[width]);
            set += bits.count_ones();
            weighted += self.weighted(bits);
        }
        let (scored, (mean, variance)) = (ngrams.len(), self.plain);
        // A table whose bits are all alike marks nothing, so nothing is found; only rounding is left of its variance.
        if scored == 0 || variance < 1e-12 {
            let evidence = Evidence::Layers { mean_g: 0.0, weighted_mean_g: 0.0 };
            return Found { scored, evidence, z: 0.0, p_value: 1.0 };
        }
        let count = scored as f64;
        let z = (weighted / count - mean) / (variance / count).sqrt();
        let mean_g = f64::from(set) / (count * self.weights.len() as f64);
        let evidence = Evidence::Layers { mean_g, weighted_mean_g: weighted / count };
        Found { scored, evidence, z, p_value: normal(z) }
    }
}
