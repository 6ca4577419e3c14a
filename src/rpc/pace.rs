//! When a `Decode` stream rests, so that its replies are out before it runs another step.
//!
//! A reply that was handed out is not on its way yet: the connection writes it when the connection's task has its turn,
//! and it gets no turn while the stream goes on. Short steps that were sent ahead may share a write, since a write
//! costs more than such a step. But no reply waits for long.

use std::time::{Duration, Instant};

/// How long replies may gather. Once a step was received this long ago and its reply is not out, nothing more is read
/// or run.
const HELD_UP: Duration = Duration::from_micros(100);

/// How often the stream rests then. tonic asks the stream for more once it has the reply, and hyper asks again once it
/// has passed the reply on, both in the same turn of the task. The connection, which writes the reply, has the next
/// turn.
///
/// The worker does not wait longer because of a rest. A rest costs only the extra turn that follows the connection's.
/// In that turn the stream does what it did before in each of the two: it finds no request, if its worker waits for
/// this reply before it sends one.
const RESTS: u8 = 2;

/// How far a stream may go on before it rests.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the first step was received of those whose replies were handed out and may not have been written yet.
    unsent: Option<Instant>,
    /// Rests that are still due.
    rests: u8,
}

impl Pace {
    /// Notes that the reply to a step received at `received` is handed out now.
    pub(super) fn replied(&mut self, received: Instant, now: Instant) {
        let held_up = now.saturating_duration_since(*self.unsent.get_or_insert(received));
        self.rests = if held_up >= HELD_UP { RESTS } else { 0 };
    }

    /// Whether the stream has to rest now. Counts that rest as taken.
    pub(super) fn rests(&mut self) -> bool {
        let left = self.rests.checked_sub(1);
        self.rests = left.unwrap_or(0);
        left.is_some()
    }

    /// Notes that the connection has its turn, in which it writes what was handed out.
    pub(super) fn sent(&mut self) {
        self.unsent = None;
    }
}
