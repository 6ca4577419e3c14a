//! What the engine keeps for one stream.

use super::admission::StepPermits;
use super::aside_room::{self, AsideRoom};
use super::complaint::StepOrigin;
use super::queued::Queued;
use super::step::StepReply;
use crate::permits::Permit;
use crate::sequence::table::Table;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The engine's number for a stream.
pub(super) type StreamId = u64;

/// What a new stream brings with it.
#[derive(Debug)]
pub(super) struct StreamSpec {
    pub(super) replies: mpsc::Sender<StepReply>,
    pub(super) origin: StepOrigin,
    pub(super) table: Table,
    /// Room for what is set aside of the stream.
    pub(super) aside: Arc<AsideRoom>,
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

/// A stream, and its steps that wait.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) table: Table,
    pub(super) origin: StepOrigin,
    pub(super) replies: mpsc::Sender<StepReply>,
    waiting: VecDeque<Box<Queued>>,
    /// What the waiting steps weigh.
    weight: usize,
    aside: Arc<AsideRoom>,
    _permits: StreamPermits,
}

impl Stream {
    pub(super) fn new(spec: StreamSpec) -> Self {
        let StreamSpec { replies, origin, table, aside, permits } = spec;
        Self { table, origin, replies, waiting: VecDeque::new(), weight: 0, aside, _permits: permits }
    }

    /// Adds a step.
    pub(super) fn push(&mut self, mut queued: Box<Queued>) {
        // It may have been let in just before the others were set aside, or went on.
        let StepPermits { queued: place, in_flight } = &mut queued.permits;
        if self.is_aside() {
            self.aside.keep_anyway(place, in_flight);
        } else {
            aside_room::leave(Some(place), in_flight);
        }
        self.weight = self.weight.saturating_add(queued.weight);
        self.waiting.push_back(queued);
    }

    /// Takes out the step whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Box<Queued>> {
        let queued = self.waiting.pop_front()?;
        self.weight = self.weight.saturating_sub(queued.weight);
        Some(queued)
    }

    /// The step whose turn it is.
    pub(super) fn first(&self) -> Option<&Queued> {
        self.waiting.front().map(|queued| &**queued)
    }

    /// Whether steps wait.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What the waiting steps weigh.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// The same, which is 0 from now on: the stream is gone, and its steps will never run.
    pub(super) fn forget_weight(&mut self) -> usize {
        std::mem::take(&mut self.weight)
    }

    /// Whether steps of the stream are set aside.
    pub(super) fn is_aside(&self) -> bool {
        self.aside.is_in_use()
    }

    /// Room for what is set aside.
    pub(super) fn aside_room(&self) -> &Arc<AsideRoom> {
        &self.aside
    }

    /// Notes that steps are set aside. What waits behind them, and what comes, takes its room among such steps. Returns
    /// whether there was enough.
    #[must_use]
    pub(super) fn set_aside(&mut self) -> bool {
        self.aside.set_in_use(true);
        let keep = |fits, queued: &mut Box<Queued>| {
            let StepPermits { queued, in_flight } = &mut queued.permits;
            self.aside.keep(queued, in_flight) && fits
        };
        self.waiting.iter_mut().fold(true, keep)
    }

    /// Notes that none are any more. What waits takes its room among all steps again.
    pub(super) fn go_on(&mut self) {
        self.aside.set_in_use(false);
        for queued in &mut self.waiting {
            let StepPermits { queued, in_flight } = &mut queued.permits;
            aside_room::leave(Some(queued), in_flight);
        }
    }

    /// Whether nobody waits for its replies any more.
    pub(super) fn is_gone(&self) -> bool {
        self.replies.is_closed()
    }
}
