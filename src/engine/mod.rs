//! The engine: gathers the waiting steps of all streams into batches, has the backend run them, and commits the
//! results.
//!
//! One thread at a time runs the engine and has every stream's sequences. So one lock is enough (`desk`), and no
//! sequence has a lock of its own. That thread is the engine's own, or one that brings a small step to an engine with
//! nothing to do.
//!
//! There is no timer. An idle engine starts a step at once; while the backend runs, steps of all streams pile up and
//! become the next batch. Steps that wait for a grammar's threads are set `aside`, and others do not wait for them. Read
//! [`step`] (what goes in and comes out), then `state` (the pure state machine) and `stream`, `batch`, `plan` (what a work needs),
//! `rows` and `verify` (what the backend is asked), `commit` and `finished` (what is done with the results). This file
//! only drives them.

mod admission;
mod aside;
mod aside_room;
mod batch;
mod commit;
mod complaint;
mod desk;
mod draft;
mod draft_vocabulary;
mod failure;
mod finished;
mod grammar;
mod heartbeat;
mod listed;
mod logits;
mod memory;
mod plan;
mod queued;
mod repeated;
mod reply;
mod rows;
pub mod shards;
mod slots;
mod state;
pub mod step;
mod stream;
#[cfg(test)]
mod tests;
mod verification;
mod verify;
mod work;

use crate::backend::Backend;
use crate::error::Error;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::permits::{Counter, Permit};
use crate::sequence::OpenError;
use crate::sequence::table::Table;
use admission::Admission;
pub use admission::StepPlace;
use aside_room::AsideRoom;
pub use complaint::StepOrigin;
use desk::{Core, Desk};
pub use heartbeat::Heartbeat;
use queued::Queued;
use state::{Command, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc as thread_channel;
use std::task::{Context, Poll};
use std::thread::{JoinHandle, Thread};
use step::{Open, Step, StepReply};
use stream::{StreamId, StreamPermits, StreamSpec};
use tokio::sync::mpsc;

/// The thread that hands over a step may run it itself if the step and everything that waits take at most the time of
/// this many bytes. That is some 0.1 ms of work, about what it costs to wake the engine and be woken by it. Larger
/// steps gain nothing: measured, with 64 rows of 128,256.
const RUN_HERE_BYTES: usize = crate::backend::ALONE_BYTES;

/// Messages up to this size hold references to rows, or small rows. A larger message is likely followed by another one,
/// which the handing thread can read while the engine's thread runs the first.
const RUN_HERE_MESSAGE_BYTES: usize = 64 << 10;

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts the engine's thread. It ends when every handle and stream is dropped.
    ///
    /// # Panics
    /// If the operating system gives no thread.
    #[must_use]
    pub fn start(backend: Box<dyn Backend>, limits: Arc<Limits>, metrics: Metrics) -> (Handle, JoinHandle<()>) {
        let admission = Arc::new(Admission::new(&limits, &metrics));
        let state = State::new(limits, metrics.clone());
        // The channel is bounded by what goes in: steps hold a place in the queue, streams one of their own
        // or, when they have one step, the places of its sequences.
        let (commands, inbox) = thread_channel::channel();
        let heartbeat = Heartbeat::new();
        let runs_anywhere = backend.runs_anywhere();
        let core = Core { state, inbox, backend, metrics, heartbeat: heartbeat.clone() };
        let desk = Arc::new(Desk::new(core));
        let own = Arc::clone(&desk);
        let thread = std::thread::Builder::new()
            .name("croupier-engine".to_owned())
            .spawn(move || own.drive())
            .expect("cannot start the thread of the engine");
        let link = Arc::new(EngineLink { commands: Some(commands), desk, thread: thread.thread().clone() });
        (Handle { link, admission, streams: Arc::new(AtomicU64::new(0)), heartbeat, runs_anywhere }, thread)
    }
}

/// A handle to the engine, for the rest of the server.
#[derive(Debug, Clone)]
pub struct Handle {
    link: Arc<EngineLink>,
    admission: Arc<Admission>,
    streams: Arc<AtomicU64>,
    heartbeat: Heartbeat,
    /// Whether the thread that hands over a small step may run it.
    runs_anywhere: bool,
}

/// The channel on which commands reach the engine, and those who run it.
#[derive(Debug)]
struct EngineLink {
    /// `None` while this is dropped: the channel has to be closed before the engine's thread is woken to see that.
    commands: Option<thread_channel::Sender<Command>>,
    desk: Arc<Desk>,
    thread: Thread,
}

