//! Open files: raises their limit to what the system allows, and warns if that is low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of one connection: its own, and three for its regions: two for memory, one for the socket that hands the
/// memory over.
const PER_CONNECTION: u64 = 4;
/// Descriptors of listeners, files and clients of the admin port.
const OTHERS: u64 = 128;

/// Raises the soft limit to the hard one and returns the limit in force afterwards; `None` means no limit. The soft
/// limit is low for the sake of programs that use `select`. Without free descriptors the server accepts nobody, and
/// failing gRPC probes would kill a server that works.
pub(super) fn raise_limit() -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    // Fails where a sandbox forbids it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
    getrlimit(Resource::Nofile).current
}

/// Warns if connections may use up the limit.
pub(super) fn warn_if_few(descriptors: Option<u64>, max_connections: usize) {
    let needed = PER_CONNECTION * max_connections as u64 + OTHERS;
    if let Some(descriptors) = descriptors.filter(|descriptors| *descriptors < needed) {
        tracing::warn!(
            descriptors,
            needed,
            "open files may run out before max_connections is reached, and new connections, including gRPC probes, would have to wait; \
             raise the limit (ulimit -Hn), or lower max_connections"
        );
    }
}
