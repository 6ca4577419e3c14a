//! From a row to the list of its candidates. A row stays as it is for as long as steps only weigh it; the first step that
//! cuts decides what is listed, so that of a row where few tokens are left only these are touched.

use super::{ChainStore, Left};
use crate::backend::cpu::distribution::{self, Distribution, LIST_K, Store};
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{BLOCK, Range, Terms, Weigh};
use crate::backend::cpu::select;
use crate::backend::cpu::view::View;
use crate::params::TypicalRule;
use crate::sampling::chain::{Chain, Step};
use crate::sampling::entropy::entropy;
use crate::sampling::mass::{self, Y_FLOOR, min_p_need};
use crate::sampling::row::Filters;
use crate::sampling::samplers::{cutoffs, mirostat, tail_free, temperature, top_h, xtc};

/// A row of which every candidate is left.
pub(super) struct Whole<'a, 'v> {
    pub(super) view: &'a View<'v>,
    pub(super) weigh: Weigh,
    temperature: f64,
    min_keep: usize,
}

/// What a step asks of a whole row.
enum Next {
    /// Nothing more.
    Done,
    /// To be cut.
    Cut(Cut),
    /// All but top choices of this probability; nothing where one of those that are protected would go, if so said.
    Exclude(f32, bool),
    /// A list, where there are top choices of this probability that may go.
    ListFor(f32),
    /// A list, to do the step on.
    List,
}

/// What is left of a whole row.
enum Cut {
    /// Masses from this on.
    Mass(u64),
    /// Logits from this on.
    Logit(f32),
    /// The first tokens.
    First(usize),
    /// The same, and what is equal to the last of them.
    FirstAndTies(usize),
    /// A nucleus.
    Prefix(f32),
    /// What is typical.
    Typical(TypicalRule, f32),
    /// All but a flat tail.
    TailFree(f32),
}

impl<'a, 'v> Whole<'a, 'v> {
    pub(super) fn new(view: &'a View<'v>, chain: &Chain<'_>) -> Self {
        let weigh = Weigh { max: view.max, scale: mass::scale(1.0) };
        Self { view, weigh, temperature: 1.0, min_keep: chain.min_keep as usize }
    }

    /// Does the first steps. What is left to do is for the list that is then there; without one all is done.
    pub(super) fn start<'s, 'c>(
        &mut self,
        filters: &Filters,
        chain: &Chain<'c>,
        (lists, store): (&mut Store, &'s mut ChainStore),
    ) -> Option<(Left<'s>, &'c [Step])> {
        for (at, step) in chain.steps.iter().enumerate() {
            let next = self.next(step, filters, chain);
            let done = match next {
                Next::Done => continue,
                Next::Exclude(threshold, stops) => {
                    let out = self.out(threshold, if stops { &[] } else { chain.protected }, store);
                    let is_protected = |token| chain.protected.binary_search(token).is_ok();
                    if out.is_empty() || stops && out.iter().any(is_protected) {
                        continue;
                    }
                    return Some((self.list_without(&out, store), &chain.steps[at + 1..]));
                }
                Next::ListFor(threshold) => {
                    if self.out(threshold, chain.protected, store).is_empty() {
                        continue;
                    }
                    None
                }
                Next::Cut(cut) => self.cut(cut, lists, store),
                Next::List => None,
            };
            return Some(match done {
                Some(weigh) => (Left { weigh, ..self.left(store) }, &chain.steps[at + 1..]),
                None => (self.list_all(store), &chain.steps[at..]),
            });
        }
        None
    }

    /// Lists what a cut leaves, and says how it is weighed; `None` if a list of all is the way.
    fn cut(&self, cut: Cut, lists: &mut Store, store: &mut ChainStore) -> Option<Weigh> {
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
            Cut::TailFree(z) => {
                let mut left = self.list(from(distribution::reach_of(self.weigh, tail_free::LISTED)), store);
                let candidates = self.view.count(f32::MIN) as usize;
                if !left.tail_free_of(candidates, z) {
                    return None;
                }
                left
            }
            Cut::Typical(rule, p) => return self.typical(rule, p, lists.sample(), store),
            Cut::Mass(need) => {
                let mut left = self.list(from(distribution::reach_of(self.weigh, need)), store);
                left.retain(|values, at| values.masses[at] >= need);
                left
            }
            Cut::Logit(least) => self.list(from(least), store),
            Cut::Prefix(top_p) => {
                let cut = Distribution::nucleus(self.view, self.weigh, top_p, lists);
                self.list_cut(&cut, lists, store)
            }
        };
        Some(left.weigh)
    }

