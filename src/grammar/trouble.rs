//! Why a text has no masks.

use std::fmt;
use std::time::Duration;

/// How long one text may take for the masks of one work. A mask takes some 20 us, and seldom one millisecond; a container that
/// has used up its share of the CPU stops for a tenth of a second.
pub(super) const MOST_TIME: Duration = Duration::from_millis(500);
/// How much more for each of its rows.
const MORE_TIME: Duration = Duration::from_millis(5);

/// How long so many masks of a text may take.
pub(super) fn time_for(masks: usize) -> Duration {
    MOST_TIME + MORE_TIME.saturating_mul(masks as u32)
}

/// Why there is no mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// It takes more time or memory than one may, and there will be none any more.
    TooComplex(String),
    /// Others took so long that its turn did not come. It may be asked for again.
    NotYet,
    /// Something that should not be, and there will be none any more.
    Fault(String),
}

impl Trouble {
    /// A text that took longer than [`MOST_TIME`].
    pub(super) fn too_long() -> Self {
        Self::TooComplex(format!("its masks take longer than {} ms here", MOST_TIME.as_millis()))
    }

    /// A text whose automaton has grown beyond so many bytes.
    pub(super) fn too_large(most: usize) -> Self {
        Self::TooComplex(format!("its automaton takes more than {} MiB here", most >> 20))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooComplex(message) | Self::Fault(message) => f.write_str(message),
            Self::NotYet => f.write_str("other grammars take so long that its masks are not there; send the row again"),
        }
    }
}

impl std::error::Error for Trouble {}
