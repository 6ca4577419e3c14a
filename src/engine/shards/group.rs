//! What the ranks of one stream have announced, and which step waits for it.

use super::attachment::{AttachError, Released};
use super::join::ShardFailure;
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
    /// Those above 0.
    ranks: Vec<Rank>,
    /// The largest step that rank 0 has sent.
    named: u64,
    /// The last step that had its turn, or that comes before the one whose turn it is; 0 before any. Shards are for later ones.
    settled: u64,
    /// Whether the last step that had its turn waited in vain.
    gave_up: bool,
    /// The step of rank 0 that waits, and how many rows it has.
    waiting: Option<(u64, u64, Waker)>,
    over: bool,
}

/// What is known of a rank.
#[derive(Debug, Default)]
pub(super) struct Rank {
    pub(super) presence: Presence,
    /// Tells its attachments apart.
    pub(super) attachments: u64,
    /// Shards that wait for their step, in ascending order.
    pub(super) announced: VecDeque<Shard>,
    /// The last step it announced.
    pub(super) last: u64,
    /// Shards announced and not answered.
    pub(super) outstanding: usize,
    /// Answers that wait to be sent; no more than are outstanding.
    pub(super) released: VecDeque<Released>,
    pub(super) waker: Option<Waker>,
}

/// Whether a rank is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Presence {
    /// It has not come yet; it may.
    #[default]
    Expected,
    /// It is attached.
    Attached,
    /// It was attached, and has left.
    Left,
}

/// A rank's columns of the rows of one step.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) step_id: u64,
    pub(super) block: LogitsBlock,
    pub(super) hold: Hold,
}

/// What a shard holds. Dropped when nobody reads it any more, on whatever path, it tells its rank.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) group: Arc<Group>,
    pub(super) rank: usize,
    pub(super) attachment: u64,
    pub(super) step_id: u64,
    pub(super) joined: bool,
    pub(super) room: Option<Permit>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Room first, so that who is told also sees the room.
        drop(self.room.take());
        self.group.release(self);
    }
}

impl Group {
    pub(super) fn new(layout: Layout, regions: Option<Arc<StreamRegions>>) -> Self {
        let ranks = (1..layout.ranks()).map(|_| Rank::default()).collect();
        let state = State { ranks, named: 0, settled: 0, gave_up: false, waiting: None, over: false };
        Self { layout, regions, state: Mutex::new(state) }
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn regions(&self) -> Option<&Arc<StreamRegions>> {
        self.regions.as_ref()
    }

    /// Ends the group, for good.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        let waiting: Vec<_> = state.ranks.iter_mut().map(|rank| std::mem::take(&mut rank.announced)).collect();
        let wakers: Vec<_> = state.ranks.iter_mut().filter_map(|rank| rank.waker.take()).collect();
        drop(state);
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn named(&self) -> u64 {
        lock(&self.state).named
    }

    /// Rank 0's next step is this one.
    pub(super) fn name(&self, step_id: u64) {
        lock(&self.state).named = step_id;
    }

    /// Attaches a rank; gives which of its attachments this is, and the largest step that is done with. What an earlier one
    /// has announced is forgotten.
    pub(super) fn attach(&self, rank: usize) -> Result<(u64, u64), AttachError> {
        let mut state = lock(&self.state);
        let (over, settled) = (state.over, state.settled);
        let place = state.ranks.get_mut(rank.wrapping_sub(1)).filter(|_| !over).ok_or(AttachError::UnknownToken)?;
        if place.presence == Presence::Attached {
            return Err(AttachError::Taken { rank });
        }
        let attachments = place.attachments + 1;
        let before = std::mem::replace(place, Rank { presence: Presence::Attached, attachments, ..Rank::default() });
        drop(state);
        drop(before);
        Ok((attachments, settled))
    }

    /// The rank's end of the group is gone. What it has announced stays good.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = lock(&self.state);
        if let Some(rank) = state.ranks.get_mut(rank.wrapping_sub(1)) {
            rank.presence = Presence::Left;
        }
        let wakers = (state.if_settled(), state.ranks.get_mut(rank.wrapping_sub(1)).and_then(|rank| rank.waker.take()));
        drop(state);
        wakers.0.into_iter().for_each(Waker::wake);
    }

