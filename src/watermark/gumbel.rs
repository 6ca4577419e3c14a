//! Detects the Gumbel mark (Aaronson 2022) by the sum of `-ln(1 - r)` over tokens, where `r` is the token's number in
//! the race. Without the mark each `r` is uniform, so the sum over `n` tokens has a Gamma distribution of shape `n`.
//! With the mark the chosen tokens have numbers near 1.

use super::tails::gamma;
use super::{Evidence, Found, Text};
use crate::params::watermark::GumbelParams;
use crate::sampling::watermark::context;
use crate::sampling::watermark::race::Race;

/// Sums up the numbers of tokens.
#[derive(Debug)]
pub struct Arrivals<'a> {
    params: &'a GumbelParams,
}

impl<'a> Arrivals<'a> {
    /// A detector with these parameters.
    #[must_use]
    pub fn new(params: &'a GumbelParams) -> Self {
        Self { params }
    }

    /// Examines a text.
    #[must_use]
    pub fn look(&self, text: &Text<'_>) -> Found {
        let (width, key) = (self.params.context_width as usize, self.params.key);
        let ngrams = text.ngrams(width, self.params.context_history_size as usize);
        let number = |ngram: &&[u32]| {
            let race = Race { key, context: context(key, ngram[..width].iter().copied()) };
            race.number(ngram[width])
        };
        // 1 - r is exact, and above 0.
        let sum: f64 = ngrams.iter().map(|ngram| -libm::log(1.0 - number(ngram))).fold(0.0, |sum, number| sum + number);
        let (scored, count) = (ngrams.len(), ngrams.len() as f64);
        let z = if scored == 0 { 0.0 } else { (sum - count) / count.sqrt() };
        Found { scored, evidence: Evidence::Sum { sum }, z, p_value: gamma(scored, sum) }
    }
}
