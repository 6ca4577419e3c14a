//! Checks at the start whether the system gives as many threads and open files as a server needs. If libraries got too
//! few of them later, the process would panic or hang.

use super::Error;
use crate::config::Config;
use crate::grammar;
use std::io;
use std::sync::Mutex;
use std::thread;

/// Threads beside those that sample and those that read and write messages: the main thread, the engine's, the one that
/// waits for the engine's end, the log's, the one that frees regions, and one for blocking work.
const OTHER_THREADS: usize = 6;
/// Threads that compute masks, and one for a compilation.
const GRAMMAR_THREADS: usize = grammar::MAX_THREADS + 1;
/// Files that a server opens before anybody connects: events, signals, listeners, spare ones.
const STARTUP_FILES: usize = 24;

/// Checks whether the system gives as many threads as a server of this configuration starts.
pub(super) fn check_threads(config: &Config) -> Result<(), Error> {
    let grammar_threads = if config.grammars { GRAMMAR_THREADS } else { 0 };
    let count = config.threads() + config.io_threads() + OTHER_THREADS + grammar_threads;
    start_threads(count).map_err(|source| Error::System {
        wanted: format!("{count} more threads"),
        remedy: "raise the process limit (ulimit -u, or the container's pids limit), or lower threads or io_threads",
        source,
    })
}

/// Checks whether as many files can be opened as a server needs.
pub(super) fn check_descriptors() -> Result<(), Error> {
    open_files(STARTUP_FILES).map_err(|source| Error::System {
        wanted: format!("{STARTUP_FILES} more open files"),
        remedy: "raise the limit (ulimit -Hn)",
        source,
    })
}

/// Starts this many threads, has them all at once, and ends them.
fn start_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let closed = gate.lock();
        let start = |_| thread::Builder::new().spawn_scoped(scope, || drop(gate.lock()));
        let (mut started, mut result) = (Vec::with_capacity(count), Ok(()));
        for thread in (0..count).map(start) {
            match thread {
                Ok(thread) => started.push(thread),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        drop(closed);
        // Waits until the system has the threads back, not only until they are done.
        started.into_iter().for_each(|thread| drop(thread.join()));
        result
    })
}

/// Opens this many descriptors at once, and closes them.
fn open_files(count: usize) -> io::Result<()> {
    let open: io::Result<Vec<_>> = (0..count.div_ceil(2)).map(|_| io::pipe()).collect();
    open.map(drop)
}
