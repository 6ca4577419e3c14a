//! Locally typical sampling: on a list, and on a whole row, of which only tokens near the centre are listed.

use super::after::After;
use super::cut::{Along, Bins, Ordered, Ruler};
use super::listing::WholeRow;
use super::whole::StepResult;
use super::{CandidateList, ChainStore};
use crate::backend::cpu::distribution::Store;
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{Range, Sample, Weigh};
use crate::backend::cpu::select;
use crate::params::TypicalRule;
use crate::sampling::mass::{MASS_BITS, exponent, mass};
use crate::sampling::samplers::cutoffs::Masses;
use crate::sampling::samplers::typical::{centre, deviation, need};

/// How many half widths are tried, each four times the one before, until everything is listed.
const TRIES: u32 = 4;
/// The tokens at or above the maxima of this many blocks count as near the top.
const TOP_BLOCKS: usize = 64;
/// How many distances a guess distinguishes, and how many of them make one power of two.
const BINS: usize = 4096;
const PER_UNIT: f32 = BINS as f32 / MASS_BITS as f32;
/// How many sums are kept in parallel.
const LANES: usize = 16;
/// If more than one token in this many is left, the tokens are not listed.
const LIST_SHARE: f32 = 16.0;
/// How many standard deviations off a sample may be: first the one number, then the other, since listing all of a row
/// takes ten times as long.
pub(super) const DEVIATIONS: [f32; 2] = [2.0, 4.0];
/// At least this share of the mass counts as left out, to allow for what a sample may miss.
const LEAST_REST: f32 = 0.02;

impl CandidateList<'_> {
    pub(super) fn typical(&mut self, rule: TypicalRule, p: f32) {
        let (entropy, total) = self.entropy_and_total();
        let (need, centre) = (need(rule, p, total).max(1), centre(entropy, total));
        let Some((_, last)) = self.nearest(need, centre) else { return };
        let mut last = typical_last(rule, last);
        if self.min_keep > 1 {
            let along = self.along(centre);
            let nearest = along.crossing(|_| 1, self.min_keep as u64, &mut Bins::default());
            last = last.max(nearest.unwrap_or((u32::MAX, u64::MAX)));
        }
        self.retain_nearest(last, centre);
    }

    fn along(&self, centre: f32) -> Along<'_, impl Fn(f32) -> f32 + Copy> {
        let (values, Weigh { max, scale }) = (&self.store.values, self.weigh);
        let distance = move |logit| deviation(exponent(logit, max, scale), centre);
        let ruler = Ruler::new(1.1 * MASS_BITS as f32);
        Along { tokens: &values.tokens, logits: &values.logits, distance, ruler, by_distance: true }
    }

    /// The candidate with which those nearest to the centre reach a mass of `need`, and its deviation.
    pub(super) fn nearest(&mut self, need: u64, centre: f32) -> Option<(f32, Ordered)> {
        let mut bins = std::mem::take(&mut self.store.bins);
        let place = self.along(centre).crossing(|at| self.store.values.masses[at], need, &mut bins);
        self.store.bins = bins;
        place.map(|place| (keys::from_ascending(place.0), place))
    }

    /// Keeps candidates that are no further from the centre than this place.
    fn retain_nearest(&mut self, last: Ordered, centre: f32) {
        let Weigh { max, scale } = self.weigh;
        self.retain(|values, at| {
            let logit = values.logits[at];
            let deviation = deviation(exponent(logit, max, scale), centre);
            (keys::ascending(deviation), keys::key(values.tokens[at], logit)) <= last
        });
        self.weigh();
    }
}

/// The last place that typical sampling keeps: with ties, after all that are as far from the centre.
pub(super) fn typical_last(rule: TypicalRule, (deviation, key): Ordered) -> Ordered {
    (deviation, if rule == TypicalRule::Ties { u64::MAX } else { key })
}

/// What typical sampling looks for in a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) rule: TypicalRule,
    /// The mass that is enough.
    pub(super) need: u64,
    pub(super) centre: f32,
}

impl WholeRow<'_, '_> {
    /// Typical sampling.
    pub(super) fn typical(
        &mut self,
        rule: TypicalRule,
        p: f32,
        after: &After<'_>,
        lists: &mut Store,
        store: &mut ChainStore,
    ) -> StepResult {
        let (entropy, total) = self.entropy_and_total();
        let (need, centre) = (need(rule, p, total).max(1), centre(entropy, total));
        let (asked, guess) = (Asked { rule, need, centre }, self.guess(centre, total, lists.sample()));
        if self.is_for_a_token()
            && after.rest.only_weighs()
            && guess.share_within(guess.width(need as f32)) * LIST_SHARE > 1.0
        {
            let total = self.interval(asked, &guess, after, lists, store);
            if let Some(total) = total {
                return StepResult::Shaped(total);
            }
        }
        self.listed(asked, &guess, store).map_or(StepResult::NotDone, StepResult::Listed)
    }