    fn next(&mut self, step: &Step, filters: &Filters, chain: &Chain<'_>) -> Next {
        match *step {
            Step::Temperature => self.cool(f64::from(filters.temperature)),
            Step::DynamicTemperature { low, high, exponent } => {
                let candidates = self.view.count(f32::MIN) as usize;
                self.cool(temperature::dynamic(self.entropy().0, candidates, low, high, exponent))
            }
            Step::Xtc { probability, .. } | Step::XtcUnlessIgnored { probability, .. }
                if !xtc::happens(probability, chain.xtc) =>
            {
                Next::Done
            }
            Step::TopP if filters.top_p >= 1.0 => Next::Done,
            Step::MirostatV1 { .. } | Step::MirostatV2 { .. } if chain.state.mirostat_mu.is_none() => Next::Done,
            Step::AdaptiveP { .. } if chain.state.adaptive.is_none() => Next::Done,
            Step::Tournament if chain.tournament.is_none() => Next::Done,
            Step::TopK => Next::Cut(Cut::First((filters.top_k as usize).max(self.min_keep))),
            Step::TopKTies => Next::Cut(Cut::FirstAndTies((filters.top_k as usize).max(self.min_keep))),
            _ if self.min_keep > 1 => Next::List,
            Step::Xtc { threshold, .. } => Next::Exclude(threshold, false),
            Step::XtcUnlessIgnored { threshold, .. } => Next::Exclude(threshold, true),
            Step::XtcExpected { threshold, .. } => Next::ListFor(threshold),
            Step::Smoothing { .. } | Step::AdaptiveP { .. } | Step::Skew(_) | Step::Tournament => Next::List,
            Step::TopP => Next::Cut(Cut::Prefix(filters.top_p)),
            Step::MinP => Next::Cut(Cut::Mass(min_p_need(filters.min_p))),
            Step::TopA(a) => Next::Cut(Cut::Mass(cutoffs::top_a(a, self.total()))),
            Step::EpsilonCutoff(epsilon) => Next::Cut(Cut::Mass(cutoffs::epsilon(epsilon, self.total()))),
            Step::EtaCutoff(epsilon) => {
                let (entropy, total) = self.entropy();
                Next::Cut(Cut::Mass(cutoffs::eta(epsilon, entropy, total)))
            }
            Step::PLess => Next::Cut(Cut::Mass(self.p_less())),
            Step::MirostatV1 { .. } => {
                Next::Cut(Cut::First(self.mirostat(chain.state.mirostat_mu.unwrap_or_default())))
            }
            Step::MirostatV2 { .. } => {
                let mu = chain.state.mirostat_mu.unwrap_or_default();
                Next::Cut(Cut::Mass(mirostat::need(mu, self.total())))
            }
            Step::TopNSigma(n) => Next::Cut(Cut::Logit(self.view.moments().least(n))),
            Step::TopH(share) => Next::Cut(Cut::First(self.top_h(share))),
            Step::TypicalP(p) => Next::Cut(Cut::Typical(TypicalRule::Reached, p)),
            Step::TypicalAbove(p) => Next::Cut(Cut::Typical(TypicalRule::Above, p)),
            Step::TypicalTies(p) => Next::Cut(Cut::Typical(TypicalRule::Ties, p)),
            Step::Tfs(z) => Next::Cut(Cut::TailFree(z)),
        }
    }

    fn cool(&mut self, temperature: f64) -> Next {
        self.temperature *= temperature;
        self.weigh.scale = mass::scale_of(self.temperature);
        Next::Done
    }

    pub(super) fn total(&self) -> u64 {
        self.view.total(self.weigh)
    }

    /// Entropy in nats, and the total mass.
    pub(super) fn entropy(&self) -> (f64, u64) {
        let Terms { terms, total } = self.view.terms(self.weigh);
        (entropy(terms, total), total)
    }

