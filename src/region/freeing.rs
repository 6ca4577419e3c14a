//! Frees the memory of large regions on a thread of its own.
//!
//! Unmapping a gigabyte and freeing its pages takes about a tenth of a second. The last owner of a region may be a
//! thread that serves connections or samples, and must not be held up for that long. The amount of memory that waits
//! here is bounded, because it keeps its room until it is freed.

use super::Memory;
use super::device::DeviceBacking;
use crate::permits::Permit;
use std::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Regions up to this size are freed where they are dropped, because that takes less time than waking a thread.
const AT_ONCE: usize = 1 << 20;

/// The memory of a region and the room that it takes. They are freed in this order.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) memory: Backing,
    /// Room for the bytes, if the memory was made here, and for one region.
    pub(super) _room: (Option<Permit>, Permit),
    pub(super) gone: Gone,
}

/// The kind of memory that backs a region.
#[derive(Debug)]
pub(super) enum Backing {
    Host(Memory),
    Device(DeviceBacking),
}

/// Cancels its token when dropped, which tells that the memory is freed.
#[derive(Debug, Default)]
pub(super) struct Gone(pub(super) CancellationToken);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Held {
    /// Cancelled when the memory is freed.
    pub(super) fn gone(&self) -> CancellationToken {
        self.gone.0.clone()
    }

    /// Whether freeing the memory takes a while: a lot of memory, or a device's, which has to be waited for.
    fn is_slow(&self) -> bool {
        match &self.memory {
            Backing::Host(memory) => memory.len() > AT_ONCE,
            Backing::Device(_) => true,
        }
    }
}

#[derive(Debug)]
enum Task {
    Free(Held),
    /// Says when all tasks before it are done.
    Tell(mpsc::SyncSender<()>),
    /// Waits until the test lets it go on.
    #[cfg(test)]
    Wait(mpsc::Receiver<()>),
}

/// The way to the freeing thread, which ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct Freeing(Option<mpsc::Sender<Task>>);

impl Freeing {
    /// Starts the thread. If the system gives none, memory is freed by whoever drops it.
    pub(super) fn start() -> Self {
        let (tasks, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new().name("croupier-regions".to_owned());
        let started = thread.spawn(move || inbox.into_iter().for_each(Task::run));
        if let Err(error) = &started {
            tracing::warn!(%error, "cannot start the thread that frees regions");
        }
        Self(started.ok().map(|_| tasks))
    }

    /// Frees memory: at once, or soon on the thread if it takes a while.
    pub(super) fn free(&self, held: Held) {
        if let Some(tasks) = self.0.as_ref().filter(|_| held.is_slow()) {
            // If the thread is gone, the memory is dropped here.
            let _ = tasks.send(Task::Free(held));
        }
    }

    /// Waits until everything that was given up before is freed.
    pub(super) fn settle(&self) {
        let (told, tells) = mpsc::sync_channel(1);
        if self.0.as_ref().is_some_and(|tasks| tasks.send(Task::Tell(told)).is_ok()) {
            let _ = tells.recv();
        }
    }

    /// Makes the thread wait until the sender is dropped.
    #[cfg(test)]
    pub(super) fn pause(&self) -> mpsc::Sender<()> {
        let (go_on, wait) = mpsc::channel();
        let tasks = self.0.as_ref().expect("a thread");
        tasks.send(Task::Wait(wait)).expect("it runs");
        go_on
    }
}

impl Task {
    fn run(self) {
        match self {
            Self::Free(held) => drop(held),
            Self::Tell(told) => {
                let _ = told.send(());
            }
            #[cfg(test)]
            Self::Wait(wait) => {
                let _ = wait.recv();
            }
        }
    }
}
