//! Rows of logits that are generated once, so that a step costs the client only the sending.

use super::{BenchArgs, slots};
use crate::region::worker::Window;
use crate::sampling::philox::philox4x32_10;
use bytes::Bytes;
use std::ops::Range;

/// The distribution of the logits in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// A few likely tokens above a bell of unlikely ones, like the rows of language models.
    Peaked,
    /// No token is likely. This is the hard case for top-p.
    Flat,
}

impl Distribution {
    /// Names and values, for the command line.
    pub const NAMES: [(&str, Distribution); 2] = [("peaked", Distribution::Peaked), ("flat", Distribution::Flat)];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, distribution)| distribution == self).map_or("", |&(name, _)| name)
    }
}

/// Least number of distinct rows beyond those of one message. With usual vocabularies they are more than a core's
/// caches hold.
const ROWS: usize = 64;
/// Most bytes of the pool, including the slots of its rows, so that it fits into a region. If rows are very long, the
/// pool has fewer distinct rows.
const MAX_BYTES: usize = 256 << 20;

/// The rows, one after the other. A message is a slice of them.
#[derive(Debug, Clone)]
pub(super) struct RowPool {
    bytes: Bytes,
    /// The range of columns that this pool contains.
    columns: Range<u32>,
    row_bytes: usize,
    /// Bytes of a row with the columns of all ranks.
    whole_row_bytes: usize,
    rows_per_message: usize,
    /// Number of groups of rows. Messages use them in turn, as a worker uses its slots. If a message used rows that
    /// were read a moment ago, these would still be in a cache, but rows that a device has just written are not.
    slots: usize,
}

impl RowPool {
    pub(super) fn new(args: &BenchArgs) -> Self {
        Self::of_columns(args, 0..args.vocab)
    }

    /// A pool with some columns of the same rows.
    pub(super) fn of_columns(args: &BenchArgs, columns: Range<u32>) -> Self {
        let (whole_row_bytes, rows_per_message) = (args.row_bytes(), args.rows_per_message());
        let room = MAX_BYTES.saturating_sub(slots::bytes(args.path, args.batch));
        let most = (room / whole_row_bytes / rows_per_message).max(1);
        let slots = (1 + ROWS.div_ceil(rows_per_message)).min(most);
        let row_bytes = columns.len() * args.dtype.size();
        let mut bytes = Vec::with_capacity(slots * rows_per_message * row_bytes);
        for row in 0..slots * rows_per_message {
            bytes.extend(args.dtype.encode(&row_of(args.distribution, columns.clone(), args.seed, row as u32)));
        }
        let bytes = bytes.into();
        Self { bytes, columns, row_bytes, whole_row_bytes, rows_per_message, slots }
    }

    /// The logits of a group's next message. They are not copied.
    pub(super) fn slice(&self, rows: usize, turn: u64) -> Bytes {
        debug_assert!(rows <= self.rows_per_message);
        let first = self.first_row(turn) * self.row_bytes;
        self.bytes.slice(first..first + rows * self.row_bytes)
    }

    /// The offset of that message's rows among all whole rows, in bytes.
    pub(super) fn offset(&self, turn: u64) -> usize {
        self.first_row(turn) * self.whole_row_bytes
    }

    fn first_row(&self, turn: u64) -> usize {
        (turn % self.slots as u64) as usize * self.rows_per_message
    }

    /// Bytes of all whole rows.
    pub(super) fn whole_bytes(&self) -> usize {
        self.bytes.len() / self.row_bytes * self.whole_row_bytes
    }

    /// Writes this pool's columns into all whole rows.
    pub(super) fn write_columns(&self, window: &mut Window) {
        let before = self.columns.start as usize * (self.row_bytes / self.columns.len());
        for (row, columns) in self.bytes.chunks_exact(self.row_bytes).enumerate() {
            window.write(row * self.whole_row_bytes + before, columns);
        }
    }
}

fn row_of(distribution: Distribution, columns: Range<u32>, seed: u64, row: u32) -> Vec<f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let mut values = Vec::with_capacity(columns.len());
    for token in columns {
        let random = philox4x32_10([token, row, 0, 0], key).map(|bits| (bits >> 8) as f32 / (1u32 << 24) as f32);
        // The sum of uniform numbers is a bell that is wide enough for logits, and it needs no logarithm.
        let bell = (random[0] + random[1] + random[2] - 1.5) * 2.0;
        values.push(match distribution {
            Distribution::Flat => bell * 0.25,
            Distribution::Peaked => bell * 2.0 + peak(random[3]),
        });
    }
    values
}

/// One token in 2048 stands out, by 4 to 16.
fn peak(random: f32) -> f32 {
    let above = random * 2048.0;
    if above < 1.0 { 4.0 + 12.0 * above } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_lie_inside_and_rows_differ() {
        let args = BenchArgs { vocab: 64, message_bytes: 3 * 256, batch: 8, ..Default::default() };
        let pool = RowPool::new(&args);
        let seen: std::collections::HashSet<_> = (0..200).map(|turn| pool.slice(3, turn)).collect();
        assert_eq!(seen.len(), pool.slots);
        assert!(seen.iter().all(|bytes| bytes.len() == 3 * 256));
    }

    #[test]
    fn columns_are_those_of_the_whole_rows() {
        let args = BenchArgs { vocab: 64, message_bytes: 3 * 256, batch: 8, ..Default::default() };
        let (whole, part) = (RowPool::new(&args), RowPool::of_columns(&args, 10..30));
        assert_eq!((part.whole_bytes(), part.slots), (whole.bytes.len(), whole.slots));
        for turn in [0, 5, 63, 64, 65] {
            assert_eq!(part.offset(turn), whole.offset(turn));
            let (rows, columns) = (whole.slice(2, turn), part.slice(2, turn));
            assert_eq!(columns[80..160], rows[256 + 40..256 + 120]);
        }
    }

    #[test]
    fn peaked_rows_have_likely_tokens_and_flat_ones_have_none() {
        let spread = |distribution| {
            let row = row_of(distribution, 0..32_000, 7, 0);
            row.iter().fold(f32::MIN, |a, &b| a.max(b)) - row.iter().sum::<f32>() / row.len() as f32
        };
        assert!(spread(Distribution::Peaked) > 10.0);
        assert!(spread(Distribution::Flat) < 1.0);
    }
}
