//! Locally typical sampling on a whole row: only tokens near the centre are listed.

use super::ChainStore;
use super::listing::Whole;
use crate::backend::cpu::passes::{Range, Sample, Weigh};
use crate::sampling::mass::{exponent, top_p_need};
use crate::sampling::samplers::typical::{centre, deviation};

/// Half widths that are tried, each four times the one before, before everything is listed.
const TRIES: u32 = 4;

impl Whole<'_, '_> {
    /// Lists what typical sampling leaves, and says how it is weighed; `None` if a list of all is the way.
    pub(super) fn typical(&self, p: f32, sample: &mut Sample, store: &mut ChainStore) -> Option<Weigh> {
        let (entropy, total) = (self.entropy(), self.total());
        let (need, centre) = (top_p_need(p, total).max(1), centre(entropy, total));
        let Weigh { max, scale } = self.weigh;
        let of = |logit: f32| deviation(exponent(logit, max, scale), centre);
        let guess = self.guess(p, of, sample);
        for attempt in 0..TRIES {
            let width = guess * 4f32.powi(attempt as i32);
            let logit = |y: f32| max + y / scale;
            let range = Range { low: logit(centre - width), high: logit(centre + width).next_up() };
            if range.low <= f32::MIN || !range.high.is_finite() {
                return None;
            }
            // Whatever is not listed deviates by at least this.
            let beyond = of(range.low.next_down()).min(if range.high > max { f32::INFINITY } else { of(range.high) });
            let mut left = self.list(range, store);
            if let Some((_, last)) = left.nearest(need, centre).filter(|last| last.0 < beyond) {
                left.retain_nearest(last, centre);
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
