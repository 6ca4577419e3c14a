//! Counts green tokens (Kirchenbauer et al. 2023). Without the mark each token is green with a known probability, so
//! the number of green ones is binomial. A token's colour is decided by its context, or with selfhash by one token of
//! the context. Each pair of that and the token counts only once, because when it appears again its colour is the same.

use super::tails::binomial;
use super::{Evidence, Found, Text};
use crate::params::watermark::{KgwParams, MAX_CONTEXT_WIDTH, SeedingScheme};
use crate::sampling::watermark::greenlist::{Greenlist, Seeds, share, threshold};
use std::collections::HashSet;

/// Counts the green tokens of a text.
#[derive(Debug)]
pub struct Greens<'a> {
    params: &'a KgwParams,
    /// The probability that a token is green, by the number of different tokens in its context.
    shares: Vec<f64>,
}

impl<'a> Greens<'a> {
    /// A detector with these parameters. The bias does not matter.
    #[must_use]
    pub fn new(params: &'a KgwParams) -> Self {
        let threshold = threshold(params.greenlist_ratio);
        let of = |seeds: u8| match params.seeding_scheme {
            SeedingScheme::Lefthash => share(threshold, None),
            SeedingScheme::Selfhash => share(threshold, Some(seeds)),
        };
        Self { params, shares: (0..=MAX_CONTEXT_WIDTH as u8).map(of).collect() }
    }

    /// Examines a text.
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
        // Where shares differ, the binomial with their mean has a tail that is at least as heavy.
        let p_value = if scored == 0 { 1.0 } else { binomial(green, scored, expected / scored as f64) };
        Found { scored, evidence: Evidence::Greens { green, expected }, z, p_value }
    }
}
