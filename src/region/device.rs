//! Regions in the memory of a GPU: either made there and handed over as a descriptor, or lent by a worker and opened by
//! a handle.

use super::freeing::{Backing, Gone, Held};
use super::{LeaseError, Region, Regions, StreamRegions};
use crate::backend::device_memory::{
    Allocated, DeviceMemory, DeviceMemoryError, IPC_HANDLE_BYTES, Lent, OnDevice, is_same_device,
};
use crate::permits::Counter;
use metrics::Gauge;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The device whose memory is offered to streams.
#[derive(Debug)]
pub struct DeviceSide {
    pub(super) memory: Arc<dyn DeviceMemory>,
    pub(super) bytes: Arc<Counter>,
    takes_ipc: bool,
}

/// Memory of the device that backs a region.
#[derive(Debug)]
pub(super) struct DeviceBacking {
    pub(super) memory: OnDevice,
    pub(super) len: usize,
    /// The descriptor that the worker maps; `None` for memory that the worker lent.
    pub(super) descriptor: Option<OwnedFd>,
    pub(super) device: Arc<str>,
}

/// A buffer that a worker lends.
#[derive(Debug, Clone, Copy)]
pub struct Loan<'a> {
    /// The GPU that the buffer is on; empty means the server's.
    pub uuid: &'a str,
    /// The buffer's legacy IPC handle.
    pub handle: &'a [u8],
    /// Where the buffer begins in its allocation.
    pub offset: u64,
    /// The buffer's length.
    pub bytes: u64,
}

/// Why there is no region on a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The server does not sample on a GPU, or on one that cannot hand over memory.
    #[error(
        "this server has no device memory to share (see GetServerInfo.data_paths); use shared memory or inline logits"
    )]
    NoDevice,
    /// The server samples on another device.
    #[error("is {asked:?}, but this server samples on {own}; nothing is copied between GPUs")]
    WrongDevice {
        /// The device that was asked for.
        asked: String,
        /// The server's device.
        own: String,
    },
    /// The server takes no IPC handles.
    #[error("this server does not accept legacy IPC handles (device-ipc); lease a region instead")]
    NoIpc,
    /// The handle has the wrong length.
    #[error("has {0} bytes, must have {IPC_HANDLE_BYTES}")]
    HandleSize(usize),
    /// Regions already take as much of the device's memory as they may.
    #[error("the regions on the device have no room for {0} more bytes (max_device_region_bytes)")]
    NoRoom(usize),
    /// The device or its driver refuses.
    #[error(transparent)]
    Refused(#[from] DeviceMemoryError),
}

impl DeviceSide {
    /// Offers `limit` bytes of a device's memory; the gauge `bytes` shows how many are used. With `takes_ipc`, workers
    /// may lend buffers of their own.
    #[must_use]
    pub fn new(memory: Arc<dyn DeviceMemory>, limit: usize, bytes: Gauge, takes_ipc: bool) -> Self {
        Self { memory, bytes: Counter::new(limit, bytes), takes_ipc }
    }

    /// Refuses any other device than this one.
    fn check(&self, asked: &str) -> Result<(), DeviceError> {
        let own = self.memory.uuid();
        if asked.is_empty() || is_same_device(asked, own) {
            return Ok(());
        }
        Err(DeviceError::WrongDevice { asked: asked.to_owned(), own: own.to_owned() })
    }
}

impl Regions {
    /// The UUID of the device whose memory is offered.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.device.as_ref().map(|device| device.memory.uuid())
    }

    /// The size of which the region's length is a multiple on its device; 0 for shared memory.
    #[must_use]
    pub fn granularity_of(&self, region: &Region) -> usize {
        self.device.as_ref().filter(|_| region.device().is_some()).map_or(0, |device| device.memory.granularity())
    }

    fn device_of(&self, uuid: &str) -> Result<&DeviceSide, DeviceError> {
        let device = self.device.as_ref().ok_or(DeviceError::NoDevice)?;
        device.check(uuid)?;
        Ok(device)
    }

    /// Makes a region of at least `bytes` bytes on the device `uuid` (empty means the server's) and leases it to
    /// `stream`. Blocks while the memory is made.
    ///
    /// # Errors
    /// [`LeaseError`]; nothing is kept then.
    pub fn lease_on_device(&self, stream: &StreamRegions, uuid: &str, bytes: u64) -> Result<Arc<Region>, LeaseError> {
        let device = self.device_of(uuid)?;
        let granularity = device.memory.granularity();
        let len =
            self.size(stream, bytes)?.checked_next_multiple_of(granularity).ok_or(LeaseError::NoRoom(usize::MAX))?;
        let place = self.place()?;
        let bytes = self.room(|| device.bytes.take(len)).ok_or(DeviceError::NoRoom(len))?;
        let Allocated { memory, descriptor } = device.memory.allocate(len).map_err(DeviceError::from)?;
        let (descriptor, device) = (Some(descriptor), device.memory.uuid().into());
        let memory = Backing::Device(DeviceBacking { memory, len, descriptor, device });
        self.insert(stream, Held { memory, _room: (Some(bytes), place), gone: Gone::default() })
    }

    /// Takes a buffer that a worker lends as a region. Blocks while the buffer is opened.
    ///
    /// # Errors
    /// [`LeaseError`]; nothing is kept then.
    pub fn borrow(&self, stream: &StreamRegions, loan: &Loan<'_>) -> Result<Arc<Region>, LeaseError> {
        let device = self.device_of(loan.uuid)?;
        if !device.takes_ipc {
            return Err(DeviceError::NoIpc.into());
        }
        let size = |_| DeviceError::HandleSize(loan.handle.len());
        let handle: [u8; IPC_HANDLE_BYTES] = loan.handle.try_into().map_err(size)?;
        let bytes = self.size(stream, loan.bytes)?;
        let place = self.place()?;
        let memory = device.memory.open(&Lent { handle, offset: loan.offset, bytes }).map_err(DeviceError::from)?;
        let device = device.memory.uuid().into();
        let memory = Backing::Device(DeviceBacking { memory, len: bytes, descriptor: None, device });
        self.insert(stream, Held { memory, _room: (None, place), gone: Gone::default() })
    }

    pub(super) fn insert(&self, stream: &StreamRegions, held: Held) -> Result<Arc<Region>, LeaseError> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let region = |id| Region::new(id, generation, held, self.freeing.clone());
        stream.insert(self.max_per_stream, region)
    }
}
