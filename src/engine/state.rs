//! The engine's state: every stream's sequences and waiting steps. It is a state machine without clock or channel. Its
//! callers say what arrived and what time it is, and it waits for nothing but the results of a grammar's threads.
//!
//! A batch takes the waiting steps of all streams in turn, and each stream's steps in order. A step waits for the next
//! batch if it names a sequence that the current batch already works on, because its rows depend on tokens that are not
//! drawn yet. The rest of its stream waits with it.

use super::admission::StepPermits;
use super::batch::Batch;
use super::complaint::StepOrigin;
use super::plan::ENTRY_TIME_BYTES;
use super::step::{Open, Step, StepReply, Work};
use super::verify::MeasurementSelector;
use super::{RUN_HERE_BYTES, grammar};
use crate::backend::Backend;
use crate::limits::Limits;
use crate::metrics::{Metrics, Stage};
use crate::permits::Permit;
use crate::sequence::Sequence;
use crate::sequence::table::Table;
use std::cell::LazyCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// The engine's number for a stream.
pub(super) type StreamId = u64;

/// A command to the engine.
#[derive(Debug)]
pub(super) enum Command {
    Open { stream: StreamId, spec: Box<StreamSpec> },
    Step { stream: StreamId, queued: Box<Queued> },
    Close { stream: StreamId },
}

/// What a new stream brings with it.
#[derive(Debug)]
pub(super) struct StreamSpec {
    pub(super) replies: mpsc::Sender<StepReply>,
    pub(super) origin: StepOrigin,
    pub(super) table: Table,
    pub(super) permits: StreamPermits,
}

/// The places that a stream holds until the engine has forgotten it.
#[derive(Debug)]
pub(super) struct StreamPermits {
    /// The stream's place among the server's streams, or the places of all its sequences.
    pub(super) _place: Arc<Permit>,
    /// Its place among the streams of its model label, if it is shown there.
    pub(super) _shown: Option<Permit>,
}

/// A waiting step, and the room it takes.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) step: Step,
    pub(super) permits: StepPermits,
    /// The time that the step takes, in bytes of whole rows that take as long. It decides which thread may run the step
    /// ([`RUN_HERE_BYTES`]).
    pub(super) weight: usize,
}

impl Queued {
    /// Puts a step together with the sequences it opens.
    pub(super) fn new(step: Step, open: Vec<Open>, mut permits: StepPermits) -> Self {
        permits.opened(&open);
        // Two kinds of step take longer than their rows tell. A score penalises each of its rows for the text so far,
        // and there may be many rows. An explanation goes through its row once for each filter.
        let is_long = step.work.iter().any(Work::is_score) || open.iter().any(Open::takes_long);
        let step = Step { open, ..step };
        let queued = Self { weight: step.time_bytes(), step, permits };
        if is_long { queued.for_engine_thread() } else { queued }
    }

    /// The same step, left to the engine's thread because it takes longer than its rows tell.
    pub(super) fn for_engine_thread(self) -> Self {
        Self { weight: self.weight.max(RUN_HERE_BYTES + 1), ..self }
    }

    /// Adds the time for what sequences know of tokens: every top-n row goes through these entries as a whole row does,
    /// however short it is.
    fn weigh_entries(&mut self, table: &Table) {
        let Step { open, work, logits, .. } = &self.step;
        let opened = LazyCell::new(|| open.iter().flat_map(|open| &open.sequence).map(|open| open.entries()).max());
        for work in work {
            let rows = logits.rests_among(work.first_row, work.rows());
            let Some(id) = work.sequence_id.filter(|_| rows > 0) else { continue };
            // Sequences that this step opens count as the largest of them. One that an earlier step opens is not known
            // yet and may be of any size, so the step is left to the engine's thread. The weight stays a number that can
            // be subtracted again.
            let known = table.get(id).map(Sequence::entries).max(*opened).unwrap_or(RUN_HERE_BYTES);
            let weight = rows.saturating_mul(known).saturating_mul(ENTRY_TIME_BYTES);
            self.weight = self.weight.saturating_add(weight);
        }
    }
}

/// What the engine keeps for one stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) table: Table,
    pub(super) origin: StepOrigin,
    pub(super) replies: mpsc::Sender<StepReply>,
    waiting: VecDeque<Box<Queued>>,
    _permits: StreamPermits,
}

