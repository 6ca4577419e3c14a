//! Rules that sequences of a stream share. However many sequences there are, most ask for one of the same few sets of
//! parameters.

use crate::locks::lock;
use crate::proto;
use crate::sequence::rules::Rules;
use prost::Message;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// How many sets of parameters a stream remembers.
const KNOWN: usize = 4;
/// Longest encoded set that is remembered. Longer sets have lists, which are seldom the same twice.
const MAX_BYTES: usize = 512;

/// The sets that were asked for last, the latest at the end. Their rules are kept only as long as a sequence has them.
#[derive(Debug, Default)]
pub(super) struct RulesCache(Mutex<VecDeque<(CacheKey, Weak<Rules>)>>);

/// A set of parameters in encoded form, so that sets are compared bit by bit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CacheKey(Vec<u8>);

impl CacheKey {
    /// The key of parameters whose seed was taken out, since a seed is no rule; `None` if they are too long to be
    /// remembered.
    pub(super) fn of(wire: &proto::SamplingParams) -> Option<Self> {
        (wire.encoded_len() <= MAX_BYTES).then(|| Self(wire.encode_to_vec()))
    }
}

impl RulesCache {
    /// The rules of the same parameters, if a sequence still has them.
    pub(super) fn find(&self, key: &CacheKey) -> Option<Arc<Rules>> {
        let known = lock(&self.0);
        known.iter().find(|(other, _)| other == key).and_then(|(_, rules)| rules.upgrade())
    }

    /// Remembers the rules of a set, in place of the oldest set if the cache is full.
    pub(super) fn add(&self, key: CacheKey, rules: &Arc<Rules>) {
        let mut known = lock(&self.0);
        known.retain(|(other, rules)| *other != key && rules.strong_count() > 0);
        if known.len() == KNOWN {
            known.pop_front();
        }
        known.push_back((key, Arc::downgrade(rules)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::SamplingParams;

    fn key(top_k: u32) -> CacheKey {
        CacheKey::of(&proto::SamplingParams { top_k: Some(top_k), ..Default::default() }).expect("it is short")
    }

    fn rules() -> Arc<Rules> {
        Arc::new(Rules::new(SamplingParams::default(), &[]))
    }

    #[test]
    fn rules_that_nobody_has_any_more_stand_in_nobodys_way() {
        let cache = RulesCache::default();
        for _ in 0..3 {
            let rules = rules();
            cache.add(key(1), &rules);
            assert!(cache.find(&key(1)).is_some_and(|found| Arc::ptr_eq(&found, &rules)));
            drop(rules);
            assert!(cache.find(&key(1)).is_none(), "only sequences keep them");
        }
        let kept: Vec<_> = (0..KNOWN as u32).map(|top_k| (top_k, rules())).collect();
        for (top_k, rules) in &kept {
            cache.add(key(*top_k), rules);
            // Of sequences that were closed at once.
            cache.add(key(100 + top_k), &self::rules());
        }
        assert!(kept.iter().skip(1).all(|(top_k, _)| cache.find(&key(*top_k)).is_some()), "they take no places");
    }
}
