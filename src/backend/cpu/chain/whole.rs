//! What a chain leaves of a row where no list is needed: if only weighing follows a cut, the cut is a place in the
//! order or a least mass.

use super::ChainStore;
use super::after::{After, Rest};
use super::listing::{Cut, RowOperation, WholeRow};
use crate::backend::cpu::distribution::{self, Distribution, LIST_K, Store, Wanted, least_reaching};
use crate::backend::cpu::passes::Weigh;
use crate::sampling::chain::{Chain, ChainStep};
use crate::sampling::samplers::skew;
use crate::sampling::samplers::smoothing::Curve;

/// The result of a step on a whole row.
pub(super) enum StepResult {
    /// The row is as it was.
    Unchanged,
    /// No step is left to take: this is what the chain leaves.
    Finished(Distribution),
    /// No step is left to take: the stores hold masses by block and the rule, with this total.
    Shaped(u64),
    /// What is left is in the list, with these weights.
    Listed(Weigh),
    /// All candidates except these are left.
    Without(Vec<u32>),
    /// The step has not been taken: take it on a list of the tokens with at least this logit.
    From(f32),
    /// The step has not been taken: take it on a list of all candidates.
    NotDone,
}

impl WholeRow<'_, '_> {
    /// Takes a step.
    pub(super) fn apply(
        &mut self,
        operation: RowOperation<'_>,
        after: &After<'_>,
        lists: &mut Store,
        store: &mut ChainStore,
    ) -> StepResult {
        let chain = after.chain;
        match operation {
            RowOperation::Nothing => StepResult::Unchanged,
            RowOperation::OnList => StepResult::NotDone,
            RowOperation::Tournament => self.play_last(chain, store),
            RowOperation::MinEosP(p) => self.min_eos_p(p, chain.eos, store),
            RowOperation::Infill => chain.infill.map_or(StepResult::Unchanged, |known| self.infill(&known, store)),
            RowOperation::TailFree(rule, z) => self.tail_free(rule, z, after, lists, store),
            RowOperation::Typical(rule, p) => self.typical(rule, p, after, lists, store),
            RowOperation::AdaptiveP(target) => self.adapt(target, after, lists, store),
            RowOperation::Exclude { threshold, ignored } => self.exclude(threshold, ignored, after, lists, store),
            RowOperation::Lower { probability, threshold, ignored } => {
                self.lower(probability, threshold, ignored, after, lists, store)
            }
            RowOperation::Smooth(curve) => self.smooth(curve, after, lists, store),
            RowOperation::Skew(by) => self.draw_along(by, after, lists),
            RowOperation::Cut(Cut::Prefix(top_p)) => self.cut_nucleus(top_p, after, lists, store),
            RowOperation::Cut(cut) => self.cut_or_list(cut, after, lists, store),
        }
    }

    /// What a tournament draws. It is the last step. Where samplers have a state, more than the token is needed.
    fn play_last(&self, chain: &Chain<'_>, store: &mut ChainStore) -> StepResult {
        let played = chain.tournament.as_ref().filter(|_| chain.state.is_empty());
        let token = played.and_then(|played| self.play(played, store));
        token.map_or(StepResult::NotDone, |token| StepResult::Finished(Distribution::one(self.view, token)))
    }

    /// The token that a skew draws from the whole row, if it is the last step and only a token is wanted.
    fn draw_along(&self, by: f32, after: &After<'_>, lists: &mut Store) -> StepResult {
        match self.wanted {
            Wanted::Token(uniform) if after.steps.is_empty() && after.chain.state.is_empty() => {
                let share = skew::share(skew::power(by), uniform);
                let all = Distribution::all(self.weigh);
                StepResult::Finished(all.along(self.view, share, |total| skew::point(share, total), lists))
            }
            _ => StepResult::NotDone,
        }
    }

    /// What a cut leaves: in place if possible, or as a list.
    fn cut_or_list(&mut self, cut: Cut, after: &After<'_>, lists: &mut Store, store: &mut ChainStore) -> StepResult {
        if let Some(whole) = self.cut_in_place(&cut, after, lists) {
            return StepResult::Finished(whole);
        }
        let first = self.first_of_many(&cut, lists);
        let listed = match first {
            Some(first) => Some(self.list_cut(&first, lists, store).weigh),
            None => self.cut(cut, store),
        };
        listed.map_or(StepResult::NotDone, StepResult::Listed)
    }

    /// What top-p with this share leaves.
    fn cut_nucleus(&mut self, top_p: f32, after: &After<'_>, lists: &mut Store, store: &mut ChainStore) -> StepResult {
        let cut = Distribution::nucleus(self.view, self.weigh, top_p, lists);
        if self.may_stay(after) && cut.is_whole() && self.min_keep == 1 {
            self.cool_by(after);
            let left = cut.weighed(self.view, self.weigh, lists);
            return StepResult::Finished(self.along_cut(left, f64::from(top_p), after, lists));
        }
        self.list_nucleus(&cut, lists, store)
    }

