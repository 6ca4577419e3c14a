//! Locally typical sampling: on a list, and on a whole row, of which only tokens near the centre are listed.

use super::cut::{Along, Bins, Place, Ruler};
use super::listing::Whole;
use super::{ChainStore, Left};
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{Range, Sample, Weigh};
use crate::backend::cpu::select;
use crate::params::TypicalRule;
use crate::sampling::mass::{MASS_BITS, exponent, mass};
use crate::sampling::samplers::typical::{centre, deviation, need};

/// Half widths that are tried, each four times the one before, before everything is listed.
const TRIES: u32 = 4;
/// The tokens at or above the maxima of so many blocks are near the top.
const TOP_BLOCKS: usize = 64;
/// Bisection steps of a half width: to a sixteenth.
const STEPS: usize = 10;

impl Left<'_> {
    pub(super) fn typical(&mut self, rule: TypicalRule, p: f32) {
        let total = self.total();
        let (need, centre) = (need(rule, p, total).max(1), centre(self.entropy(), total));
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

    /// With which candidate, and with what deviation, the nearest to the centre have a mass of `need`.
    fn nearest(&mut self, need: u64, centre: f32) -> Option<(f32, Place)> {
        let mut bins = std::mem::take(&mut self.store.bins);
        let place = self.along(centre).crossing(|at| self.store.values.masses[at], need, &mut bins);
        self.store.bins = bins;
        place.map(|place| (keys::from_ascending(place.0), place))
    }

    /// Keeps what is at most as far from the centre.
    fn retain_nearest(&mut self, last: Place, centre: f32) {
        let Weigh { max, scale } = self.weigh;
        self.retain(|values, at| {
            let logit = values.logits[at];
            let deviation = deviation(exponent(logit, max, scale), centre);
            (keys::ascending(deviation), keys::key(values.tokens[at], logit)) <= last
        });
        self.weigh();
    }
}

/// The last place that typical sampling keeps, with what is as far from the centre.
fn typical_last(rule: TypicalRule, (deviation, key): Place) -> Place {
    (deviation, if rule == TypicalRule::Ties { u64::MAX } else { key })
}

impl Whole<'_, '_> {
    /// Lists what typical sampling leaves, and says how it is weighed; `None` if a list of all is the way.
    pub(super) fn typical(
        &self,
        rule: TypicalRule,
        p: f32,
        sample: &mut Sample,
        store: &mut ChainStore,
    ) -> Option<Weigh> {
        let (entropy, total) = self.entropy();
        let (need, centre) = (need(rule, p, total).max(1), centre(entropy, total));
        let Weigh { max, scale } = self.weigh;
        let of = |logit: f32| deviation(exponent(logit, max, scale), centre);
        let guess = self.guess(need, of, sample);
        for attempt in 0..TRIES {
            let width = guess * (1u32 << (2 * attempt)) as f32;
            let logit = |y: f32| max + y / scale;
            let range = Range { low: logit(centre - width), high: logit(centre + width).next_up() };
            if range.low <= f32::MIN || !range.high.is_finite() {
                return None;
            }
            // Whatever is not listed deviates by at least this.
            let beyond = of(range.low.next_down()).min(if range.high > max { f32::INFINITY } else { of(range.high) });
            let mut left = self.list(range, store);
            if let Some((_, last)) = left.nearest(need, centre).filter(|last| last.0 < beyond) {
                left.retain_nearest(typical_last(rule, last), centre);
                return Some(left.weigh);
            }
        }
        None
    }

    /// About how far from the centre the tokens that have a mass of `need` are: of the tokens near the top all, of the others a
    /// sample.
    fn guess(&self, need: u64, of: impl Fn(f32) -> f32, sample: &mut Sample) -> f32 {
        let bound = select::bound_of_top(
            self.view.passes(),
            (self.view.maxima, self.view.max),
            TOP_BLOCKS.min(self.view.blocks()),
        );
        let mut top = vec![];
        self.view.collect(bound, &mut top);
        self.view.sample(self.weigh, bound, sample);
        let per_sampled = self.view.vocab_size() as f32 / sample.taken as f32;
        let Weigh { max, scale } = self.weigh;
        let of_top = top.iter().map(|&key| keys::logit(key)).map(|x| (of(x), mass(exponent(x, max, scale)) as f32));
        let sampled = sample.logits.iter().zip(&sample.weights).map(|(&x, &weight)| (of(x), weight * per_sampled));
        let (deviations, weights): (Vec<f32>, Vec<f32>) = of_top.chain(sampled).unzip();
        let (mut low, mut high) = (0.0, MASS_BITS as f32);
        for _ in 0..STEPS {
            let middle = (low + high) / 2.0;
            if weight_within(&deviations, &weights, middle) >= need as f32 { high = middle } else { low = middle }
        }
        (high * 1.1).max(0.25)
    }
}

/// The weight of what deviates by at most this. Lane-wise, so that it compiles to vectors.
fn weight_within(deviations: &[f32], weights: &[f32], most: f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (deviations, weights) in deviations.chunks(lanes.len()).zip(weights.chunks(lanes.len())) {
        for ((lane, &deviation), &weight) in lanes.iter_mut().zip(deviations).zip(weights) {
            *lane += if deviation <= most { weight } else { 0.0 };
        }
    }
    lanes.into_iter().sum()
}
