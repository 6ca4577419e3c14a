//! Foreign rows of drafts, copied once: a row is looked at in several launches, which must all see the same values. Rows on
//! the device stay there, as far as there is room; others come to the host together, if they fit what is pinned.

use super::machine::{ALIGNMENT, DeviceRow, Machine};
use crate::backend::{RowJob, VerifyJob};
use crate::sampling::logits::{Foreign, Logits};
use std::sync::Arc;

/// Copies of the foreign rows of verifications.
#[derive(Debug)]
pub(super) struct Taken {
    /// Where those on the device are.
    held: Option<Arc<dyn Foreign + Send>>,
    copies: Vec<Vec<Copied>>,
}

#[derive(Debug)]
enum Copied {
    /// It is nobody else's.
    Own,
    Host(Vec<u8>),
    /// From here on in what is held.
    Device(usize),
}

impl Taken {
    /// Copies the foreign rows of `jobs`.
    ///
    /// # Errors
    /// When the machine does not answer.
    pub(super) fn of<M: Machine>(machine: &mut M, jobs: &[VerifyJob<'_>]) -> Result<Self, M::Error> {
        let (mut on_device, mut places, mut end) = (Vec::new(), Vec::new(), 0);
        for row in jobs.iter().flat_map(|job| job.rows) {
            let Some(there) = DeviceRow::of(&row.logits, end) else { continue };
            there.add_to(&mut on_device);
            places.push(end);
            end += there.bytes.next_multiple_of(ALIGNMENT);
        }
        let held = if on_device.is_empty() { None } else { machine.hold(&on_device, end)? };
        let is_fetched = held.is_none() && !on_device.is_empty() && end <= machine.inputs(0).len();
        let fetched = if is_fetched { Some(machine.fetch(0, &on_device)?) } else { None };
        let mut places = places.into_iter();
        let mut copied = |row: &RowJob<'_>| match (row.logits.device_address().and_then(|_| places.next()), fetched) {
            (Some(at), _) if held.is_some() => Copied::Device(at),
            (Some(at), Some(fetched)) => Copied::Host(fetched[at..at + row.logits.byte_len()].to_vec()),
            _ if row.logits.is_foreign() => {
                let mut bytes = vec![0; row.logits.byte_len()];
                row.logits.copy_to(&mut bytes);
                Copied::Host(bytes)
            }
            _ => Copied::Own,
        };
        let copies = jobs.iter().map(|job| job.rows.iter().map(&mut copied).collect()).collect();
        Ok(Self { held, copies })
    }

    /// The rows of each job, over their copies.
    pub(super) fn rows<'a>(&'a self, jobs: &[VerifyJob<'a>]) -> Vec<Vec<RowJob<'a>>> {
        let own = |(row, copy): (&RowJob<'a>, &'a Copied)| {
            let dtype = row.logits.dtype();
            let logits = match (copy, &self.held) {
                (Copied::Host(bytes), _) => Logits::new(dtype, bytes),
                (Copied::Device(at), Some(held)) => Logits::foreign(dtype, &**held, *at, row.logits.vocab_size()),
                _ => row.logits,
            };
            RowJob { logits, ..*row }
        };
        jobs.iter().zip(&self.copies).map(|(job, copies)| job.rows.iter().zip(copies).map(own).collect()).collect()
    }
}
