//! Open files: as many as the system lets this process have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A connection, and three for its regions: both are memory, and the socket that hands them over.
const PER_CONNECTION: u64 = 4;
/// Listeners, files, and whoever asks the admin port.
const OTHERS: u64 = 128;

/// Raises the soft limit to the hard one, and gives what it is then; `None`: there is none. The soft limit is low for the sake of programs
/// that use `select`. Where descriptors run out nobody is accepted, and a server that works is killed by probes over gRPC.
pub(super) fn raise_limit() -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    // Fails where a sandbox forbids it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
    getrlimit(Resource::Nofile).current
}

/// Warns of a limit that connections may use up.
pub(super) fn warn_if_few(descriptors: Option<u64>, max_connections: usize) {
    let needed = PER_CONNECTION * max_connections as u64 + OTHERS;
    if let Some(descriptors) = descriptors.filter(|descriptors| *descriptors < needed) {
        tracing::warn!(
            descriptors,
            needed,
            "so few open files may run out before max_connections does, and new connections, probes over gRPC too, would wait; raise the limit (ulimit -Hn), \
             or lower max_connections"
        );
    }
}
