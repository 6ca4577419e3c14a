//! From a row to the list of its candidates. A row stays as it is for as long as steps only weigh it. The first step
//! that cuts decides what is listed, so that where few tokens are left only these are touched.

use super::after::{After, is_idle};
use super::whole::StepResult;
use super::{CandidateList, ChainStore};
use crate::backend::cpu::distribution::{self, Distribution, LIST_K, Store, Wanted};
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{Range, Squares, Terms, Weigh};
use crate::backend::cpu::select;
use crate::backend::cpu::view::View;
use crate::params::{TfsRule, TypicalRule};
use crate::sampling::chain::{Chain, ChainStep};
use crate::sampling::entropy::entropy;
use crate::sampling::mass;
use crate::sampling::row::Filters;
use crate::sampling::samplers::cutoffs::{self, Masses};
use crate::sampling::samplers::smoothing::Curve;
use crate::sampling::samplers::xtc::{self, Ignored};
use crate::sampling::samplers::{adaptive_p, mirostat, temperature, top_h};

/// A row of which all candidates are left.
pub(super) struct WholeRow<'a, 'v> {
    pub(super) view: &'a View<'v>,
    pub(super) weigh: Weigh,
    pub(super) temperature: f64,
    pub(super) min_keep: usize,
    /// What the distribution is needed for.
    pub(super) wanted: Wanted,
}

/// What a row has become when it needs no more steps, or is a list.
pub(super) enum Started<'s, 'c> {
    /// No step is left to take: this is what the chain leaves.
    Whole(Distribution),
    /// No step is left to take: the stores hold masses by block and the rule, with this total.
    Shaped(u64),
    /// A list, and the steps that are left to take on it.
    Listed(CandidateList<'s>, &'c [ChainStep]),
}

