//! Work that takes long, out of the way of other calls.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does some work; where it takes `long`, other calls go on meanwhile, on another thread.
pub(super) fn blocking<T>(long: bool, work: impl FnOnce() -> T) -> T {
    let may_hand_over = || Handle::try_current().is_ok_and(|on| on.runtime_flavor() == RuntimeFlavor::MultiThread);
    if long && may_hand_over() { tokio::task::block_in_place(work) } else { work() }
}
