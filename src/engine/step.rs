//! A step in domain words: what one message asks for, and what comes of it.

pub use super::verify::Verification;
pub use super::work::{DraftWork, DraftsFrom, Score, VerifyWork, Work, WorkKind};
pub use crate::metrics::Last;

use crate::params::FieldError;
use crate::params::state::SamplerState;
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::row::{RowError, RowOutput};
use crate::sequence::speculation::NextDraft;
use crate::sequence::table::Charged;
use crate::sequence::{FinishReason, OpenError};
use bytes::Bytes;
use std::borrow::Cow;
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
    /// Size of the message it came in, which its logits keep in memory.
    pub message_bytes: usize,
    /// When it was received.
    pub received: Instant,
    /// Rows not started by then are not worth sampling.
    pub deadline: Option<Instant>,
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
        self.rows().saturating_mul(self.logits.row_bytes)
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

/// Rows of logits, as they arrived.
#[derive(Debug, Clone)]
pub struct LogitsBlock {
    data: Bytes,
    dtype: Dtype,
    row_bytes: usize,
    stride_bytes: usize,
    rows: u64,
}

impl LogitsBlock {
    /// Rows of `vocab_size` values that start `row_stride` values apart (0: `vocab_size`). The last one
    /// may stop after `vocab_size` values.
    ///
    /// # Errors
    /// When the stride is too short or the length is not that of whole rows.
    pub fn new(data: Bytes, dtype: Dtype, vocab_size: u32, row_stride: u32) -> Result<Self, FieldError> {
        let row_stride = if row_stride == 0 { vocab_size } else { row_stride };
        if row_stride < vocab_size {
            let message = format!("is {row_stride}, below vocab_size {vocab_size}; rows would overlap");
            return Err(FieldError::new("row_stride", message));
        }
        // At most 2^32 values of 4 bytes: no overflow in 64 bits.
        let row_bytes = vocab_size as usize * dtype.size();
        let stride_bytes = row_stride as usize * dtype.size();
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
        Ok(Self { data, dtype, row_bytes, stride_bytes, rows: whole as u64 + u64::from(rest != 0) })
    }

    /// No rows, for steps without work.
    #[must_use]
    pub fn empty() -> Self {
        Self { data: Bytes::new(), dtype: Dtype::F32, row_bytes: 0, stride_bytes: 0, rows: 0 }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
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
            return None;
        }
        let start = row as usize * self.stride_bytes;
        self.data.get(start..start + self.row_bytes).map(|bytes| Logits::new(self.dtype, bytes))
    }
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
    /// When the step was received.
    pub received: Instant,
    /// When the backend's results were there.
    pub finished: Instant,
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

/// Why work was not done. Nothing was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFailure {
    /// The kind of failure.
    pub status: RowStatus,
    /// For people.
    pub message: Cow<'static, str>,
}

impl RowFailure {
    /// A failure with its explanation.
    pub fn new(status: RowStatus, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<RowError> for RowFailure {
    fn from(error: RowError) -> Self {
        let (status, message) = match error {
            RowError::Nan => (RowStatus::NanLogits, "the row has a NaN logit"),
            RowError::PositiveInfinity => (RowStatus::PositiveInfinity, "the row has a +infinity logit"),
            RowError::AllMasked => (RowStatus::AllMasked, "no token of the row is left: all are -infinity or masked"),
        };
        Self::new(status, message)
    }
}

/// Kinds of failure of one piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // Each is explained at RowStatus in the wire contract.
pub enum RowStatus {
    NanLogits,
    PositiveInfinity,
    AllMasked,
    UnknownSequence,
    SequenceFinished,
    DuplicateSequence,
    RowOutOfRange,
    InvalidWork,
    HistoryLimit,
    DeadlineExceeded,
    Internal,
}

impl RowStatus {
    /// Name as used in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::NanLogits => "nan_logits",
            Self::PositiveInfinity => "positive_infinity",
            Self::AllMasked => "all_masked",
            Self::UnknownSequence => "unknown_sequence",
            Self::SequenceFinished => "sequence_finished",
            Self::DuplicateSequence => "duplicate_sequence",
            Self::RowOutOfRange => "row_out_of_range",
            Self::InvalidWork => "invalid_work",
            Self::HistoryLimit => "history_limit",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Internal => "internal",
        }
    }
}
