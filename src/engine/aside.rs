//! What was set aside because it waits for a grammar's threads: steps that lack the masks of their rows, which leave the
//! batch that took them and which a later one takes back, and steps whose rows have run, and whose texts' drafts are not
//! there yet. The rest of their stream waits with them.

use super::aside_room::AsideRoom;
use super::batch::{Batch, BatchedStep, Taken};
use super::finished::Finished;
use super::grammar::{StepMasks, StreamDrafts};
use super::stream::{Stream, StreamId};
use crate::limits::Limits;
use std::collections::{HashMap, HashSet};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a batch waits for masks, and again for drafts, before it goes on without. A mask takes some 20 us, so those of
/// most batches are there long before.
const GRACE: Duration = Duration::from_millis(2);

/// How often what was set aside is looked at while the engine has nothing else to do. That ends texts that take too long;
/// otherwise the thread that finishes the last of the work wakes the engine.
pub(super) const LOOK: Duration = if cfg!(test) { NEVER } else { Duration::from_millis(20) };

/// In tests of the engine, so that they notice if nobody wakes it.
const NEVER: Duration = Duration::from_secs(600);

/// Steps of one stream, in their order. The first of them lacks masks.
#[derive(Debug)]
struct Unmasked {
    stream: StreamId,
    steps: Vec<BatchedStep>,
    since: Instant,
    is_ready: bool,
}

/// Finished steps of one stream, in their order. What the first of them drafts next is not known.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) stream: StreamId,
    pub(super) finished: Vec<Finished>,
    pub(super) drafts: StreamDrafts,
    /// When their rows began, and when their results were there.
    pub(super) started: Instant,
    pub(super) ended: Instant,
}

/// All that was set aside.
#[derive(Debug)]
pub(super) struct Aside {
    unmasked: Vec<Unmasked>,
    unanswered: Vec<Unanswered>,
    /// The streams of both.
    streams: HashSet<StreamId>,
    /// Streams whose last step was set aside for its masks. No batch waits for these until a step has them at once;
    /// otherwise every batch would wait, for as long as somebody is slow.
    slow_masks: HashSet<StreamId>,
    /// The same for drafts.
    slow_drafts: HashSet<StreamId>,
    /// Streams whose steps the batch in hand has taken back: that these have their masks does not make them quick.
    back: HashSet<StreamId>,
    /// [`GRACE`], except in tests.
    grace: Duration,
    /// Whom the last of a step's masks, or of a stream's drafts, wakes.
    engine: Option<Thread>,
}

impl Default for Aside {
    fn default() -> Self {
        let (streams, back) = (HashSet::new(), HashSet::new());
        let (slow_masks, slow_drafts) = (HashSet::new(), HashSet::new());
        Self {
            unmasked: vec![],
            unanswered: vec![],
            streams,
            slow_masks,
            slow_drafts,
            back,
            grace: GRACE,
            engine: None,
        }
    }
}

impl Aside {
    /// Has batches wait so long.
    #[cfg(test)]
    pub(super) fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Sets who is woken.
    pub(super) fn wakes(&mut self, engine: Thread) {
        self.engine = Some(engine);
    }

    /// Fills in the masks of a batch's rows. Steps whose masks take long are set aside.
    pub(super) fn fill(&mut self, batch: &mut Batch) {
        let until = Instant::now() + self.grace;
        let before = self.unmasked.len();
        for mut step in std::mem::take(&mut batch.steps) {
            let grace = grace_of(step.stream, &self.slow_masks, until);
            match self.unmasked[before..].iter_mut().find(|group| group.stream == step.stream) {
                Some(group) => group.steps.push(step),
                None if step.fill_masks(grace) => {
                    if !self.back.contains(&step.stream) {
                        self.slow_masks.remove(&step.stream);
                    }
                    batch.steps.push(step);
                }
                None => {
                    let (stream, since, is_ready) = (step.stream, batch.gathered, false);
                    self.streams.insert(stream);
                    self.slow_masks.insert(stream);
                    self.unmasked.push(Unmasked { stream, steps: vec![step], since, is_ready });
                }
            }
        }
        let steps = self.unmasked[before..].iter().flat_map(|group| &group.steps);
        for masks in steps.filter_map(|step| step.masks.as_ref()) {
            self.engine.iter().for_each(|engine| masks.wakes(engine.clone()));
        }
    }

