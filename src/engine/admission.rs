//! Decides which calls and steps are let in, and takes the room that they need.
//!
//! A step takes its place and room for its message before anything is made of the message. It takes room for its rows
//! and lists before its sequences are built. So a refused step costs little and takes nobody's room. The permits travel
//! with the step, and give the room back when they are dropped, on whatever path.

use super::aside_room::{AsideRoom, AsideShare};
use super::memory;
use super::step::{Open, Step};
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
    /// Steps that wait for their shards, and the steps behind them. They may wait for seconds, and must not keep others
    /// out.
    held: Arc<Counter>,
    /// Stateless calls whose messages are on their way. A call whose message has come is a step instead.
    stateless: Arc<Counter>,
    bytes: Arc<Counter>,
    shares: ByteShares,
    rows: Arc<Counter>,
    /// Rows of steps that are held back.
    held_rows: Arc<Counter>,
    /// What is set aside for its grammars.
    aside: AsideShare,
    streams: Arc<Counter>,
    sequences: Arc<Counter>,
    state: Arc<Counter>,
    max_sequences_per_stream: usize,
}

/// Shares of the bytes in flight for what waits for somebody outside, as long as that one likes or a timeout allows.
/// Together they leave an eighth to steps that wait for nobody.
#[derive(Debug)]
struct ByteShares {
    /// All of what follows, except for replies of streams.
    waits: Arc<Counter>,
    /// Messages of stateless calls. They are on their way and may never come.
    incoming: Arc<Counter>,
    /// Steps that are held back for their shards.
    held: Arc<Counter>,
    /// Answers of stateless calls. They may never be read.
    answers: Arc<Counter>,
    /// Replies of streams. They may never be read either.
    replies: Arc<Counter>,
    /// The most bytes of replies that one stream may have.
    max_stream_replies: usize,
}

impl ByteShares {
    /// Divides `bytes` into shares. A message that fits alone fits in its share too.
    fn new(bytes: &Arc<Counter>, max_message_bytes: usize) -> Self {
        let eighths = |count: usize| bytes.limit() / 8 * count;
        let messages = |count| eighths(count).max(max_message_bytes);
        let waits = bytes.part(messages(5));
        Self {
            incoming: waits.part(messages(3)),
            held: waits.part(messages(4)),
            answers: waits.part(eighths(1)),
            waits,
            replies: bytes.part(eighths(2)),
            max_stream_replies: eighths(1),
        }
    }
}

/// A place for a step, and room for its message.
#[derive(Debug)]
pub struct StepPlace {
    place: Permit,
    bytes: Permit,
    /// Where its rows take room.
    rows: Arc<Counter>,
    /// Whether the step is held back, for its own shards or behind a step that waits for shards.
    pub(super) held: bool,
}

/// The room of one step.
#[derive(Debug)]
pub(super) struct StepPermits {
    /// The step's place in the queue, given back when the batch begins that runs the step. Before that, its place among
    /// the held steps, if it is held back.
    pub(super) queued: Permit,
    pub(super) in_flight: InFlight,
}

/// The room of a step that is not answered yet.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Room for the step's message and what is made of it.
    pub(super) message: Permit,
    pub(super) rows: Permit,
    /// Room for what the reply may report; once the reply is made, for what it does report.
    pub(super) reply: Permit,
}

impl StepPermits {
    /// Counts the error texts of sequences that could not be built.
    pub(super) fn opened(&mut self, open: &[Open]) {
        let message = &mut self.in_flight.message;
        message.set(message.amount() + memory::of_errors(open));
    }
}

impl Admission {
    pub(super) fn new(limits: &Limits, metrics: &Metrics) -> Self {
        let bytes = Counter::new(limits.max_bytes_in_flight, metrics.bytes_in_flight.clone());
        let rows = Counter::new(limits.max_rows_in_flight(), metrics.rows_in_flight.clone());
        let queued = Counter::new(limits.max_queued_steps, metrics.queue_depth.clone());
        let shares = ByteShares::new(&bytes, limits.max_message_bytes);
        Self {
            aside: AsideShare::new(&queued, &shares.waits, &rows, limits),
            queued,
            held: Counter::new(limits.max_queued_steps, Gauge::noop()),
            stateless: Counter::new(limits.max_queued_steps, Gauge::noop()),
            shares,
            bytes,
            held_rows: rows.part(limits.max_rows_in_flight() / 2),
            rows,
            streams: Counter::new(limits.max_streams, metrics.streams.clone()),
            sequences: Counter::new(limits.max_sequences, metrics.sequences.clone()),
            state: Counter::new(limits.max_state_bytes, metrics.state_bytes.clone()),
            max_sequences_per_stream: limits.max_sequences_per_stream,
        }
    }

    /// A place for a step that goes to the engine, and room for its message; or the refusal, if there is too little.
    pub(super) fn place(&self, message_bytes: usize) -> Result<StepPlace, Refusal> {
        step_place([&self.queued, &self.bytes, &self.rows], message_bytes, false)
    }

