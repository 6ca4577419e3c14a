//! A rank's end of a group. The rank announces shards here, and learns when they are no longer needed.

use super::Shards;
use super::group::{Group, Shard, ShardGuard};
use super::layout::Layout;
use crate::engine::step::{DataPath, LogitsBlock};
use crate::error::Refusal;
use crate::permits::Permit;
use crate::region::StreamRegions;
use std::sync::Arc;
use std::task::{Context, Poll};

/// An attached rank. Dropping it leaves the group.
#[derive(Debug)]
pub struct Attachment {
    shards: Arc<Shards>,
    group: Arc<Group>,
    rank: usize,
    number: u64,
    settled: u64,
    _place: Arc<Permit>,
}

/// A shard that nobody reads any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// The step that the shard was for.
    pub step_id: u64,
    /// Whether that step had all of its shards.
    pub joined: bool,
}

/// Why a rank could not be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// No open stream has this token.
    #[error("is not the token of an open stream")]
    UnknownToken,
    /// The rank is already attached.
    #[error("{rank} is already attached; only one call at a time may attach it")]
    Taken {
        /// The rank.
        rank: usize,
    },
}

/// Why a shard was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnounceError {
    /// The shard's step is not above that of the shard before.
    Order {
        /// The step of the shard before.
        last: u64,
    },
    /// There could never be room for the shard.
    TooLarge {
        /// The limit on the bytes of all shards.
        limit: usize,
    },
    /// There is no room for the shard now. It may be announced again.
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

    /// The number of the rank.
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

    /// The largest step that was settled when the rank attached.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// How many shards the rank may announce before one of them is answered.
    #[must_use]
    pub fn most_ahead(&self) -> usize {
        self.shards.ahead
    }

    /// Whether the rank may announce one more shard.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.group.with_rank(self.rank, |rank| rank.outstanding < self.shards.ahead).unwrap_or(true)
    }

    /// Announces the rank's columns of a step's rows. They keep `bytes` bytes of a message in memory.
    ///
    /// # Errors
    /// [`AnnounceError`]; the shard is not kept then.
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
        // A shard that came too late is released here, outside the lock.
        drop(self.group.announce(Shard { step_id, block, guard }));
        Ok(())
    }

    /// Polls the next shard that is no longer needed; `None` when the group has ended.
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
