//! The open sequences of one stream, and the room they take on the server. Dropping the table frees both.

use super::{OpenError, Sequence};
use crate::error::Refusal;
use crate::params::FieldError;
use crate::permits::{Counter, Permit};
use metrics::{Gauge, Histogram};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// A table may keep this many places however few of them are taken: they take less memory than a step.
const FEW_PLACES: usize = 256;

/// A sequence with the room that is counted for its memory.
#[derive(Debug)]
pub struct ChargedSequence {
    sequence: Sequence,
    room: Permit,
}

impl ChargedSequence {
    /// What every sequence takes, whatever it remembers: its place in a table, at the map's worst load.
    pub const PLACE: usize = 3 * size_of::<(u64, Open)>();

    /// Takes room for a sequence and for its next token.
    ///
    /// # Errors
    /// [`Refusal::StateBytes`] if there is too little room now, or [`OpenError::StateLimit`] if there can never be
    /// enough.
    pub fn new(sequence: Sequence, server: &Arc<Counter>) -> Result<Self, OpenError> {
        let needed = Self::needed(&sequence, 1);
        let room = server.take(needed).ok_or_else(|| Self::no_room(&sequence, server.limit()))?;
        Ok(Self { sequence, room })
    }

    /// The same after `more` has added to the sequence, with room for that too.
    ///
    /// # Errors
    /// Those of `more`, or those of [`new`](Self::new).
    pub fn then(mut self, more: impl FnOnce(Sequence) -> Result<Sequence, FieldError>) -> Result<Self, OpenError> {
        self.sequence = more(self.sequence)?;
        let limit = self.room.limit();
        if self.may_grow(1, 0) { Ok(self) } else { Err(Self::no_room(&self.sequence, limit)) }
    }

    /// Why a sequence has no room. The room of its rules is counted as well, since they hold it while the sequence
    /// waits.
    fn no_room(sequence: &Sequence, limit: usize) -> OpenError {
        OpenError::no_room("prompt_token_ids", Self::needed(sequence, 1) + sequence.rules.held(), limit)
    }

    /// Bytes of a sequence and of its next tokens.
    fn needed(sequence: &Sequence, tokens: usize) -> usize {
        Self::PLACE + sequence.bytes_after(tokens)
    }

    /// See [`Sequence::explains`].
    #[must_use]
    pub fn explains(&self) -> bool {
        self.sequence.explains()
    }

    /// Whether its text has to match a grammar.
    #[must_use]
    pub fn has_grammar(&self) -> bool {
        self.sequence.text().is_some()
    }

    /// See [`Sequence::entries`].
    #[must_use]
    pub fn entries(&self) -> usize {
        self.sequence.entries()
    }

    /// Takes room for `tokens` and `bytes` more; says whether there was enough.
    #[must_use]
    fn may_grow(&mut self, tokens: usize, bytes: usize) -> bool {
        let needed = Self::needed(&self.sequence, tokens) + bytes;
        needed <= self.room.amount() || self.room.resize(needed)
    }

    /// Sets the counted room to exactly what the sequence takes.
    fn settle(&mut self) {
        let taken = Self::PLACE + self.sequence.bytes();
        if taken != self.room.amount() {
            self.room.set(taken);
        }
    }
}

/// Sequences by the ids that their worker gave them.
#[derive(Debug)]
pub struct Table {
    open: HashMap<u64, Open>,
    limit: usize,
    server: Arc<Counter>,
    /// Shows how many are open.
    shown: Permit,
    acceptance: Histogram,
}

#[derive(Debug)]
struct Open {
    charged: ChargedSequence,
    /// The batch that last worked on it; 0 for none.
    batch: u64,
    /// Its place among all sequences of the server.
    _permit: Permit,
}

/// Room without a limit, whose use the gauge shows.
fn shown(gauge: Gauge) -> Permit {
    Counter::new(usize::MAX, gauge).take_anyway(0)
}

impl Table {
    /// An empty table for at most `limit` sequences, which also count as sequences of the server.
    #[must_use]
    pub fn new(limit: usize, server: Arc<Counter>) -> Self {
        Self { open: HashMap::new(), limit, server, shown: shown(Gauge::noop()), acceptance: Histogram::noop() }
    }

    /// The same, recording for each sequence that is closed what share of its draft tokens was accepted, and adding to
    /// `active` how many are open. To be called before any is.
    #[must_use]
    pub fn recorded(mut self, acceptance: Histogram, active: Gauge) -> Self {
        (self.acceptance, self.shown) = (acceptance, shown(active));
        self
    }

    /// Opens a sequence and returns its seed and position.
    ///
    /// # Errors
    /// [`OpenError::AlreadyExists`], [`OpenError::StreamLimit`] or [`Refusal::TooManySequences`]; then nothing has
    /// changed.
    pub fn open(&mut self, id: u64, charged: ChargedSequence) -> Result<(u64, u64), OpenError> {
        let count = self.open.len();
        let Entry::Vacant(place) = self.open.entry(id) else { return Err(OpenError::AlreadyExists) };
        // The server's limit is checked first. By default a stream's limit is as large as the server's, so raising the
        // stream's would change nothing.
        let permit = self.server.take(1).ok_or(OpenError::Refused(Refusal::TooManySequences))?;
        if count >= self.limit {
            return Err(OpenError::StreamLimit { open: count });
        }
        let opened = (charged.sequence.seed(), charged.sequence.position());
        place.insert(Open { charged, batch: 0, _permit: permit });
        self.shown.set(self.open.len());
        Ok(opened)
    }

