//! What can be asked of a distribution once it is made: masses, lists, reports.

use super::{Distribution, Kind, Store, reach_of};
use crate::backend::cpu::chain::Chained;
use crate::backend::cpu::passes::Weigh;
use crate::backend::cpu::view::View;
use crate::backend::cpu::{keys, select};
use crate::sampling::entropy::{entropy, entropy_term};
use crate::sampling::mass;
use crate::sampling::observed::{Observed, Share};
use crate::sampling::row::{LogprobsSpec, TokenLogprobs};

/// The conditions by which a distribution keeps tokens.
pub(in crate::backend::cpu) struct KeptBy {
    /// How tokens are weighed.
    pub(in crate::backend::cpu) weigh: Weigh,
    /// The key of the last token; all bits set if none is cut off.
    pub(in crate::backend::cpu) last_key: u64,
    /// The least mass.
    pub(in crate::backend::cpu) need: u64,
}

impl Distribution {
    /// The sum of all masses that are left.
    pub(in crate::backend::cpu) fn total(&self) -> u64 {
        self.total
    }

    /// The conditions by which tokens are kept.
    pub(in crate::backend::cpu) fn kept_by(&self) -> KeptBy {
        KeptBy { weigh: self.weigh, last_key: self.last_key, need: self.need }
    }

    /// The mass of a token with this logit; 0 if it is not left.
    pub(in crate::backend::cpu) fn mass_of(&self, token: u32, logit: f32) -> u64 {
        if self.keeps(token, logit) { self.mass(logit) } else { 0 }
    }

    /// What samplers learn from a token.
    pub(in crate::backend::cpu) fn observed(&self, view: &View<'_>, token: u32, store: &Store) -> Observed {
        let mass = match self.kind {
            Kind::Chain => store.chain.mass_of(token),
            Kind::Shaped => store.chain.shaped().mass_of(token, view.value(token)),
            _ => self.mass_of(token, view.value(token)),
        };
        let (along, seen) = match self.kind {
            Kind::Chain => (store.chain.along(token), store.chain.seen(token)),
            Kind::Shaped => (None, store.chain.shaped().seen(view.value(token))),
            _ => (None, None),
        };
        let drawn = along.unwrap_or(Share { mass, total: self.total });
        Observed { drawn, seen: seen.unwrap_or(drawn) }
    }

    /// Keys of the tokens that are left, in order, if they are a list.
    pub(in crate::backend::cpu) fn listed<'s>(&'s self, store: &'s Store) -> Option<&'s [u64]> {
        match self.kind {
            Kind::One => Some(std::slice::from_ref(&self.last_key)),
            Kind::List => Some(&store.keys),
            Kind::Blocks | Kind::Lots | Kind::Chain | Kind::Shaped => None,
        }
    }

    /// Tokens of nonzero mass, ascending ids, if they are a list. Otherwise the mass by block is in the store.
    pub(in crate::backend::cpu) fn entries(&self, store: &Store) -> Option<Vec<(u32, u64)>> {
        let entries = |keys: &[u64]| {
            let of = |key| (keys::token(key), self.mass_of(keys::token(key), keys::logit(key)));
            let mut entries: Vec<_> = keys.iter().map(|&key| of(key)).filter(|&(_, mass)| mass > 0).collect();
            // What is kept must take no more room than was reserved, here as for a chain.
            entries.shrink_to_fit();
            entries.sort_unstable();
            entries
        };
        match self.kind {
            Kind::Chain => Some(store.chain.entries()),
            _ => self.listed(store).map(entries),
        }
    }

    /// Keys of the tokens of nonzero mass, in no particular order.
    pub(in crate::backend::cpu) fn support(&self, view: &View<'_>, store: &Store) -> Vec<u64> {
        if self.kind == Kind::Chain {
            return store.chain.support();
        }
        let mut keys = self.listed(store).map(<[u64]>::to_vec).unwrap_or_else(|| {
            let mut keys = vec![];
            view.collect(reach_of(self.weigh, self.need.max(1)).max(f32::MIN), &mut keys);
            keys
        });
        keys.retain(|&key| self.mass_of(keys::token(key), keys::logit(key)) > 0);
        keys
    }

