//! Keeps work that takes long out of the way of other calls. Each call with such work has a thread for as long as the
//! work takes, and the number of these threads is bounded. If long work took all threads of the runtime, everything
//! else that needs one would stand still: other calls, the admin port and signals.

use crate::limits::Limits;
use tokio::runtime::{Handle, RuntimeFlavor};

/// How many stateless calls that take long to take in may run at once. Others wait, with neither a thread nor a place
/// in the queue, and may leave.
const MAX_LONG_CALLS: usize = 32;
/// Each stream has a thread, up to this many in all, because the system may not give more.
const MAX_STREAMS: usize = 1024;
/// Threads for reading files and resolving names.
const OTHERS: usize = 16;

/// Does some work. If the work takes `long`, other calls go on meanwhile on another thread.
pub(super) fn blocking<T>(long: bool, work: impl FnOnce() -> T) -> T {
    let may_hand_over = || Handle::try_current().is_ok_and(|on| on.runtime_flavor() == RuntimeFlavor::MultiThread);
    if long && may_hand_over() { tokio::task::block_in_place(work) } else { work() }
}

/// How many stateless calls that take long to take in may run at once. Each has a place in the queue; together they
/// leave most places to others.
pub(super) fn most_long_calls(limits: &Limits) -> usize {
    MAX_LONG_CALLS.min(limits.max_queued_steps / 4).max(1)
}

/// Threads that a server's calls may take beside those of the runtime. A stream may take two: one for the sequences it
/// opens, one for the regions it leases.
#[must_use]
pub fn most_threads(limits: &Limits) -> usize {
    2 * limits.max_streams.min(MAX_STREAMS) + most_long_calls(limits) + OTHERS
}