    /// The same for a step that is held back until it need not wait for shards.
    pub(super) fn held_place(&self, message_bytes: usize) -> Result<StepPlace, Refusal> {
        step_place([&self.held, &self.shares.held, &self.held_rows], message_bytes, true)
    }

    /// The same for a step behind steps of its stream that are set aside.
    pub(super) fn place_aside(room: &AsideRoom, message_bytes: usize) -> Result<StepPlace, Refusal> {
        step_place(room.counters(), message_bytes, false)
    }

    /// Room for a step with `openings` openings, once its message is read. `replies` is the room for replies of its
    /// stream.
    pub(super) fn step(
        &self,
        place: StepPlace,
        step: &Step,
        openings: usize,
        replies: &Arc<Counter>,
    ) -> Result<StepPermits, Refusal> {
        let StepPlace { place: queued, mut bytes, rows, .. } = place;
        if !bytes.resize(memory::of_message(step)) {
            return Err(Refusal::BytesInFlight);
        }
        let rows = rows.take(step.rows()).ok_or(Refusal::RowsInFlight)?;
        let reply = self.reply(memory::of_places(step, openings), replies).ok_or(Refusal::BytesInFlight)?;
        // This may exceed the limit, by the lists of one step for each core: a message that fits must not be refused
        // for ever.
        bytes.set(memory::of_step(step, openings));
        Ok(StepPermits { queued, in_flight: InFlight { message: bytes, rows, reply } })
    }

    /// Room for the places of a reply, out of the share of all replies. Streams that do not read their replies may use
    /// up that share, but must not keep out those that do. So a stream that has read all of its replies gets room for
    /// one more, however large. And a stream whose own part has room gets it as long as there is any room at all.
    fn reply(&self, bytes: usize, replies: &Arc<Counter>) -> Option<Permit> {
        let may_exceed = || replies.used() == 0 || replies.has_room(bytes) && self.bytes.has_room(bytes);
        replies.take(bytes).or_else(|| may_exceed().then(|| replies.take_anyway(bytes)))
    }

    /// Queues a step that was held back and now waits for nobody. It was let in before, so it gets a place in any case.
    pub(super) fn release(&self, permits: &mut StepPermits) {
        permits.queued = self.queued.take_anyway(1);
        permits.in_flight.message.leave_part();
        permits.in_flight.rows.leave_part();
    }

    /// A place for a stateless call until its message has come.
    pub(super) fn stateless(&self) -> Result<Permit, Refusal> {
        self.stateless.take(1).ok_or(Refusal::QueueFull)
    }

    /// Room for a message that is on its way.
    pub(super) fn message(&self, bytes: usize) -> Result<Permit, Refusal> {
        self.shares.incoming.take(bytes).ok_or(Refusal::BytesInFlight)
    }

    /// Room for a stream.
    pub(super) fn stream(&self) -> Result<Permit, Refusal> {
        self.streams.take(1).ok_or(Refusal::TooManyStreams)
    }

    /// A stream's table. Each sequence takes its place on the server when it is opened.
    pub(super) fn table(&self) -> Table {
        Table::new(self.max_sequences_per_stream, Arc::clone(&self.sequences))
    }

    /// The table of a stream of one step, and places on the server for all sequences that the step opens. At least one
    /// place is taken, so that such streams are bounded too.
    pub(super) fn reserved_table(&self, openings: usize) -> Result<(Table, Permit), Refusal> {
        let permit = self.sequences.take(openings.max(1)).ok_or(Refusal::TooManySequences)?;
        Ok((Table::new(openings, Counter::new(openings, Gauge::noop())), permit))
    }

    /// Room for what is remembered of sequences.
    pub(super) fn state(&self) -> Arc<Counter> {
        Arc::clone(&self.state)
    }

    /// Room for the replies of a stream.
    pub(super) fn replies(&self) -> Arc<Counter> {
        self.shares.replies.part(self.shares.max_stream_replies)
    }

    /// Room for what a stream has set aside.
    pub(super) fn aside(&self) -> AsideRoom {
        self.aside.of_stream()
    }

    /// Room for the answers of stateless calls.
    pub(super) fn answers(&self) -> Arc<Counter> {
        Arc::clone(&self.shares.answers)
    }

    pub(super) fn bytes_in_flight(&self) -> Arc<Counter> {
        Arc::clone(&self.bytes)
    }

    /// How many sequences are open on the server, or about to be.
    pub(super) fn open_sequences(&self) -> usize {
        self.sequences.used()
    }
}

/// A place for a step, room for its message, and the counter for its rows, out of these three.
fn step_place(
    [places, bytes, rows]: [&Arc<Counter>; 3],
    message_bytes: usize,
    held: bool,
) -> Result<StepPlace, Refusal> {
    let place = places.take(1).ok_or(Refusal::QueueFull)?;
    let bytes = bytes.take(message_bytes).ok_or(Refusal::BytesInFlight)?;
    Ok(StepPlace { place, bytes, rows: Arc::clone(rows), held })
}
