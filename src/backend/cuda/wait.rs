//! Waits for the device, which may hang, and remembers whether a device is lost.

use cudarc::driver::{DriverError, sys};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A launch takes well under a millisecond; one of the largest, with its upload, takes a few. If other processes use
/// the device too, it waits for its turn. But half a minute is not a turn: it means that a kernel hangs or the device
/// is gone.
const NEVER: Duration = Duration::from_secs(30);
/// For this long the stream is queried without a pause, as the driver itself does while there are enough processors.
/// This is longer than nearly any launch, so that answers are not delayed.
const BUSY: Duration = Duration::from_millis(2);
/// After that, each pause is this fraction of the time that has passed, up to the longest.
const PART: u32 = 16;
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Whether a device of this process was found to hang.
static HANGS: AtomicBool = AtomicBool::new(false);
/// Whether a thread other than the one that drives it found a device to be lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// Waits until a stream has finished all its work.
///
/// # Errors
/// If some of the work fails, or does not end. The latter is reported as if the driver had ended it.
pub(super) fn wait(stream: sys::CUstream) -> Result<(), DriverError> {
    let begun = Instant::now();
    // SAFETY: the stream is its owner's, who lives.
    let query = || unsafe { sys::cuStreamQuery(stream) };
    let Some(over) = asked(query, || begun.elapsed()) else {
        HANGS.store(true, Ordering::SeqCst);
        tracing::error!(seconds = NEVER.as_secs(), "a launch on the CUDA device does not finish");
        return Err(DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT));
    };
    over.result()
}

/// Queries until there is an answer; `None` if that takes too long.
fn asked(query: impl Fn() -> sys::CUresult, elapsed: impl Fn() -> Duration) -> Option<sys::CUresult> {
    let answer = || Some(query()).filter(|&answer| answer != sys::CUresult::CUDA_ERROR_NOT_READY);
    loop {
        if let Some(over) = answer() {
            return Some(over);
        }
        let waited = elapsed();
        if waited > NEVER {
            // One more query, because this process may have been stopped since the last one while the device went on.
            return answer();
        }
        if waited > BUSY {
            std::thread::sleep((waited / PART).min(LONGEST_PAUSE));
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Whether waiting for the whole device might take for ever. The process is about to end then.
#[must_use]
pub fn hangs() -> bool {
    HANGS.load(Ordering::SeqCst)
}

/// Waits for all of the device's work, from a thread that does not drive it. If that fails the context is lost, and no
/// other thread may ask it anything for long.
pub(super) fn settle() -> Result<(), DriverError> {
    cudarc::driver::result::ctx::synchronize().inspect_err(|error| {
        if !LOST.swap(true, Ordering::SeqCst) {
            tracing::error!(%error, "the CUDA device is lost");
        }
    })
}

/// Whether a device of this process was found to be lost while no batch used it. Nothing that it answers is trusted.
#[must_use]
pub fn is_lost() -> bool {
    LOST.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use sys::CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_NOT_READY, CUDA_SUCCESS};

    /// Each answer comes with the time that has passed when it is given.
    fn told(answers: &[(sys::CUresult, u64)]) -> Option<sys::CUresult> {
        let (left, now) = (RefCell::new(answers.iter()), RefCell::new(Duration::ZERO));
        let query = || {
            let &(answer, millis) = left.borrow_mut().next().expect("it is asked no more");
            *now.borrow_mut() = Duration::from_millis(millis);
            answer
        };
        let over = asked(query, || *now.borrow());
        assert_eq!(left.borrow().len(), 0);
        over
    }

    #[test]
    fn a_stop_of_the_process_is_no_hang() {
        let stopped = (CUDA_ERROR_NOT_READY, 3_600_000);
        assert_eq!(told(&[(CUDA_SUCCESS, 40_000)]), Some(CUDA_SUCCESS));
        assert_eq!(told(&[(CUDA_ERROR_NOT_READY, 1), stopped, (CUDA_SUCCESS, 3_600_000)]), Some(CUDA_SUCCESS));
        let lost = told(&[stopped, (CUDA_ERROR_ILLEGAL_ADDRESS, 3_600_000)]);
        assert_eq!(lost, Some(CUDA_ERROR_ILLEGAL_ADDRESS));
        assert_eq!(told(&[(CUDA_ERROR_NOT_READY, 30_000), stopped, (CUDA_ERROR_NOT_READY, 3_600_001)]), None);
    }
}
