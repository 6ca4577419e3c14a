//! A step in domain words: what one message asks for, and what comes of it.

pub use super::failure::{RowFailure, RowStatus};
pub use super::listed::ListedRows;
pub use super::shards::join::Sharded;
pub use super::slots::{BYTES as SLOT_BYTES, Slots};
pub use super::verify::Verification;
pub use super::work::{DraftWork, DraftsFrom, Masks, Score, VerifyWork, Work, WorkKind};
pub use crate::metrics::{DataPath, Last};

use crate::params::FieldError;
use crate::params::state::SamplerState;
use crate::permits::Permit;
use crate::region::Region;
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::row::RowOutput;
use crate::sequence::speculation::NextDraft;
use crate::sequence::table::Charged;
use crate::sequence::{FinishReason, OpenError};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;

/// A batch of work on sequences of one stream; applied in the order close, open, work.
#[derive(Debug)]
pub struct Step {
    /// The worker's number for it.
    pub id: u64,
    /// Sequences to forget.
    pub close: Vec<u64>,
    /// Sequences to open.
    pub open: Vec<Open>,
    /// Work, answered in this order.
    pub work: Vec<Work>,
    /// The rows that work refers to.
    pub logits: LogitsBlock,
    /// Size of the message it came in, which its logits keep in memory. What is made of it is counted beside it.
    pub message_bytes: usize,
    /// When it was received.
    pub received: Instant,
    /// Rows not started by then are not worth sampling.
    pub deadline: Option<Instant>,
    /// Where its tokens go besides into the reply.
    pub slots: Option<Slots>,
}

impl Step {
    /// Rows that its work samples or scores; shared rows count each time.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.work.iter().map(Work::rows).sum()
    }

    /// Bytes of these rows.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.work.iter().map(|work| self.logits.bytes_of(work.first_row, work.rows())).fold(0, usize::saturating_add)
    }

    /// Bytes of whole rows that take as long to sample as these rows.
    #[must_use]
    pub fn time_bytes(&self) -> usize {
        let each = self.work.iter().map(|work| self.logits.time_bytes_of(work.first_row, work.rows()));
        each.fold(0, usize::saturating_add)
    }

    /// Every sequence it names.
    pub fn sequence_ids(&self) -> impl Iterator<Item = u64> {
        let open = self.open.iter().map(|open| open.sequence_id);
        let work = self.work.iter().filter_map(|work| work.sequence_id);
        self.close.iter().copied().chain(open).chain(work)
    }
}

/// A sequence to open, built and checked by whoever read the message.
#[derive(Debug)]
pub struct Open {
    /// The worker's id for it.
    pub sequence_id: u64,
    /// The sequence, or what is wrong with it.
    pub sequence: Result<Charged, OpenError>,
}

impl Open {
    /// Whether rows of the sequence may take long: they are explained, or wait for the masks of a grammar.
    pub(super) fn takes_long(&self) -> bool {
        self.sequence.as_ref().is_ok_and(|sequence| sequence.explains() || sequence.has_grammar())
    }
}

/// Rows of logits, as they arrived.
#[derive(Debug)]
pub struct LogitsBlock {
    pub(super) data: Data,
    pub(super) dtype: Dtype,
    pub(super) row_bytes: usize,
    pub(super) stride_bytes: usize,
    /// Whole ones, which come first.
    pub(super) rows: u64,
    pub(super) listed: ListedRows,
}

#[derive(Debug)]
pub(super) enum Data {
    Inline(Bytes),
    Region { region: Arc<Region>, offset: usize },
    Sharded(Box<Sharded>),
}