impl EngineLink {
    /// Sends a command and wakes nobody. The caller has to run the engine afterwards, or to unpark its thread.
    fn send_quietly(&self, command: Command) -> Result<(), Error> {
        let commands = self.commands.as_ref().ok_or(Error::EngineStopped)?;
        commands.send(command).map_err(|_| Error::EngineStopped)
    }
}

impl Drop for EngineLink {
    fn drop(&mut self) {
        drop(self.commands.take());
        self.thread.unpark();
    }
}

impl Handle {
    /// Takes a place among the server's streams.
    ///
    /// # Errors
    /// When there are too many.
    pub fn admit_stream(&self) -> Result<Permit, Error> {
        self.admission.stream().map_err(Error::Refused)
    }

    /// Opens a stream on which at most `capacity` steps are in flight at a time. `permit`, from
    /// [`Self::admit_stream`], is held until the engine has freed the stream's state.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn open_stream(
        &self,
        permit: Arc<Permit>,
        origin: impl Into<StepOrigin>,
        capacity: usize,
    ) -> Result<StreamHandle, Error> {
        let origin = origin.into();
        let shown = Some(origin.model.streams.take_anyway(1));
        self.open(
            self.admission.table(),
            StreamPermits { _place: permit, _shown: shown },
            origin,
            capacity,
            self.admission.replies(),
        )
    }

    /// Takes a place among the stateless calls whose messages are on their way.
    ///
    /// # Errors
    /// When there are too many.
    pub fn admit_stateless(&self) -> Result<Permit, Error> {
        self.admission.stateless().map_err(Error::Refused)
    }

    /// Takes room for a message of `bytes` bytes that is on its way.
    ///
    /// # Errors
    /// When there is too little.
    pub fn admit_message(&self, bytes: usize) -> Result<Permit, Error> {
        self.admission.message(bytes).map_err(Error::Refused)
    }

    /// Takes a place for a step and room for its message. To be called before anything is made of the message.
    ///
    /// # Errors
    /// When there is too little.
    pub fn place(&self, message_bytes: usize) -> Result<StepPlace, Error> {
        self.admission.place(message_bytes).map_err(Error::Refused)
    }

    /// Runs the step of a stateless call on a stream of its own, with the sequences that `open` builds. All the room it
    /// needs is taken before the engine hears of it, so either all of its sequences can be opened, or nothing happens.
    ///
    /// # Errors
    /// When the engine has stopped or the step is refused. A refusal comes before anything is built, unless what was
    /// built finds no room.
    pub fn run_stateless(
        &self,
        place: StepPlace,
        step: Step,
        open: impl ExactSizeIterator<Item = Open>,
        origin: impl Into<StepOrigin>,
    ) -> Result<StreamHandle, Error> {
        let openings = open.len();
        let room = self.admission.answers();
        let permits = self.admission.step(place, &step, openings, &room).map_err(Error::Refused)?;
        let (table, places) = self.admission.reserved_table(openings).map_err(Error::Refused)?;
        let all_or_nothing = |open: Open| match open.sequence {
            Err(OpenError::Refused(refusal)) => Err(Error::Refused(refusal)),
            _ => Ok(open),
        };
        let open = open.map(all_or_nothing).collect::<Result<_, _>>()?;
        let stream =
            self.open(table, StreamPermits { _place: Arc::new(places), _shown: None }, origin.into(), 1, room)?;
        stream.queue(Queued::new(step, open, permits))?;
        Ok(stream)
    }

    /// Opens a stream of at most `capacity` steps, with `room` for their replies.
    fn open(
        &self,
        table: Table,
        permits: StreamPermits,
        origin: StepOrigin,
        capacity: usize,
        room: Arc<Counter>,
    ) -> Result<StreamHandle, Error> {
        let (sender, replies) = mpsc::channel(capacity.max(1));
        let table = table.recorded(origin.model.sequence_acceptance.clone(), origin.model.sequences.clone());
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let aside = Arc::new(self.admission.aside());
        let spec = StreamSpec { replies: sender, origin, table, aside: Arc::clone(&aside), permits };
        self.send(Command::Open { stream, spec: Box::new(spec) })?;
        Ok(StreamHandle { stream, engine: self.clone(), replies, room, aside, takes_long: AtomicBool::new(false) })
    }

    /// Room for what is remembered of sequences. Whoever builds a sequence takes its room here.
    #[must_use]
    pub fn state(&self) -> Arc<Counter> {
        self.admission.state()
    }

    /// Room for messages that are not answered yet, and for replies that are not sent yet.
    #[must_use]
    pub fn bytes_in_flight(&self) -> Arc<Counter> {
        self.admission.bytes_in_flight()
    }

    /// How many sequences are open on the server, or about to be.
    #[must_use]
    pub fn open_sequences(&self) -> usize {
        self.admission.open_sequences()
    }

    /// Tells whether the engine makes progress.
    #[must_use]
    pub fn heartbeat(&self) -> Heartbeat {
        self.heartbeat.clone()
    }

    fn send(&self, command: Command) -> Result<(), Error> {
        self.link.send_quietly(command)?;
        self.link.thread.unpark();
        Ok(())
    }

    /// Whether the thread that brings a step may run it. Running a small step costs less than waking the engine, and
    /// does not keep the thread from its other work for longer.
    fn may_run_here(&self, queued: &Queued) -> bool {
        self.runs_anywhere && queued.step.message_bytes <= RUN_HERE_MESSAGE_BYTES && queued.weight <= RUN_HERE_BYTES
    }
}

