//! The form in which a draft row's distribution is kept until it is verified: a list if it is one, else the row.

use super::distribution::{Distribution, KeptBy, Store};
use super::keys;
use super::view::View;
use crate::backend::RowJob;
use crate::sampling::kept::{Form, Kept, KeptRow};
use crate::sampling::logits::Dtype;
use crate::sampling::order::Candidate;

/// Keeps a distribution.
pub(super) fn keep(job: &RowJob<'_>, view: &View<'_>, distribution: &Distribution, store: &Store) -> Kept {
    let form = match distribution.entries(store) {
        Some(entries) => Form::List(entries),
        None => Form::Row(row(job, view, distribution)),
    };
    Kept::new(form, distribution.total())
}

/// The distribution as a row. It takes at most four bytes for each token.
fn row(job: &RowJob<'_>, view: &View<'_>, distribution: &Distribution) -> KeptRow {
    let KeptBy { weigh, last_key, need } = distribution.kept_by();
    let last = Candidate { token: keys::token(last_key), logit: keys::logit(last_key) };
    let last = (last_key != u64::MAX).then_some(last);
    let (dtype, bytes, patches) = match job.spec.greens() {
        // A greenlist may change the value of any token.
        Some(_) => (Dtype::F32, view.bytes_of_greens().to_vec(), vec![]),
        None => logits(job, |token| view.value(token)),
    };
    KeptRow { dtype, bytes, patches, max: weigh.max, scale: weigh.scale, last, need }
}

/// The row to keep, after masks, bias and penalties: its number format, its bytes, and the logits that are kept aside,
/// which are −∞ in the bytes. `value` gives the adjusted logit of any token. For rows without a greenlist.
pub(in crate::backend) fn logits(job: &RowJob<'_>, value: impl Fn(u32) -> f32) -> (Dtype, Vec<u8>, Vec<(u32, f32)>) {
    let (spec, dtype, vocab_size) = (&job.spec, job.logits.dtype(), job.logits.vocab_size());
    // Values that the row's own format cannot hold are kept aside, unless the whole row in f32 takes no more room.
    let aside = dtype != Dtype::F32 && spec.adjusts.len_bound() * size_of::<(u32, f32)>() <= job.logits.bytes().len();
    if !aside && dtype != Dtype::F32 {
        return (Dtype::F32, Dtype::F32.encode(&(0..vocab_size as u32).map(value).collect::<Vec<_>>()), vec![]);
    }
    let mut bytes = job.logits.bytes().to_vec();
    let masked = dtype.encode(&[f32::NEG_INFINITY]);
    let put = |bytes: &mut [u8], token: u32, value: &[u8]| {
        bytes[token as usize * dtype.size()..][..dtype.size()].copy_from_slice(value);
    };
    if let Some(allowed) = spec.allowed {
        bytes = masked.repeat(vocab_size);
        let sent = |token: u32| &job.logits.bytes()[token as usize * dtype.size()..][..dtype.size()];
        allowed.iter().for_each(|&token| put(&mut bytes, token, sent(token)));
    }
    if spec.mask.is_some() {
        (0..vocab_size as u32).filter(|&token| spec.is_masked(token)).for_each(|token| put(&mut bytes, token, &masked));
    }
    spec.banned.iter().for_each(|&token| put(&mut bytes, token, &masked));
    let mut patches = Vec::with_capacity(if aside { spec.adjusts.len_bound() } else { 0 });
    for (token, logit) in spec.adjusts.iter().map(|adjust| (adjust.token(), value(adjust.token()))) {
        let own = logit.to_le_bytes();
        put(&mut bytes, token, if aside { &masked } else { &own });
        if aside && logit > f32::NEG_INFINITY {
            patches.push((token, logit));
        }
    }
    (dtype, bytes, patches)
}
