//! Steps that have been received but that the engine does not know of yet: those that wait for their shards, and all
//! steps behind them, because the steps of a stream run in order.

use crate::engine::step::{Open, Step};
use crate::engine::{Admitted, StepPlace, StreamHandle};
use crate::error::Error;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::Context;
use std::time::Instant;
use tokio::time::{Sleep, sleep_until};

/// The steps that one stream holds back, in order. There are no more than may be in flight.
#[derive(Debug, Default)]
pub(super) struct ShardWaitQueue {
    steps: VecDeque<Admitted>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl ShardWaitQueue {
    /// A place for a step, if there is room. A sharded step is held back until its shards are there, and any other step
    /// waits behind the held ones.
    pub(super) fn place(&self, message_bytes: usize, sharded: bool, stream: &StreamHandle) -> Result<StepPlace, Error> {
        let is_held = sharded || !self.steps.is_empty();
        if is_held { stream.held_place(message_bytes) } else { stream.place(message_bytes) }
    }

    /// Takes a step in if there is room, and builds the sequences that it opens. [`Self::poll`] hands it over when its
    /// turn has come.
    pub(super) fn admit(
        &mut self,
        place: StepPlace,
        step: Step,
        open: impl ExactSizeIterator<Item = Open>,
        stream: &StreamHandle,
    ) -> Result<(), Error> {
        let mut admitted = stream.admit(place, step, open)?;
        admitted.step().logits.sharded().into_iter().for_each(|sharded| sharded.begin());
        self.steps.push_back(admitted);
        Ok(())
    }

    /// Hands over the next step, and possibly runs it, unless the step has to wait. Returns whether it did; if not, the
    /// task is woken when the step may go.
    pub(super) fn poll(&mut self, stream: &StreamHandle, context: &mut Context<'_>) -> bool {
        while let Some(first) = self.steps.front_mut() {
            let step = first.step();
            let deadline = step.deadline;
            let sharded = step.logits.sharded();
            if let Some(until) = sharded.and_then(|sharded| sharded.join(Instant::now(), deadline, context)) {
                if self.wait(until, context) {
                    return false;
                }
                continue;
            }
            if let Some(admitted) = self.steps.pop_front() {
                // Fails only when the engine has stopped. Then no reply comes, and the stream reports that when it is
                // the reply's turn.
                let _ = stream.hand_over(admitted);
                return true;
            }
        }
        self.timer = None;
        false
    }

    /// Whether `until` has not come yet; the task is woken then.
    fn wait(&mut self, until: Instant, context: &mut Context<'_>) -> bool {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until.into())));
        if timer.deadline() != until.into() {
            timer.as_mut().reset(until.into());
        }
        timer.as_mut().poll(context).is_pending()
    }
}
