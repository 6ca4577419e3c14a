//! Copies foreign rows of drafts once, because several launches look at a row and must all see the same values. Rows on
//! the device stay there, as far as there is room; otherwise they all come to the host together.

use super::fetch::copy;
use super::launches::Launches;
use super::machine::{ALIGNMENT, DeviceRow, Machine};
use crate::backend::{RowJob, VerifyJob};
use crate::sampling::logits::{Foreign, Logits};
use std::sync::Arc;

/// Copies of the foreign rows of verifications.
#[derive(Debug)]
pub(super) struct Taken {
    /// The memory with the copies on the device.
    held: Option<Arc<dyn Foreign + Send>>,
    copies: Vec<Vec<Copied>>,
}

#[derive(Debug)]
enum Copied {
    /// The row is not foreign and was not copied.
    Own,
    Host(Vec<u8>),
    /// The copy begins at this offset in `held`.
    Device(usize),
}

impl Taken {
    /// Copies the foreign rows of `jobs`.
    ///
    /// # Errors
    /// If the machine does not answer.
    pub(super) fn of<M: Machine>(launches: &mut Launches<M>, jobs: &[VerifyJob<'_>]) -> Result<Self, M::Error> {
        let (mut there, mut on_device, mut places, mut end) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for row in jobs.iter().flat_map(|job| job.rows) {
            let Some(from) = DeviceRow::of(&row.logits, end) else { continue };
            there.push(*row);
            from.add_to(&mut on_device);
            places.push(end);
            end += from.bytes.next_multiple_of(ALIGNMENT);
        }
        let held = if there.is_empty() { None } else { launches.machine.hold(&on_device, end)? };
        let mut fetched = if held.is_none() { launches.copies(&there)? } else { Vec::new() }.into_iter();
        let mut places = places.into_iter();
        let mut copied = |row: &RowJob<'_>| match row.logits.device_address().and_then(|_| places.next()) {
            Some(at) if held.is_some() => Copied::Device(at),
            Some(_) => Copied::Host(fetched.next().unwrap_or_else(|| copy(row))),
            None if row.logits.is_foreign() => Copied::Host(copy(row)),
            None => Copied::Own,
        };
        let copies = jobs.iter().map(|job| job.rows.iter().map(&mut copied).collect()).collect();
        Ok(Self { held, copies })
    }

    /// How many of the first jobs have no more than `bytes` bytes of rows on the device together, but at least one.
    pub(super) fn together(jobs: &[VerifyJob<'_>], bytes: usize) -> usize {
        let mut end = 0;
        let fits = |job: &&VerifyJob<'_>| {
            let rows = job.rows.iter().filter_map(|row| DeviceRow::of(&row.logits, 0));
            end += rows.map(|row| row.bytes.next_multiple_of(ALIGNMENT)).sum::<usize>();
            end <= bytes
        };
        jobs.iter().take_while(fits).count().max(1)
    }

    /// The rows of each job, with their copies as logits.
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
