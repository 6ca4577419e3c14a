//! Rules that sequences of a stream have in common: however many there are, most ask for one of the same few sets of parameters.

use crate::locks::lock;
use crate::proto;
use crate::sequence::rules::Rules;
use prost::Message;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// Sets of parameters that a stream knows again.
const KNOWN: usize = 4;
/// Longest set, encoded. What is longer has lists, which are seldom the same twice.
const MOST_BYTES: usize = 512;

/// The sets that were asked for last, the latest one at the end, with their rules while a sequence has them.
#[derive(Debug, Default)]
pub(super) struct RulesCache(Mutex<VecDeque<(CacheKey, Weak<Rules>)>>);

/// A set of parameters as it is encoded, so that two are the same bit by bit or are not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CacheKey(Vec<u8>);

impl CacheKey {
    /// Without a seed, which is no rule; `None` if it is too long to be known again.
    pub(super) fn of(wire: &proto::SamplingParams) -> Option<Self> {
        (wire.encoded_len() <= MOST_BYTES).then(|| Self(wire.encode_to_vec()))
    }
}

impl RulesCache {
    /// The rules of the same parameters, if a sequence has them.
    pub(super) fn find(&self, key: &CacheKey) -> Option<Arc<Rules>> {
        let known = lock(&self.0);
        known.iter().find(|(other, _)| other == key).and_then(|(_, rules)| rules.upgrade())
    }

    /// Knows them from now on, in the place of those that were added first.
    pub(super) fn add(&self, key: CacheKey, rules: &Arc<Rules>) {
        let mut known = lock(&self.0);
        known.retain(|(other, rules)| *other != key && rules.strong_count() > 0);
        if known.len() == KNOWN {
            known.pop_front();
        }
        known.push_back((key, Arc::downgrade(rules)));
    }
}
