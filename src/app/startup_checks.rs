//! Threads and open files: looks at the start whether the system gives as many as a server needs. Where libraries get too few of them
//! later, the process ends by a panic or hangs.

use super::Error;
use crate::config::Config;
use crate::grammar;
use std::io;
use std::sync::Mutex;
use std::thread;

/// Threads beside those that sample and those that read and write messages: the first one, the engine's, one that waits for its end, the
/// log's, one that frees regions, and one for work that blocks.
const OTHER_THREADS: usize = 6;
/// Those that work out masks, and one to compile on.
const GRAMMAR_THREADS: usize = grammar::MOST_THREADS + 1;
/// Files that a server has open before anybody connects: events, signals, listeners, the one it is told the time of.
const STARTUP_FILES: usize = 24;

/// Looks whether there are as many threads as a server of this configuration starts.
pub(super) fn check_threads(config: &Config) -> Result<(), Error> {
    let grammar_threads = if config.grammars { GRAMMAR_THREADS } else { 0 };
    let count = config.threads() + config.io_threads() + OTHER_THREADS + grammar_threads;
    start_threads(count).map_err(|source| Error::System {
        wanted: format!("{count} threads"),
        remedy: "raise the limit of processes (ulimit -u, or pids of the container), or lower threads or io_threads",
        source,
    })
}

/// Looks whether as many files can be opened as a server needs.
pub(super) fn check_descriptors() -> Result<(), Error> {
    open_files(STARTUP_FILES).map_err(|source| Error::System {
        wanted: format!("{STARTUP_FILES} open files"),
        remedy: "raise their limit (ulimit -Hn)",
        source,
    })
}

/// Has so many threads at once, and ends them.
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
        // Not only until they are done, but until the system has them back.
        started.into_iter().for_each(|thread| drop(thread.join()));
        result
    })
}

/// Has so many descriptors at once, and closes them.
fn open_files(count: usize) -> io::Result<()> {
    let open: io::Result<Vec<_>> = (0..count.div_ceil(2)).map(|_| io::pipe()).collect();
    open.map(drop)
}
