//! Rows whose columns several tensor-parallel ranks hold.
//!
//! The stream of rank 0 owns the group. The other ranks attach to it and announce, step by step, where their columns
//! are. A step of rank 0 waits until every rank has announced the same step, and then goes on like any other. The
//! columns are put together where a row is copied anyway, in the memory of the thread that samples it. For the reasons
//! see `docs/decisions/0018-vocabulary-shards.md`.
//!
//! Reading order: this file (which ranks belong to which stream), [`layout`], `group` (what is announced, and who waits
//! for it), [`attachment`] (a rank's end), [`join`] (rank 0's end).

pub mod attachment;
mod group;
pub mod join;
pub mod layout;
#[cfg(test)]
mod tests;

use crate::error::Refusal;
use crate::limits::Limits;
use crate::locks::lock;
use crate::metrics::Metrics;
use crate::permits::{Counter, Permit};
use crate::region::{StreamRegions, Token};
use attachment::{AttachError, Attachment};
use group::Group;
use join::Awaited;
use layout::Layout;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What all groups of the server share.
#[derive(Debug)]
pub struct Shards {
    /// One group for each stream that has ranks.
    groups: Mutex<HashMap<Token, Arc<Group>>>,
    ranks: Arc<Counter>,
    bytes: Arc<Counter>,
    ahead: usize,
    timeout: Duration,
    metrics: Metrics,
}

/// Rank 0's end of a group. Dropping it ends the group.
#[derive(Debug)]
pub struct Owner {
    shards: Arc<Shards>,
    group: Arc<Group>,
    token: Token,
}

impl Shards {
    /// Starts without groups.
    #[must_use]
    pub fn new(limits: &Limits, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            groups: Mutex::default(),
            ranks: Counter::new(limits.max_attached_ranks, metrics.shards.ranks.clone()),
            bytes: Counter::new(limits.max_shard_bytes, metrics.shards.bytes.clone()),
            ahead: limits.max_shards_ahead.max(1),
            timeout: limits.shard_timeout,
            metrics,
        })
    }

    /// Opens a group for a stream whose rows have this layout. Shards may lie in `regions`.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn open(self: &Arc<Self>, layout: Layout, regions: Option<Arc<StreamRegions>>) -> io::Result<Owner> {
        let token = Token::random()?;
        let group = Arc::new(Group::new(layout, regions));
        lock(&self.groups).insert(token, Arc::clone(&group));
        Ok(Owner { shards: Arc::clone(self), group, token })
    }

    /// Takes a place among the attached ranks.
    ///
    /// # Errors
    /// When there are too many.
    pub fn admit(&self) -> Result<Permit, Refusal> {
        self.ranks.take(1).ok_or(Refusal::TooManyRanks)
    }

    /// Attaches a rank that has shown `token`, unless `check` finds a mistake in how the rank describes itself.
    ///
    /// # Errors
    /// [`AttachError`], or the error of `check`.
    pub fn attach<E: From<AttachError>>(
        self: &Arc<Self>,
        token: Option<Token>,
        place: Arc<Permit>,
        check: impl FnOnce(&Layout) -> Result<usize, E>,
    ) -> Result<Attachment, E> {
        let group = token.and_then(|token| lock(&self.groups).get(&token).cloned()).ok_or(AttachError::UnknownToken)?;
        let rank = check(group.layout())?;
        Ok(Attachment::new(Arc::clone(self), group, rank, place)?)
    }
}

impl Owner {
    /// The token that ranks have to show.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Which columns each rank has.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.group.layout()
    }

    /// The largest step that was sent; the next one has to be above it.
    #[must_use]
    pub fn last_step(&self) -> u64 {
        self.group.last_step()
    }

    /// The shards that a step waits for.
    #[must_use]
    pub fn awaited(&self, step_id: u64) -> Awaited {
        Awaited::new(&self.shards, &self.group, step_id)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        lock(&self.shards.groups).remove(&self.token);
        self.group.end();
    }
}