/// One worker's stream. Dropping it frees its sequences and drops its waiting steps.
#[derive(Debug)]
pub struct StreamHandle {
    stream: StreamId,
    engine: Handle,
    replies: mpsc::Receiver<StepReply>,
    /// Room for the stream's replies until they are read.
    room: Arc<Counter>,
    /// Room for its steps behind one that is set aside.
    aside: Arc<AsideRoom>,
    /// Whether the stream ever opened a sequence whose rows may take long.
    takes_long: AtomicBool,
}

impl StreamHandle {
    /// Takes a place for a step and room for its message. To be called before anything is made of the message.
    ///
    /// # Errors
    /// When there is too little.
    pub fn place(&self, message_bytes: usize) -> Result<StepPlace, Error> {
        if self.aside.is_in_use() {
            return Admission::place_aside(&self.aside, message_bytes).map_err(Error::Refused);
        }
        self.engine.place(message_bytes)
    }

    /// The same for a step that is held back first, for its own shards or behind a step that waits for shards.
    ///
    /// # Errors
    /// When there is too little.
    pub fn held_place(&self, message_bytes: usize) -> Result<StepPlace, Error> {
        self.engine.admission.held_place(message_bytes).map_err(Error::Refused)
    }

    /// Takes the room that a step needs, and then builds the sequences it opens.
    ///
    /// # Errors
    /// When there is too little; nothing is built then.
    pub fn admit(
        &self,
        place: StepPlace,
        step: Step,
        open: impl ExactSizeIterator<Item = Open>,
    ) -> Result<Admitted, Error> {
        let held = place.held;
        let permits = self.engine.admission.step(place, &step, open.len(), &self.room).map_err(Error::Refused)?;
        let queued = Queued::new(step, open.collect(), permits);
        if queued.step.open.iter().any(Open::takes_long) {
            self.takes_long.store(true, Ordering::Relaxed);
        }
        let queued = if self.takes_long.load(Ordering::Relaxed) { queued.for_engine_thread() } else { queued };
        Ok(Admitted { queued, held })
    }

    /// Hands an admitted step to the engine, or runs it at once if that costs less than waking the engine. The caller
    /// keeps no more steps in flight than the stream's capacity.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn hand_over(&self, admitted: Admitted) -> Result<(), Error> {
        let Admitted { mut queued, held } = admitted;
        if held {
            self.engine.admission.release(&mut queued.permits);
        }
        if !self.engine.may_run_here(&queued) {
            return self.queue(queued);
        }
        let link = &self.engine.link;
        link.send_quietly(Command::Step { stream: self.stream, queued: Box::new(queued) })?;
        if link.desk.run_here() {
            link.thread.unpark();
        }
        Ok(())
    }

    fn queue(&self, queued: Queued) -> Result<(), Error> {
        self.engine.send(Command::Step { stream: self.stream, queued: Box::new(queued) })
    }

    /// The next reply, in step order; `None` when the engine has stopped.
    pub fn poll_reply(&mut self, context: &mut Context<'_>) -> Poll<Option<StepReply>> {
        self.replies.poll_recv(context)
    }

    /// The next reply, in step order; `None` when the engine has stopped.
    pub async fn reply(&mut self) -> Option<StepReply> {
        self.replies.recv().await
    }
}

/// A step with the room it needs, on its way to the engine.
#[derive(Debug)]
pub struct Admitted {
    queued: Queued,
    /// Whether the step has a place among those held back.
    held: bool,
}

impl Admitted {
    /// The step.
    pub fn step(&mut self) -> &mut Step {
        &mut self.queued.step
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        // This fails only when the engine has stopped, and its state is gone then.
        let _ = self.engine.send(Command::Close { stream: self.stream });
    }
}
