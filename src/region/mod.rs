//! Logits without the copy: memory that a worker on the same host writes and this server reads.
//!
//! The server makes the memory, sealed and with every page in place, and hands over its descriptor; the worker can do
//! nothing to it but write. A region belongs to one stream, and to the side connection that asked for it: it goes with
//! whichever ends first. Reading order: this file (who may have what), [`memory`] (the memory itself), [`pass`] (how a
//! descriptor travels), [`worker`] (the other end), `freeing` (where memory goes), `device` (memory of a GPU).

mod device;
mod error;
mod freeing;
mod memory;
pub mod pass;
#[cfg(target_os = "linux")]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod system;
mod token;
mod words;
pub mod worker;

use crate::locks::lock;
pub use device::{DeviceError, DeviceSide, Loan};
pub use error::{LeaseError, LookUpError};
use freeing::{Backing, Freeing, Gone, Held};
pub use memory::{IS_SUPPORTED, Memory};
pub use token::Token;

use crate::limits::Limits;
use crate::permits::{Counter, Permit};
use crate::sampling::logits::Foreign;
use metrics::Gauge;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long a stream's token may be used. A worker connects at once or not at all.
pub const TOKEN_LIFE: Duration = Duration::from_secs(30);

/// The server's regions: what all streams share.
#[derive(Debug)]
pub struct Regions {
    /// Tokens that nobody has come with yet; at most one for each stream and each attached rank.
    tokens: Mutex<HashMap<Token, Invited>>,
    bytes: Arc<Counter>,
    count: Arc<Counter>,
    generations: AtomicU64,
    max_per_stream: usize,
    max_bytes: usize,
    freeing: Freeing,
    device: Option<DeviceSide>,
}

#[derive(Debug)]
struct Invited {
    stream: Arc<StreamRegions>,
    role: Role,
    until: Instant,
}

/// What a side connection may do.
#[derive(Debug, Clone)]
pub enum Role {
    /// Lease and release; the stream's regions end with it.
    Owner,
    /// Map what is leased, until it is cancelled.
    Guest(CancellationToken),
}

/// Regions of one stream.
#[derive(Debug)]
pub struct StreamRegions {
    leases: Mutex<BTreeMap<u64, Arc<Region>>>,
    /// Set before the leases are cleared for the last time.
    over: AtomicBool,
    ended: CancellationToken,
}

/// A stream's right to regions. Dropping it ends them all.
#[derive(Debug)]
pub struct Invitation {
    regions: Arc<Regions>,
    stream: Arc<StreamRegions>,
    token: Token,
}

/// The right of somebody else to map a stream's regions. Dropping it ends that, not what is mapped.
#[derive(Debug)]
pub struct Guest {
    regions: Arc<Regions>,
    token: Token,
    over: CancellationToken,
}

/// A region. It lives as long as a step refers to it, whatever becomes of its lease.
#[derive(Debug)]
pub struct Region {
    id: u64,
    generation: u64,
    /// Until it is dropped.
    held: Option<Held>,
    freeing: Freeing,
}

/// The side socket's name beside that of the Unix socket, unless it is set.
#[must_use]
pub fn side_socket(uds: &Path) -> PathBuf {
    let mut name = uds.to_path_buf().into_os_string();
    name.push(".region");
    name.into()
}

impl Regions {
    /// No regions yet. `count` shows how many there are, `bytes` their memory.
    #[must_use]
    pub fn new(limits: &Limits, count: Gauge, bytes: Gauge) -> Arc<Self> {
        Self::with_device(limits, count, bytes, None)
    }

    /// The same, also on a device.
    #[must_use]
    pub fn with_device(limits: &Limits, count: Gauge, bytes: Gauge, device: Option<DeviceSide>) -> Arc<Self> {
        Arc::new(Self {
            tokens: Mutex::default(),
            bytes: Counter::new(limits.max_region_bytes, bytes),
            count: Counter::new(limits.max_streams.saturating_mul(limits.max_regions_per_stream), count),
            generations: AtomicU64::new(0),
            max_per_stream: limits.max_regions_per_stream,
            max_bytes: limits.max_bytes_per_region,
            freeing: Freeing::start(),
            device,
        })
    }

