//! The engine's state: every stream's sequences and waiting steps. It is a state machine without clock or channel. Its
//! callers say what arrived and what time it is, and it waits for nothing but the results of a grammar's threads, and not
//! for long.
//!
//! A batch takes the waiting steps of all streams in turn, and each stream's steps in order. A step waits for the next
//! batch if it names a sequence that the current batch already works on, because its rows depend on tokens that are not
//! drawn yet. The rest of its stream waits with it. So it is with a step whose masks take long, which is set
//! [aside](super::aside).

use super::aside::{Aside, Unanswered};
use super::batch::{Batch, BatchedStep};
use super::finished::Finished;
use super::grammar::StreamDrafts;
use super::queued::Queued;
use super::stream::{Stream, StreamId, StreamSpec};
use super::verify::MeasurementSelector;
use crate::backend::Backend;
use crate::limits::Limits;
use crate::metrics::{Metrics, Stage};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// A command to the engine.
#[derive(Debug)]
pub(super) enum Command {
    Open { stream: StreamId, spec: Box<StreamSpec> },
    Step { stream: StreamId, queued: Box<Queued> },
    Close { stream: StreamId },
}

/// All of the engine's state.
#[derive(Debug)]
pub(super) struct State {
    streams: HashMap<StreamId, Stream>,
    /// Streams with waiting steps, in the order in which they are served, each once.
    ready: VecDeque<StreamId>,
    /// Steps whose masks or drafts take long. Their streams are not ready meanwhile.
    pub(super) aside: Aside,
    /// What the waiting steps of ready streams weigh.
    ready_weight: usize,
    /// Whether something that was set aside can go on.
    aside_is_ready: bool,
    /// Whether the next batch takes waiting steps before those that were set aside.
    ready_first: bool,
    limits: Arc<Limits>,
    metrics: Metrics,
    batches: u64,
    selector: MeasurementSelector,
}

impl State {
    pub(super) fn new(limits: Arc<Limits>, metrics: Metrics) -> Self {
        let (streams, ready, aside) = (HashMap::new(), VecDeque::new(), Aside::default());
        let (ready_weight, aside_is_ready, ready_first) = (0, false, false);
        let selector = MeasurementSelector::default();
        Self { streams, ready, aside, ready_weight, aside_is_ready, ready_first, limits, metrics, batches: 0, selector }
    }

    /// Takes in a command.
    pub(super) fn apply(&mut self, command: Command) {
        match command {
            Command::Open { stream, spec } => {
                self.streams.insert(stream, Stream::new(*spec));
            }
            Command::Step { stream, queued } => self.take_in(stream, queued),
            Command::Close { stream: id } => {
                self.aside.forget(id);
                let gone = self.streams.remove(&id).filter(|stream| !stream.is_aside());
                self.ready_weight = self.ready_weight.saturating_sub(gone.map_or(0, |stream| stream.weight()));
            }
        }
    }

    /// Takes in a step.
    fn take_in(&mut self, id: StreamId, mut queued: Box<Queued>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        queued.weigh_entries(&stream.table);
        if !stream.is_aside() {
            self.ready_weight = self.ready_weight.saturating_add(queued.weight);
            if !stream.waits() {
                self.ready.push_back(id);
            }
        }
        stream.push(queued);
    }

    /// Whether any step waits, and could run now.
    pub(super) fn has_work(&mut self) -> bool {
        self.aside_is_ready = self.aside.look();
        self.aside_is_ready || !self.ready.is_empty()
    }

    /// What the steps weigh that wait and could run now, as [`Self::has_work`] has found them. What was set aside is left
    /// to the engine's thread.
    pub(super) fn weight(&self) -> usize {
        if self.aside_is_ready { usize::MAX } else { self.ready_weight }
    }

    /// Takes waiting steps into a batch: all of them, unless limits on rows or the order of a stream forbid it. What was
    /// set aside comes first, but not twice before steps for which there was no room.
    pub(super) fn gather(&mut self, now: Instant) -> Batch {
        self.batches += 1;
        let mut batch = Batch::new(self.batches, now);
        self.answer_aside(now);
        if self.ready_first {
            self.gather_ready(&mut batch);
        }
        for (id, since) in self.aside.take_back(&mut batch, &mut self.streams, &self.limits) {
            self.metrics.grammar_wait.record(now.saturating_duration_since(since));
            self.serve_again(id);
        }
        self.gather_ready(&mut batch);
        self.ready_first = !self.ready_first && !self.ready.is_empty();
        batch
    }

    /// Takes steps of ready streams into a batch.
    fn gather_ready(&mut self, batch: &mut Batch) {
        let mut later = VecDeque::new();
        while let Some(id) = self.ready.pop_front() {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            // Steps of a stream that is gone are dropped with it, and cost nothing until then.
            if stream.is_gone() {
                self.ready_weight = self.ready_weight.saturating_sub(stream.forget_weight());
                continue;
            }
            let fits = stream.first().is_some_and(|queued| {
                batch.has_room_for(&queued.step, &self.limits)
                    && !queued.step.sequence_ids().any(|sequence| stream.table.is_in_batch(sequence, batch.number))
            });
            if fits && let Some(queued) = stream.pop() {
                self.ready_weight = self.ready_weight.saturating_sub(queued.weight);
                batch.take(id, *queued, stream, &self.limits);
            }
            if stream.waits() {
                if fits { &mut self.ready } else { &mut later }.push_back(id);
            }
        }
        self.ready = later;
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

    /// Leaves out streams of which steps were set aside, and makes these take their room there.
    fn leave_out(&mut self) {
        let held: Vec<StreamId> = self.aside.streams().collect();
        for id in held {
            let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_aside()) else { continue };
            self.ready_weight = self.ready_weight.saturating_sub(stream.weight());
            let fits = stream.set_aside();
            self.aside.keep(id, stream.aside_room(), fits);
        }
        let aside = &self.aside;
        self.ready.retain(|&id| !aside.holds(id));
    }

    /// Serves a stream again of which steps were set aside.
    fn serve_again(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id).filter(|_| !self.aside.holds(id)) else { return };
        stream.go_on();
        self.ready_weight = self.ready_weight.saturating_add(stream.weight());
        if stream.waits() {
            self.ready.push_back(id);
        }
    }

    /// Whether steps of a stream are set aside.
    #[cfg(test)]
    pub(super) fn is_aside(&self, id: StreamId) -> bool {
        self.aside.holds(id)
    }

    /// The room for what is set aside of a stream.
    #[cfg(test)]
    pub(super) fn aside_room(&self, id: StreamId) -> Arc<super::aside_room::AsideRoom> {
        Arc::clone(self.streams[&id].aside_room())
    }

    /// How many streams there are.
    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }
}
