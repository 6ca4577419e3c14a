//! A step in domain words: what one message asks for, and what comes of it.

pub use super::failure::{RowFailure, RowStatus};
pub use super::listed::ListedRows;
pub use super::logits::{LogitsBlock, RegionRows};
pub use super::reply::{Done, Opened, StepReply};
pub use super::shards::join::Sharded;
pub use super::slots::{BYTES as SLOT_BYTES, Slots};
pub use super::verify::Verification;
pub use super::work::{DraftWork, DraftsFrom, Masks, Score, VerifyWork, Work, WorkKind};
pub use crate::metrics::{DataPath, Last};

use crate::sequence::OpenError;
use crate::sequence::table::Charged;
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
