//! XTC on a whole row and on a list of candidates.

use super::after::{After, Rest};
use super::listing::WholeRow;
use super::whole::StepResult;
use super::{CandidateList, ChainStore};
use crate::backend::cpu::distribution::{Distribution, Store};
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::Values;
use crate::sampling::mass;
use crate::sampling::samplers::cutoffs::Masses;
use crate::sampling::samplers::xtc::{self, Ignored};

impl WholeRow<'_, '_> {
    /// XTC with this threshold.
    pub(super) fn exclude(
        &mut self,
        threshold: f32,
        ignored: Ignored<'_>,
        after: &After<'_>,
        lists: &mut Store,
        store: &mut ChainStore,
    ) -> StepResult {
        // If this is the last step and nothing is removed, masses by block are wanted. These give the total too.
        let all = Distribution::all(self.weigh);
        let whole = (after.rest == Rest::Nothing).then(|| all.keep(self.view, 0, lists));
        let total = whole.map_or_else(|| self.total(), |whole| whole.total());
        let out = self.out(threshold, total, ignored, store);
        if out.is_empty() {
            return whole.map_or(StepResult::Unchanged, StepResult::Finished);
        }
        let in_place = self.is_for_a_token() && after.rest.only_weighs();
        let total = if in_place { self.without(&out, after, lists, store) } else { None };
        total.map_or(StepResult::Without(out), StepResult::Shaped)
    }

    /// XTC's expected form.
    pub(super) fn lower(
        &mut self,
        probability: f32,
        threshold: f32,
        ignored: Ignored<'_>,
        after: &After<'_>,
        lists: &mut Store,
        store: &mut ChainStore,
    ) -> StepResult {
        let total = self.total();
        let out = self.out(threshold, total, ignored, store);
        let gone = out.iter().map(|&token| store.mass_of(token)).sum();
        let Some(lowered) = xtc::lowered(probability, gone, total) else { return StepResult::Unchanged };
        let in_place = self.is_for_a_token() && after.rest.only_weighs();
        let total = if in_place { self.with_less(lowered, &out, after, lists, store) } else { None };
        total.map_or(StepResult::NotDone, StepResult::Shaped)
    }
}

impl CandidateList<'_> {
    /// XTC's expected form.
    pub(super) fn lower(&mut self, probability: f32, threshold: f32, ignored: Ignored<'_>) {
        if probability >= 1.0 {
            return self.exclude(threshold, ignored);
        }
        let total = self.total();
        let out = self.excluded(threshold, total, ignored);
        let gone = out.iter().map(|&token| self.store.mass_of(token)).sum();
        let Some(lowered) = xtc::lowered(probability, gone, total) else { return };
        let (per_temperature, max) = ((1.0 / self.temperature) as f32, self.weigh.max);
        self.store.values.logits.iter_mut().for_each(|x| *x = (*x - max) * per_temperature);
        for token in out {
            if let Some(at) = self.store.place(token) {
                self.store.values.logits[at] += lowered;
            }
        }
        (self.temperature, self.weigh.scale) = (1.0, mass::scale(1.0));
        self.weigh();
    }

    /// XTC.
    pub(super) fn exclude(&mut self, threshold: f32, ignored: Ignored<'_>) {
        let out = self.excluded(threshold, self.total(), ignored);
        if !out.is_empty() {
            self.remove(&out);
            self.weigh();
        }
    }

    /// The tokens that XTC removes, ascending, where candidates weigh `total` together. None where nothing happens.
    pub(super) fn excluded(&self, threshold: f32, total: u64, ignored: Ignored<'_>) -> Vec<u32> {
        let (need, values) = (xtc::need(threshold, total), &self.store.values);
        let is_choice = |at: &usize| values.masses[*at] >= need && !ignored.spares(values.tokens[*at]);
        let choices = (0..values.masses.len()).filter(is_choice);
        let mut keys: Vec<u64> = choices.map(|at| keys::key(values.tokens[at], values.logits[at])).collect();
        keys.sort_unstable();
        keys.pop();
        let mut out: Vec<u32> = keys.into_iter().map(keys::token).collect();
        if self.len() - out.len() < self.min_keep || out.iter().any(|&token| ignored.stops(token)) {
            return vec![];
        }
        out.sort_unstable();
        out
    }

    /// Removes a few tokens; ascending ids.
    pub(super) fn remove(&mut self, out: &[u32]) {
        let store = &mut *self.store;
        let places: Vec<usize> = out.iter().filter_map(|&token| store.place(token)).collect();
        store.plain -= places.iter().filter(|&&place| place < store.plain).count();
        let Values { tokens, logits, masses, .. } = &mut store.values;
        remove(tokens, &places);
        remove(logits, &places);
        remove(masses, &places);
    }
}

/// Removes the items at a few places.
fn remove<T: Copy>(list: &mut Vec<T>, places: &[usize]) {
    let mut places = places.to_vec();
    places.sort_unstable();
    for (removed, &place) in places.iter().enumerate() {
        let next = places.get(removed + 1).copied().unwrap_or(list.len());
        list.copy_within(place + 1..next, place - removed);
    }
    list.truncate(list.len() - places.len());
}
