//! Who is let in. Every step takes room before it is queued; the permits travel with it and give the room
//! back when they are dropped, on whatever path.

use super::memory;
use super::step::Step;
use crate::error::Refusal;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::permits::{Counter, Permit};
use crate::sequence::table::Table;
use metrics::Gauge;
use std::sync::Arc;

/// Room for steps, streams and sequences.
#[derive(Debug)]
pub(super) struct Admission {
    queued: Arc<Counter>,
    /// Steps that wait for their shards, and those behind them: they may wait for seconds, and must not keep others out.
    held: Arc<Counter>,
    bytes: Arc<Counter>,
    rows: Arc<Counter>,
    streams: Arc<Counter>,
    sequences: Arc<Counter>,
    state: Arc<Counter>,
    max_sequences_per_stream: usize,
}

/// The room of one step.
#[derive(Debug)]
pub(super) struct StepPermits {
    /// Its place in the queue, given back when a batch takes it; before that, its place among those held back.
    pub(super) queued: Permit,
    /// Its bytes and rows, given back with its reply.
    pub(super) _in_flight: (Permit, Permit),
}

impl Admission {
    pub(super) fn new(limits: &Limits, metrics: &Metrics) -> Self {
        Self {
            queued: Counter::new(limits.max_queued_steps, metrics.queue_depth.clone()),
            held: Counter::new(limits.max_queued_steps, Gauge::noop()),
            bytes: Counter::new(limits.max_bytes_in_flight, metrics.bytes_in_flight.clone()),
            rows: Counter::new(limits.max_rows_in_flight(), metrics.rows_in_flight.clone()),
            streams: Counter::new(limits.max_streams, metrics.streams.clone()),
            sequences: Counter::new(limits.max_sequences, metrics.sequences.clone()),
            state: Counter::new(limits.max_state_bytes, metrics.state_bytes.clone()),
            max_sequences_per_stream: limits.max_sequences_per_stream,
        }
    }

    /// Room for a step, or what there is too little of.
    pub(super) fn step(&self, step: &Step) -> Result<StepPermits, Refusal> {
        self.place(step, &self.queued)
    }

    /// The same for a step that is held back until it need not wait for shards.
    pub(super) fn held_step(&self, step: &Step) -> Result<StepPermits, Refusal> {
        self.place(step, &self.held)
    }

    /// A step that was held back is queued. It was let in before, so there is a place for it.
    pub(super) fn release(&self, permits: &mut StepPermits) {
        permits.queued = self.queued.take_anyway(1);
    }

    fn place(&self, step: &Step, places: &Arc<Counter>) -> Result<StepPermits, Refusal> {
        let queued = places.take(1).ok_or(Refusal::QueueFull)?;
        let bytes = self.bytes.take(memory::of_step(step)).ok_or(Refusal::BytesInFlight)?;
        let rows = self.rows.take(step.rows()).ok_or(Refusal::RowsInFlight)?;
        Ok(StepPermits { queued, _in_flight: (bytes, rows) })
    }

    /// Room for a stream.
    pub(super) fn stream(&self) -> Result<Permit, Refusal> {
        self.streams.take(1).ok_or(Refusal::TooManyStreams)
    }

    /// A stream's table: each sequence takes its place on the server when it is opened.
    pub(super) fn table(&self) -> Table {
        Table::new(self.max_sequences_per_stream, Arc::clone(&self.sequences))
    }

    /// The table of a stream of one step, and places on the server for all that the step opens: one at
    /// least, so that such streams are bounded too.
    pub(super) fn reserved_table(&self, step: &Step) -> Result<(Table, Permit), Refusal> {
        let places = step.open.len();
        let permit = self.sequences.take(places.max(1)).ok_or(Refusal::TooManySequences)?;
        Ok((Table::new(places, Counter::new(places, Gauge::noop())), permit))
    }

    /// Room for what is remembered of sequences.
    pub(super) fn state(&self) -> Arc<Counter> {
        Arc::clone(&self.state)
    }

    /// Bytes of messages and replies, for tests.
    #[cfg(test)]
    pub(super) fn bytes_in_flight(&self) -> usize {
        self.bytes.used()
    }

    /// Sequences open on the server, or about to be.
    pub(super) fn open_sequences(&self) -> usize {
        self.sequences.used()
    }
}
