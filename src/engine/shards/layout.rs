//! Which columns each rank has, and a rank's columns of a block of rows.

use super::join::Awaited;
use crate::engine::logits::{Data, called};
use crate::engine::step::{ListedRows, LogitsBlock, RegionRows, RowFailure, Sharded};
use crate::params::FieldError;
use crate::region::Region;
use crate::sampling::logits::Dtype;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// The columns of each rank. Those of rank 0 come first, and there are no gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    dtype: Dtype,
    /// Where the columns of each rank end.
    ends: Vec<u32>,
}

impl Layout {
    /// A layout with this many columns for each rank.
    ///
    /// # Errors
    /// At `columns`, when there are too many ranks, a rank has no columns, or the sum is not `vocab_size`.
    pub fn new(columns: &[u32], vocab_size: u32, dtype: Dtype, max_ranks: usize) -> Result<Self, FieldError> {
        let wrong = |message: String| Err(FieldError::new("columns", message));
        if columns.is_empty() || columns.len() > max_ranks {
            return wrong(format!("has {} entries, must have 1 ..= {max_ranks} (max_ranks_per_stream)", columns.len()));
        }
        if let Some(rank) = columns.iter().position(|&columns| columns == 0) {
            return wrong(format!("has 0 at rank {rank}; leave out ranks without columns"));
        }
        let sum: u64 = columns.iter().map(|&columns| u64::from(columns)).sum();
        if sum != u64::from(vocab_size) {
            return wrong(format!("sum to {sum}, must be vocab_size {vocab_size}; leave padding out"));
        }
        let end = |end: &mut u32, columns: &u32| {
            *end += columns;
            Some(*end)
        };
        Ok(Self { dtype, ends: columns.iter().scan(0, end).collect() })
    }

    /// The number format of the logits.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ends.len()
    }

    /// The number of columns of all ranks together.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The columns of a rank; none if there is no such rank.
    #[must_use]
    pub fn columns(&self, rank: usize) -> Range<u32> {
        let end = |rank: Option<usize>| rank.and_then(|rank| self.ends.get(rank)).copied();
        let start = end(rank.checked_sub(1)).unwrap_or(0);
        start..end(Some(rank)).unwrap_or(start)
    }

    /// The rank's columns, carried in a message.
    ///
    /// # Errors
    /// When the stride is too short or the length is not that of whole rows.
    pub fn inline(&self, rank: usize, data: Bytes, row_stride: u32) -> Result<LogitsBlock, FieldError> {
        let columns = self.columns(rank).len() as u32;
        if row_stride != 0 && row_stride < columns {
            let message = format!("is {row_stride}, below the rank's {columns} columns; rows would overlap");
            return Err(FieldError::new("row_stride", message));
        }
        LogitsBlock::new(data, self.dtype, columns, row_stride).map_err(|error| called(error, "the rank's columns"))
    }

    /// The rank's columns of whole rows in a region.
    ///
    /// # Errors
    /// When the rows do not lie in the region.
    pub fn in_region(&self, rank: usize, region: Arc<Region>, place: RegionRows) -> Result<LogitsBlock, FieldError> {
        let rows = LogitsBlock::in_region(region, place, self.dtype, self.vocab_size())?;
        Ok(rows.columns(self.columns(rank)))
    }
}

impl LogitsBlock {
    /// Some columns of rows in a region.
    fn columns(mut self, columns: Range<u32>) -> Self {
        let size = self.dtype.size();
        if let Data::Region { offset, .. } = &mut self.data {
            *offset += columns.start as usize * size;
        }
        self.row_bytes = columns.len() * size;
        self
    }

    /// Rows of `vocab_size` values. Rank 0's columns are here, and the others are awaited.
    #[must_use]
    pub fn awaiting(own: Self, awaited: Awaited, vocab_size: u32) -> Self {
        let (dtype, rows) = (own.dtype, own.rows);
        let row_bytes = vocab_size as usize * dtype.size();
        let data = Data::Sharded(Box::new(Sharded::Awaited(awaited, own)));
        Self { data, dtype, row_bytes, stride_bytes: row_bytes, rows, listed: ListedRows::default() }
    }

    /// The rows' sharded form, if their columns come from several ranks.
    pub fn sharded(&mut self) -> Option<&mut Sharded> {
        match &mut self.data {
            Data::Sharded(sharded) => Some(sharded),
            _ => None,
        }
    }

    /// Why no row can be sampled, if none can.
    pub(in crate::engine) fn failure(&self) -> Option<RowFailure> {
        match &self.data {
            Data::Sharded(sharded) => sharded.failure(),
            _ => None,
        }
    }

    /// Both blocks as one, if the columns of `next` directly follow these in every row of one region.
    pub(super) fn with_next(&self, next: &Self) -> Option<Self> {
        let (Data::Region { region, offset }, Data::Region { region: other, offset: behind }) =
            (&self.data, &next.data)
        else {
            return None;
        };
        let adjoins = Arc::ptr_eq(region, other)
            && offset + self.row_bytes == *behind
            && self.stride_bytes == next.stride_bytes
            && self.rows == next.rows;
        adjoins.then(|| Self {
            data: Data::Region { region: Arc::clone(region), offset: *offset },
            row_bytes: self.row_bytes + next.row_bytes,
            listed: ListedRows::default(),
            ..*self
        })
    }
}
