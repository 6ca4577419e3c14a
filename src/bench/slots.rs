//! A stream whose tokens come back through the region. A thread waits for them there and sends the next step. Replies
//! are read only for failures.

use super::group::Group;
use super::load::{Answers, Shared, Tally, closed};
use super::region::Leased;
use super::{BenchError, LogitsPath};
use crate::engine::step::SLOT_BYTES;
use crate::proto::{self, DecodeRequest, decode_request::Request as Ask};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long to wait for tokens. Refused steps have none.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Bytes that the slots of `rows` rows take behind the rows.
pub(super) fn bytes(path: LogitsPath, rows: usize) -> usize {
    if path == LogitsPath::Slots { (rows + 1) * SLOT_BYTES } else { 0 }
}

/// Sends the steps of one stream.
pub(super) struct Stream {
    pub(super) shared: Arc<Shared>,
    pub(super) requests: mpsc::Sender<DecodeRequest>,
    pub(super) group: Group,
    pub(super) leased: Leased,
}

impl Stream {
    /// Sends steps until the round is over. Blocks the thread.
    pub(super) fn run(mut self) -> Result<Tally, BenchError> {
        let offset = self.shared.pool.whole_bytes().next_multiple_of(SLOT_BYTES);
        let mut tally = Tally::new();
        self.group.due = Instant::now();
        for number in 1.. {
            self.send(number, offset)?;
            if !self.leased.window.wait(offset, number as u32, MAX_WAIT) {
                return Err(closed());
            }
            let now = Instant::now();
            let tokens = self.tokens(offset);
            self.shared.counter.add(tokens);
            if now >= self.shared.until {
                break;
            }
            if now >= self.shared.from {
                tally.record(tokens, now.saturating_duration_since(self.group.due));
            }
            self.group.answered(now);
        }
        Ok(tally)
    }

    fn send(&self, number: usize, offset: usize) -> Result<(), BenchError> {
        let lease = &self.leased.lease;
        let slots = proto::TokenSlots {
            region_id: lease.region_id,
            generation: lease.generation,
            offset: offset as u64,
            instead_of_result: true,
        };
        let step = self.group.step(number, &self.shared.args, &self.shared.pool, Some(lease));
        let step = proto::Step { token_slots: Some(slots), ..step };
        self.requests.blocking_send(DecodeRequest { request: Some(Ask::Step(step)) }).map_err(|_| closed())
    }

    /// Number of slots that have a token.
    fn tokens(&self, offset: usize) -> u64 {
        let word = |at: usize| self.leased.window.word(offset + at * size_of::<u32>());
        (1..=word(2) as usize).filter(|slot| word(4 * slot + 1) & 0xff == proto::RowStatus::Ok as u32).count() as u64
    }
}

/// Reads the replies for failures. Failures of works count if they come in `window`.
pub(super) async fn failures(mut replies: Answers, window: Range<Instant>) -> Tally {
    let mut tally = Tally::new();
    while let Ok(Some(reply)) = replies.message().await {
        let Some(proto::decode_response::Response::Step(result)) = reply.response else { continue };
        if let Some(refusal) = &result.refusal {
            tally.fail(format!("refused {}", refusal.reason));
        }
        tally.failures_of(&result, window.contains(&Instant::now()));
    }
    tally
}
