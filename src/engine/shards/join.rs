//! Rank 0's end of a group. A step waits here for the shards of the other ranks, and its rows are put together.

use super::Shards;
use super::group::{Group, Presence, ShardGuard};
use crate::engine::step::{LogitsBlock, RowFailure, RowStatus};
use crate::metrics::ShardFault;
use crate::sampling::logits::{Dtype, Foreign, Logits};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The rows of a step whose columns come from several ranks.
#[derive(Debug)]
pub enum Sharded {
    /// Rank 0's columns are here; those of the other ranks are still to come.
    Awaited(Awaited, LogitsBlock),
    /// All columns are here.
    Joined(Joined),
    /// Some columns will not come.
    Failed(ShardFailure),
}

/// A step that waits for its shards.
#[derive(Debug)]
pub struct Awaited {
    shards: Arc<Shards>,
    group: Arc<Group>,
    step_id: u64,
    received: Instant,
    /// Since when the step waits: the steps before it no longer wait.
    turn: Option<Instant>,
}

/// Rows that have all of their columns. Dropping this releases the shards.
#[derive(Debug)]
pub struct Joined {
    /// The columns, in order. Columns that lie next to each other in one region are one block.
    blocks: Vec<LogitsBlock>,
    row_bytes: usize,
    _guards: Vec<ShardGuard>,
}

/// Which time limit of a waiting step has passed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Overdue {
    /// The step's own deadline.
    Deadline,
    /// The limit `shard_timeout`, with its length.
    ShardTimeout(Duration),
}

impl Overdue {
    /// The failure of a step that waited for this rank.
    pub(super) fn failure(self, rank: usize, presence: Presence) -> ShardFailure {
        match (self, presence) {
            (Self::Deadline, _) => ShardFailure::Deadline { rank },
            (Self::ShardTimeout(waited), Presence::Expected) => ShardFailure::NotAttached { rank, waited },
            (Self::ShardTimeout(waited), _) => ShardFailure::NotAnnounced { rank, waited },
        }
    }
}

/// Why a step's rows do not have all of their columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // Each is explained by its message.
pub enum ShardFailure {
    NotAttached { rank: usize, waited: Duration },
    NotAnnounced { rank: usize, waited: Duration },
    Deadline { rank: usize },
    Left { rank: usize },
    LeftOut { rank: usize, next: u64 },
    Rows { rank: usize, rows: u64, expected: u64 },
}

impl Awaited {
    pub(super) fn new(shards: &Arc<Shards>, group: &Arc<Group>, step_id: u64) -> Self {
        let received = Instant::now();
        Self { shards: Arc::clone(shards), group: Arc::clone(group), step_id, received, turn: None }
    }

    /// How long a step that has waited since `turn` may wait, and which limit ends its wait.
    fn until(&self, turn: Instant, deadline: Option<Instant>) -> (Instant, Overdue) {
        let timeout = self.shards.timeout;
        match deadline.filter(|deadline| *deadline < turn + timeout) {
            Some(deadline) => (deadline, Overdue::Deadline),
            None => (turn + timeout, Overdue::ShardTimeout(timeout)),
        }
    }
}

impl Sharded {
    /// Notes that the step was taken in: the next step has to be above it.
    pub fn begin(&self) {
        if let Self::Awaited(awaited, _) = self {
            awaited.group.set_last_step(awaited.step_id);
        }
    }

    /// Puts the rows together if every shard is here, or gives them up. While the step waits, returns when to try again
    /// at the latest; the task is woken earlier if the step need not wait so long. To be called once the steps before
    /// it no longer wait.
    pub fn join(&mut self, now: Instant, deadline: Option<Instant>, context: &mut Context<'_>) -> Option<Instant> {
        let Self::Awaited(awaited, own) = self else { return None };
        // If ranks kept the step before waiting in vain, they had their time for this step too.
        let came = || if awaited.group.gave_up() { awaited.received.min(now) } else { now };
        let turn = *awaited.turn.get_or_insert_with(came);
        let (until, overdue) = awaited.until(turn, deadline);
        let overdue = (now >= until).then_some(overdue);
        let metrics = &awaited.shards.metrics.shards;
        *self = match awaited.group.settle(awaited.step_id, own.rows(), overdue, context.waker()) {
            Poll::Pending => return Some(until),
            Poll::Ready(Ok(others)) => {
                metrics.wait.record(now.saturating_duration_since(turn));
                let (blocks, guards) = others.into_iter().map(|shard| (shard.block, shard.guard)).unzip();
                Self::Joined(Joined::new(std::mem::replace(own, LogitsBlock::empty(Dtype::F32, 0)), blocks, guards))
            }
            Poll::Ready(Err(failure)) => {
                metrics.failed(failure.counted());
                Self::Failed(failure)
            }
        };
        None
    }

