//! When a `Decode` stream rests, so that its replies are out before it runs another step.
//!
//! A reply that was handed out is not on its way yet: the connection writes it when it has its turn, and it has none while the stream
//! goes on. Short steps that were sent ahead may share a write, which costs more than such a step does; but no reply waits for long.

use std::time::{Duration, Instant};

/// How long replies may gather: so long after the receipt of a step whose reply is not out, nothing more is read or run.
const HELD_UP: Duration = Duration::from_micros(100);

/// How often the stream rests then. tonic asks for more while it has the reply, and hyper once it has passed that on, both in the same
/// turn of the task; the connection, which writes it, has the next.
///
/// The worker waits no longer for it: a rest costs nothing but the turn after it, which comes behind the connection's, and which does
/// what was done in each of these two before: it finds that no request is there, if its worker waits for this reply to send one.
const RESTS: u8 = 2;

/// How far a stream may go on.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the first step was received whose reply was handed out and may not be out.
    unsent: Option<Instant>,
    /// Rests to be had.
    rests: u8,
}

impl Pace {
    /// The reply to a step that was received then is handed out now.
    pub(super) fn replied(&mut self, received: Instant, now: Instant) {
        let held_up = now.saturating_duration_since(*self.unsent.get_or_insert(received));
        self.rests = if held_up >= HELD_UP { RESTS } else { 0 };
    }

    /// Whether the stream has to rest, which this counts as done.
    pub(super) fn rests(&mut self) -> bool {
        let left = self.rests.checked_sub(1);
        self.rests = left.unwrap_or(0);
        left.is_some()
    }

    /// The connection has its turn: what was handed out goes out.
    pub(super) fn sent(&mut self) {
        self.unsent = None;
    }
}
