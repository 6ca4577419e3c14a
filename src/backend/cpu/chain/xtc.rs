//! XTC on a list of candidates.

use super::listing::Whole;
use super::whole::{Done, Rest};
use super::{ChainStore, Left};
use crate::backend::cpu::distribution::{Distribution, Store};
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::Values;
use crate::sampling::chain::{Chain, Step};
use crate::sampling::mass;
use crate::sampling::row::Filters;
use crate::sampling::samplers::xtc;

impl Whole<'_, '_> {
    /// XTC of this threshold; with `stops`, nothing where one of those that are protected would go.
    pub(super) fn exclude(
        &mut self,
        (threshold, stops): (f32, bool),
        (behind, rest): (&[Step], Rest),
        (filters, chain): (&Filters, &Chain<'_>),
        (lists, store): (&mut Store, &mut ChainStore),
    ) -> Done {
        // Where this is the last step masses by block are wanted if nothing goes, and they have the total too.
        let all = Distribution::all(self.weigh);
        let whole = (rest == Rest::Nothing).then(|| all.keep(self.view, 0, lists));
        let total = whole.map_or_else(|| self.total(), |whole| whole.total());
        let out = self.out((threshold, total), if stops { &[] } else { chain.protected }, store);
        let is_protected = |token| chain.protected.binary_search(token).is_ok();
        if out.is_empty() || stops && out.iter().any(is_protected) {
            return whole.map_or(Done::Nothing, Done::Whole);
        }
        let in_place = self.is_for_a_token() && rest.only_weighs();
        let total = if in_place { self.without(&out, (behind, filters), (lists, store)) } else { None };
        total.map_or(Done::Without(out), Done::Shaped)
    }

    /// XTC's expected form.
    pub(super) fn lower(
        &mut self,
        (probability, threshold): (f32, f32),
        (behind, rest): (&[Step], Rest),
        (filters, chain): (&Filters, &Chain<'_>),
        (lists, store): (&mut Store, &mut ChainStore),
    ) -> Done {
        let total = self.total();
        let out = self.out((threshold, total), chain.protected, store);
        let gone = out.iter().map(|&token| store.mass_of(token)).sum();
        let Some(lowered) = xtc::lowered(probability, gone, total) else { return Done::Nothing };
        let in_place = self.is_for_a_token() && rest.only_weighs();
        let total = if in_place { self.with_less(lowered, &out, (behind, filters), (lists, store)) } else { None };
        total.map_or(Done::Not, Done::Shaped)
    }
}

impl Left<'_> {
    /// XTC where nothing happens if a token of `protected` would go.
    pub(super) fn exclude_unless(&mut self, threshold: f32, protected: &[u32]) {
        if !self.excluded(threshold, self.total(), &[]).iter().any(|token| protected.binary_search(token).is_ok()) {
            self.exclude(threshold, &[]);
        }
    }

    /// XTC's expected form.
    pub(super) fn lower(&mut self, (probability, threshold): (f32, f32), protected: &[u32]) {
        if probability >= 1.0 {
            return self.exclude(threshold, protected);
        }
        let total = self.total();
        let out = self.excluded(threshold, total, protected);
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
    pub(super) fn exclude(&mut self, threshold: f32, protected: &[u32]) {
        let out = self.excluded(threshold, self.total(), protected);
        if !out.is_empty() && self.len() - out.len() >= self.min_keep {
            self.remove(&out);
            self.weigh();
        }
    }

    /// The tokens that XTC takes out where `total` is what candidates weigh, ascending.
    pub(super) fn excluded(&self, threshold: f32, total: u64, protected: &[u32]) -> Vec<u32> {
        let (need, values) = (xtc::need(threshold, total), &self.store.values);
        let is_choice =
            |at: &usize| values.masses[*at] >= need && protected.binary_search(&values.tokens[*at]).is_err();
        let choices = (0..values.masses.len()).filter(is_choice);
        let mut keys: Vec<u64> = choices.map(|at| keys::key(values.tokens[at], values.logits[at])).collect();
        keys.sort_unstable();
        keys.pop();
        let mut out: Vec<u32> = keys.into_iter().map(keys::token).collect();
        out.sort_unstable();
        out
    }

    /// Takes out a few tokens, ascending ids.
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

/// Takes out what stands at a few places.
fn remove<T: Copy>(list: &mut Vec<T>, places: &[usize]) {
    let mut places = places.to_vec();
    places.sort_unstable();
    for (removed, &place) in places.iter().enumerate() {
        let next = places.get(removed + 1).copied().unwrap_or(list.len());
        list.copy_within(place + 1..next, place - removed);
    }
    list.truncate(list.len() - places.len());
}
