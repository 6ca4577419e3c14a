//! What is kept of a draft row that a kernel sampled: a list if the kernel wrote one, otherwise the row.
//!
//! A distribution without a list consists of the row and what cuts it: the largest logit, the last key and the least
//! mass. The host still has the row in the memory that it was uploaded from, so the device need not send it back, and
//! the row need not be handed over.

use super::abi::{self, Left, RowResult as Written};
use super::ask::Asked;
use super::known::merge;
use super::pack::{min_p_need, scale, tokens};
use crate::backend::RowJob;
use crate::backend::cpu::{keep, keys};
use crate::sampling::kept::{Form, Kept, KeptRow};
use crate::sampling::logits::Logits;
use crate::sampling::mass::{self, MASS_ONE};
use crate::sampling::order::Candidate;

/// The distribution of a greedy row's token.
pub(super) fn one(first_key: u64) -> Kept {
    Kept::new(Form::List(vec![(keys::token(first_key), MASS_ONE)]), MASS_ONE)
}

/// Builds what is kept from what the kernel wrote about it and the row as it was uploaded; `None` if these contradict
/// each other.
pub(super) fn kept(asked: &Asked<'_>, written: &Written, told: &[u8], uploaded: &[u8]) -> Option<Kept> {
    let (head, told) = told.split_at(size_of::<Left>());
    let left: Left = bytemuck::pod_read_unaligned(head);
    let RowJob { logits, spec } = asked.row;
    let (max, need) = (keys::logit(written.first_key), min_p_need(&spec));
    if left.listed == abi::UNLISTED {
        let row = RowJob { logits: Logits::new(logits.dtype(), uploaded), spec };
        let kept = Kept::new(Form::Row(kept_row(&row, max, left.last_key, need)), left.total);
        return (kept.mass(written.token) > 0).then_some(kept);
    }
    let count = usize::try_from(left.listed).ok().filter(|&count| Some(count) <= asked.most_left())?;
    let mass = |logit| mass::mass(mass::exponent(logit, max, scale(&spec)));
    let listed = tokens(told, count).into_iter().map(|told| (told.token, mass(told.logit)));
    let mut entries: Vec<(u32, u64)> = listed.filter(|&(_, mass)| mass > 0 && mass >= need).collect();
    entries.shrink_to_fit();
    entries.sort_unstable();
    let total: u64 = entries.iter().map(|entry| entry.1).sum();
    (total == left.total).then(|| Kept::new(Form::List(entries), total))
}

fn kept_row(row: &RowJob<'_>, max: f32, last_key: u64, need: u64) -> KeptRow {
    let mut known = Vec::new();
    let only_listed = merge(&row.spec, &mut known);
    let value = |token| {
        let sent = row.logits.get(token);
        match known.binary_search_by_key(&token, |adjust| adjust.token) {
            Ok(at) => known[at].apply(sent, &row.spec.penalties),
            Err(_) if only_listed => f32::NEG_INFINITY,
            Err(_) => sent,
        }
    };
    let (dtype, bytes, patches) = keep::logits(row, value);
    let last = Candidate { token: keys::token(last_key), logit: keys::logit(last_key) };
    let last = (last_key < abi::LAST_KEY).then_some(last);
    KeptRow { dtype, bytes, patches, max, scale: scale(&row.spec), last, need }
}