/// Where rows lie in a region, as a step says it.
#[derive(Debug, Clone, Copy)]
pub struct RegionRows {
    /// Bytes before row 0.
    pub offset: u64,
    /// Number of rows.
    pub rows: u32,
    /// Values from row to row; 0: the vocabulary's size.
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
                 it must be rows * row_stride * {}, where the last row may stop after vocab_size values",
                data.len(),
                dtype.size()
            );
            return Err(FieldError::new("data", message));
        }
        let rows = whole as u64 + u64::from(rest != 0);
        Ok(Self { data: Data::Inline(data), dtype, row_bytes, stride_bytes, rows, listed: ListedRows::default() })
    }

    /// Whether work uses the last of the rows that a message carries, if it uses any; `used` are those up to the last one that it does.
    /// Logits in another number format than was said, or further apart, look like more rows or fewer, and give tokens of noise.
    ///
    /// # Errors
    /// At `data`, when there are more.
    pub fn check_used(&self, used: u64) -> Result<(), FieldError> {
        let data = match &self.data {
            Data::Inline(data) => data,
            Data::Sharded(sharded) => {
                // Those of the other ranks have to be as many as rank 0's.
                let Sharded::Awaited(_, own) = &**sharded else { return Ok(()) };
                return own.check_used(used);
            }
            Data::Region { .. } => return Ok(()),
        };
        if used == 0 || self.rows <= used {
            return Ok(());
        }
        let message = format!(
            "has {} bytes: {} rows of {} bytes, of which work uses {used}; leave out the others, and look at logits_dtype, vocab_size \
             and row_stride if there should be none",
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
            let message = format!("is {offset}, not a multiple of the value size {}", dtype.size());
            return Err(FieldError::new("offset", message));
        }
        // Bytes from row 0 to the end of the last row; `None` past 64 bits.
        let extent = |rows: u32| {
            let before = u64::from(rows.saturating_sub(1)).checked_mul(stride_bytes as u64)?;
            before.checked_add(if rows == 0 { 0 } else { row_bytes as u64 })?.checked_add(offset)
        };
        if extent(rows.min(1)).is_none_or(|end| end > len) {
            let message = format!("is {offset}: a row of {row_bytes} bytes there ends after the region's {len} bytes");
            return Err(FieldError::new("offset", message));
        }
        if extent(rows).is_none_or(|end| end > len) {
            let message = format!(
                "is {rows}: rows {stride_bytes} bytes apart from offset {offset} end after the region's {len} bytes"
            );
            return Err(FieldError::new("rows", message));
        }
        // It is within the region, which is in memory.
        let data = Data::Region { region, offset: offset as usize };
        Ok(Self { data, dtype, row_bytes, stride_bytes, rows: rows.into(), listed: ListedRows::default() })
    }

    /// No rows.
    #[must_use]
    pub fn empty(dtype: Dtype, vocab_size: u32) -> Self {
        let row_bytes = vocab_size as usize * dtype.size();
        let (data, listed) = (Data::Inline(Bytes::new()), ListedRows::default());
        Self { data, dtype, row_bytes, stride_bytes: row_bytes, rows: 0, listed }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows + self.listed.len() as u64
    }

    /// Bytes of the part of a row that counts.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// What a row would take in f32.
    #[must_use]
    pub fn row_bytes_in_f32(&self) -> usize {
        self.row_bytes / self.dtype.size() * Dtype::F32.size()
    }

    /// Row `row`, unless there are fewer.
    #[must_use]
    pub fn row(&self, row: u64) -> Option<Logits<'_>> {
        if row >= self.rows {
            return self.listed.row(row - self.rows);
        }
        let start = row as usize * self.stride_bytes;
        match &self.data {
            Data::Inline(data) => data.get(start..start + self.row_bytes).map(|bytes| Logits::new(self.dtype, bytes)),
            Data::Region { region, offset } => {
                let vocab_size = self.row_bytes / self.dtype.size();
                Some(Logits::foreign(self.dtype, region.memory(), offset + start, vocab_size))
            }
            Data::Sharded(sharded) => sharded.row(self.dtype, start),
        }
    }

    /// How its rows got here.
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
        }
    }
}

/// Bytes of a row, and from row to row.
fn row_sizes(dtype: Dtype, vocab_size: u32, row_stride: u32) -> Result<(usize, usize), FieldError> {
    let row_stride = if row_stride == 0 { vocab_size } else { row_stride };
    if row_stride < vocab_size {
        let message = format!("is {row_stride}, below vocab_size {vocab_size}; rows would overlap");
        return Err(FieldError::new("row_stride", message));
    }
    // At most 2^32 values of 4 bytes: no overflow in 64 bits.
    Ok((vocab_size as usize * dtype.size(), row_stride as usize * dtype.size()))
}

