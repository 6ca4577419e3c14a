//! Adaptive-p: on a list, and on a whole row. A row is weighed twice, and its first masses are kept for the second
//! time.

use super::after::After;
use super::listing::WholeRow;
use super::shaped::{Adapted, Shaped};
use super::whole::StepResult;
use super::{CandidateList, ChainStore};
use crate::backend::cpu::distribution::Store;
use crate::backend::cpu::passes::{Adapt, BLOCK, Values, Weigh};
use crate::sampling::mass::{self, MASS_ONE};
use crate::sampling::observed::Seen;
use crate::sampling::samplers::adaptive_p::{self, Near};
use crate::sampling::samplers::cutoffs::Masses;

impl CandidateList<'_> {
    /// Adaptive-p.
    pub(super) fn adapt(&mut self, adapted: f64) {
        let total = self.total();
        self.store.seen = Some(Seen { masses: self.store.in_order(), total });
        let (curve, Values { logits, masses, .. }) = (adaptive_p::curve(adapted, total), &mut self.store.values);
        logits.iter_mut().zip(masses.iter()).for_each(|(logit, &mass)| *logit = curve(mass));
        (self.temperature, self.weigh.scale) = (1.0, mass::scale(1.0));
        self.weigh();
    }
}

impl ChainStore {
    /// Tokens and masses, ascending ids.
    fn in_order(&self) -> Vec<(u32, u64)> {
        let Values { tokens, masses, .. } = &self.values;
        if self.plain == tokens.len() {
            return tokens.iter().copied().zip(masses.iter().copied()).collect();
        }
        self.in_token_order(0).collect()
    }
}

impl WholeRow<'_, '_> {
    /// Adaptive-p with an adapted target, where only a token is wanted and only weighing follows.
    pub(super) fn adapt(
        &mut self,
        target: f64,
        after: &After<'_>,
        lists: &mut Store,
        store: &mut ChainStore,
    ) -> StepResult {
        if !self.is_for_a_token() || !after.rest.only_weighs() {
            return StepResult::NotDone;
        }
        let total = self.view.weights(self.weigh, &mut store.weights);
        let (curve, near) = (adaptive_p::curve(target, total), Near::new(target, total));
        let Some(max) = largest(&store.weights, target, total) else { return StepResult::NotDone };
        let before = (self.weigh, total);
        (self.temperature, self.weigh.scale) = (1.0, mass::scale(1.0));
        self.cool_by(after);
        let weigh = Weigh { max, scale: self.weigh.scale };
        let mut sums = lists.take_sums();
        // All sums are written, so old ones need not be cleared.
        sums.resize(self.view.blocks(), 0);
        let by = Adapt { near, exact: &curve, weigh };
        let total = self.view.passes().adapted(&store.weights, by, &mut sums);
        lists.give_sums(sums);
        store.shaped = Shaped::adapted(Adapted { before, target, weigh });
        StepResult::Shaped(total)
    }
}

/// The largest new logit. `None` where rounding might make it the logit of another mass than the one nearest to the
/// target.
///
/// Masses differ by at least 2^-24 of the larger one, and away from the target logits differ by no less, which is far
/// more than rounding. The exception is masses so small that a target hides them: only for those `None` is possible.
fn largest(weights: &[f32], target: f64, total: u64) -> Option<f32> {
    let (curve, near) = (adaptive_p::curve(target, total), Near::new(target, total));
    if target * total as f64 >= MASS_ONE as f64 {
        return Some(curve(MASS_ONE));
    }
    if target == 0.0 {
        return Some(curve(least(weights) as u64));
    }
    // All masses near the target's or above, each by itself; and the largest of the others.
    let (mut first, mut below) = (f32::NEG_INFINITY, -1.0f32);
    for weights in weights.chunks_exact(BLOCK) {
        let most = most(weights);
        if most <= near.most {
            below = below.max(most);
            continue;
        }
        for &weight in weights {
            if weight > near.most {
                first = first.max(curve(weight as u64));
            } else {
                below = below.max(weight);
            }
        }
    }
    let [low, high] = near.bounds(below);
    if below < 0.0 || high <= first {
        return Some(first);
    }
    (low == high).then(|| first.max(low))
}

/// The largest of some weights. Lane-wise and by their bits, so that it compiles to vectors: floats of the same sign
/// are ordered like their bits, and negative ones come below all others.
fn most(weights: &[f32]) -> f32 {
    let mut lanes = [i32::MIN; 16];
    for chunk in weights.chunks_exact(lanes.len()) {
        lanes.iter_mut().zip(chunk).for_each(|(lane, weight)| *lane = weight.to_bits().cast_signed().max(*lane));
    }
    f32::from_bits(lanes.into_iter().fold(i32::MIN, i32::max).cast_unsigned())
}

/// The least weight that is not negative.
fn least(weights: &[f32]) -> f32 {
    let mut lanes = [u32::MAX; 16];
    for chunk in weights.chunks_exact(lanes.len()) {
        lanes.iter_mut().zip(chunk).for_each(|(lane, weight)| *lane = weight.to_bits().min(*lane));
    }
    f32::from_bits(lanes.into_iter().fold(u32::MAX, u32::min))
}
