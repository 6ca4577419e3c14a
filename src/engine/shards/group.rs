//! What the ranks of one stream have announced, and which step waits for it.

use super::attachment::{AttachError, Released};
use super::join::{Overdue, ShardFailure};
use super::layout::Layout;
use super::lock;
use crate::engine::step::LogitsBlock;
use crate::permits::Permit;
use crate::region::StreamRegions;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

/// The ranks of one stream.
#[derive(Debug)]
pub(super) struct Group {
    layout: Layout,
    regions: Option<Arc<StreamRegions>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The ranks above 0.
    ranks: Vec<Rank>,
    /// The largest step that rank 0 has sent.
    last_step: u64,
    /// The last step that had its turn, or the step before the one whose turn it is; 0 before any. Shards are for later
    /// steps.
    settled: u64,
    /// Whether the last step that had its turn waited in vain.
    gave_up: bool,
    /// The step of rank 0 that waits for shards.
    waiting: Option<WaitingStep>,
    /// Whether the stream, and with it the group, has ended.
    ended: bool,
}

/// A step of rank 0 that waits for its shards.
#[derive(Debug)]
struct WaitingStep {
    step_id: u64,
    rows: u64,
    waker: Waker,
}

/// What is known of a rank.
#[derive(Debug, Default)]
pub(super) struct Rank {
    pub(super) presence: Presence,
    /// How often the rank has attached. Tells its attachments apart.
    pub(super) attachments: u64,
    /// Shards that wait for their step, in ascending order.
    pub(super) announced: VecDeque<Shard>,
    /// The last step that the rank announced.
    pub(super) last: u64,
    /// How many shards are announced and not answered.
    pub(super) outstanding: usize,
    /// Answers to be sent; no more than are outstanding.
    pub(super) released: VecDeque<Released>,
    pub(super) waker: Option<Waker>,
}

/// Whether a rank is attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Presence {
    /// The rank has not attached yet, and may.
    #[default]
    Expected,
    /// The rank is attached.
    Attached,
    /// The rank was attached and has left.
    Left,
}

/// A rank's columns of the rows of one step.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) step_id: u64,
    pub(super) block: LogitsBlock,
    pub(super) guard: ShardGuard,
}

/// Goes with a shard wherever the shard is read. When nobody reads the shard any more, dropping this gives the room
/// back and tells the shard's rank, on whatever path.
#[derive(Debug)]
pub(super) struct ShardGuard {
    pub(super) group: Arc<Group>,
    pub(super) rank: usize,
    pub(super) attachment: u64,
    pub(super) step_id: u64,
    pub(super) joined: bool,
    pub(super) room: Option<Permit>,
}

impl Drop for ShardGuard {
    fn drop(&mut self) {
        // Room first, so that whoever is told also sees the room.
        drop(self.room.take());
        self.group.release(self);
    }
}

