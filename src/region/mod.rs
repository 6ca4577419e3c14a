//! Logits without the copy: memory that a worker on the same host writes and this server reads.
//!
//! The server makes the memory, sealed and with every page in place, and hands over its descriptor; the worker can do
//! nothing to it but write. A region belongs to one stream and to the side connection that asked for it, and ends with
//! whichever of the two ends first. Reading order: this file (how much there may be), `rights` (who may have it),
//! `stream` and `leased` (what a stream has), [`memory`] (the memory itself), [`pass`] (how a descriptor travels),
//! [`worker`] (the other end), `freeing` (how memory is freed), `device` (memory of a GPU).

mod device;
mod error;
mod freeing;
mod leased;
mod memory;
pub mod pass;
mod rights;
mod stream;
#[cfg(target_os = "linux")]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod system;
mod token;
mod words;
pub mod worker;

pub use device::{DeviceError, DeviceSide, Loan};
pub use error::{LeaseError, LookUpError};
use freeing::{Backing, Freeing, Gone, Held};
pub use leased::Region;
pub use memory::{IS_SUPPORTED, Memory};
pub use rights::{Guest, Invitation, Role, TOKEN_LIFE};
pub use stream::StreamRegions;
pub use token::Token;

use crate::limits::Limits;
use crate::permits::{Counter, Permit};
use metrics::Gauge;
use rights::Invited;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// The server's regions: what all streams share.
#[derive(Debug)]
pub struct Regions {
    /// Tokens that have not been used yet; at most one for each stream and each attached rank.
    tokens: Mutex<HashMap<Token, Invited>>,
    bytes: Arc<Counter>,
    count: Arc<Counter>,
    generations: AtomicU64,
    max_per_stream: usize,
    max_bytes: usize,
    freeing: Freeing,
    device: Option<DeviceSide>,
}

/// The default path of the side socket, derived from that of the Unix socket.
#[must_use]
pub fn side_socket(uds: &Path) -> PathBuf {
    let mut name = uds.to_path_buf().into_os_string();
    name.push(".region");
    name.into()
}

impl Regions {
    /// Starts without regions. The gauge `count` shows how many there are, `bytes` how much memory they take.
    #[must_use]
    pub fn new(limits: &Limits, count: Gauge, bytes: Gauge) -> Arc<Self> {
        Self::with_device(limits, count, bytes, None)
    }

    /// The same, with regions on a device too.
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

    /// A place for one more region. A region that its stream gave up keeps its place while somebody still reads it.
    fn place(&self) -> Result<Permit, LeaseError> {
        self.room(|| self.count.take(1)).ok_or_else(|| LeaseError::NoPlace(self.count.limit()))
    }

    /// Checks the size of one more region of a stream.
    fn size(&self, stream: &StreamRegions, bytes: u64) -> Result<usize, LeaseError> {
        let size = || LeaseError::Size { bytes, limit: self.max_bytes };
        let len = usize::try_from(bytes).ok().filter(|&len| len > 0 && len <= self.max_bytes).ok_or_else(size)?;
        if stream.count() >= self.max_per_stream {
            return Err(LeaseError::TooMany(self.max_per_stream));
        }
        Ok(len)
    }

    /// Takes room for a region. If there is none, first waits until regions that were given up before are freed.
    fn room<R>(&self, take: impl Fn() -> Option<R>) -> Option<R> {
        take().or_else(|| {
            self.freeing.settle();
            take()
        })
    }
}

#[cfg(test)]
mod tests;
