//! A region, from its making until nobody reads it any more.

use super::Memory;
use super::freeing::{Backing, Freeing, Held};
use crate::sampling::logits::Foreign;
use std::os::fd::{AsFd, BorrowedFd};

/// A region. It lives as long as a step refers to it, even after its lease has ended.
#[derive(Debug)]
pub struct Region {
    id: u64,
    generation: u64,
    /// `None` only while the region is dropped.
    held: Option<Held>,
    freeing: Freeing,
}

impl Region {
    pub(super) fn new(id: u64, generation: u64, held: Held, freeing: Freeing) -> Self {
        Self { id, generation, held: Some(held), freeing }
    }

    /// The region's id, unique within its stream.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Distinguishes the region from earlier ones with the same id.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The region's memory.
    #[must_use]
    pub fn memory(&self) -> &dyn Foreign {
        match &self.held().memory {
            Backing::Host(memory) => memory,
            Backing::Device(device) => &*device.memory,
        }
    }

    /// The region's memory for writing, if it is the host's; `None` on a device.
    #[must_use]
    pub fn words(&self) -> Option<&Memory> {
        match &self.held().memory {
            Backing::Host(memory) => Some(memory),
            Backing::Device(_) => None,
        }
    }

    /// The region's length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        match &self.held().memory {
            Backing::Host(memory) => memory.len(),
            Backing::Device(device) => device.len,
        }
    }

    /// The UUID of the device that the region is on; `None` for the host's memory.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match &self.held().memory {
            Backing::Host(_) => None,
            Backing::Device(device) => Some(&device.device),
        }
    }

    /// The descriptor that the worker maps; `None` for memory that the worker lent.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.held().memory {
            Backing::Host(memory) => Some(memory.descriptor()),
            Backing::Device(device) => device.descriptor.as_ref().map(AsFd::as_fd),
        }
    }

    /// Whether the worker lent the region's memory.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.descriptor().is_none()
    }

    /// The memory, which exists until the region is dropped.
    pub(super) fn held(&self) -> &Held {
        self.held.as_ref().expect("it is there until the region is dropped; this is a bug")
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.held.take().into_iter().for_each(|held| self.freeing.free(held));
    }
}