    fn top_h(&self, share: f32) -> usize {
        let mut keys = vec![];
        select::top(self.view, top_h::MOST, &mut keys);
        let first = keys.iter().map(|&key| mass::exponent(keys::logit(key), self.weigh.max, self.weigh.scale));
        top_h::kept(first.map(|y| (y, mass::mass(y))), share)
    }

    /// How many tokens the first mirostat keeps.
    fn mirostat(&self, mu: f64) -> usize {
        let mut keys = vec![];
        select::top(self.view, mirostat::LOOKED_AT, &mut keys);
        let first = keys.iter().map(|&key| keys::logit(key)).filter(|&logit| logit > f32::NEG_INFINITY);
        let first = first.map(|logit| mass::exponent(logit, self.weigh.max, self.weigh.scale));
        mirostat::first(first, self.view.count(f32::MIN) as usize, mu)
    }

    /// The least mass that p-less keeps.
    fn p_less(&self) -> u64 {
        let has_mass =
            |&block: &usize| mass::exponent(self.view.maxima[block], self.weigh.max, self.weigh.scale) >= Y_FLOOR;
        let masses = (0..self.view.blocks()).filter(has_mass).flat_map(|block| {
            let mut masses = [0; BLOCK];
            self.view.passes().masses(&self.view.block(block), self.weigh, &mut masses);
            masses
        });
        cutoffs::p_less(masses)
    }

    pub(super) fn left<'s>(&self, store: &'s mut ChainStore) -> Left<'s> {
        let (passes, weigh, temperature) = (self.view.passes(), self.weigh, self.temperature);
        Left { passes, store, weigh, temperature, min_keep: self.min_keep, is_weighed: true }
    }

    /// The tokens in `range`.
    pub(super) fn list<'s>(&self, range: Range, store: &'s mut ChainStore) -> Left<'s> {
        store.plain = self.view.between(false, self.weigh, range, &mut store.values);
        self.left(store)
    }

    /// Where the logits of top choices lie.
    fn choices(&self, threshold: f32) -> Range {
        let from = distribution::reach_of(self.weigh, xtc::need(threshold, self.total()));
        Range { low: from.max(f32::MIN), high: f32::INFINITY }
    }

    /// Top choices that would go, ascending ids.
    fn out(&self, threshold: f32, protected: &[u32], store: &mut ChainStore) -> Vec<u32> {
        self.list(self.choices(threshold), store).excluded(threshold, self.total(), protected)
    }

    /// All candidates but these, ascending.
    fn list_without<'s>(&self, out: &[u32], store: &'s mut ChainStore) -> Left<'s> {
        let mut left = self.list_all(store);
        left.remove(out);
        left.weigh();
        left
    }

    /// All candidates, not weighed yet: the step that is to come may do without, or weigh them in its own way.
    fn list_all<'s>(&self, store: &'s mut ChainStore) -> Left<'s> {
        self.view.all(&mut store.values);
        store.plain = store.values.tokens.len();
        let mut left = Left { is_weighed: false, ..self.left(store) };
        if left.store.values.logits.contains(&f32::NEG_INFINITY) {
            left.retain(|values, at| values.logits[at] > f32::NEG_INFINITY);
        }
        left
    }

    /// The tokens of these keys.
    fn list_keys<'s>(&self, mut keys: Vec<u64>, store: &'s mut ChainStore) -> Left<'s> {
        keys.sort_unstable_by_key(|&key| keys::token(key));
        store.values.clear();
        store.values.tokens.extend(keys.iter().map(|&key| keys::token(key)));
        store.values.logits.extend(keys.iter().map(|&key| keys::logit(key)));
        store.plain = keys.len();
        let mut left = self.left(store);
        left.weigh();
        left
    }

    /// The tokens that a cut left.
    fn list_cut<'s>(&self, cut: &Distribution, lists: &Store, store: &'s mut ChainStore) -> Left<'s> {
        if let Some(keys) = cut.listed(lists) {
            return self.list_keys(keys.to_vec(), store);
        }
        let (_, last, _) = cut.kept_by();
        let low = if last == u64::MAX { f32::MIN } else { keys::logit(last).max(f32::MIN) };
        let mut left = self.list(Range { low, high: f32::INFINITY }, store);
        left.retain_up_to(Some(last), |_, _| false);
        left
    }
}