/// What a step does to a whole row.
pub(super) enum RowOperation<'c> {
    /// Nothing, or only a change of weights.
    Nothing,
    /// Cuts the row.
    Cut(Cut),
    /// XTC: removes top choices, which have at least this probability.
    Exclude { threshold: f32, ignored: Ignored<'c> },
    /// XTC's expected form: makes top choices less likely, which XTC would remove with this probability.
    Lower { probability: f32, threshold: f32, ignored: Ignored<'c> },
    /// Smoothing: gives new logits.
    Smooth(Curve),
    /// A skew: draws along all candidates, if it is the last step.
    Skew(f32),
    /// Tail-free sampling: removes a flat tail.
    TailFree(TfsRule, f32),
    /// Typical sampling: keeps typical tokens.
    Typical(TypicalRule, f32),
    /// Adaptive-p: gives new logits by masses.
    AdaptiveP(f64),
    /// Plays a tournament.
    Tournament,
    /// Keeps only EOS tokens, if one of them has more than this probability.
    MinEosP(f32),
    /// Keeps what infill keeps.
    Infill,
    /// Only a list can take the step.
    OnList,
}

/// What a cut leaves of a whole row.
pub(super) enum Cut {
    /// Masses of at least this.
    Mass(u64),
    /// Logits of at least this.
    Logit(f32),
    /// The first tokens.
    First(usize),
    /// The first tokens, and those with the same logit as the last of them.
    FirstAndTies(usize),
    /// The nucleus with this share of the mass.
    Prefix(f32),
}

impl<'a, 'v> WholeRow<'a, 'v> {
    pub(super) fn new(view: &'a View<'v>, chain: &Chain<'_>, wanted: Wanted) -> Self {
        let weigh = Weigh { max: view.max, scale: mass::scale(1.0) };
        Self { view, weigh, temperature: 1.0, min_keep: chain.min_keep as usize, wanted }
    }

    /// Whether only a token is wanted.
    pub(super) fn is_for_a_token(&self) -> bool {
        matches!(self.wanted, Wanted::Token(_))
    }

    /// Takes the steps that need no list.
    pub(super) fn start<'s, 'c>(
        mut self,
        filters: &Filters,
        chain: &Chain<'c>,
        lists: &mut Store,
        store: &'s mut ChainStore,
    ) -> Started<'s, 'c> {
        for (at, step) in chain.steps.iter().enumerate() {
            let (from, behind) = (&chain.steps[at..], &chain.steps[at + 1..]);
            if matches!(step, ChainStep::TopP)
                && filters.top_p < 1.0
                && let Some((weigh, rest)) = self.nucleus_within(behind, filters, chain, store)
            {
                return Started::Listed(CandidateList { weigh, ..self.left(store) }, rest);
            }
            let operation = self.operation(step, filters, chain);
            return match self.apply(operation, &After::new(behind, filters, chain), lists, store) {
                StepResult::Unchanged => continue,
                StepResult::Finished(whole) => Started::Whole(whole),
                StepResult::Shaped(total) => Started::Shaped(total),
                StepResult::Listed(weigh) => Started::Listed(CandidateList { weigh, ..self.left(store) }, behind),
                StepResult::Without(out) => Started::Listed(self.list_without(&out, store), behind),
                StepResult::From(low) => Started::Listed(self.list(Range { low, high: f32::INFINITY }, store), from),
                StepResult::NotDone => Started::Listed(self.list_all(store), from),
            };
        }
        Started::Whole(Distribution::all(self.weigh).keep_for(self.wanted, self.view, 0, lists))
    }

    /// Lists what a cut leaves, and returns its weights. `None`: all candidates have to be listed.
    pub(super) fn cut(&self, cut: Cut, store: &mut ChainStore) -> Option<Weigh> {
        let from = |low: f32| Range { low: low.max(f32::MIN), high: f32::INFINITY };
        let left = match cut {
            Cut::First(n) if n > LIST_K.min(self.view.blocks()) => return None,
            Cut::First(n) => {
                let mut keys = vec![];
                select::top(self.view, n, &mut keys);
                self.list_keys(keys, store)
            }
            Cut::FirstAndTies(n) if n > LIST_K.min(self.view.blocks()) => return None,
            Cut::FirstAndTies(n) => {
                let mut keys = vec![];
                select::top(self.view, n, &mut keys);
                let last = keys.last().map(|&last| keys::logit(last));
                self.list(from(last.filter(|_| keys.len() == n).unwrap_or(f32::NEG_INFINITY)), store)
            }
            Cut::Mass(need) => {
                let mut left = self.list(from(distribution::reach_of(self.weigh, need)), store);
                if left.len() < self.min_keep {
                    return self.cut(Cut::First(self.min_keep), store);
                }
                left.keep_mass(need);
                left
            }
            Cut::Logit(least) => {
                let left = self.list(from(least), store);
                if left.len() < self.min_keep {
                    return self.cut(Cut::First(self.min_keep), store);
                }
                left
            }
            Cut::Prefix(_) => unreachable!("a nucleus is listed where it is found; this is a bug"),
        };
        Some(left.weigh)
    }

    pub(super) fn operation<'c>(&mut self, step: &ChainStep, filters: &Filters, chain: &Chain<'c>) -> RowOperation<'c> {
        match *step {
            ChainStep::Temperature => {
                self.cool(f64::from(filters.temperature));
                RowOperation::Nothing
            }
            ChainStep::DynamicTemperature { low, high, exponent } => {
                let Terms { terms, total, candidates } = self.view.terms(self.weigh);
                self.cool(temperature::dynamic(entropy(terms, total), candidates as usize, low, high, exponent));
                RowOperation::Nothing
            }
            _ if is_idle(step, filters, chain) => RowOperation::Nothing,
            ChainStep::AtMost(most) if most as usize >= self.view.vocab_size() => RowOperation::Nothing,
            ChainStep::TypicalP(..) | ChainStep::Tfs(..) | ChainStep::Xtc { .. } if self.min_keep > 1 => {
                RowOperation::OnList
            }
            ChainStep::Xtc { rule, probability, threshold } => {
                let ignored = Ignored::by(rule, chain.protected);
                // With probability 1 the expected form removes top choices too.
                match rule.expected && probability < 1.0 {
                    true => RowOperation::Lower { probability, threshold, ignored },
                    false => RowOperation::Exclude { threshold, ignored },
                }
            }
            ChainStep::Smoothing { factor, curve } => RowOperation::Smooth(Curve::new(factor, curve)),
            ChainStep::Skew(by) => RowOperation::Skew(by),
            ChainStep::AdaptiveP { target, .. } => {
                let average = chain.state.adaptive;
                average.map_or(RowOperation::Nothing, |average| {
                    RowOperation::AdaptiveP(adaptive_p::adapted(target, average))
                })
            }
            ChainStep::MinEosP(p) => RowOperation::MinEosP(p),
            ChainStep::Infill => RowOperation::Infill,
            ChainStep::Tournament => RowOperation::Tournament,
            ChainStep::MinK(tau) => self.min_k(tau),
            ChainStep::TypicalP(rule, p) => RowOperation::Typical(rule, p),
            ChainStep::Tfs(rule, z) => RowOperation::TailFree(rule, z),
            _ => self.cut_of(step, filters, chain).map_or(RowOperation::OnList, RowOperation::Cut),
        }
    }

    /// What is left by a step that does nothing but cut.
    fn cut_of(&self, step: &ChainStep, filters: &Filters, chain: &Chain<'_>) -> Option<Cut> {
        if let Some(need) = cutoffs::least_mass(step, filters, chain, self) {
            return Some(Cut::Mass(need));
        }
        let kept = |count: usize| count.max(self.min_keep);
        let mu = chain.state.mirostat_mu.unwrap_or_default();
        Some(match *step {
            ChainStep::AtMost(most) => Cut::First(kept(most as usize)),
            ChainStep::TopK => Cut::First(kept(filters.top_k as usize)),
            ChainStep::TopKTies => Cut::FirstAndTies(kept(filters.top_k as usize)),
            ChainStep::TopP => Cut::Prefix(filters.top_p),
            ChainStep::Mirostat { .. } => Cut::First(kept(self.mirostat(mu))),
            ChainStep::TopNSigma(n) => Cut::Logit(self.view.moments().least(n)),
            ChainStep::TopH(share) => Cut::First(kept(self.top_h(share))),
            // Named one by one, so that no new step can be overlooked.
            ChainStep::Temperature | ChainStep::DynamicTemperature { .. } | ChainStep::Smoothing { .. } => return None,
            ChainStep::Xtc { .. } | ChainStep::TypicalP(..) | ChainStep::MinK(_) => return None,
            ChainStep::Tfs(..) | ChainStep::AdaptiveP { .. } => return None,
            ChainStep::MinP | ChainStep::MinPAbove | ChainStep::TopA(_) | ChainStep::PLess { .. } => return None,
            ChainStep::EpsilonCutoff(_) | ChainStep::EtaCutoff(_) => return None,
            ChainStep::MinEosP(_) | ChainStep::Infill | ChainStep::Skew(_) | ChainStep::Tournament => return None,
        })
    }

    pub(super) fn cool(&mut self, temperature: f64) {
        self.temperature *= temperature;
        self.weigh.scale = mass::scale_of(self.temperature);
    }

    fn top_h(&self, share: f32) -> usize {
        let mut keys = vec![];
        select::top(self.view, top_h::MAX_CANDIDATES, &mut keys);
        let first = keys.iter().map(|&key| mass::exponent(keys::logit(key), self.weigh.max, self.weigh.scale));
        top_h::kept(first.map(|y| (y, mass::mass(y))), share)
    }

    /// How many tokens version 1 of mirostat keeps.
    fn mirostat(&self, mu: f64) -> usize {
        let mut keys = vec![];
        select::top(self.view, mirostat::LOOKED_AT, &mut keys);
        let first = keys.iter().map(|&key| keys::logit(key)).filter(|&logit| logit > f32::NEG_INFINITY);
        let first = first.map(|logit| mass::exponent(logit, self.weigh.max, self.weigh.scale));
        mirostat::first(first, self.view.count(f32::MIN) as usize, mu)
    }

    pub(super) fn left<'s>(&self, store: &'s mut ChainStore) -> CandidateList<'s> {
        let (passes, vocab_size) = (self.view.passes(), self.view.vocab_size());
        let Self { weigh, temperature, min_keep, .. } = *self;
        CandidateList { passes, store, weigh, temperature, min_keep, vocab_size, is_weighed: true }
    }

    /// Lists the tokens in `range`.
    pub(super) fn list<'s>(&self, range: Range, store: &'s mut ChainStore) -> CandidateList<'s> {
        store.plain = self.view.between(false, self.weigh, range, &mut store.values);
        self.left(store)
    }

    /// The top choices that XTC would remove, ascending ids, where all tokens weigh `total`. The list then holds all
    /// tokens that are as likely.
    pub(super) fn out(&self, threshold: f32, total: u64, ignored: Ignored<'_>, store: &mut ChainStore) -> Vec<u32> {
        let from = distribution::reach_of(self.weigh, xtc::need(threshold, total));
        let range = Range { low: from.max(f32::MIN), high: f32::INFINITY };
        self.list(range, store).excluded(threshold, total, ignored)
    }

    /// Lists all candidates except these, which are ascending.
    fn list_without<'s>(&self, out: &[u32], store: &'s mut ChainStore) -> CandidateList<'s> {
        let mut left = self.list_all(store);
        left.remove(out);
        left.weigh();
        left
    }

    /// Lists all candidates, but does not weigh them: the next step may not need that, or weigh them in its own way.
    fn list_all<'s>(&self, store: &'s mut ChainStore) -> CandidateList<'s> {
        self.view.all(&mut store.values);
        store.plain = store.values.tokens.len();
        let mut left = CandidateList { is_weighed: false, ..self.left(store) };
        if left.store.values.logits.contains(&f32::NEG_INFINITY) {
            left.retain(|values, at| values.logits[at] > f32::NEG_INFINITY);
        }
        left
    }

    /// Lists the tokens of these keys.
    pub(super) fn list_keys<'s>(&self, mut keys: Vec<u64>, store: &'s mut ChainStore) -> CandidateList<'s> {
        keys.sort_unstable_by_key(|&key| keys::token(key));
        store.values.clear();
        store.values.tokens.extend(keys.iter().map(|&key| keys::token(key)));
        store.values.logits.extend(keys.iter().map(|&key| keys::logit(key)));
        store.plain = keys.len();
        let mut left = self.left(store);
        left.weigh();
        left
    }

    /// Lists the tokens that a cut left.
    pub(super) fn list_cut<'s>(
        &self,
        cut: &Distribution,
        lists: &Store,
        store: &'s mut ChainStore,
    ) -> CandidateList<'s> {
        if let Some(keys) = cut.listed(lists) {
            return self.list_keys(keys.to_vec(), store);
        }
        let last = cut.kept_by().last_key;
        let low = if last == u64::MAX { f32::MIN } else { keys::logit(last).max(f32::MIN) };
        let mut left = self.list(Range { low, high: f32::INFINITY }, store);
        left.retain_up_to(Some(last), |_, _| false);
        left
    }
}

impl Masses for WholeRow<'_, '_> {
    fn total(&self) -> u64 {
        self.view.total(self.weigh)
    }

    fn entropy_and_total(&self) -> (f64, u64) {
        let Terms { terms, total, .. } = self.view.terms(self.weigh);
        (entropy(terms, total), total)
    }

    fn squares_and_total(&self) -> (u128, u128) {
        let Squares { squares, total } = self.view.squares(self.weigh);
        (squares, u128::from(total))
    }

    fn candidates(&self) -> usize {
        self.view.count(f32::MIN) as usize
    }
}