    /// Forgets a sequence. An id that is not open is fine: closing twice is no mistake.
    pub fn close(&mut self, id: u64) {
        let gone = self.open.remove(&id);
        gone.and_then(|gone| gone.charged.sequence.accepted_share())
            .into_iter()
            .for_each(|share| self.acceptance.record(share));
        self.shown.set(self.open.len());
        self.shrink();
    }

    /// Gives up places if only few of many are taken. Closed sequences have given their room back, but the memory of
    /// their places would stay for the stream's life. As many free places as taken ones remain, so that a place is
    /// moved only after as many were opened or closed.
    fn shrink(&mut self) {
        let (taken, places) = (self.open.len(), self.open.capacity());
        if places > FEW_PLACES && taken < places / 8 {
            self.open.shrink_to(2 * taken);
        }
    }

    /// An open sequence.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Sequence> {
        self.open.get(&id).map(|open| &open.charged.sequence)
    }

    /// An open sequence, to commit to.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Sequence> {
        self.open.get_mut(&id).map(|open| &mut open.charged.sequence)
    }

    /// Takes room for `tokens` that a sequence may emit and for `bytes` of other things, and returns whether there was
    /// enough. [`settle`](Self::settle) gives back what was not needed.
    #[must_use]
    pub fn may_grow(&mut self, id: u64, tokens: usize, bytes: usize) -> bool {
        self.open.get_mut(&id).is_some_and(|open| open.charged.may_grow(tokens, bytes))
    }

    /// Sets the room of a sequence to what it takes now that its work is done, and starts computing what its next row
    /// needs.
    pub fn settle(&mut self, id: u64) {
        if let Some(open) = self.open.get_mut(&id) {
            open.charged.sequence.work_ahead();
            open.charged.settle();
        }
    }

    /// Whether `batch` works on this sequence.
    #[must_use]
    pub fn is_in_batch(&self, id: u64, batch: u64) -> bool {
        self.open.get(&id).is_some_and(|open| open.batch == batch)
    }

    /// Takes a sequence into `batch`. Returns the sequence, if it is open, and whether it was in this batch before.
    pub fn enter_batch(&mut self, id: u64, batch: u64) -> Option<(&Sequence, bool)> {
        let open = self.open.get_mut(&id)?;
        let before = std::mem::replace(&mut open.batch, batch);
        Some((&open.charged.sequence, before == batch))
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
impl Drop for Table {
    fn drop(&mut self) {
        let shares = self.open.values().filter_map(|open| open.charged.sequence.accepted_share());
        shares.for_each(|share| self.acceptance.record(share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::SamplingParams;
    use crate::sequence::rules::Rules;

    fn opened(ids: std::ops::Range<u64>) -> Table {
        let mut table = Table::new(usize::MAX, Counter::new(usize::MAX, Gauge::noop()));
        ids.for_each(|id| open(&mut table, id));
        table
    }

    fn open(table: &mut Table, id: u64) {
        let sequence = Sequence::open(Arc::new(Rules::new(SamplingParams::default(), &[])), 7, &[], &[]);
        let room = Counter::new(usize::MAX, Gauge::noop());
        let charged = ChargedSequence::new(sequence, &room).expect("there is room");
        table.open(id, charged).expect("it is not open");
    }

    #[test]
    fn places_of_closed_sequences_are_given_up() {
        let mut table = opened(0..16_384);
        for id in 100..16_384 {
            table.close(id);
            assert!(table.open.capacity() <= FEW_PLACES.max(8 * table.len()) + 8, "{} of", table.len());
        }
        assert!((0..100).all(|id| table.get(id).is_some()) && table.len() == 100);
        (0..100).for_each(|id| table.close(id));
        assert!(table.is_empty() && table.open.capacity() <= FEW_PLACES);
    }

    #[test]
    fn a_full_server_is_told_before_a_full_stream() {
        let refused = |mut table: Table| {
            open(&mut table, 1);
            let sequence = Sequence::open(Arc::new(Rules::new(SamplingParams::default(), &[])), 7, &[], &[]);
            let room = Counter::new(usize::MAX, Gauge::noop());
            let refused =
                table.open(2, ChargedSequence::new(sequence, &room).expect("there is room")).expect_err("it is full");
            assert_eq!((table.len(), table.server.used()), (1, 1), "nothing has changed");
            refused
        };
        let full = |stream, server| refused(Table::new(stream, Counter::new(server, Gauge::noop())));
        assert_eq!(full(1, 9), OpenError::StreamLimit { open: 1 });
        assert_eq!(full(9, 1), OpenError::Refused(Refusal::TooManySequences));
        assert_eq!(full(1, 1), OpenError::Refused(Refusal::TooManySequences), "to raise the stream's would not do");
    }

    #[test]
    fn opening_and_closing_in_turn_moves_no_places() {
        let mut table = opened(0..4096);
        for left in (0..4096).rev().step_by(17) {
            (left..left + 17).for_each(|id| table.close(id));
            let moved = (0..100).filter(|_| {
                let places = table.open.capacity();
                open(&mut table, 5000);
                table.close(5000);
                table.open.capacity() < places / 2
            });
            assert!(moved.count() <= 1, "with {} open", table.len());
        }
    }
}
