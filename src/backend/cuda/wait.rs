//! Waiting for the device, which may never be done, and what is known of a device that is lost.

use cudarc::driver::{DriverError, sys};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A launch is over in well under a millisecond, one of the largest, behind its upload, in a few. Where other processes have the
/// device too it waits for its turn; half a minute is no turn but a kernel that hangs, or a device that is gone.
const NEVER: Duration = Duration::from_secs(30);
/// Asked without a pause for so long, as the driver itself does while there are processors enough: longer than nearly any launch
/// takes, so that no answer comes later than it might.
const BUSY: Duration = Duration::from_millis(2);
/// Then with pauses of this part of the time that has passed, up to the longest.
const PART: u32 = 16;
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Whether a device of this process was found to hang.
static HANGS: AtomicBool = AtomicBool::new(false);
/// Whether one was found to be lost by another than the thread that drives it.
static LOST: AtomicBool = AtomicBool::new(false);

/// Waits until a stream has done all that was asked of it.
///
/// # Errors
/// When something that was asked fails, or does not end: then it is as if the driver had ended it.
pub(super) fn wait(stream: sys::CUstream) -> Result<(), DriverError> {
    let begun = Instant::now();
    // SAFETY: the stream is its owner's, who lives.
    let query = || unsafe { sys::cuStreamQuery(stream) };
    let Some(over) = asked(query, || begun.elapsed()) else {
        HANGS.store(true, Ordering::SeqCst);
        tracing::error!(seconds = NEVER.as_secs(), "the CUDA device does not end a launch");
        return Err(DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT));
    };
    over.result()
}

/// Asks until there is an answer; none if it was asked for too long.
fn asked(query: impl Fn() -> sys::CUresult, elapsed: impl Fn() -> Duration) -> Option<sys::CUresult> {
    let answer = || Some(query()).filter(|&answer| answer != sys::CUresult::CUDA_ERROR_NOT_READY);
    loop {
        if let Some(over) = answer() {
            return Some(over);
        }
        let waited = elapsed();
        if waited > NEVER {
            // The process may have been stopped since it asked, and the device has gone on.
            return answer();
        }
        if waited > BUSY {
            std::thread::sleep((waited / PART).min(LONGEST_PAUSE));
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Whether whoever waits for the whole device might wait for ever. The process is about to end then.
#[must_use]
pub fn hangs() -> bool {
    HANGS.load(Ordering::SeqCst)
}

/// Waits for all of the device's work, beside the thread that drives it. Where that fails the context is lost, and nobody else may
/// ask it anything for long.
pub(super) fn settle() -> Result<(), DriverError> {
    cudarc::driver::result::ctx::synchronize().inspect_err(|error| {
        if !LOST.swap(true, Ordering::SeqCst) {
            tracing::error!(%error, "the CUDA device is lost");
        }
    })
}

/// Whether a device of this process was found to be lost where no batch was at work on it. Nothing that it answers is trusted.
#[must_use]
pub fn is_lost() -> bool {
    LOST.load(Ordering::SeqCst)
}

/// Ends the process, and leaves out what libraries want done at its end: the driver's would wait for a device that is lost, for ever
/// if that hangs. The system takes everything back.
pub fn end_at_once(code: u8) -> ! {
    // SAFETY: it takes a number and does not return; nothing of this process runs any more.
    unsafe { libc::_exit(code.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use sys::CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_NOT_READY, CUDA_SUCCESS};

    /// Answers, in turn, and the time that has passed when each is over.
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