/// All of the engine's state.
#[derive(Debug)]
pub(super) struct State {
    streams: HashMap<StreamId, Stream>,
    /// Streams with waiting steps, in the order in which they are served, each once.
    ready: VecDeque<StreamId>,
    limits: Arc<Limits>,
    metrics: Metrics,
    batches: u64,
    selector: MeasurementSelector,
}

impl State {
    pub(super) fn new(limits: Arc<Limits>, metrics: Metrics) -> Self {
        let (streams, ready) = (HashMap::new(), VecDeque::new());
        Self { streams, ready, limits, metrics, batches: 0, selector: MeasurementSelector::default() }
    }

    /// Takes in a command. Returns the weight of the step that it adds to the waiting ones, if any.
    pub(super) fn apply(&mut self, command: Command) -> usize {
        match command {
            Command::Open { stream, spec } => {
                let StreamSpec { replies, origin, table, permits } = *spec;
                let waiting = VecDeque::new();
                self.streams.insert(stream, Stream { table, origin, replies, waiting, _permits: permits });
            }
            Command::Step { stream: id, mut queued } => {
                let Some(stream) = self.streams.get_mut(&id) else { return 0 };
                queued.weigh_entries(&stream.table);
                let weight = queued.weight;
                if stream.waiting.is_empty() {
                    self.ready.push_back(id);
                }
                stream.waiting.push_back(queued);
                return weight;
            }
            Command::Close { stream } => drop(self.streams.remove(&stream)),
        }
        0
    }

    /// Whether any step waits.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes waiting steps into a batch: all of them, unless limits on rows or the order of a stream forbid it.
    pub(super) fn gather(&mut self, now: Instant) -> Batch {
        self.batches += 1;
        let mut batch = Batch::new(self.batches, now);
        let mut later = VecDeque::new();
        while let Some(id) = self.ready.pop_front() {
            // Steps of a stream that is gone are dropped here and cost nothing.
            let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.replies.is_closed()) else {
                continue;
            };
            let fits = stream.waiting.front().is_some_and(|queued| {
                batch.has_room_for(&queued.step, &self.limits)
                    && !queued.step.sequence_ids().any(|sequence| stream.table.is_in_batch(sequence, batch.number))
            });
            if fits && let Some(queued) = stream.waiting.pop_front() {
                self.metrics.stage(Stage::Queue, now.saturating_duration_since(queued.step.received));
                batch.take(id, *queued, stream, &self.limits);
            }
            if !stream.waiting.is_empty() {
                if fits { &mut self.ready } else { &mut later }.push_back(id);
            }
        }
        self.ready = later;
        batch
    }

    /// Fills in a batch's masks and runs its rows on the backend.
    pub(super) fn run(&mut self, batch: &mut Batch, backend: &mut dyn Backend) {
        let asked = Instant::now();
        if batch.fill_masks(&self.streams) {
            self.metrics.grammar_wait.record(asked.elapsed());
        }
        batch.run(&self.streams, &mut self.selector, backend);
    }

    /// Commits a batch's tokens and hands out its replies. Replies that say what a grammar forces next come last,
    /// because finding that out takes a while.
    pub(super) fn commit(&mut self, batch: Batch, now: Instant) {
        let started = batch.gathered;
        let (mut later, mut waiting) = (Vec::new(), HashSet::new());
        for step in batch.steps {
            let Some(stream) = self.streams.get_mut(&step.stream) else { continue };
            let finished = stream.finish(step);
            // Replies of a stream go out in order, so those behind a waiting reply wait too.
            if waiting.contains(&finished.stream) || stream.drafts_by_grammar(&finished) {
                waiting.insert(finished.stream);
                later.push(finished);
            } else {
                stream.answer(finished, &self.metrics, started, now);
            }
        }
        if later.is_empty() {
            return;
        }
        let asked = Instant::now();
        grammar::propose(&mut later, &mut self.streams);
        self.metrics.grammar_wait.record(asked.elapsed());
        for finished in later {
            if let Some(stream) = self.streams.get_mut(&finished.stream) {
                stream.answer(finished, &self.metrics, started, now);
            }
        }
    }

    /// How many streams there are.
    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }
}
