//! Runs a [chain](crate::sampling::chain) of samplers: candidates as a list, step by step.
//!
//! The list is in token order, with the tokens of replaced blocks after the others. It is never sorted as a whole: a
//! step that needs the order finds the [crossing](cut) where its prefix ends. The first filter decides what is
//! [listed](listing) at all.

mod adapt;
mod after;
mod cut;
mod ends;
mod error_bound;
mod infill;
mod interval;
mod listing;
mod min_k;
mod nucleus;
mod play;
mod shaped;
mod sort;
mod steps;
mod tail;
mod texts;
mod typical;
mod whole;
mod xtc;

use super::distribution::{Distribution, Store, Wanted};
use super::keys;
use super::level::Passes;
use super::passes::{BLOCK, Values, Weigh};
use super::view::View;
use crate::sampling::chain::Chain;
use crate::sampling::entropy;
use crate::sampling::mass::{self, exponent};
use crate::sampling::observed::{Seen, Share};
use crate::sampling::order::Candidate;
use crate::sampling::row::{Filters, LogprobsSpec, TokenLogprobs};
use crate::sampling::samplers::cutoffs::Masses;
use crate::sampling::samplers::skew::Along;
use cut::Bins;
use listing::{Started, WholeRow};
use play::Field;
use shaped::Shaped;
use sort::Sorter;
use texts::TextStore;

/// Storage of a chain, kept from row to row. Bounded by the vocabulary.
#[derive(Debug, Default)]
pub(super) struct ChainStore {
    /// The candidates that are left. Logits are those of the row until a step reshapes them.
    values: Values,
    /// How many of these come from the row; tokens of replaced blocks follow.
    plain: usize,
    bins: Bins,
    sorter: Sorter,
    /// Logits in order, and their masses.
    sorted: (Vec<f32>, Vec<u64>),
    /// The distribution before the step that gave new logits by mass.
    seen: Option<Seen>,
    /// What is left, where that is not a list.
    shaped: Shaped,
    /// Masses of all tokens, from which the above is made.
    weights: Vec<f32>,
    /// Storage of a tournament on these masses.
    field: Field,
    /// The token that ends the text where nothing else is certain.
    end: Option<Candidate>,
    /// Candidates by their texts.
    texts: TextStore,
    /// The candidates with cumulative masses, where the row is not drawn from by token ids.
    along: Option<Along>,
}

/// How the candidates that are left are weighed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chained {
    pub(super) weigh: Weigh,
    pub(super) total: u64,
}

/// The candidates that are left, as a list in the store.
struct CandidateList<'s> {
    passes: Passes,
    store: &'s mut ChainStore,
    weigh: Weigh,
    temperature: f64,
    min_keep: usize,
    /// How many tokens the row has.
    vocab_size: usize,
    /// Whether the masses have been computed from the logits.
    is_weighed: bool,
}

/// What a chain leaves.
pub(super) enum Outcome {
    /// A distribution that the row itself describes.
    Whole(Distribution),
    /// All tokens, with masses by block and the rule in the store, for a draw; this is the total.
    Shaped(u64),
    /// The list in the store.
    Listed(Chained),
}

/// Runs a row's chain.
pub(super) fn run(view: &View<'_>, filters: &Filters, chain: &Chain<'_>, wanted: Wanted, lists: &mut Store) -> Outcome {
    let mut store = std::mem::take(&mut lists.chain);
    (store.seen, store.along) = (None, None);
    let has = |token: u32| (token as usize) < view.vocab_size();
    let logit = |token| if has(token) { view.value(token) } else { f32::NEG_INFINITY };
    store.end = chain.infill.and_then(|known| known.end(logit));
    let outcome = match WholeRow::new(view, chain, wanted).start(filters, chain, lists, &mut store) {
        Started::Whole(distribution) => Outcome::Whole(distribution),
        Started::Shaped(total) => Outcome::Shaped(total),
        Started::Listed(mut left, rest) => {
            for step in rest {
                left.apply(step, filters, chain);
            }
            left.weigh_once();
            Outcome::Listed(Chained { weigh: left.weigh, total: left.total() })
        }
    };
    lists.chain = store;
    outcome
}

impl ChainStore {
    /// What is left, where that is not a list.
    pub(super) fn shaped(&self) -> &Shaped {
        &self.shaped
    }

    /// Tokens of nonzero mass, ascending ids.
    pub(super) fn entries(&self) -> Vec<(u32, u64)> {
        // The entries may be kept for long, so they take no more room than they need.
        let mut entries = Vec::with_capacity(self.values.tokens.len());
        entries.extend(self.in_token_order(0).filter(|&(_, mass)| mass > 0));
        entries.shrink_to_fit();
        entries
    }

    /// Tokens and masses, ascending ids, without the first `from` of those that come from the row.
    fn in_token_order(&self, from: usize) -> impl Iterator<Item = (u32, u64)> {
        let entry = |at: usize| (self.values.tokens[at], self.values.masses[at]);
        let (mut row, mut side) = (from, self.plain);
        std::iter::from_fn(move || {
            let from_side = side < self.values.tokens.len()
                && (row >= self.plain || self.values.tokens[side] < self.values.tokens[row]);
            let at = if from_side { &mut side } else { &mut row };
            if !from_side && *at >= self.plain {
                return None;
            }
            *at += 1;
            Some(entry(*at - 1))
        })
    }

