//! A step in domain terms: what one message asks for, and the results.

pub use super::draft_vocabulary::DraftVocabulary;
pub use super::failure::{RowFailure, RowStatus};
pub use super::listed::ListedRows;
pub use super::logits::{LogitsBlock, RegionRows};
pub use super::reply::{Done, Opened, StepReply};
pub use super::shards::join::Sharded;
pub use super::slots::{BYTES as SLOT_BYTES, Slots};
pub use super::verification::Verification;
pub use super::work::{DraftWork, DraftsFrom, Masks, Score, VerifyWork, Work, WorkKind};
pub use crate::metrics::{DataPath, Last};

use super::plan::ENTRY_TIME_BYTES;
use crate::sequence::OpenError;
use crate::sequence::table::ChargedSequence;
use std::time::Instant;

/// A batch of work on sequences of one stream. It is applied in the order close, open, work.
#[derive(Debug)]
pub struct Step {
    /// The worker's number for the step.
    pub id: u64,
    /// Sequences to forget.
    pub close: Vec<u64>,
    /// Sequences to open.
    pub open: Vec<Open>,
    /// The works, answered in this order.
    pub work: Vec<Work>,
    /// The rows that the works refer to.
    pub logits: LogitsBlock,
    /// Size of the message that carried the step. The step's logits keep that message in memory; the lists made from it
    /// are counted separately.
    pub message_bytes: usize,
    /// When the step was received.
    pub received: Instant,
    /// Rows that have not started by then are not worth sampling.
    pub deadline: Option<Instant>,
    /// A place for the step's tokens, in addition to the reply.
    pub slots: Option<Slots>,
}

impl Step {
    /// How many rows the works sample or score. A shared row counts each time.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.work.iter().map(Work::rows).sum()
    }

    /// Bytes of these rows, and of draft distributions over all tokens.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        let rows = self.work.iter().map(|work| self.logits.bytes_of(work.first_row, work.rows()));
        rows.chain(self.verifications().map(VerifyWork::dense_bytes)).fold(0, usize::saturating_add)
    }

    /// Bytes of whole rows that take as long to sample as these rows do, with their draft distributions.
    #[must_use]
    pub fn time_bytes(&self) -> usize {
        let rows = self.work.iter().map(|work| self.logits.time_bytes_of(work.first_row, work.rows()));
        let dense = self.verifications().map(VerifyWork::dense_bytes);
        let sparse = self.sparse_entries().saturating_mul(ENTRY_TIME_BYTES);
        rows.chain(dense).fold(sparse, usize::saturating_add)
    }

    /// How many tokens of draft distributions have a probability that was sent by itself.
    pub(super) fn sparse_entries(&self) -> usize {
        self.verifications().map(VerifyWork::sparse_entries).fold(0, usize::saturating_add)
    }

    fn verifications(&self) -> impl Iterator<Item = &VerifyWork> {
        self.work.iter().filter_map(Work::verify)
    }

    /// Every sequence that the step names.
    pub fn sequence_ids(&self) -> impl Iterator<Item = u64> {
        let open = self.open.iter().map(|open| open.sequence_id);
        let work = self.work.iter().filter_map(|work| work.sequence_id);
        self.close.iter().copied().chain(open).chain(work)
    }
}

/// A sequence to open, built and checked by the reader of the message.
#[derive(Debug)]
pub struct Open {
    /// The worker's id for the sequence.
    pub sequence_id: u64,
    /// The sequence, or what is wrong with it.
    pub sequence: Result<ChargedSequence, OpenError>,
}

impl Open {
    /// Whether rows of the sequence may take long, because they are explained or wait for the masks of a grammar.
    pub(super) fn takes_long(&self) -> bool {
        self.sequence.as_ref().is_ok_and(|sequence| sequence.explains() || sequence.has_grammar())
    }
}