    /// What becomes of a rank's place under the lock. `None` when the group is over.
    pub(super) fn with_rank<T>(&self, rank: usize, f: impl FnOnce(&mut Rank) -> T) -> Option<T> {
        let mut state = lock(&self.state);
        let over = state.over;
        state.ranks.get_mut(rank.wrapping_sub(1)).filter(|_| !over).map(f)
    }

    /// Takes in a shard that its rank has counted as outstanding. One that comes too late is given back.
    pub(super) fn announce(&self, shard: Shard) -> Option<Shard> {
        let mut state = lock(&self.state);
        if state.over || shard.step_id <= state.settled {
            return Some(shard);
        }
        if let Some(rank) = state.ranks.get_mut(shard.hold.rank.wrapping_sub(1)) {
            rank.announced.push_back(shard);
        }
        let waker = state.if_settled();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        None
    }

    /// Whether the step before waited until its time was over.
    pub(super) fn gave_up(&self) -> bool {
        lock(&self.state).gave_up
    }

    /// A shard is read no more.
    fn release(&self, hold: &Hold) {
        let mut state = lock(&self.state);
        let Some(rank) = state.ranks.get_mut(hold.rank.wrapping_sub(1)) else { return };
        // One of an earlier attachment has nobody to be told.
        if rank.attachments == hold.attachment && rank.presence == Presence::Attached {
            rank.released.push_back(Released { step_id: hold.step_id, joined: hold.joined });
            let waker = rank.waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// The shards of a step of so many rows, or why it has none. Past `expired` it waits no more.
    pub(super) fn settle(
        &self,
        step_id: u64,
        rows: u64,
        expired: Option<&dyn Fn(usize, Presence) -> ShardFailure>,
        waker: &Waker,
    ) -> Poll<Result<Vec<Shard>, ShardFailure>> {
        let mut state = lock(&self.state);
        // What is older was for no step that came. It goes now, so that what its rank announces next can be read.
        let stale = state.advance(step_id.saturating_sub(1));
        let failure = match state.missing(step_id, rows) {
            Ok(None) => None,
            Err(failure) => Some(failure),
            Ok(Some((rank, presence))) => match expired {
                Some(failure) => Some(failure(rank, presence)),
                None => {
                    state.waiting = Some((step_id, rows, waker.clone()));
                    drop(state);
                    drop(stale);
                    return Poll::Pending;
                }
            },
        };
        state.waiting = None;
        state.gave_up = failure.is_some() && expired.is_some();
        let shards = state.advance(step_id);
        drop(state);
        drop(stale);
        Poll::Ready(failure.map_or(Ok(shards), Err))
    }
}

impl State {
    /// Steps up to this one have had their turn. Gives their shards, to be dropped when the lock is not held.
    fn advance(&mut self, settled: u64) -> Vec<Shard> {
        self.settled = settled;
        self.ranks.iter_mut().flat_map(|rank| rank.up_to(settled)).collect()
    }

    /// The first rank above 0 that a step waits for, or why it need not wait.
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

    /// What wakes rank 0, when its step need not wait any longer; to be used when the lock is not held.
    fn if_settled(&mut self) -> Option<Waker> {
        let waits = |(step_id, rows, _): &(u64, u64, Waker)| matches!(self.missing(*step_id, *rows), Ok(Some(_)));
        if self.waiting.as_ref().is_none_or(waits) {
            return None;
        }
        self.waiting.take().map(|(_, _, waker)| waker)
    }
}

impl Rank {
    /// Its shards for steps up to this one.
    fn up_to(&mut self, step_id: u64) -> Vec<Shard> {
        let count = self.announced.iter().take_while(|shard| shard.step_id <= step_id).count();
        self.announced.drain(..count).collect()
    }
}
