//! The regions of one stream.

use super::leased::Region;
use super::{LeaseError, LookUpError};
use crate::locks::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// The regions of one stream, by id.
#[derive(Debug, Default)]
pub struct StreamRegions {
    leases: Mutex<BTreeMap<u64, Arc<Region>>>,
    /// Set before the leases are cleared for the last time.
    pub(super) over: AtomicBool,
    ended: CancellationToken,
}

impl StreamRegions {
    /// The region of this id and generation.
    ///
    /// # Errors
    /// [`LookUpError`].
    pub fn get(&self, id: u64, generation: u64) -> Result<Arc<Region>, LookUpError> {
        let leases = lock(&self.leases);
        let region = leases.get(&id).ok_or(LookUpError::Unknown { id })?;
        if region.generation() != generation {
            return Err(LookUpError::Stale { generation, current: region.generation() });
        }
        Ok(Arc::clone(region))
    }

    /// Ends a lease. Steps under way keep the memory until they are answered. For memory that the worker lent, returns
    /// a token that is cancelled when the server has let go of it.
    ///
    /// # Errors
    /// [`LookUpError`].
    pub fn release(&self, id: u64, generation: u64) -> Result<Option<CancellationToken>, LookUpError> {
        let region = self.get(id, generation)?;
        // Unmapping takes a while, even if it happens right here, so it must not happen under the lock.
        let leased = lock(&self.leases).remove(&id);
        let gone = region.is_lent().then(|| region.held().gone());
        drop((region, leased));
        Ok(gone)
    }

    /// Ends every lease for good.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        let leases = std::mem::take(&mut *lock(&self.leases));
        drop(leases);
        self.ended.cancel();
    }

    /// Resolves when the stream has ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// How many regions the stream has.
    pub(super) fn count(&self) -> usize {
        lock(&self.leases).len()
    }

    /// Leases the region that `region` makes for the smallest free id.
    pub(super) fn insert(&self, most: usize, region: impl FnOnce(u64) -> Region) -> Result<Arc<Region>, LeaseError> {
        let mut leases = lock(&self.leases);
        // Checked under the lock, so that a concurrent end of the stream either sees this lease or is seen here.
        if self.over.load(Ordering::SeqCst) {
            return Err(LeaseError::Ended);
        }
        let free = (1..=most as u64).find(|id| !leases.contains_key(id)).ok_or(LeaseError::TooMany(most))?;
        let region = Arc::new(region(free));
        leases.insert(free, Arc::clone(&region));
        Ok(region)
    }
}
