//! Work that takes long, out of the way of other calls: each call with such work has a thread meanwhile, and the number of these is
//! bounded. If they took all threads that the runtime may have, whatever needs one would stand still: other calls, the admin port and
//! signals.

use crate::limits::Limits;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Stateless calls that may take long to take in, at once. Others wait, with neither a thread nor a place in the queue, and may leave.
const MOST_LONG_CALLS: usize = 32;
/// Streams have one each, but no more than this: a system may not give any number of threads.
const MOST_STREAMS: usize = 1024;
/// For files that are read and names that are looked up.
const OTHERS: usize = 16;

/// Does some work; where it takes `long`, other calls go on meanwhile, on another thread.
pub(super) fn blocking<T>(long: bool, work: impl FnOnce() -> T) -> T {
    let may_hand_over = || Handle::try_current().is_ok_and(|on| on.runtime_flavor() == RuntimeFlavor::MultiThread);
    if long && may_hand_over() { tokio::task::block_in_place(work) } else { work() }
}

/// Stateless calls that may take long to take in, at once. They have a place in the queue each, and leave most to others.
pub(super) fn most_long_calls(limits: &Limits) -> usize {
    MOST_LONG_CALLS.min(limits.max_queued_steps / 4).max(1)
}

/// Threads that the calls of a server may take beside those of the runtime: one for what a stream opens, and one for what it leases.
#[must_use]
pub fn most_threads(limits: &Limits) -> usize {
    2 * limits.max_streams.min(MOST_STREAMS) + most_long_calls(limits) + OTHERS
}
