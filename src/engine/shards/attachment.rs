//! A rank's end of a group: it announces shards, and is told when they are done with.

use super::Shards;
use super::group::{Group, Shard, ShardGuard};
use super::layout::Layout;
use crate::engine::step::{DataPath, LogitsBlock};
use crate::error::Refusal;
use crate::permits::Permit;
use crate::region::StreamRegions;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A rank that is attached. Dropping it leaves the group.
#[derive(Debug)]
pub struct Attachment {
    shards: Arc<Shards>,
    group: Arc<Group>,
    rank: usize,
    number: u64,
    settled: u64,
    _place: Arc<Permit>,
}

/// A shard that is read no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// The step it was for.
    pub step_id: u64,
    /// Whether that had all of its shards.
    pub joined: bool,
}

/// Why a rank is not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// No stream has this token.
    #[error("is no token of a stream that is open")]
    UnknownToken,
    /// The rank is there already.
    #[error("{rank} is attached; one call at a time may be")]
    Taken {
        /// Which.
        rank: usize,
    },
}

/// Why a shard was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnounceError {
    /// The step is not above that of the shard before.
    Order {
        /// The step of the shard before.
        last: u64,
    },
    /// There could never be room for it.
    TooLarge {
        /// Bytes of all shards that there may be.
        limit: usize,
    },
    /// There is no room for it; it may come again.
    Refused(Refusal),
}

impl Attachment {
    pub(super) fn new(
        shards: Arc<Shards>,
        group: Arc<Group>,
        rank: usize,
        place: Arc<Permit>,
    ) -> Result<Self, AttachError> {
        let (number, settled) = group.attach(rank)?;
        Ok(Self { shards, group, rank, number, settled, _place: place })
    }

    /// Its rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Which columns each rank has.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.group.layout()
    }

    /// The regions of the stream, if it has some.
    #[must_use]
    pub fn regions(&self) -> Option<&Arc<StreamRegions>> {
        self.group.regions()
    }

    /// The largest step that was done with when it attached.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// How many shards it may announce before one of them is answered.
    #[must_use]
    pub fn most_ahead(&self) -> usize {
        self.shards.ahead
    }

    /// Whether one more shard may be announced.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.group.with_rank(self.rank, |rank| rank.outstanding < self.shards.ahead).unwrap_or(true)
    }

    /// Announces the rank's columns of a step's rows, which keep `bytes` of a message in memory.
    ///
    /// # Errors
    /// [`AnnounceError`]; nothing is kept then.
    pub fn announce(&self, step_id: u64, block: LogitsBlock, bytes: usize) -> Result<(), AnnounceError> {
        let last = self.group.with_rank(self.rank, |rank| rank.last).unwrap_or(0);
        if step_id <= last {
            return Err(AnnounceError::Order { last });
        }
        let path = block.data_path();
        let room = match path {
            DataPath::SharedMemory | DataPath::DeviceMemory => None,
            _ if bytes > self.shards.bytes.limit() => {
                return Err(AnnounceError::TooLarge { limit: self.shards.bytes.limit() });
            }
            _ => Some(self.shards.bytes.take(bytes).ok_or(AnnounceError::Refused(Refusal::ShardBytes))?),
        };
        let counted = self.group.with_rank(self.rank, |rank| {
            rank.last = step_id;
            rank.outstanding += 1;
        });
        if counted.is_none() {
            return Ok(());
        }
        self.shards.metrics.shards.announced(path);
        let (group, rank, attachment) = (Arc::clone(&self.group), self.rank, self.number);
        let guard = ShardGuard { group, rank, attachment, step_id, joined: false, room };
        // One that came too late is released here, and not under the lock.
        drop(self.group.announce(Shard { step_id, block, guard }));
        Ok(())
    }

    /// The next shard that is done with; `None` when the group has ended.
    pub fn poll_released(&self, context: &mut Context<'_>) -> Poll<Option<Released>> {
        let polled = self.group.with_rank(self.rank, |rank| match rank.released.pop_front() {
            Some(released) => {
                rank.outstanding = rank.outstanding.saturating_sub(1);
                Poll::Ready(Some(released))
            }
            None => {
                rank.waker = Some(context.waker().clone());
                Poll::Pending
            }
        });
        polled.unwrap_or(Poll::Ready(None))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.group.leave(self.rank);
    }
}