    /// The row that lies `offset` bytes after row 0, if all of its columns are here.
    pub(in crate::engine) fn row(&self, dtype: Dtype, offset: usize) -> Option<Logits<'_>> {
        match self {
            Self::Joined(joined) => joined.row(dtype, offset),
            Self::Awaited(..) | Self::Failed(_) => None,
        }
    }

    /// Why the rows cannot be sampled, if they cannot.
    pub(in crate::engine) fn failure(&self) -> Option<RowFailure> {
        match self {
            Self::Joined(_) => None,
            Self::Failed(failure) => Some(failure.of_rows()),
            Self::Awaited(..) => Some(RowFailure::new(RowStatus::Internal, "the step did not wait for its shards")),
        }
    }
}

impl Joined {
    fn new(own: LogitsBlock, others: Vec<LogitsBlock>, mut guards: Vec<ShardGuard>) -> Self {
        let row_bytes = others.iter().fold(own.row_bytes(), |bytes, block| bytes + block.row_bytes());
        let mut blocks = vec![own];
        for next in others {
            match blocks.last_mut().and_then(|last| last.with_next(&next).map(|both| *last = both)) {
                Some(()) => {}
                None => blocks.push(next),
            }
        }
        guards.iter_mut().for_each(|guard| guard.joined = true);
        Self { blocks, row_bytes, _guards: guards }
    }

    /// The row that lies `offset` bytes after row 0: in place if its columns lie together, or else to be put together
    /// when it is copied.
    fn row(&self, dtype: Dtype, offset: usize) -> Option<Logits<'_>> {
        match &self.blocks[..] {
            [all] => all.row((offset / self.row_bytes) as u64),
            _ => Some(Logits::foreign(dtype, self, offset, self.row_bytes / dtype.size())),
        }
    }
}

// SAFETY: it gives no place, only copies.
unsafe impl Foreign for Joined {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        assert!(
            offset.is_multiple_of(self.row_bytes) && to.len() == self.row_bytes,
            "rows of several ranks are copied whole; this is a bug"
        );
        let (row, mut rest) = ((offset / self.row_bytes) as u64, to);
        for block in &self.blocks {
            let (columns, behind) = rest.split_at_mut(block.row_bytes());
            let shard = block.row(row).expect("every shard has as many rows as the step; this is a bug");
            shard.copy_to(columns);
            rest = behind;
        }
    }
}

impl ShardFailure {
    /// What the failure is counted as.
    #[must_use]
    pub fn counted(&self) -> ShardFault {
        match self {
            Self::NotAttached { .. } => ShardFault::NotAttached,
            Self::NotAnnounced { .. } => ShardFault::NotAnnounced,
            Self::Deadline { .. } => ShardFault::Deadline,
            Self::Left { .. } => ShardFault::Left,
            Self::LeftOut { .. } => ShardFault::LeftOut,
            Self::Rows { .. } => ShardFault::Rows,
        }
    }

    fn of_rows(self) -> RowFailure {
        let status = match self {
            Self::Rows { .. } => RowStatus::ShardMismatch,
            Self::Deadline { .. } => RowStatus::DeadlineExceeded,
            _ => RowStatus::ShardMissing,
        };
        RowFailure::new(status, self.message())
    }

    fn message(self) -> String {
        match self {
            Self::NotAttached { rank, waited } => format!(
                "rank {rank} did not attach within {waited:?} (shard_timeout); give it the stream's token, then send the rows again"
            ),
            Self::NotAnnounced { rank, waited } => {
                format!("rank {rank} did not announce its shard within {waited:?} (shard_timeout)")
            }
            Self::Deadline { rank } => format!("the step's deadline passed before rank {rank} announced its shard"),
            Self::Left { rank } => format!("rank {rank} has left; when it has attached again, send the rows again"),
            Self::LeftOut { rank, next } => {
                format!("rank {rank} left this step out: its next shard is for step {next}")
            }
            Self::Rows { rank, rows, expected } => {
                format!("rank {rank} announced {rows} rows, but the step has {expected}")
            }
        }
    }
}
