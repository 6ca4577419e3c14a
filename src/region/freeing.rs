//! Where the memory of big regions goes: to a thread of its own.
//!
//! To unmap a gigabyte and to free its pages takes a tenth of a second or so. Who drops a region last may be a thread that
//! serves connections, or the one that samples; both have better things to do. What waits here is bounded: it holds its
//! room until it is freed.

use super::Memory;
use super::device::DeviceBacking;
use crate::permits::Permit;
use std::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Regions up to this size are freed where they are dropped: that takes less than to wake a thread for long.
const AT_ONCE: usize = 1 << 20;

/// Memory, and the room that it takes. It is freed in this order.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) memory: Backing,
    /// Bytes, of memory that was made here, and one region.
    pub(super) _room: (Option<Permit>, Permit),
    pub(super) gone: Gone,
}

/// Where the memory of a region is.
#[derive(Debug)]
pub(super) enum Backing {
    Host(Memory),
    Device(DeviceBacking),
}

/// Tells when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Gone(pub(super) CancellationToken);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Held {
    /// What tells when it is freed.
    pub(super) fn gone(&self) -> CancellationToken {
        self.gone.0.clone()
    }

    /// Whether it takes a while to give up: much memory, or that of a device, which is waited for.
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
    /// Says when all before it is done.
    Tell(mpsc::SyncSender<()>),
    /// Waits until it is told to go on.
    #[cfg(test)]
    Wait(mpsc::Receiver<()>),
}

/// The way to the thread. It ends with the last of these.
#[derive(Debug, Clone)]
pub(super) struct Freeing(Option<mpsc::Sender<Task>>);

impl Freeing {
    /// Starts the thread; where the system gives none, memory is freed by whoever drops it.
    pub(super) fn start() -> Self {
        let (tasks, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new().name("croupier-regions".to_owned());
        let started = thread.spawn(move || inbox.into_iter().for_each(Task::run));
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread frees regions");
        }
        Self(started.ok().map(|_| tasks))
    }

    /// Frees memory, soon if it takes a while.
    pub(super) fn free(&self, held: Held) {
        if let Some(tasks) = self.0.as_ref().filter(|_| held.is_slow()) {
            // Should the thread be gone, it is dropped here.
            let _ = tasks.send(Task::Free(held));
        }
    }

    /// Waits until what was given up before is freed.
    pub(super) fn settle(&self) {
        let (told, tells) = mpsc::sync_channel(1);
        if self.0.as_ref().is_some_and(|tasks| tasks.send(Task::Tell(told)).is_ok()) {
            let _ = tells.recv();
        }
    }

    /// Lets the thread wait until the sender is dropped.
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