impl Group {
    pub(super) fn new(layout: Layout, regions: Option<Arc<StreamRegions>>) -> Self {
        let ranks = (1..layout.ranks()).map(|_| Rank::default()).collect();
        let state = State { ranks, last_step: 0, settled: 0, gave_up: false, waiting: None, ended: false };
        Self { layout, regions, state: Mutex::new(state) }
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn regions(&self) -> Option<&Arc<StreamRegions>> {
        self.regions.as_ref()
    }

    /// Ends the group for good.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let waiting: Vec<_> = state.ranks.iter_mut().map(|rank| std::mem::take(&mut rank.announced)).collect();
        let wakers: Vec<_> = state.ranks.iter_mut().filter_map(|rank| rank.waker.take()).collect();
        drop(state);
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The largest step that rank 0 has sent.
    pub(super) fn last_step(&self) -> u64 {
        lock(&self.state).last_step
    }

    /// Notes that rank 0 has sent this step.
    pub(super) fn set_last_step(&self, step_id: u64) {
        lock(&self.state).last_step = step_id;
    }

    /// Attaches a rank. Returns the number of this attachment, and the largest settled step. Shards that an earlier
    /// attachment announced are forgotten.
    pub(super) fn attach(&self, rank: usize) -> Result<(u64, u64), AttachError> {
        let mut state = lock(&self.state);
        let (ended, settled) = (state.ended, state.settled);
        let place = state.rank_mut(rank).filter(|_| !ended).ok_or(AttachError::UnknownToken)?;
        if place.presence == Presence::Attached {
            return Err(AttachError::Taken { rank });
        }
        let attachments = place.attachments + 1;
        let before = std::mem::replace(place, Rank { presence: Presence::Attached, attachments, ..Rank::default() });
        drop(state);
        drop(before);
        Ok((attachments, settled))
    }

    /// Notes that a rank has left. Shards that it announced stay valid.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = lock(&self.state);
        let mut unused = None;
        if let Some(rank) = state.rank_mut(rank) {
            rank.presence = Presence::Left;
            // Dropped only after the lock is released: the waker's task may own the last handle of something whose drop
            // takes this lock.
            unused = rank.waker.take();
        }
        let waker = state.take_waker_if_settled();
        drop(state);
        drop(unused);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Runs `f` on what is known of a rank, under the lock; `None` when the group has ended.
    pub(super) fn with_rank<T>(&self, rank: usize, f: impl FnOnce(&mut Rank) -> T) -> Option<T> {
        let mut state = lock(&self.state);
        let ended = state.ended;
        state.rank_mut(rank).filter(|_| !ended).map(f)
    }

    /// Takes in a shard that its rank has counted as outstanding. Gives back a shard that comes too late.
    pub(super) fn announce(&self, shard: Shard) -> Option<Shard> {
        let mut state = lock(&self.state);
        if state.ended || shard.step_id <= state.settled {
            return Some(shard);
        }
        if let Some(rank) = state.rank_mut(shard.guard.rank) {
            rank.announced.push_back(shard);
        }
        let waker = state.take_waker_if_settled();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        None
    }

    /// Whether the step before waited until its time was over.
    pub(super) fn gave_up(&self) -> bool {
        lock(&self.state).gave_up
    }

    /// Notes that a shard is no longer read.
    fn release(&self, shard: &ShardGuard) {
        let mut state = lock(&self.state);
        let Some(rank) = state.rank_mut(shard.rank) else { return };
        // If the shard is from an earlier attachment, there is nobody to tell.
        if rank.attachments == shard.attachment && rank.presence == Presence::Attached {
            rank.released.push_back(Released { step_id: shard.step_id, joined: shard.joined });
            let waker = rank.waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Polls the shards of a step of `rows` rows, or why it does not get them. An overdue step waits no more.
    pub(super) fn settle(
        &self,
        step_id: u64,
        rows: u64,
        overdue: Option<Overdue>,
        waker: &Waker,
    ) -> Poll<Result<Vec<Shard>, ShardFailure>> {
        let mut state = lock(&self.state);
        // Older shards were for steps that never came. They are dropped now, so that the rank's next announcements can
        // be read.
        let stale = state.advance(step_id.saturating_sub(1));
        let failure = match state.missing(step_id, rows) {
            Ok(None) => None,
            Err(failure) => Some(failure),
            Ok(Some((rank, presence))) => match overdue {
                Some(overdue) => Some(overdue.failure(rank, presence)),
                None => {
                    state.waiting = Some(WaitingStep { step_id, rows, waker: waker.clone() });
                    drop(state);
                    drop(stale);
                    return Poll::Pending;
                }
            },
        };
        state.waiting = None;
        state.gave_up = failure.is_some() && overdue.is_some();
        let shards = state.advance(step_id);
        drop(state);
        drop(stale);
        Poll::Ready(failure.map_or(Ok(shards), Err))
    }
}

impl State {
    /// What is known of a rank above 0. Rank 0 has no entry, because it owns the group.
    fn rank_mut(&mut self, rank: usize) -> Option<&mut Rank> {
        self.ranks.get_mut(rank.checked_sub(1)?)
    }

    /// Marks steps up to `settled` as settled. Returns their shards, which must be dropped outside the lock.
    fn advance(&mut self, settled: u64) -> Vec<Shard> {
        self.settled = settled;
        self.ranks.iter_mut().flat_map(|rank| rank.take_up_to(settled)).collect()
    }

    /// The first rank above 0 that a step waits for; `None` if none is missing; or why waiting is useless.
    fn missing(&self, step_id: u64, rows: u64) -> Result<Option<(usize, Presence)>, ShardFailure> {
        let mut missing = None;
        for (rank, place) in (1..).zip(&self.ranks) {
            match place.announced.front() {
                Some(Shard { step_id: next, .. }) if *next > step_id => {
                    return Err(ShardFailure::LeftOut { rank, next: *next });
                }
                Some(shard) if shard.block.rows() != rows => {
                    return Err(ShardFailure::Rows { rank, rows: shard.block.rows(), expected: rows });
                }
                Some(_) => {}
                None if place.presence == Presence::Left => return Err(ShardFailure::Left { rank }),
                None => missing = missing.or(Some((rank, place.presence))),
            }
        }
        Ok(missing)
    }

    /// The waker of rank 0, once its step need not wait any longer. It must be used outside the lock.
    fn take_waker_if_settled(&mut self) -> Option<Waker> {
        let waits = |step: &WaitingStep| matches!(self.missing(step.step_id, step.rows), Ok(Some(_)));
        if self.waiting.as_ref().is_none_or(waits) {
            return None;
        }
        self.waiting.take().map(|step| step.waker)
    }
}

impl Rank {
    /// Takes out the rank's shards for steps up to this one.
    fn take_up_to(&mut self, step_id: u64) -> Vec<Shard> {
        let count = self.announced.iter().take_while(|shard| shard.step_id <= step_id).count();
        self.announced.drain(..count).collect()
    }
}
