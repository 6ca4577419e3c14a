//! The engine behind its one lock: what it remembers and what it drives.
//!
//! A thread that brings a step to an idle engine may run the step on the spot. Two threads fewer are woken then, and
//! waking is most of what a small step costs. Why and when: `docs/decisions/0024-run-on-the-spot.md`.

use super::state::{Command, State};
use super::{Heartbeat, RUN_HERE_BYTES, aside};
use crate::backend::Backend;
use crate::locks::lock;
use crate::metrics::Metrics;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

/// Everything a batch needs. The thread that has it runs the engine, and no other thread does meanwhile.
pub(super) struct Core {
    pub(super) state: State,
    pub(super) inbox: Receiver<Command>,
    pub(super) backend: Box<dyn Backend>,
    pub(super) metrics: Metrics,
    pub(super) heartbeat: Heartbeat,
}

/// What is left to do after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// Nothing, until somebody brings more.
    Idle,
    /// Steps wait for another batch.
    StepsWait,
    /// Steps wait for a grammar's threads, and nothing else is left.
    GrammarsWork,
    /// Nothing, for good: nobody holds the engine any more.
    Abandoned,
}

impl Core {
    /// Takes in what arrived and runs one batch of the waiting steps, unless all waiting steps together weigh more than
    /// `max_bytes`.
    pub(super) fn turn(&mut self, max_bytes: usize) -> TurnEnd {
        let mut ended = self.receive_all();
        if self.state.has_work() {
            if self.state.weight() > max_bytes {
                return TurnEnd::StepsWait;
            }
            self.heartbeat.beat();
            self.run_batch();
            // A thread that parked while the batch ran may have used up the wake-up meant for commands that came
            // meanwhile, so these are taken in here.
            ended = self.receive_all();
        }
        if self.state.has_work() {
            return TurnEnd::StepsWait;
        }
        if ended {
            return TurnEnd::Abandoned;
        }
        self.heartbeat.rest();
        if self.state.aside.is_empty() { TurnEnd::Idle } else { TurnEnd::GrammarsWork }
    }

    /// Takes in all commands that have come. Returns whether nobody is left who could send more.
    fn receive_all(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.state.apply(command),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Gathers a batch of the waiting steps, runs its rows, commits their tokens and hands out the replies.
    fn run_batch(&mut self) {
        let Self { state, backend, metrics, .. } = self;
        let started = Instant::now();
        let mut batch = state.gather(started);
        state.fill_masks(&mut batch);
        if batch.steps.is_empty() {
            return;
        }
        metrics.batch_steps.record(batch.steps.len() as f64);
        metrics.batch_rows.record(batch.rows() as f64);
        if batch.rows() > 0 {
            state.run(&mut batch, backend.as_mut());
            for (reason, rows) in backend.handed_over() {
                metrics.handed_over(reason, std::mem::take(rows));
            }
        }
        let finished = Instant::now();
        metrics.batch(batch.steps.len(), finished.saturating_duration_since(started));
        state.commit(batch, finished);
    }
}

/// What lies at the desk.
enum DeskState {
    Core(Box<Core>),
    /// Somebody panicked at the desk. The engine's own thread ends with the same panic.
    Broken(Box<dyn Any + Send>),
    Ended,
}

/// The place of the core while nobody runs it.
pub(super) struct Desk(Mutex<DeskState>);

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl Desk {
    pub(super) fn new(core: Core) -> Self {
        Self(Mutex::new(DeskState::Core(Box::new(core))))
    }

    /// A desk at which nothing is run, so that tests can look at what is left there.
    #[cfg(test)]
    pub(super) fn empty() -> Self {
        Self(Mutex::new(DeskState::Ended))
    }

    /// Drives the engine on this thread. The thread parks whenever nothing is left to do.
    ///
    /// # Panics
    /// With whatever panicked at the desk, here or on another thread.
    pub(super) fn drive(&self) {
        if let DeskState::Core(core) = &mut *self.lock() {
            core.state.aside.wakes(std::thread::current());
        }
        loop {
            // The lock is released before this thread parks.
            let end = turn(&mut self.lock(), usize::MAX);
            match end {
                Some(TurnEnd::StepsWait) => {}
                Some(TurnEnd::GrammarsWork) => std::thread::park_timeout(aside::LOOK),
                Some(TurnEnd::Idle) => std::thread::park(),
                Some(TurnEnd::Abandoned) | None => break,
            }
        }
        if let DeskState::Broken(panic) = std::mem::replace(&mut *self.lock(), DeskState::Ended) {
            resume_unwind(panic);
        }
    }

    /// Runs the waiting steps on this thread, unless another thread runs the engine or too much waits: others may have
    /// left large steps there. Returns whether the engine's own thread still has to look.
    pub(super) fn run_here(&self) -> bool {
        let mut state = match self.0.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        turn(&mut state, RUN_HERE_BYTES) != Some(TurnEnd::Idle)
    }

    fn lock(&self) -> MutexGuard<'_, DeskState> {
        // The lock is never poisoned: no panic leaves a turn.
        lock(&self.0)
    }
}

/// Runs one turn; `None` when there is nothing to run. After a panic the core is gone, and with it the sending end of
/// every stream's replies.
fn turn(state: &mut DeskState, max_bytes: usize) -> Option<TurnEnd> {
    let DeskState::Core(core) = state else { return None };
    match catch_unwind(AssertUnwindSafe(|| core.turn(max_bytes))) {
        Ok(left) => Some(left),
        Err(panic) => {
            *state = DeskState::Broken(panic);
            None
        }
    }
}
