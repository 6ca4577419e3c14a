//! Green tokens (Kirchenbauer et al. 2023). Without the mark a token is green with a known probability, so the number of green
//! ones is binomial. What decides about a token, the context or by selfhash one token of it, counts once for each token: a pair that
//! comes again is as green as the first time.

use super::tails::binomial;
use super::{Evidence, Found, Text};
use crate::params::watermark::{KgwParams, MAX_CONTEXT_WIDTH, SeedingScheme};
use crate::sampling::mark::greenlist::{Greenlist, Seeds, share, threshold};
use std::collections::HashSet;

/// Counts green tokens.
#[derive(Debug)]
pub struct Greens<'a> {
    params: &'a KgwParams,
    /// Probabilities that a token is green, by the number of different tokens in its context.
    shares: Vec<f64>,
}

impl<'a> Greens<'a> {
    /// By these parameters; the bias does not matter.
    #[must_use]
    pub fn new(params: &'a KgwParams) -> Self {
        let threshold = threshold(params.greenlist_ratio);
        let of = |seeds: u8| match params.seeding_scheme {
            SeedingScheme::Lefthash => share(threshold, None),
            SeedingScheme::Selfhash => share(threshold, Some(seeds)),
        };
        Self { params, shares: (0..=MAX_CONTEXT_WIDTH as u8).map(of).collect() }
    }

    /// Looks at a text.
    #[must_use]
    pub fn look(&self, text: &Text<'_>) -> Found {
        let (mut green, mut expected, mut variance) = (0, 0.0, 0.0);
        let mut decided = HashSet::new();
        for ngram in text.ngrams(self.params.context_width as usize, 0) {
            let Some((&token, context)) = ngram.split_last() else { continue };
            let seeds = Seeds::new(self.params, context.iter().copied());
            let share = self.shares[seeds.as_slice().len()];
            let (seed, is_green) = Greenlist::new(self.params, seeds).decided(token);
            if decided.insert((seed, token)) {
                green += usize::from(is_green);
                expected += share;
                variance += share * (1.0 - share);
            }
        }
        let scored = decided.len();
        let z = if scored == 0 { 0.0 } else { (green as f64 - expected) / variance.sqrt() };
        // Of shares that differ a binomial with their mean has no lighter tail.
        let p_value = if scored == 0 { 1.0 } else { binomial(green, scored, expected / scored as f64) };
        Found { scored, evidence: Evidence::Greens { green, expected }, z, p_value }
    }
}
