//! The open sequences of one stream. Dropping the table frees them all.

use super::{OpenError, Sequence};
use crate::error::Refusal;
use crate::params::FieldError;
use crate::permits::{Counter, Permit};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Sequences by the ids their worker gave them.
#[derive(Debug)]
pub struct Table {
    open: HashMap<u64, Open>,
    limit: usize,
    server: Arc<Counter>,
}

#[derive(Debug)]
struct Open {
    sequence: Sequence,
    /// The batch that last worked on it; 0 for none.
    batch: u64,
    /// Its place among all sequences of the server.
    _permit: Permit,
}

impl Table {
    /// Room for `limit` sequences, counted into those of the server.
    #[must_use]
    pub fn new(limit: usize, server: Arc<Counter>) -> Self {
        Self { open: HashMap::new(), limit, server }
    }

    /// Opens a sequence; says its seed and position.
    ///
    /// # Errors
    /// [`OpenError::AlreadyExists`] or [`OpenError::SequenceLimit`]; nothing has changed then.
    pub fn open(&mut self, id: u64, sequence: Sequence) -> Result<(u64, u64), OpenError> {
        let count = self.open.len();
        let Entry::Vacant(place) = self.open.entry(id) else { return Err(OpenError::AlreadyExists) };
        if count >= self.limit {
            let message = format!("{count} sequences are open on this stream (max_sequences_per_stream); close some");
            return Err(OpenError::SequenceLimit(FieldError::new("sequence_id", message)));
        }
        let Some(permit) = self.server.take(1) else {
            let message = Refusal::TooManySequences.message();
            return Err(OpenError::SequenceLimit(FieldError::new("sequence_id", message)));
        };
        let opened = (sequence.seed(), sequence.position());
        place.insert(Open { sequence, batch: 0, _permit: permit });
        Ok(opened)
    }

    /// Forgets a sequence. An id that is not open is fine: closing twice is no mistake.
    pub fn close(&mut self, id: u64) {
        self.open.remove(&id);
    }

    /// An open sequence.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Sequence> {
        self.open.get(&id).map(|open| &open.sequence)
    }

    /// An open sequence, to commit to.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Sequence> {
        self.open.get_mut(&id).map(|open| &mut open.sequence)
    }

    /// Whether `batch` works on this sequence.
    #[must_use]
    pub fn is_in_batch(&self, id: u64, batch: u64) -> bool {
        self.open.get(&id).is_some_and(|open| open.batch == batch)
    }

    /// Takes a sequence into `batch`: the sequence, unless it is not open, and whether it was in it before.
    pub fn enter_batch(&mut self, id: u64, batch: u64) -> Option<(&Sequence, bool)> {
        let open = self.open.get_mut(&id)?;
        let before = std::mem::replace(&mut open.batch, batch);
        Some((&open.sequence, before == batch))
    }

    /// Number of open sequences.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
