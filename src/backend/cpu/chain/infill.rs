//! [Infill](crate::sampling::samplers::infill) on a whole row, where mostly a few tokens decide, and on a list of
//! candidates.

use super::ends::End;
use super::listing::WholeRow;
use super::texts;
use super::whole::StepResult;
use super::{CandidateList, ChainStore};
use crate::backend::cpu::distribution::reach_of;
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{Range, Values};
use crate::sampling::samplers::cutoffs::Masses;
use crate::sampling::samplers::infill::{Infill, Stay, Sums};

/// On a whole row, tokens with at least one part in this many of its mass are looked at; first by the one number, then
/// by the other.
const FIRST_LOOKS: [u64; 2] = [1 << 12, 1 << 15];

/// Longer lists are first tried without putting them in order.
const SORTED: usize = 2048;

impl WholeRow<'_, '_> {
    pub(super) fn infill(&self, known: &Infill<'_>, store: &mut ChainStore) -> StepResult {
        if self.min_keep > 1 {
            return StepResult::NotDone;
        }
        let (total, ends) = (self.total(), self.text_ends(known.ends));
        let of_ends = ends.iter().map(|end| end.mass).sum();
        // Candidates are counted only where their number decides.
        let mut sums = Sums { candidates: self.view.vocab_size(), ends: of_ends, texts: total - of_ends };
        if sums.end_it() {
            sums.candidates = self.view.count(f32::MIN) as usize;
        }
        if sums.end_it() {
            let ends = ends.into_iter().map(|end| keys::key(end.token, end.logit)).collect();
            return StepResult::Listed(self.list_keys(ends, store).weigh);
        }
        for part in FIRST_LOOKS {
            let mut first = self.reaching(total.div_ceil(part), &ends, store);
            let masses: Vec<(u32, u64)> = first.iter().map(|&(key, mass)| (keys::token(key), mass)).collect();
            let Some(stay) = known.stay_of_all(&masses, &sums) else { continue };
            let Stay::These(stays) = stay else {
                let end = store.end.map(|end| keys::key(end.token, end.logit));
                return end
                    .map_or(StepResult::Unchanged, |end| StepResult::Listed(self.list_keys(vec![end], store).weigh));
            };
            let mut stays = stays.into_iter();
            first.retain(|_| stays.next() == Some(true));
            let left = first.into_iter().map(|(key, _)| key).collect();
            return StepResult::Listed(self.list_keys(left, store).weigh);
        }
        StepResult::NotDone
    }

    /// Keys and masses of the tokens that have a mass of at least `need`, in order, including all tokens that end the
    /// text.
    fn reaching(&self, need: u64, ends: &[End], store: &mut ChainStore) -> Vec<(u64, u64)> {
        let range = Range { low: reach_of(self.weigh, need).max(f32::MIN), high: f32::INFINITY };
        let mut left = self.list(range, store);
        left.keep_mass(need);
        let Values { tokens, logits, masses, .. } = &left.store.values;
        let listed = tokens.iter().zip(logits).zip(masses);
        let mut first: Vec<(u64, u64)> =
            listed.map(|((&token, &logit), &mass)| (keys::key(token, logit), mass)).collect();
        let missing = ends.iter().filter(|end| end.mass < need);
        first.extend(missing.map(|end| (keys::key(end.token, end.logit), end.mass)));
        first.sort_unstable();
        first
    }
}

impl CandidateList<'_> {
    pub(super) fn infill(&mut self, known: &Infill<'_>) {
        match self.stay_of_many(known).unwrap_or_else(|| self.stay_in_order(known)) {
            Stay::These(stays) => {
                if stays.iter().filter(|&&stays| stays).count() < self.min_keep {
                    return;
                }
                self.retain(|_, at| stays[at]);
            }
            Stay::End => match self.store.end.filter(|_| self.min_keep <= 1) {
                Some(end) => {
                    self.store.values.clear();
                    self.store.values.tokens.push(end.token);
                    self.store.values.logits.push(end.logit);
                    self.store.plain = 1;
                }
                None => return,
            },
        }
        self.weigh();
    }

    /// Which candidates stay, by places in the list.
    fn stay_in_order(&self, known: &Infill<'_>) -> Stay {
        let Values { tokens, logits, masses, .. } = &self.store.values;
        let keys = tokens.iter().zip(logits).map(|(&token, &logit)| keys::key(token, logit));
        let mut order: Vec<(u64, usize)> = keys.enumerate().map(|(at, key)| (key, at)).collect();
        order.sort_unstable();
        let candidates: Vec<(u32, u64)> = order.iter().map(|&(_, at)| (tokens[at], masses[at])).collect();
        let Stay::These(stay) = known.stay(&candidates) else { return Stay::End };
        let mut stays = vec![false; order.len()];
        order.iter().zip(stay).for_each(|(&(_, at), stay)| stays[at] = stay);
        Stay::These(stays)
    }

    /// The same, without putting the list in order. `None` where that would not be faster or does not decide.
    fn stay_of_many(&mut self, known: &Infill<'_>) -> Option<Stay> {
        let mut ends: Vec<usize> = known.ends.iter().filter_map(|&end| self.store.place(end)).collect();
        ends.sort_unstable();
        ends.dedup();
        let ChainStore { values, texts: store, .. } = &mut *self.store;
        if values.tokens.len() < SORTED {
            return None;
        }
        let mut is_end = vec![false; values.tokens.len()];
        ends.iter().for_each(|&at| is_end[at] = true);
        let of_ends = ends.iter().map(|&at| values.masses[at]).sum();
        let all: u64 = values.masses.iter().sum();
        let sums = Sums { candidates: is_end.len(), ends: of_ends, texts: all - of_ends };
        if sums.end_it() {
            return Some(Stay::These(is_end));
        }
        let counted = texts::counted(known.vocabulary, &sums, values, &is_end, store)?;
        sums.stay(&counted, &is_end, 0)
    }
}