/// What came of a step.
#[derive(Debug)]
pub struct StepReply {
    /// The worker's number for it.
    pub id: u64,
    /// One per `open`.
    pub open: Vec<Opened>,
    /// One per `work`.
    pub work: Vec<Result<Done, RowFailure>>,
    /// Whether the step's slots tell all of its work.
    pub in_slots: bool,
    /// When the step was received.
    pub received: Instant,
    /// When its batch began.
    pub started: Instant,
    /// When the backend's results were there.
    pub finished: Instant,
    /// What it takes of the bytes in flight, until it is on the wire.
    pub room: Permit,
}

/// What came of opening a sequence.
#[derive(Debug)]
pub struct Opened {
    /// The worker's id for it.
    pub sequence_id: u64,
    /// Seed and position, or why it was not opened.
    pub result: Result<(u64, u64), OpenError>,
}

/// Work that was done.
#[derive(Debug)]
pub enum Done {
    /// A token was drawn and committed.
    Sampled {
        /// The token.
        output: RowOutput,
        /// Why the sequence ends with it, if it does.
        finish: Option<FinishReason>,
        /// What to draft next.
        next: NextDraft,
        /// What samplers remember now, if that was asked for.
        state: Option<SamplerState>,
    },
    /// A draft token was drawn and kept.
    Drafted {
        /// The token.
        token: u32,
        /// Why the sequence would end with it, if it would.
        finish: Option<FinishReason>,
        /// Whether its row was cut to the tokens that it lists.
        truncated: bool,
    },
    /// Tokens were scored.
    Scored(Vec<RowOutput>),
    /// Draft tokens were verified and the emitted tokens committed.
    Verified {
        /// What verification found.
        verification: Box<Verification>,
        /// Why the sequence ends with the last emitted token, if it does.
        finish: Option<FinishReason>,
        /// What to draft next.
        next: NextDraft,
        /// What samplers remember now, if that was asked for.
        state: Option<SamplerState>,
    },
}

impl Done {
    /// What to draft next, where tokens were emitted.
    #[must_use]
    pub fn next(&self) -> Option<&NextDraft> {
        match self {
            Self::Sampled { next, .. } | Self::Verified { next, .. } => Some(next),
            Self::Drafted { .. } | Self::Scored(_) => None,
        }
    }

    /// The same, to be changed.
    pub(super) fn next_mut(&mut self) -> Option<&mut NextDraft> {
        match self {
            Self::Sampled { next, .. } | Self::Verified { next, .. } => Some(next),
            Self::Drafted { .. } | Self::Scored(_) => None,
        }
    }

    /// Whether a row was cut to the tokens that it lists, though parameters reach beyond them.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        let any = |outputs: &[RowOutput]| outputs.iter().any(|output| output.marks.truncated);
        match self {
            Self::Sampled { output, .. } => output.marks.truncated,
            Self::Drafted { truncated, .. } => *truncated,
            Self::Scored(outputs) => any(outputs),
            Self::Verified { verification, .. } => verification.verified.truncated || any(&verification.outputs),
        }
    }

    /// Draft tokens verified, and how many of them were accepted.
    #[must_use]
    pub fn drafts(&self) -> Option<(usize, usize)> {
        match self {
            Self::Verified { verification, .. } => Some((verification.drafted, verification.verified.accepted_count())),
            Self::Sampled { .. } | Self::Drafted { .. } | Self::Scored(_) => None,
        }
    }

    /// Tokens emitted.
    #[must_use]
    pub fn tokens(&self) -> usize {
        match self {
            Self::Sampled { .. } => 1,
            Self::Drafted { .. } | Self::Scored(_) => 0,
            Self::Verified { verification, .. } => verification.outputs.len(),
        }
    }
}
