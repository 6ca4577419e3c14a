//! Waiting for the device, which may never be done.

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

/// Waits until a stream has done all that was asked of it.
///
/// # Errors
/// When something that was asked fails, or does not end: then it is as if the driver had ended it.
pub(super) fn wait(stream: sys::CUstream) -> Result<(), DriverError> {
    let begun = Instant::now();
    loop {
        // SAFETY: the stream is its owner's, who lives.
        match unsafe { sys::cuStreamQuery(stream) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => {}
            over => return over.result(),
        }
        let waited = begun.elapsed();
        if waited > NEVER {
            HANGS.store(true, Ordering::SeqCst);
            tracing::error!(seconds = NEVER.as_secs(), "the CUDA device does not end a launch");
            return Err(DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT));
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

/// Ends the process, and leaves out what libraries want done at its end: the driver's would wait for a device that is lost, for ever
/// if that hangs. The system takes everything back.
pub fn end_at_once(code: u8) -> ! {
    // SAFETY: it takes a number and does not return; nothing of this process runs any more.
    unsafe { libc::_exit(code.into()) }
}
