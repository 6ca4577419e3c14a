//! What launches run on: a GPU, or a substitute in tests.

use super::abi;
use super::ask::Kernel;
use super::shape::{self, Laid, Shape};
use crate::backend::DeviceMemory;
use crate::sampling::logits::{Dtype, Foreign, Logits};
use std::ops::Range;
use std::sync::Arc;

/// Rows begin at multiples of this many bytes, and may be read up to the next multiple.
pub const ALIGNMENT: usize = 16;
/// How many launches may be under way at once: one runs while the next is packed and uploaded.
pub const SLOTS: usize = 2;

/// Larger outputs are written on the device and copied as a whole.
const WRITTEN_TO_HOST: usize = 64 << 10;

/// One launch, laid out.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// The number format of its rows.
    pub dtype: Dtype,
    /// The number of rows.
    pub rows: u32,
    /// How they are laid over the machine.
    pub laid: Laid,
    /// Bytes of the inputs.
    pub inputs: usize,
    /// Bytes of the outputs.
    pub outputs: usize,
    /// The place in the inputs of the jobs that spread rows, which is done before the kernel runs.
    pub spread_at: usize,
    /// How many rows are spread.
    pub spread: u32,
}

impl Launch {
    /// The parts of the launch, which run one after the other, with their rows. A launch without rows has one part
    /// without rows.
    pub fn parts(&self) -> impl Iterator<Item = (Range<u32>, Shape)> {
        let Laid { shape, rest } = self.laid;
        let end = rest.map_or(self.rows, |(from, _)| from.min(self.rows));
        let rest = rest.map(|(_, shape)| (end..self.rows, shape)).filter(|(rows, _)| !rows.is_empty());
        std::iter::once((0..end, shape)).chain(rest)
    }

    /// How many blocks spread a row: more if there are few rows, so that all multiprocessors have work.
    #[must_use]
    pub fn spread_parts(&self, multiprocessors: u32) -> u32 {
        (multiprocessors / self.spread.max(1)).clamp(1, abi::MAX_TEAM)
    }

    /// Whether kernels write the outputs straight to host memory. They write outputs once and never read them, and a
    /// few words in flight cost less than one more command. The exception is a team of several blocks that takes more
    /// than one row: its barriers would wait for the first row's words in flight, which those of one block do not. This
    /// is an estimate.
    pub(super) fn is_written_to_host(&self) -> bool {
        let waits = |(rows, shape): (Range<u32>, Shape)| shape.team_size > 1 && rows.len() > shape.teams as usize;
        self.outputs <= WRITTEN_TO_HOST && !self.parts().any(waits)
    }
}

/// What the host has after a launch.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory<'a> {
    /// The inputs as they were written, without rows that are on the device.
    pub inputs: &'a [u8],
    /// What the kernel wrote.
    pub outputs: &'a [u8],
}

/// A row, or several in sequence, that a worker wrote on the device. It is brought on the device into a launch's inputs
/// before the launch reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRow {
    /// The number of the memory it is in.
    pub memory: usize,
    /// Its address.
    pub from: u64,
    /// Its destination, as an offset in the inputs.
    pub to: usize,
    /// Its length there.
    pub bytes: usize,
    /// How many logits it has at its address, if it is spread over the vocabulary. Otherwise it is copied.
    pub columns: Option<u32>,
}

impl DeviceRow {
    /// The row, if it is on the device, with `to` as its destination.
    #[must_use]
    pub fn of(row: &Logits<'_>, to: usize) -> Option<Self> {
        let (memory, from) = (row.memory()?, row.device_address()?);
        Some(Self { memory, from, to, bytes: row.byte_len(), columns: None })
    }

    /// The same for a row that is made from one on the device.
    #[must_use]
    pub fn of_spread(row: &Logits<'_>, to: usize) -> Option<Self> {
        let sent = row.spread()?.sent;
        let columns = Some(sent.vocab_size() as u32);
        Some(Self { bytes: row.byte_len(), columns, ..Self::of(&sent, to)? })
    }

    /// Adds it to others. It is joined to the last one if it follows on that at both source and destination, because a
    /// command for each row takes longer than copying it. No copy reaches from one memory into another, even if their
    /// addresses are adjacent.
    pub fn add_to(self, rows: &mut Vec<Self>) {
        let follows = |last: &&mut Self| {
            if last.columns.is_some() || self.columns.is_some() {
                return false;
            }
            let ends = (last.memory, last.from + last.bytes as u64, last.to + last.bytes);
            ends == (self.memory, self.from, self.to)
        };
        match rows.last_mut().filter(follows) {
            Some(last) => last.bytes += self.bytes,
            None => rows.push(self),
        }
    }
}

