//! Rows of logits as they arrived: in the message, in a region, as columns of several ranks or of a draft model, or as
//! lists.

use super::draft_vocabulary::{DraftRows, DraftVocabulary};
use super::listed::ListedRows;
use super::shards::join::Sharded;
use crate::metrics::DataPath;
use crate::params::FieldError;
use crate::region::Region;
use crate::sampling::logits::{Dtype, Logits};
use bytes::Bytes;
use std::sync::Arc;

/// Rows of logits, as they arrived.
#[derive(Debug)]
pub struct LogitsBlock {
    pub(super) data: Data,
    pub(super) dtype: Dtype,
    pub(super) row_bytes: usize,
    pub(super) stride_bytes: usize,
    /// How many whole rows there are. They come first.
    pub(super) rows: u64,
    pub(super) listed: ListedRows,
}

#[derive(Debug)]
pub(super) enum Data {
    Inline(Bytes),
    Region {
        region: Arc<Region>,
        offset: usize,
    },
    Sharded(Box<Sharded>),
    /// Columns of the tokens that the draft model knows.
    OfDraftModel(Box<DraftRows>),
}

/// Where rows lie in a region, as a step says it.
#[derive(Debug, Clone, Copy)]
pub struct RegionRows {
    /// Bytes before row 0.
    pub offset: u64,
    /// Number of rows.
    pub rows: u32,
    /// Values from one row to the next; 0 means the vocabulary's size.
    pub row_stride: u32,
}

impl LogitsBlock {
    /// Rows of `vocab_size` values that start `row_stride` values apart (0: `vocab_size`). The last one
    /// may stop after `vocab_size` values.
    ///
    /// # Errors
    /// When the stride is too short or the length is not that of whole rows.
    pub fn new(data: Bytes, dtype: Dtype, vocab_size: u32, row_stride: u32) -> Result<Self, FieldError> {
        let (row_bytes, stride_bytes) = row_sizes(dtype, vocab_size, row_stride)?;
        let whole = data.len() / stride_bytes.max(1);
        let rest = data.len() - whole * stride_bytes;
        if rest != 0 && rest != row_bytes {
            let message = format!(
                "has {} bytes: {whole} rows of {stride_bytes} bytes and {rest} more; \
                 must be rows * row_stride * {}, but the last row may end at vocab_size",
                data.len(),
                dtype.size()
            );
            return Err(FieldError::new("data", message));
        }
        let rows = whole as u64 + u64::from(rest != 0);
        Ok(Self { data: Data::Inline(data), dtype, row_bytes, stride_bytes, rows, listed: ListedRows::default() })
    }

    /// Checks that work uses the last row that a message carries, unless it uses none. `used` is the number of rows up
    /// to the last one that work uses. Logits in another number format than the stream's, or with another stride, look
    /// like more rows or fewer, and would give tokens from noise.
    ///
    /// # Errors
    /// At `data`, when the message has more rows.
    pub fn check_used(&self, used: u64) -> Result<(), FieldError> {
        let data = match &self.data {
            Data::Inline(data) => data,
            Data::Sharded(sharded) => {
                // The other ranks must send as many rows as rank 0.
                let Sharded::Awaited(_, own) = &**sharded else { return Ok(()) };
                return own.check_used(used);
            }
            Data::OfDraftModel(draft) => return draft.sent.check_used(used).map_err(DraftVocabulary::told),
            Data::Region { .. } => return Ok(()),
        };
        if used == 0 || self.rows <= used {
            return Ok(());
        }
        let message = format!(
            "has {} bytes: {} rows of {} bytes, of which work uses only {used}; leave out the others, or check logits_dtype, \
             vocab_size and row_stride if there should be none",
            data.len(),
            self.rows,
            self.stride_bytes
        );
        Err(FieldError::new("data", message))
    }