    /// Takes back the steps whose masks are there, as far as the batch has room for them. Returns their streams, and when
    /// they were set aside.
    pub(super) fn take_back(
        &mut self,
        batch: &mut Batch,
        streams: &mut HashMap<StreamId, Stream>,
        limits: &Limits,
    ) -> Vec<(StreamId, Instant)> {
        let mut back = Vec::new();
        self.back.clear();
        for group in std::mem::take(&mut self.unmasked) {
            if !(group.is_ready && batch.has_room(Taken::all(&group.steps), limits)) {
                self.unmasked.push(group);
                continue;
            }
            // Steps of a stream that is gone are dropped here and cost nothing.
            let Some(stream) = streams.get_mut(&group.stream).filter(|stream| !stream.is_gone()) else { continue };
            for step in group.steps {
                batch.take_back(step, &mut stream.table);
            }
            self.back.insert(group.stream);
            back.push((group.stream, group.since));
        }
        self.count_streams();
        back
    }

    /// Waits for drafts. Returns the steps that can be answered; the others are set aside.
    pub(super) fn with_drafts(&mut self, unanswered: Vec<Unanswered>) -> Vec<Unanswered> {
        let until = Instant::now() + self.grace;
        let mut ready = Vec::new();
        for mut group in unanswered {
            if group.drafts.wait(grace_of(group.stream, &self.slow_drafts, until)) {
                self.slow_drafts.remove(&group.stream);
                ready.push(group);
                continue;
            }
            self.engine.iter().for_each(|engine| group.drafts.wakes(engine.clone()));
            self.streams.insert(group.stream);
            self.slow_drafts.insert(group.stream);
            self.unanswered.push(group);
        }
        ready
    }

    /// Takes out the steps whose drafts are there by now.
    pub(super) fn drafted(&mut self) -> Vec<Unanswered> {
        let drafted = self.unanswered.extract_if(.., |group| group.drafts.wait(Duration::ZERO)).collect();
        self.count_streams();
        drafted
    }

    fn count_streams(&mut self) {
        let unmasked = self.unmasked.iter().map(|group| group.stream);
        self.streams = unmasked.chain(self.unanswered.iter().map(|group| group.stream)).collect();
    }

    /// Looks at all that was set aside. Returns whether anything of it can go on.
    pub(super) fn look(&mut self) -> bool {
        if self.is_empty() {
            return false;
        }
        let (now, unanswered) =
            (Instant::now(), self.unanswered.iter().map(|group| group.stream).collect::<HashSet<_>>());
        for group in &mut self.unmasked {
            // Each step is looked at, because that ends texts that take too long.
            let lacking = group.steps.iter_mut().fold(0, |lacking, step| lacking + usize::from(step.lacks_masks(now)));
            // Replies of a stream go out in order.
            group.is_ready = lacking == 0 && !unanswered.contains(&group.stream);
        }
        let drafted = self.unanswered.iter_mut().any(|group| group.drafts.wait(Duration::ZERO));
        drafted || self.unmasked.iter().any(|group| group.is_ready)
    }

    /// Makes what was set aside of a stream take its room there. If there is too little, its steps go on without the
    /// masks that they lack.
    pub(super) fn keep(&mut self, stream: StreamId, room: &AsideRoom, mut fits: bool) {
        let Some(group) = self.unmasked.iter_mut().find(|group| group.stream == stream) else { return };
        for step in &mut group.steps {
            fits &= step.queued.as_mut().is_none_or(|queued| room.keep(queued, &mut step.permits));
        }
        if !fits {
            group.steps.iter_mut().filter_map(|step| step.masks.as_mut()).for_each(StepMasks::give_up);
        }
    }

    /// The streams of which steps are set aside.
    pub(super) fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.streams.iter().copied()
    }

    /// Whether steps of this stream were set aside.
    pub(super) fn holds(&self, stream: StreamId) -> bool {
        self.streams.contains(&stream)
    }

    /// Whether a stream's steps can be taken back.
    #[cfg(test)]
    pub(super) fn is_ready(&self, stream: StreamId) -> bool {
        self.unmasked.iter().any(|group| group.stream == stream && group.is_ready)
    }

    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.unmasked.is_empty() && self.unanswered.is_empty()
    }

    /// Drops the steps of a stream that is gone.
    pub(super) fn forget(&mut self, stream: StreamId) {
        self.slow_masks.remove(&stream);
        self.slow_drafts.remove(&stream);
        if !self.streams.remove(&stream) {
            return;
        }
        self.unmasked.retain(|group| group.stream != stream);
        self.unanswered.retain(|group| group.stream != stream);
    }
}

/// How long to wait for a stream, in a batch that waits until then.
fn grace_of(stream: StreamId, slow: &HashSet<StreamId>, until: Instant) -> Duration {
    if slow.contains(&stream) { Duration::ZERO } else { until.saturating_duration_since(Instant::now()) }
}
