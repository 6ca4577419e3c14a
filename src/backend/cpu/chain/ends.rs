//! [Likely ends](crate::sampling::samplers::min_eos_p) on a whole row, where mostly a few logits show that there is
//! none, and on a list of candidates.

use super::listing::WholeRow;
use super::whole::StepResult;
use super::{CandidateList, ChainStore};
use crate::backend::cpu::keys;
use crate::sampling::mass::{MASS_ONE, exponent, mass};
use crate::sampling::samplers::cutoffs::Masses;
use crate::sampling::samplers::min_eos_p;

/// A token that ends the text.
pub(super) struct End {
    pub(super) token: u32,
    pub(super) logit: f32,
    pub(super) mass: u64,
}

impl WholeRow<'_, '_> {
    /// Those of `tokens`, which end the text, that may be emitted; each once.
    pub(super) fn text_ends(&self, tokens: &[u32]) -> Vec<End> {
        let mut tokens: Vec<u32> =
            tokens.iter().copied().filter(|&end| (end as usize) < self.view.vocab_size()).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let all = tokens.into_iter().map(|token| (token, self.view.value(token)));
        let there = all.filter(|&(_, logit)| logit > f32::NEG_INFINITY);
        let weighed =
            |(token, logit)| End { token, logit, mass: mass(exponent(logit, self.weigh.max, self.weigh.scale)) };
        there.map(weighed).collect()
    }

    pub(super) fn min_eos_p(&self, p: f32, eos: &[u32], store: &mut ChainStore) -> StepResult {
        let ends = self.text_ends(eos);
        let most = ends.iter().map(|end| end.mass).max().unwrap_or(0);
        // The largest token alone weighs that much, so most rows need not be added up.
        if ends.len() < self.min_keep || most < min_eos_p::need(p, MASS_ONE) {
            return StepResult::Unchanged;
        }
        if most < min_eos_p::need(p, self.total()) {
            return StepResult::Unchanged;
        }
        let ends = ends.into_iter().map(|end| keys::key(end.token, end.logit)).collect();
        StepResult::Listed(self.list_keys(ends, store).weigh)
    }
}

impl CandidateList<'_> {
    pub(super) fn min_eos_p(&mut self, p: f32, eos: &[u32]) {
        let mut ends: Vec<usize> = eos.iter().filter_map(|&end| self.store.place(end)).collect();
        ends.sort_unstable();
        ends.dedup();
        let most = ends.iter().map(|&at| self.store.values.masses[at]).max().unwrap_or(0);
        if ends.len() >= self.min_keep && most >= min_eos_p::need(p, self.total()) {
            self.retain(|_, at| ends.binary_search(&at).is_ok());
            self.weigh();
        }
    }
}