    /// Rows of `vocab_size` values in a region.
    ///
    /// # Errors
    /// When the stride is too short, or a row does not lie in the region at a multiple of the value size.
    pub fn in_region(
        region: Arc<Region>,
        place: RegionRows,
        dtype: Dtype,
        vocab_size: u32,
    ) -> Result<Self, FieldError> {
        let RegionRows { offset, rows, row_stride } = place;
        let (row_bytes, stride_bytes) = row_sizes(dtype, vocab_size, row_stride)?;
        let len = region.len() as u64;
        if !offset.is_multiple_of(dtype.size() as u64) {
            let message = format!("is {offset}, must be a multiple of the value size {}", dtype.size());
            return Err(FieldError::new("offset", message));
        }
        // Bytes from the region's start to the end of the last row; `None` past 64 bits.
        let extent = |rows: u32| {
            let before = u64::from(rows.saturating_sub(1)).checked_mul(stride_bytes as u64)?;
            before.checked_add(if rows == 0 { 0 } else { row_bytes as u64 })?.checked_add(offset)
        };
        if extent(rows.min(1)).is_none_or(|end| end > len) {
            let message =
                format!("is {offset}: a row of {row_bytes} bytes there would end beyond the region's {len} bytes");
            return Err(FieldError::new("offset", message));
        }
        if extent(rows).is_none_or(|end| end > len) {
            let message = format!(
                "is {rows}: rows {stride_bytes} bytes apart from offset {offset} on would end beyond the region's {len} bytes"
            );
            return Err(FieldError::new("rows", message));
        }
        // The cast keeps the value: the offset is within the region, which is in memory.
        let data = Data::Region { region, offset: offset as usize };
        Ok(Self { data, dtype, row_bytes, stride_bytes, rows: rows.into(), listed: ListedRows::default() })
    }

    /// A block without rows.
    #[must_use]
    pub fn empty(dtype: Dtype, vocab_size: u32) -> Self {
        let row_bytes = vocab_size as usize * dtype.size();
        let (data, listed) = (Data::Inline(Bytes::new()), ListedRows::default());
        Self { data, dtype, row_bytes, stride_bytes: row_bytes, rows: 0, listed }
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows + self.listed.len() as u64
    }

    /// Bytes of the values of a row, without padding.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The number of values in a row.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.row_bytes / self.dtype.size()
    }

    /// The row with this index; `None` if there is none.
    #[must_use]
    pub fn row(&self, row: u64) -> Option<Logits<'_>> {
        if row >= self.rows {
            return self.listed.row(row - self.rows);
        }
        let start = row as usize * self.stride_bytes;
        match &self.data {
            Data::Inline(data) => data.get(start..start + self.row_bytes).map(|bytes| Logits::new(self.dtype, bytes)),
            Data::Region { region, offset } => {
                Some(Logits::foreign(self.dtype, region.memory(), offset + start, self.vocab_size()))
            }
            Data::Sharded(sharded) => sharded.row(self.dtype, start),
            Data::OfDraftModel(draft) => draft.row(row),
        }
    }

    /// How the rows arrived.
    #[must_use]
    pub fn data_path(&self) -> DataPath {
        match &self.data {
            Data::Inline(data) if data.is_empty() => match self.listed.len() {
                0 => DataPath::None,
                _ => DataPath::TopN,
            },
            Data::Inline(_) => DataPath::Inline,
            Data::Region { region, .. } if region.device().is_some() => DataPath::DeviceMemory,
            Data::Region { .. } => DataPath::SharedMemory,
            Data::Sharded(_) => DataPath::VocabShards,
            Data::OfDraftModel(draft) => match draft.sent.data_path() {
                DataPath::None if self.listed.len() > 0 => DataPath::TopN,
                path => path,
            },
        }
    }
}

/// An error about rows whose number of columns is not the vocabulary's, but is called `columns`.
pub(super) fn called(error: FieldError, columns: &str) -> FieldError {
    FieldError { message: error.message.replace("vocab_size", columns), ..error }
}

/// Bytes of a row, and bytes from one row to the next.
fn row_sizes(dtype: Dtype, vocab_size: u32, row_stride: u32) -> Result<(usize, usize), FieldError> {
    let row_stride = if row_stride == 0 { vocab_size } else { row_stride };
    if row_stride < vocab_size {
        let message = format!("is {row_stride}, below vocab_size {vocab_size}; rows would overlap");
        return Err(FieldError::new("row_stride", message));
    }
    // At most 2^32 values of 4 bytes: no overflow in 64 bits.
    Ok((vocab_size as usize * dtype.size(), row_stride as usize * dtype.size()))
}
