//! The steps on a list of candidates.

use super::cut::{Along, Ordered, Ruler};
use super::{CandidateList, ChainStore};
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{PAD, Values, Weigh};
use crate::backend::cpu::view;
use crate::params::{TfsRule, XtcRule};
use crate::sampling::chain::{Chain, ChainStep, draws_along};
use crate::sampling::entropy::{entropy, entropy_term};
use crate::sampling::mass::{self, MASS_BITS, exponent, top_p_need};
use crate::sampling::row::Filters;
use crate::sampling::samplers::cutoffs::{self, Masses};
use crate::sampling::samplers::top_n_sigma::{self, Moments};
use crate::sampling::samplers::xtc::Ignored;
use crate::sampling::samplers::{adaptive_p, mirostat, skew, smoothing, tail_free, temperature, top_h, xtc};

impl CandidateList<'_> {
    /// Takes one step.
    pub(super) fn apply(&mut self, step: &ChainStep, filters: &Filters, chain: &Chain<'_>) {
        if !matches!(step, ChainStep::Smoothing { .. }) {
            self.weigh_once();
        }
        if let Some(need) = cutoffs::least_mass(step, filters, chain, self) {
            return self.keep_mass(need);
        }
        match *step {
            ChainStep::MinEosP(p) => self.min_eos_p(p, chain.eos),
            ChainStep::Temperature => self.cool(f64::from(filters.temperature)),
            ChainStep::DynamicTemperature { low, high, exponent } => {
                self.cool(temperature::dynamic(self.entropy_and_total().0, self.len(), low, high, exponent));
            }
            ChainStep::Smoothing { factor, curve } => self.reshape(smoothing::curve(factor, curve)),
            ChainStep::AtMost(most) => self.keep_first(most as usize),
            ChainStep::TopK => self.keep_first(filters.top_k as usize),
            ChainStep::TopKTies => self.keep_first_and_ties(filters.top_k as usize),
            ChainStep::TopP if filters.top_p >= 1.0 => {}
            ChainStep::TopP => self.keep_prefix(top_p_need(filters.top_p, self.total())),
            ChainStep::TypicalP(rule, p) => self.typical(rule, p),
            ChainStep::Tfs(rule, z) => self.tail_free(rule, z),
            ChainStep::TopNSigma(n) => self.top_n_sigma(n),
            ChainStep::MinK(tau) => self.min_k(tau),
            ChainStep::TopH(share) => self.top_h(share),
            ChainStep::Xtc { rule, probability, threshold } => self.xtc(rule, probability, threshold, chain),
            ChainStep::Mirostat { .. } => chain.state.mirostat_mu.into_iter().for_each(|mu| self.mirostat(mu)),
            ChainStep::Infill => chain.infill.iter().for_each(|known| self.infill(known)),
            ChainStep::AdaptiveP { target, .. } => {
                let average = chain.state.adaptive.into_iter();
                average.for_each(|average| self.adapt(adaptive_p::adapted(target, average)));
            }
            ChainStep::Skew(by) => self.skew(by, draws_along(chain.steps)),
            ChainStep::Tournament => chain.tournament.iter().for_each(|played| self.play(played)),
            // Named one by one, so that no new step can be overlooked.
            ChainStep::MinP | ChainStep::MinPAbove | ChainStep::TopA(_) | ChainStep::PLess { .. } => {}
            ChainStep::EpsilonCutoff(_) | ChainStep::EtaCutoff(_) => {}
        }
    }

    /// XTC, by chance or as its expectation.
    fn xtc(&mut self, rule: XtcRule, probability: f32, threshold: f32, chain: &Chain<'_>) {
        let ignored = Ignored::by(rule, chain.protected);
        if rule.expected {
            self.lower(probability, threshold, ignored);
        } else if xtc::happens(probability, chain.xtc) {
            self.exclude(threshold, ignored);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.store.values.tokens.len()
    }

    /// Weighs the candidates, unless that has been done.
    pub(super) fn weigh_once(&mut self) {
        if !self.is_weighed {
            self.weigh();
        }
    }

    /// Weighs the candidates, relative to the largest logit that is left.
    pub(super) fn weigh(&mut self) {
        self.is_weighed = true;
        let values = &mut self.store.values;
        values.pad();
        self.weigh.max = view::maximum(&values.logits);
        self.passes.masses(&values.logits, self.weigh, &mut values.masses);
        values.unpad();
    }

    fn cool(&mut self, temperature: f64) {
        self.temperature *= temperature;
        self.weigh.scale = mass::scale_of(self.temperature);
        self.weigh();
    }

    fn reshape(&mut self, logit: impl Fn(f32) -> f32) {
        let (per_temperature, max) = ((1.0 / self.temperature) as f32, self.weigh.max);
        self.store.values.logits.iter_mut().for_each(|x| *x = logit((*x - max) * per_temperature));
        (self.temperature, self.weigh.scale) = (1.0, mass::scale(1.0));
        self.weigh();
    }

    /// Keeps the candidates that `wanted` accepts, by their places in the list.
    pub(super) fn retain(&mut self, wanted: impl Fn(&Values, usize) -> bool) {
        let store = &mut *self.store;
        let (mut to, mut plain) = (0, 0);
        for at in 0..store.values.tokens.len() {
            let keep = wanted(&store.values, at);
            let Values { tokens, logits, masses, .. } = &mut store.values;
            (tokens[to], logits[to], masses[to]) = (tokens[at], logits[at], masses[at]);
            to += usize::from(keep);
            plain += usize::from(keep & (at < store.plain));
        }
        store.plain = plain;
        store.values.tokens.truncate(to);
        store.values.logits.truncate(to);
        store.values.masses.truncate(to);
    }

    /// Keeps everything up to a key, and what `wanted` accepts.
    pub(super) fn retain_up_to(&mut self, last: Option<u64>, wanted: impl Fn(f32, u64) -> bool) {
        match last.map(keys::up_to) {
            None => self.retain(|values, at| wanted(values.logits[at], values.masses[at])),
            Some(up_to) => self.retain(|values, at| {
                up_to(values.tokens[at], values.logits[at]) | wanted(values.logits[at], values.masses[at])
            }),
        }
    }

    /// The place in order at which the weight reaches `need`.
    fn crossing(&mut self, weight: impl Fn(&Values, usize) -> u64, most: f32, need: u64) -> Option<Ordered> {
        let (values, max) = (&self.store.values, self.weigh.max);
        let distance = |logit: f32| max - logit;
        let (tokens, logits) = (&values.tokens[..], &values.logits[..]);
        let along = Along { tokens, logits, distance, ruler: Ruler::new(most), by_distance: false };
        along.crossing(|at| weight(values, at), need, &mut self.store.bins)
    }

    /// The key of the `n`-th candidate; `None` if there are no more than `n`.
    fn nth(&mut self, n: usize) -> Option<u64> {
        if n >= self.len() {
            return None;
        }
        let least = self.store.values.logits.iter().copied().fold(f32::INFINITY, f32::min);
        self.crossing(|_, _| 1, self.weigh.max - least, n as u64).map(|(_, key)| key)
    }

    /// The key up to which `min_keep` keeps candidates whatever a filter says; `None` where that is only the first.
    fn least_kept(&mut self) -> Option<u64> {
        if self.min_keep > 1 { Some(self.nth(self.min_keep).unwrap_or(u64::MAX)) } else { None }
    }

    pub(super) fn keep_first(&mut self, count: usize) {
        if let Some(last) = self.nth(count.max(self.min_keep)) {
            self.retain_up_to(Some(last), |_, _| false);
        }
    }

    /// Keeps the first candidates, and those with the same logit as the last of them.
    fn keep_first_and_ties(&mut self, count: usize) {
        if let Some(last) = self.nth(count.max(self.min_keep)) {
            let least = keys::logit(last);
            self.retain(|values, at| values.logits[at] >= least);
        }
    }

    /// Keeps the smallest prefix whose mass reaches `need`.
    pub(super) fn keep_prefix(&mut self, need: u64) {
        // No token further away than this has a mass.
        let most = 1.1 * MASS_BITS as f32 / self.weigh.scale;
        let Some((_, last)) = self.crossing(|values, at| values.masses[at], most, need.max(1)) else { return };
        let last = self.least_kept().map_or(last, |least| last.max(least));
        self.retain_up_to(Some(last), |_, _| false);
    }

    pub(super) fn keep_mass(&mut self, need: u64) {
        let least = self.least_kept();
        self.retain_up_to(least, |_, mass| mass >= need);
    }

    fn tail_free(&mut self, rule: TfsRule, z: f32) {
        let candidates = self.len();
        let tokens = tail_free::looked_at(rule, candidates, self.vocab_size);
        let ChainStore { values, sorter, sorted: (sorted, masses), .. } = &mut *self.store;
        let heavy = values.logits.iter().zip(&values.masses).filter(|&(_, &mass)| mass >= tail_free::LISTED);
        let heavy: Vec<f32> = heavy.map(|(&logit, _)| logit).collect();
        sorter.sort(&heavy, sorted);
        sorted.resize(heavy.len().next_multiple_of(PAD), f32::NEG_INFINITY);
        masses.resize(sorted.len(), 0);
        self.passes.masses(sorted, self.weigh, masses);
        masses.iter_mut().for_each(|mass| *mass = tail_free::counted(*mass));
        let kept = tail_free::kept_by(rule, tail_free::kept(&masses[..heavy.len()], tokens, z), tokens);
        let kept = kept.min(candidates).max(self.min_keep);
        if kept > heavy.len() {
            return self.keep_first(kept);
        }
        // Of the tokens with the same logit as the last one that is kept, keeps the first ones.
        let bound = sorted[kept - 1];
        let equal = kept - sorted[..kept].partition_point(|&logit| logit > bound);
        let ties = values.tokens.iter().zip(&values.logits).filter(|&(_, &logit)| logit == bound);
        let mut ties: Vec<u32> = ties.map(|(&token, _)| token).collect();
        ties.sort_unstable();
        self.retain_up_to(Some(keys::key(ties[equal - 1], bound)), |_, _| false);
    }

    fn top_n_sigma(&mut self, n: f32) {
        let logits = &self.store.values.logits;
        let mut moments = Moments::new(self.weigh.max, top_n_sigma::least_finite(logits));
        moments.add_all(logits);
        let (bound, least) = (moments.least(n), self.least_kept());
        self.retain_up_to(least, |logit, _| logit >= bound);
    }

    fn top_h(&mut self, share: f32) {
        let Weigh { max, scale } = self.weigh;
        let keys = self.store.first_keys(top_h::MAX_CANDIDATES.min(self.len()));
        let first = keys.iter().map(|&key| exponent(keys::logit(key), max, scale));
        let kept = top_h::kept(first.map(|y| (y, mass::mass(y))), share);
        self.keep_first(kept);
    }

    /// Version 1 of mirostat.
    fn mirostat(&mut self, mu: f64) {
        let Weigh { max, scale } = self.weigh;
        let keys = self.store.first_keys(mirostat::LOOKED_AT.min(self.len()));
        let first = keys.iter().map(|&key| exponent(keys::logit(key), max, scale));
        self.keep_first(mirostat::first(first, self.len(), mu));
    }

    /// Skewed sampling.
    fn skew(&mut self, by: f32, is_last: bool) {
        self.retain(|values, at| values.masses[at] > 0);
        let (power, total) = (skew::power(by), self.total());
        let Values { tokens, logits, masses, .. } = &mut self.store.values;
        let keys = tokens.iter().zip(logits.iter()).map(|(&token, &logit)| keys::key(token, logit));
        let mut order: Vec<(u64, usize)> = keys.enumerate().map(|(at, key)| (key, at)).collect();
        order.sort_unstable();
        let (mut up_to, mut along) = (0, Vec::with_capacity(if is_last { order.len() } else { 0 }));
        for (_, at) in order {
            up_to += masses[at];
            logits[at] = skew::logit(power, masses[at], up_to, total);
            if is_last {
                along.push((tokens[at], up_to));
            }
        }
        self.store.along = is_last.then(|| skew::Along::new(power, along));
        (self.temperature, self.weigh.scale) = (1.0, mass::scale(1.0));
        self.weigh();
    }
}

impl Masses for CandidateList<'_> {
    fn total(&self) -> u64 {
        self.store.values.masses.iter().sum()
    }

    fn entropy_and_total(&self) -> (f64, u64) {
        let Values { logits, masses, .. } = &self.store.values;
        let Weigh { max, scale } = self.weigh;
        let terms =
            logits.iter().zip(masses).map(|(&logit, &mass)| entropy_term(exponent(logit, max, scale), mass)).sum();
        let total = self.total();
        (entropy(terms, total), total)
    }

    fn squares_and_total(&self) -> (u128, u128) {
        cutoffs::squares(self.store.values.masses.iter().copied())
    }

    fn candidates(&self) -> usize {
        self.len()
    }
}
