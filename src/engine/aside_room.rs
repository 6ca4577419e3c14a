//! Room for steps that wait for a grammar's threads, and for what their streams send behind them.
//!
//! They may wait for seconds, and must not keep others out. So they have a part of the room that all steps share, and each
//! stream a part of that. The part does not bound what a step may take when it is let in, because nobody knows yet whether
//! it will wait. A step that finds no room in it does not wait.

use super::admission::InFlight;
use crate::limits::Limits;
use crate::permits::{Counter, Permit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The part for all streams, in eighths of the whole; what of that is not kept for the first step of each stream; and what
/// one stream may have.
const ALL: usize = 4;
const MANY: usize = 3;
const ONE_STREAM: usize = 2;

/// Places in the queue, bytes, and rows: of all, or of a part.
#[derive(Debug, Clone)]
struct Room {
    places: Arc<Counter>,
    bytes: Arc<Counter>,
    rows: Arc<Counter>,
}

impl Room {
    /// A part of so many eighths of what `limits` allow, but at least one step's room.
    fn part(&self, eighths: usize, limits: &Limits) -> Self {
        let of = |counter: &Arc<Counter>, limit: usize, least: usize| counter.part((limit / 8 * eighths).max(least));
        Self {
            places: of(&self.places, limits.max_queued_steps, 1),
            bytes: of(&self.bytes, limits.max_bytes_in_flight, limits.max_message_bytes),
            rows: of(&self.rows, limits.max_rows_in_flight(), limits.max_rows_per_step),
        }
    }

    /// What a step has, with the part for it, as far as it is not in a part yet.
    fn each<'p>(
        &'p self,
        queued: &'p mut Permit,
        in_flight: &'p mut InFlight,
    ) -> impl Iterator<Item = (&'p mut Permit, &'p Arc<Counter>)> {
        let Self { places, bytes, rows } = self;
        let each = [(queued, places), (&mut in_flight.rows, rows), (&mut in_flight.message, bytes)];
        each.into_iter().filter(|(permit, _)| !permit.is_of_part())
    }

    /// Makes a step that is in no part take its room in this one, and returns whether there was enough. If not, it may
    /// have some of it there.
    fn keep(&self, queued: &mut Permit, in_flight: &mut InFlight) -> bool {
        self.each(queued, in_flight).fold(true, |fits, (permit, part)| permit.join_part(part) && fits)
    }
}

/// The part for what all streams have set aside.
#[derive(Debug)]
pub(super) struct AsideShare {
    all: Room,
    many: Room,
    limits: Limits,
}

impl AsideShare {
    /// A part of these.
    pub(super) fn new(places: &Arc<Counter>, bytes: &Arc<Counter>, rows: &Arc<Counter>, limits: &Limits) -> Self {
        let whole = Room { places: Arc::clone(places), bytes: Arc::clone(bytes), rows: Arc::clone(rows) };
        let all = whole.part(ALL, limits);
        Self { many: all.part(MANY, limits), all, limits: limits.clone() }
    }

    /// The part of one stream.
    pub(super) fn of_stream(&self) -> AsideRoom {
        AsideRoom {
            is_in_use: AtomicBool::new(false),
            all: self.all.clone(),
            room: self.many.part(ONE_STREAM, &self.limits),
            has_first: AtomicBool::new(false),
        }
    }
}

/// The room of one stream for what is set aside.
#[derive(Debug)]
pub(super) struct AsideRoom {
    /// Whether steps of the stream are set aside, so that what it sends takes its room here.
    is_in_use: AtomicBool,
    /// The part for all streams.
    all: Room,
    room: Room,
    /// Whether a step has taken what is kept for the first of each stream.
    has_first: AtomicBool,
}

impl AsideRoom {
    /// Whether steps of the stream are set aside.
    pub(super) fn is_in_use(&self) -> bool {
        self.is_in_use.load(Ordering::Relaxed)
    }

    /// Says whether they are.
    pub(super) fn set_in_use(&self, is_in_use: bool) {
        self.has_first.store(false, Ordering::Relaxed);
        self.is_in_use.store(is_in_use, Ordering::Relaxed);
    }

    /// The places in the queue, the bytes and the rows for a step behind those that are set aside.
    pub(super) fn counters(&self) -> [&Arc<Counter>; 3] {
        let Room { places, bytes, rows } = &self.room;
        [places, bytes, rows]
    }

    /// Makes a step that was let in take its room here, as far as there is some, and returns whether there was enough.
    /// One step of each stream may take what is kept for that, and the only one of all streams has enough bytes in any
    /// case, because otherwise it could never wait.
    #[must_use]
    pub(super) fn keep(&self, queued: &mut Permit, in_flight: &mut InFlight) -> bool {
        let is_first = || !self.has_first.swap(true, Ordering::Relaxed);
        let is_kept = self.room.keep(queued, in_flight) || is_first() && self.all.keep(queued, in_flight);
        if !is_kept && self.all.bytes.used() == 0 {
            in_flight.message.join_part_anyway(&self.all.bytes);
            return self.all.keep(queued, in_flight);
        }
        is_kept
    }

    /// The same, beyond the limits of the part if necessary.
    pub(super) fn keep_anyway(&self, queued: &mut Permit, in_flight: &mut InFlight) {
        if !self.keep(queued, in_flight) {
            self.room.each(queued, in_flight).for_each(|(permit, part)| permit.join_part_anyway(part));
        }
    }
}

/// Makes a step that no longer waits take its room among all steps again.
pub(super) fn leave(queued: Option<&mut Permit>, in_flight: &mut InFlight) {
    queued.into_iter().for_each(Permit::leave_part);
    in_flight.rows.leave_part();
    in_flight.message.leave_part();
}