    /// Lists a nucleus, or the first `min_keep` tokens if the nucleus has fewer.
    fn list_nucleus(&self, nucleus: &Distribution, lists: &Store, store: &mut ChainStore) -> StepResult {
        let left = self.list_cut(nucleus, lists, store);
        if left.len() >= self.min_keep {
            return StepResult::Listed(left.weigh);
        }
        self.cut(Cut::First(self.min_keep), store).map_or(StepResult::NotDone, StepResult::Listed)
    }

    /// Whether a list of keys is too short for this many first tokens, and these are not all tokens.
    fn is_long(&self, n: usize) -> bool {
        n > LIST_K.min(self.view.blocks()) && n < self.view.vocab_size()
    }

    /// The first tokens that a cut leaves, if there are so many that they are searched for.
    fn first_of_many(&self, cut: &Cut, lists: &mut Store) -> Option<Distribution> {
        let all = Distribution::all(self.weigh);
        match *cut {
            Cut::First(n) if self.is_long(n) => Some(all.first(n, self.view, lists)),
            Cut::FirstAndTies(n) if self.is_long(n) => Some(all.first_and_ties(n, self.view, lists)),
            _ => None,
        }
    }

    /// Whether the steps that follow need no list, where a prefix of the order is left of the row.
    pub(super) fn may_stay(&self, after: &After<'_>) -> bool {
        after.rest.only_weighs() || after.rest == Rest::Skewed && self.is_for_a_token() && after.chain.state.is_empty()
    }

    /// What is left or, where a skew is the last step, the token that it draws. About `share` of the mass is left.
    fn along_cut(&self, left: Distribution, share: f64, after: &After<'_>, lists: &mut Store) -> Distribution {
        let (Some(&ChainStep::Skew(by)), Wanted::Token(uniform)) = (after.steps.last(), self.wanted) else {
            return left;
        };
        let (drawn, total) = (skew::share(skew::power(by), uniform), left.total());
        let point = skew::point(drawn, total);
        Distribution::all(self.weigh).along(self.view, drawn * share, |_| point, lists)
    }

    /// What is left up to a key, where only weighing follows, or the token that a skew draws from that.
    pub(super) fn cut_at(&mut self, last: u64, after: &After<'_>, lists: &mut Store) -> Distribution {
        self.cool_by(after);
        let left = Distribution::all(self.weigh).up_to(last).keep(self.view, 0, lists);
        self.along_cut(left, 1.0, after, lists)
    }

    /// What a cut leaves, if only weighing follows it and it leaves more than a short list.
    fn cut_in_place(&mut self, cut: &Cut, after: &After<'_>, lists: &mut Store) -> Option<Distribution> {
        let all = Distribution::all(self.weigh);
        let stays = self.may_stay(after);
        // Where more than a token is wanted, a list is better for few tokens. For a skew, which sorts the list, only
        // for very few.
        let is_short = |least: f32, lists: &mut Store| match after.rest {
            _ if !self.is_for_a_token() => all.is_rare(self.view, least, lists.sample()),
            Rest::Skewed => distribution::reached_by_few(self.view, least),
            _ => false,
        };
        let left = match *cut {
            Cut::Mass(_) | Cut::Logit(_) if self.min_keep > 1 => return None,
            Cut::Mass(need) if after.rest == Rest::Nothing => return Some(all.keep(self.view, need, lists)),
            Cut::Mass(need) if stays => {
                let least = least_reaching(self.weigh, need)?;
                if is_short(least, lists) {
                    return None;
                }
                all.down_to(least)
            }
            Cut::Logit(least) if stays && !is_short(least, lists) => all.down_to(least),
            _ if stays => self.first_of_many(cut, lists)?,
            _ => return None,
        };
        Some(self.cut_at(left.kept_by().last_key, after, lists))
    }

    /// Applies the temperatures among the steps that follow.
    pub(super) fn cool_by(&mut self, after: &After<'_>) {
        for _ in after.steps.iter().filter(|step| matches!(step, ChainStep::Temperature)) {
            self.cool(f64::from(after.filters.temperature));
        }
    }

    /// Smoothing. Where only a token is wanted: every token on the curve, or a list of the tokens that may have a mass.
    fn smooth(&mut self, curve: Curve, after: &After<'_>, lists: &mut Store, store: &mut ChainStore) -> StepResult {
        if !self.is_for_a_token() || !curve.is_rising() || self.min_keep > 1 {
            return StepResult::NotDone;
        }
        match after.rest {
            Rest::Nothing | Rest::Temperatures => {
                let shape = self.reshaped(Some(curve));
                self.cool_by(after);
                StepResult::Shaped(self.shaped(shape, lists, store))
            }
            Rest::Masses => StepResult::From(self.reach_on(curve)),
            Rest::Skewed | Rest::Steps => StepResult::NotDone,
        }
    }
}
