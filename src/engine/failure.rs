//! Why work of a step was not done.

use crate::error::Refusal;
use crate::sampling::fault;
use crate::sampling::logits::Logits;
use crate::sampling::row::RowError;
use std::borrow::Cow;

/// Why work was not done. Nothing of it was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFailure {
    /// The kind of failure.
    pub status: RowStatus,
    /// The explanation for people.
    pub message: Cow<'static, str>,
    /// The cause, for metrics that tell more than the status.
    pub cause: Option<Cause>,
}

/// The cause of a failure that shares its status with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A limit of the server.
    Limit(Refusal),
    /// The step could not open the sequence, and the opening has its own result.
    NotOpened,
}

impl RowFailure {
    /// A failure with its explanation.
    pub fn new(status: RowStatus, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into(), cause: None }
    }

    /// A backend or the engine has left something out, which is a bug.
    #[must_use]
    pub fn lost(what: &'static str) -> Self {
        Self::new(RowStatus::Internal, what)
    }

    /// There is no room for what a sequence would have to remember.
    #[must_use]
    pub fn no_state() -> Self {
        let refusal = Refusal::StateBytes;
        Self { cause: Some(Cause::Limit(refusal)), ..Self::new(RowStatus::HistoryLimit, refusal.message()) }
    }

    /// There is no room for what the work's reply may report.
    #[must_use]
    pub fn no_reply() -> Self {
        let message = "replies that are not read yet leave no room for what this work may report (max_bytes_in_flight); \
                       read them and send the row again, or ask for less";
        Self::new(RowStatus::ReplyBytes, message)
    }

    /// The work's step should have opened its sequence, and could not.
    #[must_use]
    pub fn not_opened() -> Self {
        let message = "the opening of this id in this step failed, and its result says why; \
                       a sequence of this id that was open before is unchanged";
        Self { cause: Some(Cause::NotOpened), ..Self::new(RowStatus::UnknownSequence, message) }
    }

    /// Whether the reason is that the work's sequence could not be opened in the same step.
    #[must_use]
    pub fn is_not_opened(&self) -> bool {
        matches!(self.cause, Some(Cause::NotOpened))
    }

    /// The failure's name in metrics. Operators have to know which limit was reached, and must not mistake a refused
    /// opening for a worker that has lost its sequences.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self.cause {
            None => self.status.label(),
            Some(Cause::Limit(refusal)) => refusal.reason().name(),
            Some(Cause::NotOpened) => "not_opened",
        }
    }
}

impl RowFailure {
    /// The failure of a row, which says where in the row the error lies.
    #[must_use]
    pub fn of_row(error: RowError, row: Option<&Logits<'_>>) -> Self {
        let status = match error {
            RowError::Nan => RowStatus::NanLogits,
            RowError::PositiveInfinity => RowStatus::PositiveInfinity,
            RowError::AllMasked => RowStatus::AllMasked,
            RowError::Beyond(need) => {
                let message = format!("{need}; send the whole row or more of it, or set beyond to BEYOND_TOP_N_MARK");
                return Self::new(RowStatus::BeyondTopN, message);
            }
        };
        Self::new(status, row.map_or_else(|| error.to_string(), |row| fault::told(error, row)))
    }
}

/// Kinds of failure of one piece of work. Their numbers are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // Each is explained at RowStatus in the wire contract.
pub enum RowStatus {
    NanLogits = 2,
    PositiveInfinity = 3,
    AllMasked = 4,
    UnknownSequence = 5,
    SequenceFinished = 6,
    DuplicateSequence = 7,
    RowOutOfRange = 8,
    InvalidWork = 9,
    HistoryLimit = 10,
    DeadlineExceeded = 11,
    Unimplemented = 12,
    Internal = 13,
    GrammarTooComplex = 14,
    ReplyBytes = 15,
    ShardMissing = 110,
    ShardMismatch = 111,
    BeyondTopN = 120,
}

impl RowStatus {
    /// The status's name in metrics.
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
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::GrammarTooComplex => "grammar_too_complex",
            Self::ReplyBytes => "reply_bytes",
            Self::ShardMissing => "shard_missing",
            Self::ShardMismatch => "shard_mismatch",
            Self::BeyondTopN => "beyond_top_n",
        }
    }
}