    /// Lets a stream have regions.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn invite(self: &Arc<Self>) -> io::Result<Invitation> {
        let (leases, over, ended) = (Mutex::default(), AtomicBool::new(false), CancellationToken::new());
        let stream = Arc::new(StreamRegions { leases, over, ended });
        let token = self.token(&stream, Role::Owner)?;
        Ok(Invitation { regions: Arc::clone(self), stream, token })
    }

    /// Lets somebody else map the regions of a stream.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn invite_guest(self: &Arc<Self>, stream: &Arc<StreamRegions>) -> io::Result<Guest> {
        let over = CancellationToken::new();
        let token = self.token(stream, Role::Guest(over.clone()))?;
        Ok(Guest { regions: Arc::clone(self), token, over })
    }

    fn token(&self, stream: &Arc<StreamRegions>, role: Role) -> io::Result<Token> {
        let token = Token::random()?;
        let invited = Invited { stream: Arc::clone(stream), role, until: Instant::now() + TOKEN_LIFE };
        lock(&self.tokens).insert(token, invited);
        Ok(token)
    }

    /// The stream whose token this is, and what may be done; the token is used up. `None` if it is none, was used, or is
    /// too old by `now`.
    #[must_use]
    pub fn admit(&self, token: &Token, now: Instant) -> Option<(Arc<StreamRegions>, Role)> {
        let invited = lock(&self.tokens).remove(token)?;
        (now <= invited.until).then_some((invited.stream, invited.role))
    }

    /// Makes a region of at least `bytes` bytes and leases it to `stream`. Blocks while the memory is made.
    ///
    /// # Errors
    /// [`LeaseError`]; nothing is kept then.
    pub fn lease(&self, stream: &StreamRegions, bytes: u64) -> Result<Arc<Region>, LeaseError> {
        let len = memory::whole_pages(self.size(stream, bytes)?);
        let place = self.place()?;
        let bytes = self.room(|| self.bytes.take(len)).ok_or(LeaseError::NoRoom(len))?;
        let memory = Backing::Host(Memory::create(len)?);
        self.insert(stream, Held { memory, _room: (Some(bytes), place), gone: Gone::default() })
    }

    /// A place for one more region. Those that streams gave up have theirs while somebody still reads them.
    fn place(&self) -> Result<Permit, LeaseError> {
        self.room(|| self.count.take(1)).ok_or_else(|| LeaseError::NoPlace(self.count.limit()))
    }

    /// The size of one more region of a stream.
    fn size(&self, stream: &StreamRegions, bytes: u64) -> Result<usize, LeaseError> {
        let size = || LeaseError::Size { bytes, limit: self.max_bytes };
        let len = usize::try_from(bytes).ok().filter(|&len| len > 0 && len <= self.max_bytes).ok_or_else(size)?;
        if lock(&stream.leases).len() >= self.max_per_stream {
            return Err(LeaseError::TooMany(self.max_per_stream));
        }
        Ok(len)
    }

    /// Room for a region; where there is none, that of regions which were given up before is waited for.
    fn room<R>(&self, take: impl Fn() -> Option<R>) -> Option<R> {
        take().or_else(|| {
            self.freeing.settle();
            take()
        })
    }
}

impl StreamRegions {
    /// The region of this id and generation.
    ///
    /// # Errors
    /// [`LookUpError`].
    pub fn get(&self, id: u64, generation: u64) -> Result<Arc<Region>, LookUpError> {
        let leases = lock(&self.leases);
        let region = leases.get(&id).ok_or(LookUpError::Unknown { id })?;
        if region.generation != generation {
            return Err(LookUpError::Stale { generation, current: region.generation });
        }
        Ok(Arc::clone(region))
    }

    /// Ends a lease. Steps under way keep the memory until they are answered. For memory that the worker lent: what tells
    /// when the server has let go of it.
    ///
    /// # Errors
    /// [`LookUpError`].
    pub fn release(&self, id: u64, generation: u64) -> Result<Option<CancellationToken>, LookUpError> {
        let region = self.get(id, generation)?;
        // Unmapping takes a while, also what is done at once; not under the lock.
        let leased = lock(&self.leases).remove(&id);
        let gone = region.is_lent().then(|| region.held().gone());
        drop((region, leased));
        Ok(gone)
    }

    /// Ends every lease, for good.
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

    /// Leases what `region` makes of the smallest free id.
    fn insert(&self, most: usize, region: impl FnOnce(u64) -> Region) -> Result<Arc<Region>, LeaseError> {
        let mut leases = lock(&self.leases);
        // Looked at under the lock: whoever ends the stream either sees this lease or is seen here.
        if self.over.load(Ordering::SeqCst) {
            return Err(LeaseError::Ended);
        }
        let free = (1..=most as u64).find(|id| !leases.contains_key(id)).ok_or(LeaseError::TooMany(most))?;
        let region = Arc::new(region(free));
        leases.insert(free, Arc::clone(&region));
        Ok(region)
    }
}

impl Invitation {
    /// What the worker has to come with.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The stream's regions.
    #[must_use]
    pub fn regions(&self) -> &Arc<StreamRegions> {
        &self.stream
    }
}

impl Drop for Invitation {
    fn drop(&mut self) {
        lock(&self.regions.tokens).remove(&self.token);
        self.stream.end();
    }
}

impl Guest {
    /// What they have to come with.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        lock(&self.regions.tokens).remove(&self.token);
        self.over.cancel();
    }
}

impl Region {
    /// Its id, unique among those of its stream.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Tells it from earlier regions of the same id.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &dyn Foreign {
        match &self.held().memory {
            Backing::Host(memory) => memory,
            Backing::Device(device) => &*device.memory,
        }
    }

    /// Its memory if it is the host's, to write to; `None` on a device.
    #[must_use]
    pub fn words(&self) -> Option<&Memory> {
        match &self.held().memory {
            Backing::Host(memory) => Some(memory),
            Backing::Device(_) => None,
        }
    }

    /// Its length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        match &self.held().memory {
            Backing::Host(memory) => memory.len(),
            Backing::Device(device) => device.len,
        }
    }

    /// The UUID of the device that it is on; none for the host's memory.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match &self.held().memory {
            Backing::Host(_) => None,
            Backing::Device(device) => Some(&device.device),
        }
    }

    /// What the worker maps; none for memory that it lent.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.held().memory {
            Backing::Host(memory) => Some(memory.descriptor()),
            Backing::Device(device) => device.descriptor.as_ref().map(AsFd::as_fd),
        }
    }

    /// Whether it is memory that the worker lent.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.descriptor().is_none()
    }

    /// It is there until the region is dropped.
    fn held(&self) -> &Held {
        self.held.as_ref().expect("it is there until the region is dropped; this is a bug")
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.held.take().into_iter().for_each(|held| self.freeing.free(held));
    }
}

#[cfg(test)]
mod tests;