    /// Inverse CDF in token-id order, or along the candidates after a skew.
    pub(super) fn draw(&self, uniform: u64, mut point: u64) -> u32 {
        if let Some(along) = &self.along {
            return along.draw(uniform);
        }
        let Values { tokens, masses, .. } = &self.values;
        let mut from = 0;
        if self.plain == tokens.len() {
            // Skips whole blocks, as long as the token is not drawn from them.
            let before = masses.chunks(BLOCK).map(|block| block.iter().sum::<u64>());
            let whole = before.take_while(|&sum| {
                let passed = point >= sum;
                point -= if passed { sum } else { 0 };
                passed
            });
            from = whole.count() * BLOCK;
        }
        let drawn = self.in_token_order(from).find(|&(_, mass)| {
            let here = point < mass;
            point -= if here { 0 } else { mass };
            here
        });
        drawn.expect("the point is below the total; this is a bug").0
    }

    /// Tokens and masses, in no order.
    pub(super) fn all_masses(&self) -> impl Iterator<Item = (u32, u64)> {
        self.values.tokens.iter().copied().zip(self.values.masses.iter().copied())
    }

    /// The mass of a token; 0 if it is not left.
    pub(super) fn mass_of(&self, token: u32) -> u64 {
        self.place(token).map_or(0, |at| self.values.masses[at])
    }

    /// A token's share of the candidates that are drawn along, if a skew is the last step.
    pub(super) fn along(&self, token: u32) -> Option<Share> {
        self.along.as_ref().map(|along| along.share(token))
    }

    /// A token's share of the distribution that adaptive-p saw, if it was on.
    pub(super) fn seen(&self, token: u32) -> Option<Share> {
        self.seen.as_ref().map(|seen| seen.share(token))
    }

    /// Takes out the candidates that are drawn along, if a skew is the last step.
    pub(super) fn take_along(&mut self) -> Option<Along> {
        self.along.take()
    }

    /// Takes out the distribution that adaptive-p saw.
    pub(super) fn take_seen(&mut self) -> Option<Seen> {
        self.seen.take()
    }

    /// The place of a token in the list.
    fn place(&self, token: u32) -> Option<usize> {
        let (row, side) = self.values.tokens.split_at(self.plain);
        let in_side = || side.binary_search(&token).map(|at| at + self.plain);
        row.binary_search(&token).or_else(|_| in_side()).ok()
    }

    /// Keys of the tokens of nonzero mass, in no particular order.
    pub(super) fn support(&self) -> Vec<u64> {
        let Values { tokens, logits, masses, .. } = &self.values;
        let heavy = masses.iter().enumerate().filter(|&(_, &mass)| mass > 0);
        heavy.map(|(at, _)| keys::key(tokens[at], logits[at])).collect()
    }

    /// Keys of the first `n` tokens that are left, in order.
    fn first_keys(&self, n: usize) -> Vec<u64> {
        let values = &self.values;
        let mut keys: Vec<u64> = values.tokens.iter().zip(&values.logits).map(|(&t, &l)| keys::key(t, l)).collect();
        keys::keep_first(&mut keys, n);
        keys
    }

    /// The first `n` tokens that are left, in order, with their masses.
    pub(super) fn first_masses(&self, n: usize) -> Vec<(u32, u64)> {
        let tokens = self.first_keys(n).into_iter().map(keys::token);
        tokens.map(|token| (token, self.place(token).map_or(0, |at| self.values.masses[at]))).collect()
    }

    /// The first token of the order.
    pub(super) fn first(&self) -> u32 {
        keys::token(self.first_keys(1)[0])
    }

    /// Entropy in nats.
    pub(super) fn entropy(&self, of: Chained) -> f64 {
        let values = self.values.logits.iter().zip(&self.values.masses);
        let term = |(&logit, &mass)| entropy::entropy_term(exponent(logit, of.weigh.max, of.weigh.scale), mass);
        entropy::entropy(values.map(term).sum(), of.total)
    }

    /// What is reported about a token.
    pub(super) fn report(&self, of: Chained, view: &View<'_>, token: u32, wanted: &LogprobsSpec<'_>) -> TokenLogprobs {
        let log_total = mass::log_total(of.total);
        let of_logit = |logit| mass::logprob(exponent(logit, of.weigh.max, of.weigh.scale), log_total);
        let of_token = |token| self.place(token).map_or(f32::NEG_INFINITY, |at| of_logit(self.values.logits[at]));
        let top = self.first_keys((wanted.top_n as usize).min(self.values.tokens.len()));
        TokenLogprobs {
            logprob: of_token(token),
            rank: view.rank(token),
            top: top.iter().map(|&key| (keys::token(key), of_logit(keys::logit(key)))).collect(),
            requested: wanted.tokens.iter().map(|&token| of_token(token)).collect(),
        }
    }
}
