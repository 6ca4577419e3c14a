//! The engine's state: every stream's sequences and waiting steps. It is a state machine without clock or channel. Its
//! callers say what arrived and what time it is, and it waits for nothing but the results of a grammar's threads, and not
//! for long.
//!
//! A batch takes the waiting steps of all streams in turn, and each stream's steps in order. A step waits for the next
//! batch if it names a sequence that the current batch already works on, because its rows depend on tokens that are not
//! drawn yet. The rest of its stream waits with it. So it is with a step whose masks take long, which is set
//! [aside](super::aside).

use super::RUN_HERE_BYTES;
use super::admission::StepPermits;
use super::aside::{Aside, Unanswered};
use super::batch::{Batch, BatchedStep};
use super::complaint::StepOrigin;
use super::finished::Finished;
use super::grammar::StreamDrafts;
use super::plan::ENTRY_TIME_BYTES;
use super::step::{Open, Step, StepReply, Work};
use super::verify::MeasurementSelector;
use crate::backend::Backend;
use crate::limits::Limits;
use crate::metrics::{Metrics, Stage};
use crate::permits::Permit;
use crate::sequence::Sequence;
use crate::sequence::table::Table;
use std::cell::LazyCell;
use std::collections::{HashMap, VecDeque};
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

impl Stream {
    /// Whether nobody waits for its replies any more.
    pub(super) fn is_gone(&self) -> bool {
        self.replies.is_closed()
    }
}

/// All of the engine's state.
#[derive(Debug)]
pub(super) struct State {
    streams: HashMap<StreamId, Stream>,
    /// Streams with waiting steps, in the order in which they are served, each once.
    ready: VecDeque<StreamId>,
    /// Steps whose masks or drafts take long. Their streams are not ready meanwhile.
    pub(super) aside: Aside,
    limits: Arc<Limits>,
    metrics: Metrics,
    batches: u64,
    selector: MeasurementSelector,
}

impl State {
    pub(super) fn new(limits: Arc<Limits>, metrics: Metrics) -> Self {
        let (streams, ready, aside) = (HashMap::new(), VecDeque::new(), Aside::default());
        Self { streams, ready, aside, limits, metrics, batches: 0, selector: MeasurementSelector::default() }
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
                if stream.waiting.is_empty() && !self.aside.holds(id) {
                    self.ready.push_back(id);
                }
                stream.waiting.push_back(queued);
                return weight;
            }
            Command::Close { stream } => {
                self.aside.forget(stream);
                self.streams.remove(&stream);
            }
        }
        0
    }

    /// Whether any step waits, and could run now.
    pub(super) fn has_work(&mut self) -> bool {
        self.aside.look() || !self.ready.is_empty()
    }

    /// Takes waiting steps into a batch: all of them, unless limits on rows or the order of a stream forbid it. What was
    /// set aside comes first.
    pub(super) fn gather(&mut self, now: Instant) -> Batch {
        self.batches += 1;
        let mut batch = Batch::new(self.batches, now);
        self.answer_aside(now);
        for (id, since) in self.aside.take_back(&mut batch, &mut self.streams, &self.limits) {
            self.metrics.grammar_wait.record(now.saturating_duration_since(since));
            self.serve_again(id);
        }
        let mut later = VecDeque::new();
        while let Some(id) = self.ready.pop_front() {
            // Steps of a stream that is gone are dropped here and cost nothing.
            let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_gone()) else {
                continue;
            };
            let fits = stream.waiting.front().is_some_and(|queued| {
                batch.has_room_for(&queued.step, &self.limits)
                    && !queued.step.sequence_ids().any(|sequence| stream.table.is_in_batch(sequence, batch.number))
            });
            if fits && let Some(queued) = stream.waiting.pop_front() {
                batch.take(id, *queued, stream, &self.limits);
            }
            if !stream.waiting.is_empty() {
                if fits { &mut self.ready } else { &mut later }.push_back(id);
            }
        }
        self.ready = later;
        batch
    }

    /// Fills in a batch's masks, after which its steps leave the queue. Steps whose masks take long leave the batch, and a
    /// later one takes them back.
    pub(super) fn fill_masks(&mut self, batch: &mut Batch) {
        if batch.steps.iter().any(|step| step.masks.is_some()) {
            let asked = Instant::now();
            batch.fill_masks(&mut self.aside);
            self.metrics.grammar_wait.record(asked.elapsed());
            self.leave_out();
        }
        for BatchedStep { step, queued, .. } in &mut batch.steps {
            drop(queued.take());
            self.metrics.stage(Stage::Queue, batch.gathered.saturating_duration_since(step.received));
        }
    }

    /// Runs a batch's rows on the backend.
    pub(super) fn run(&mut self, batch: &mut Batch, backend: &mut dyn Backend) {
        batch.run(&self.streams, &mut self.selector, backend);
    }

    /// Commits a batch's tokens and hands out its replies. Replies that say what a grammar forces next come last,
    /// because finding that out takes a while; if it takes long, they are set aside.
    pub(super) fn commit(&mut self, batch: Batch, now: Instant) {
        let started = batch.gathered;
        let mut later: Vec<(StreamId, Vec<Finished>)> = Vec::new();
        for step in batch.steps {
            let Some(stream) = self.streams.get_mut(&step.stream) else { continue };
            let finished = stream.finish(step);
            // Replies of a stream go out in order, so those behind a waiting reply wait too.
            match later.iter_mut().find(|(id, _)| *id == finished.stream) {
                Some((_, waiting)) => waiting.push(finished),
                None if stream.drafts_by_grammar(&finished) => later.push((finished.stream, vec![finished])),
                None => stream.answer(finished, &self.metrics, started, now),
            }
        }
        if later.is_empty() {
            return;
        }
        let asked = Instant::now();
        let asking = |(id, finished): (StreamId, Vec<Finished>)| {
            let drafts = StreamDrafts::ask(&finished, &self.streams.get(&id)?.table);
            Some(Unanswered { stream: id, finished, drafts, started, ended: now })
        };
        let unanswered = later.into_iter().filter_map(asking).collect();
        let drafted = self.aside.with_drafts(unanswered);
        self.metrics.grammar_wait.record(asked.elapsed());
        self.answer(drafted);
        self.leave_out();
    }

    /// Answers steps whose drafts are there.
    fn answer(&mut self, drafted: Vec<Unanswered>) {
        for Unanswered { stream: id, mut finished, drafts, started, ended } in drafted {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            drafts.add(&mut finished, &mut stream.table);
            finished.into_iter().for_each(|finished| stream.answer(finished, &self.metrics, started, ended));
        }
    }

    /// Answers what was set aside and has its drafts now.
    fn answer_aside(&mut self, now: Instant) {
        let drafted = self.aside.drafted();
        let ids: Vec<StreamId> = drafted.iter().map(|group| group.stream).collect();
        drafted.iter().for_each(|group| self.metrics.grammar_wait.record(now.saturating_duration_since(group.ended)));
        self.answer(drafted);
        ids.into_iter().for_each(|id| self.serve_again(id));
    }

    /// Leaves out streams of which steps were set aside.
    fn leave_out(&mut self) {
        let aside = &self.aside;
        self.ready.retain(|&id| !aside.holds(id));
    }

    /// Serves a stream again of which steps were set aside.
    fn serve_again(&mut self, id: StreamId) {
        let waits = self.streams.get(&id).is_some_and(|stream| !stream.waiting.is_empty());
        if waits && !self.aside.holds(id) {
            self.ready.push_back(id);
        }
    }

    /// How many streams there are.
    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }
}