    /// Lists what typical sampling leaves, and returns its weights. `None`: all candidates have to be listed.
    fn listed(&self, Asked { rule, need, centre }: Asked, guess: &Guess, store: &mut ChainStore) -> Option<Weigh> {
        let Weigh { max, scale } = self.weigh;
        let of = |logit: f32| deviation(exponent(logit, max, scale), centre);
        let guess = (guess.width(need as f32) * 1.1).max(0.25);
        for attempt in 0..TRIES {
            let width = guess * (1u32 << (2 * attempt)) as f32;
            let logit = |y: f32| max + y / scale;
            let range = Range { low: logit(centre - width), high: logit(centre + width).next_up() };
            if range.low <= f32::MIN || !range.high.is_finite() {
                return None;
            }
            // Everything that is not listed deviates by at least this.
            let beyond = of(range.low.next_down()).min(if range.high > max { f32::INFINITY } else { of(range.high) });
            let mut left = self.list(range, store);
            if let Some((_, last)) = left.nearest(need, centre).filter(|last| last.0 < beyond) {
                left.retain_nearest(typical_last(rule, last), centre);
                return Some(left.weigh);
            }
        }
        None
    }

    /// Estimates how far from the centre tokens are, and what they weigh. Tokens near the top are all counted; the
    /// others are estimated from a sample, scaled to the rest of the total.
    fn guess(&self, centre: f32, total: u64, sample: &mut Sample) -> Guess {
        let bound = select::bound_of_top(
            self.view.passes(),
            self.view.maxima,
            self.view.max,
            TOP_BLOCKS.min(self.view.blocks()),
        );
        let mut top = vec![];
        self.view.collect(bound, &mut top);
        self.view.sample(self.weigh, bound, sample);
        let Weigh { max, scale } = self.weigh;
        let bin = |logit: f32| Guess::bin(deviation(exponent(logit, max, scale), centre));
        let mut guess = Guess { weights: [0.0; BINS], sampled: [0; BINS], sums: (0.0, 0.0) };
        let mut above = 0.0;
        for logit in top.iter().map(|&key| keys::logit(key)) {
            let weight = mass(exponent(logit, max, scale)) as f32;
            guess.weights[bin(logit)] += weight;
            above += weight;
        }
        let of_sample = sum(&sample.weights, |weight| weight);
        let per_sampled = (total as f32 - above).max(0.0) / of_sample.max(1.0);
        for (&logit, &weight) in sample.logits.iter().zip(&sample.weights) {
            let bin = bin(logit);
            guess.weights[bin] += weight * per_sampled;
            guess.sampled[bin] += 1;
        }
        let squares = sum(&sample.weights, |weight| weight * weight);
        guess.sums = (of_sample * per_sampled, 1.0 + squares * per_sampled * per_sampled);
        guess
    }
}

/// An estimate of a row's deviations, before the row is read for them: weights by distance, and sums over the sample.
pub(super) struct Guess {
    /// The estimated mass of all tokens, by distance.
    weights: [f32; BINS],
    /// How many tokens of the sample there are, by distance.
    sampled: [u32; BINS],
    /// The sum of the sample's weights, and the sum of their squares.
    sums: (f32, f32),
}

impl Guess {
    fn bin(distance: f32) -> usize {
        // The cast saturates, also for NaN. Both make a bad guess, which is allowed.
        ((distance * PER_UNIT) as usize).min(BINS - 1)
    }

    /// Where a bin ends.
    fn end(bin: usize) -> f32 {
        (bin + 1) as f32 / PER_UNIT
    }

    /// An estimate of how far from the centre the nearest tokens with this mass reach.
    pub(super) fn width(&self, need: f32) -> f32 {
        let mut left = need;
        for (from, bins) in (0..).step_by(LANES * LANES).zip(self.weights.as_chunks::<{ LANES * LANES }>().0) {
            let here = sum(bins, |weight| weight);
            if here < left {
                left -= here;
                continue;
            }
            let reached = bins.iter().position(|weight| {
                left -= weight;
                left <= 0.0
            });
            return Self::end(from + reached.unwrap_or(bins.len() - 1));
        }
        MASS_BITS as f32
    }

    /// An estimate of the share of all tokens within this distance.
    fn share_within(&self, most: f32) -> f32 {
        let within: u32 = self.sampled[..=Self::bin(most)].iter().sum();
        within as f32 / self.sampled.iter().sum::<u32>().max(1) as f32
    }

    /// The standard deviation of a guessed mass, a sum over the sample.
    pub(super) fn doubt(&self, need: f32) -> f32 {
        let (sum, squares) = self.sums;
        let rest = (sum - need).max(sum * LEAST_REST).min(need.max(1.0));
        (squares / sum.max(1.0) * rest).sqrt()
    }
}

/// Lane-wise, so that it compiles to vectors.
fn sum(values: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &value)| *lane += of(value));
    }
    lanes.into_iter().chain(rest.iter().map(|&value| of(value))).sum()
}
