//! Why a sequence was not opened.

use crate::error::Refusal;
use crate::params::FieldError;
use std::fmt;

/// Why a sequence was not opened. Variants for limits have only numbers and are put into words when they are answered,
/// so that many waiting errors take no more memory than as many opened sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError {
    /// A parameter or token is out of range.
    Invalid(FieldError),
    /// The request needs something that this server does not know.
    Unimplemented(FieldError),
    /// A sequence with this id is open already.
    AlreadyExists,
    /// There are more tokens than `max_history_tokens`.
    HistoryLimit {
        /// Whether they are those of the predicted output, which count by themselves.
        predicted: bool,
        /// Tokens of prompt and output, or of the predicted output.
        tokens: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The sequence alone takes more than `max_state_bytes`.
    StateLimit {
        /// The part of the request that takes it.
        field: &'static str,
        /// The bytes it takes, with what belongs to it.
        bytes: usize,
        /// How many bytes all sequences may take.
        limit: usize,
    },
    /// The stream already has `max_sequences_per_stream` sequences.
    StreamLimit {
        /// How many it has.
        open: usize,
    },
    /// The server has no room for one more.
    Refused(Refusal),
}

impl OpenError {
    /// The field of the predicted output.
    pub const PREDICTED: &str = "predicted_output_token_ids";

    /// Name as used in metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_argument",
            Self::Unimplemented(_) => "unimplemented",
            Self::AlreadyExists => "already_exists",
            Self::HistoryLimit { .. } => "history_limit",
            Self::StateLimit { .. } => Refusal::StateBytes.reason().name(),
            Self::StreamLimit { .. } => "too_many_sequences_per_stream",
            Self::Refused(refusal) => refusal.reason().name(),
        }
    }
}

impl OpenError {
    /// Why so many bytes have no room: they exceed `limit`, which can never change, or there is too little room now.
    #[must_use]
    pub fn no_room(field: &'static str, bytes: usize, limit: usize) -> Self {
        if bytes > limit { Self::StateLimit { field, bytes, limit } } else { Self::Refused(Refusal::StateBytes) }
    }
}

impl From<FieldError> for OpenError {
    fn from(field: FieldError) -> Self {
        Self::Invalid(field)
    }
}

impl From<OpenError> for FieldError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Invalid(field) | OpenError::Unimplemented(field) => field,
            OpenError::AlreadyExists => {
                Self::new("sequence_id", "is already open on this stream; close it first or use another id")
            }
            OpenError::HistoryLimit { predicted: false, tokens, limit } => {
                let message = format!(
                    "prompt and output have {tokens} tokens together, above max_history_tokens {limit}; shorten them"
                );
                Self::new("prompt_token_ids", message)
            }
            OpenError::HistoryLimit { predicted: true, tokens, limit } => {
                let message = format!("has {tokens} tokens, above max_history_tokens {limit}; shorten it");
                Self::new(OpenError::PREDICTED, message)
            }
            OpenError::StateLimit { field, bytes, limit } => {
                let message = format!(
                    "takes {bytes} bytes of memory in all, max_state_bytes is {limit}, so it never fits; raise the limit or ask for less"
                );
                Self::new(field, message)
            }
            OpenError::StreamLimit { open } => {
                let message =
                    format!("{open} sequences are open on this stream (max_sequences_per_stream); close some");
                Self::new("sequence_id", message)
            }
            // Closing other sequences would not help, so the field is the grammar.
            OpenError::Refused(Refusal::GrammarsBusy) => Self::new("params.grammar", Refusal::GrammarsBusy.message()),
            OpenError::Refused(refusal) => Self::new("sequence_id", refusal.message()),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(field) | Self::Unimplemented(field) => field.fmt(f),
            limit => FieldError::from(limit.clone()).fmt(f),
        }
    }
}
