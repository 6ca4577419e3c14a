//! Why a text has no masks.

use std::fmt;
use std::time::Duration;

/// How long one text may take for the masks of one work. A mask takes some 20 us, and seldom one millisecond. But a
/// container that has used up its share of the CPU stops for a tenth of a second.
pub(super) const MAX_MASK_TIME: Duration = Duration::from_millis(500);
/// How much longer it may take for each of the work's rows.
const MORE_TIME: Duration = Duration::from_millis(5);

/// How long a step waits for all of its masks. Works whose turn did not come by then may be sent again.
pub(super) const MAX_MASK_WAIT: Duration = Duration::from_secs(2);
/// The most that one work may take, however many rows it has. It is less than a step waits, so that a work that takes
/// too long by itself is told so, and not to come again.
const MAX_WORK_TIME: Duration = Duration::from_millis(1800);

/// How long so many masks of a text may take.
pub(super) fn time_for(masks: usize) -> Duration {
    (MAX_MASK_TIME + MORE_TIME.saturating_mul(masks as u32)).min(MAX_WORK_TIME)
}

/// Why there is no mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaskError {
    /// It takes more time or memory than a text may. There will be no masks for it any more.
    TooComplex(String),
    /// Other texts took so long that its turn did not come. The row may be sent again.
    NotYet,
    /// Too much waits for masks already, so that this cannot wait too. The row may be sent again.
    NoRoom,
    /// An internal fault. There will be no masks for it any more.
    Fault(String),
}

impl MaskError {
    /// The error of a text that took longer than [`time_for`] its masks allows.
    pub(super) fn too_long() -> Self {
        let [most, more, all] = [MAX_MASK_TIME, MORE_TIME, MAX_WORK_TIME].map(|time| time.as_millis());
        Self::TooComplex(format!(
            "the grammar's masks take longer than {most} ms, and {more} ms for each row up to {all} ms for one work, here"
        ))
    }

    /// The error of a text whose automaton has grown beyond so many bytes.
    pub(super) fn too_large(most: usize) -> Self {
        Self::TooComplex(format!("the grammar's automaton takes more than {} MiB here", most >> 20))
    }
}

impl fmt::Display for MaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooComplex(message) | Self::Fault(message) => f.write_str(message),
            Self::NotYet => {
                f.write_str("the masks are not ready, because other grammars take too long; send the row again")
            }
            Self::NoRoom => f.write_str(
                "the masks are not ready, and too many steps wait for masks already; send the row again, and fewer steps \
                 ahead",
            ),
        }
    }
}

impl std::error::Error for MaskError {}