    /// Entropy in nats. `support` has the keys of all tokens that have mass.
    pub(in crate::backend::cpu) fn entropy_of(&self, support: &[u64]) -> f64 {
        let term = |&key: &u64| {
            let (token, logit) = (keys::token(key), keys::logit(key));
            entropy_term(mass::exponent(logit, self.weigh.max, self.weigh.scale), self.mass_of(token, logit))
        };
        entropy(support.iter().map(term).sum(), self.total)
    }

    /// Entropy in nats, if what is left is a list.
    pub(in crate::backend::cpu) fn entropy(&self, store: &Store) -> Option<f64> {
        match self.kind {
            Kind::Chain => Some(store.chain.entropy(Chained { weigh: self.weigh, total: self.total })),
            _ => self.listed(store).map(|keys| self.entropy_of(keys)),
        }
    }

    /// The first token of the order that is left.
    pub(in crate::backend::cpu) fn first_token(&self, view: &View<'_>, store: &Store) -> u32 {
        if self.kind == Kind::Chain { store.chain.first() } else { select::first(view) }
    }

    /// Keys of the first `n` tokens that are left, in order. Returns 1 + the number of all tokens that precede `token`.
    pub(in crate::backend::cpu) fn first_kept(
        &self,
        view: &View<'_>,
        n: usize,
        token: Option<u32>,
        keys: &mut Vec<u64>,
    ) -> u32 {
        select::top(view, n, keys);
        // The listed tokens are the first of the order, so their places are their ranks.
        let place = |token| keys.iter().position(|&key| keys::token(key) == token);
        let rank = token.map_or(0, |token| place(token).map_or_else(|| view.rank(token), |place| place as u32 + 1));
        self.retain_kept(keys);
        if keys.len() < n && self.need > 0 {
            // Masses are not strictly ordered like logits, so a kept token may stand behind one that min-p cut.
            view.collect(reach_of(self.weigh, self.need).max(f32::MIN), keys);
            self.retain_kept(keys);
            keys.sort_unstable();
            keys.truncate(n);
        }
        rank
    }

    /// The first `n` tokens that are left, in order, with their masses.
    pub(in crate::backend::cpu) fn first_masses(
        &self,
        view: &View<'_>,
        n: usize,
        keys: &mut Vec<u64>,
        store: &Store,
    ) -> Vec<(u32, u64)> {
        if self.kind == Kind::Chain {
            return store.chain.first_masses(n);
        }
        self.first_kept(view, n, None, keys);
        let mass = |key| self.mass_of(keys::token(key), keys::logit(key));
        keys.iter().map(|&key| (keys::token(key), mass(key))).collect()
    }

    /// What is reported about a token.
    pub(in crate::backend::cpu) fn report(
        &self,
        view: &View<'_>,
        token: u32,
        wanted: &LogprobsSpec<'_>,
        keys: &mut Vec<u64>,
        store: &Store,
    ) -> TokenLogprobs {
        if self.kind == Kind::Chain {
            return store.chain.report(Chained { weigh: self.weigh, total: self.total }, view, token, wanted);
        }
        let log_total = mass::log_total(self.total);
        let of_logit = |logit| mass::logprob(mass::exponent(logit, self.weigh.max, self.weigh.scale), log_total);
        let of_token = |token| {
            let logit = view.value(token);
            if self.keeps(token, logit) { of_logit(logit) } else { f32::NEG_INFINITY }
        };
        let n = (wanted.top_n as usize).min(view.vocab_size());
        let rank = self.first_kept(view, n, Some(token), keys);
        TokenLogprobs {
            logprob: of_token(token),
            rank,
            top: keys.iter().map(|&key| (keys::token(key), of_logit(keys::logit(key)))).collect(),
            requested: wanted.tokens.iter().map(|&token| of_token(token)).collect(),
        }
    }
}
