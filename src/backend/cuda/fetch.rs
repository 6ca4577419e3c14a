//! Brings rows on the device that the CPU samples to the host: together, into the pinned memory of the first slot, with
//! one wait. The CPU backend would bring them one by one, each through memory that is not pinned.

use super::launches::Launches;
use super::machine::{DeviceRow, Machine};
use crate::backend::RowJob;
use crate::sampling::logits::Logits;

/// Rows begin at multiples of this many bytes on the host: a cache line.
const LINE: usize = 64;

impl<M: Machine> Launches<M> {
    /// Brings rows of the first of these jobs to the host: those of at least one job, and of as many as there is room
    /// for. Returns the jobs' rows with logits that are on the host. No launch may be under way. If a single job has no
    /// room, its rows are returned as they were.
    ///
    /// # Errors
    /// If the machine does not answer.
    pub(super) fn fetched<'a>(
        &'a mut self,
        jobs: impl Iterator<Item = &'a [RowJob<'a>]>,
    ) -> Result<Vec<Vec<RowJob<'a>>>, M::Error> {
        let (mut taken, mut copies, mut end) = (Vec::new(), Vec::new(), 0);
        for rows in jobs {
            let mut of_job: Vec<Option<DeviceRow>> = rows.iter().map(|row| placed(row, &mut end)).collect();
            if end > self.input_bytes {
                if !taken.is_empty() {
                    break;
                }
                (of_job, end) = (vec![None; rows.len()], 0);
            }
            of_job.iter().flatten().for_each(|row| row.add_to(&mut copies));
            taken.push((rows, of_job));
        }
        if copies.is_empty() {
            return Ok(taken.into_iter().map(|(rows, _)| rows.to_vec()).collect());
        }
        let host = self.machine.fetch(0, &copies)?;
        let here = |(row, at): (&RowJob<'a>, &Option<DeviceRow>)| {
            let bytes = at.map(|at| &host[at.to..at.to + at.bytes]);
            RowJob { logits: bytes.map_or(row.logits, |bytes| Logits::new(row.logits.dtype(), bytes)), ..*row }
        };
        Ok(taken.iter().map(|(rows, places)| rows.iter().zip(places).map(here).collect()).collect())
    }

    /// Copies rows on the device.
    ///
    /// # Errors
    /// If the machine does not answer.
    pub(super) fn copies(&mut self, rows: &[RowJob<'_>]) -> Result<Vec<Vec<u8>>, M::Error> {
        let mut copies = Vec::with_capacity(rows.len());
        while copies.len() < rows.len() {
            let fetched = self.fetched(rows[copies.len()..].iter().map(std::slice::from_ref))?;
            copies.extend(fetched.iter().flatten().map(copy));
        }
        Ok(copies)
    }
}

/// Copies a row, reading it once.
pub(super) fn copy(row: &RowJob<'_>) -> Vec<u8> {
    let mut bytes = vec![0; row.logits.byte_len()];
    row.logits.copy_to(&mut bytes);
    bytes
}

/// The place of a row, if it is on the device: at `end`, which then moves past the row.
fn placed(row: &RowJob<'_>, end: &mut usize) -> Option<DeviceRow> {
    let there = DeviceRow::of(&row.logits, *end)?;
    *end += there.bytes.next_multiple_of(LINE);
    Some(there)
}
