//! The end of the engine's thread, which the process has to hear of: without the engine nothing it serves has an answer.

use crate::backend::DeviceLost;
use std::io;
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

/// How the engine's thread ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineEnd {
    /// Nobody holds a handle of the engine any more.
    Finished,
    DeviceLost,
    Panicked,
}

/// Resolves when the thread ends. A thread of its own waits for that, because a blocking task would hold up the exit.
pub(super) fn watch(engine: JoinHandle<()>) -> io::Result<oneshot::Receiver<EngineEnd>> {
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new().name("croupier-watch".to_owned()).spawn(move || {
        let end = match engine.join() {
            Ok(()) => EngineEnd::Finished,
            Err(panic) if panic.is::<DeviceLost>() => EngineEnd::DeviceLost,
            Err(_) => EngineEnd::Panicked,
        };
        let _ = sender.send(end);
    })?;
    Ok(receiver)
}