/// The parts of the inputs that are uploaded: all `inputs` bytes except the rows that are on the device, which are in
/// ascending order. The padding of rows up to a multiple of [`ALIGNMENT`] does not matter.
pub fn uploads(inputs: usize, rows: &[DeviceRow]) -> impl Iterator<Item = Range<usize>> {
    let begins = std::iter::once(0).chain(rows.iter().map(|row| (row.to + row.bytes).next_multiple_of(ALIGNMENT)));
    let ends = rows.iter().map(|row| row.to).chain(std::iter::once(inputs));
    begins.zip(ends).map(|(begin, end)| begin..end).filter(|range| !range.is_empty())
}

/// A machine that runs the kernels, driven by one thread at a time. Each slot has memory for the inputs and outputs of
/// one launch, and the work of the two slots overlaps.
pub trait Machine: Send {
    /// Why the machine does not answer. Nothing that it answers afterwards is trusted.
    type Error: std::fmt::Display;

    /// The machine's name, for people.
    fn name(&self) -> &str;

    /// The facts that decide how launches are laid out.
    fn facts(&self) -> shape::Device;

    /// Its memory for workers, if it lends any.
    fn memory(&self) -> Option<Arc<dyn DeviceMemory>> {
        None
    }

    /// Makes it usable from the calling thread.
    ///
    /// # Errors
    /// If it does not answer.
    fn enter(&mut self) -> Result<(), Self::Error>;

    /// The memory to which the inputs of a slot's next launch are written. Do not write while a launch of the slot is
    /// under way.
    fn inputs(&mut self, slot: usize) -> &mut [u8];

    /// Begins a launch over the written inputs and over rows on the device, and does not wait for it.
    ///
    /// # Errors
    /// If it does not answer.
    fn begin(&mut self, slot: usize, launch: &Launch, rows: &[DeviceRow]) -> Result<(), Self::Error>;

    /// Waits for the slot's launch.
    ///
    /// # Errors
    /// If it does not answer.
    fn finish(&mut self, slot: usize) -> Result<HostMemory<'_>, Self::Error>;

    /// Adds to the host memory of a finished launch these parts of its inputs, as the launch saw them. They are rows
    /// that were on the device.
    ///
    /// # Errors
    /// If it does not answer.
    fn bring(&mut self, slot: usize, parts: &[Range<usize>]) -> Result<HostMemory<'_>, Self::Error>;

    /// Copies rows on the device into a slot's inputs on the host, waits, and returns these. No launch of the slot may
    /// be under way.
    ///
    /// # Errors
    /// If it does not answer.
    fn fetch(&mut self, slot: usize, rows: &[DeviceRow]) -> Result<&[u8], Self::Error>;

    /// How many bytes [`Self::hold`] has room for, if the machine has any memory for that.
    fn held_bytes(&self) -> usize;

    /// Copies rows into `bytes` bytes of the machine's own memory, which holds them until the next call. `None` if it
    /// has not that much.
    ///
    /// # Errors
    /// If it does not answer.
    fn hold(&mut self, rows: &[DeviceRow], bytes: usize) -> Result<Option<Arc<dyn Foreign + Send>>, Self::Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_on_the_device_is_uploaded() {
        let row = |to, bytes| DeviceRow { memory: 0, from: 0, to, bytes, columns: None };
        let of = |inputs, rows: &[DeviceRow]| uploads(inputs, rows).flatten().collect::<Vec<usize>>();
        let all = |ranges: &[(usize, usize)]| ranges.iter().flat_map(|&(a, b)| a..b).collect::<Vec<usize>>();
        assert_eq!(of(100, &[]), all(&[(0, 100)]));
        assert_eq!(of(112, &[row(32, 20), row(64, 16)]), all(&[(0, 32), (80, 112)]));
        assert_eq!(of(112, &[row(32, 20), row(80, 30)]), all(&[(0, 32), (64, 80)]));
        // The last row is filled up too.
        assert_eq!(of(64, &[row(32, 31)]), all(&[(0, 32)]));
    }

    #[test]
    fn rows_in_turn_are_one_copy() {
        let of = |rows: &[(usize, u64, usize)], columns| {
            let mut copies = vec![];
            let row = |&(memory, from, to): &_| DeviceRow { memory, from, to, bytes: 32, columns };
            rows.iter().for_each(|place| row(place).add_to(&mut copies));
            copies.iter().map(|copy| (copy.from, copy.to, copy.bytes)).collect::<Vec<_>>()
        };
        let copies = |rows| of(rows, None);
        assert_eq!(of(&[(1, 96, 0), (1, 128, 32)], Some(8)).len(), 2, "each is spread by itself");
        assert_eq!(copies(&[(1, 96, 0), (1, 128, 32), (1, 160, 64)]), [(96, 0, 96)]);
        assert_eq!(copies(&[(1, 96, 0), (1, 128, 48)]), [(96, 0, 32), (128, 48, 32)], "there is a gap");
        assert_eq!(copies(&[(1, 96, 0), (1, 64, 32)]), [(96, 0, 32), (64, 32, 32)], "in another order");
        assert_eq!(copies(&[(1, 96, 0), (2, 128, 32)]), [(96, 0, 32), (128, 32, 32)], "another memory begins there");
    }
}
