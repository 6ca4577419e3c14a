//! Locally typical sampling: on a list, and on a whole row, of which only tokens near the centre are listed.

use super::cut::{Along, Bins, Place, Ruler};
use super::listing::Whole;
use super::{ChainStore, Left};
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{Range, Sample, Weigh};
use crate::params::TypicalRule;
use crate::sampling::mass::{MASS_BITS, exponent};
use crate::sampling::samplers::typical::{centre, deviation, need};

/// Half widths that are tried, each four times the one before, before everything is listed.
const TRIES: u32 = 4;

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
        let guess = self.guess(p, of, sample);
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

    /// About how far from the centre the tokens that have `p` of the mass are.
    fn guess(&self, p: f32, of: impl Fn(f32) -> f32, sample: &mut Sample) -> f32 {
        self.view.sample(self.weigh, f32::INFINITY, sample);
        let mut near: Vec<(f32, f32)> =
            sample.logits.iter().zip(&sample.weights).filter(|s| *s.1 > 0.0).map(|(&x, &w)| (of(x), w)).collect();
        near.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut left = near.iter().map(|&(_, weight)| weight).sum::<f32>() * p;
        let crossing = near.iter().find(|&&(_, weight)| {
            left -= weight;
            left <= 0.0
        });
        crossing.map_or(1.0, |&(deviation, _)| deviation * 1.1).max(0.25)
    }
}
