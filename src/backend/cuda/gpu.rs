//! The GPU as the machine that launches run on.

use super::OpenError;
use super::device::{Device, Slot};
use super::lend::Room;
use super::machine::{DeviceRow, HostMemory, Launch, Machine, SLOTS};
use super::shape;
use crate::backend::DeviceMemory;
use crate::sampling::logits::Foreign;
use cudarc::driver::DriverError;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Room for rows of drafts that are on the device: as many as one batch may have by default. If it is not enough, they
/// go through the host.
const HELD_BYTES: usize = 66 << 20;
/// How long to wait before asking again for this room. Otherwise every batch would wait for the driver to find none.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// An open device with its slots.
#[derive(Debug)]
pub struct Gpu {
    pub(super) device: Device,
    pub(super) slots: [Slot; SLOTS],
    /// The memory that holds rows of drafts, allocated for the first of them.
    held: Option<Arc<Room>>,
    /// When the device last had no room for it.
    lacked: Option<Instant>,
}

impl Gpu {
    /// Opens a device, with so much room for each launch.
    pub(super) fn open(wanted: &str, inputs: usize, outputs: usize) -> Result<Self, OpenError> {
        let device = Device::open(wanted)?;
        let slot = || Slot::new(inputs, outputs, device.facts.scratch_blocks() as usize);
        let slots = [slot()?, slot()?];
        Ok(Self { device, slots, held: None, lacked: None })
    }
}

impl Gpu {
    /// Writes bytes to memory that the first slot's launches do not use, and waits. Returns their address.
    pub(super) fn lay(&mut self, bytes: &[u8]) -> Result<u64, DriverError> {
        self.device.lay(&mut self.slots[1], bytes)
    }

    /// The memory that holds rows of drafts, if the device has room for it.
    fn held(&mut self) -> Option<Arc<Room>> {
        let is_due = self.lacked.is_none_or(|at| at.elapsed() >= ASKED_AGAIN);
        if self.held.is_none() && is_due {
            match self.device.room(HELD_BYTES) {
                Ok(room) => (self.held, self.lacked) = (Some(room), None),
                Err(error) => {
                    tracing::warn!(%error, bytes = HELD_BYTES, "the device has no room to hold rows of drafts; they go through the host");
                    self.lacked = Some(Instant::now());
                }
            }
        }
        self.held.clone()
    }
}

impl Machine for Gpu {
    type Error = DriverError;

    fn name(&self) -> &str {
        &self.device.name
    }

    fn facts(&self) -> shape::Device {
        self.device.facts
    }

    fn memory(&self) -> Option<Arc<dyn DeviceMemory>> {
        let memory = self.device.memory().unwrap_or_else(|error| {
            tracing::warn!(%error, "the device cannot lend memory to workers");
            None
        });
        Some(Arc::new(memory?))
    }

    fn enter(&mut self) -> Result<(), DriverError> {
        self.device.enter()
    }

    fn inputs(&mut self, slot: usize) -> &mut [u8] {
        self.slots[slot].inputs.host_mut()
    }

    fn begin(&mut self, slot: usize, launch: &Launch, rows: &[DeviceRow]) -> Result<(), DriverError> {
        self.device.begin(&mut self.slots[slot], launch, rows)
    }

    fn finish(&mut self, slot: usize) -> Result<HostMemory<'_>, DriverError> {
        let slot = &self.slots[slot];
        self.device.finish(slot)?;
        Ok(HostMemory { inputs: slot.inputs.host(), outputs: slot.outputs.host() })
    }

    fn bring(&mut self, slot: usize, parts: &[Range<usize>]) -> Result<HostMemory<'_>, DriverError> {
        let slot = &mut self.slots[slot];
        self.device.bring(slot, parts)?;
        Ok(HostMemory { inputs: slot.inputs.host(), outputs: slot.outputs.host() })
    }

    fn fetch(&mut self, slot: usize, rows: &[DeviceRow]) -> Result<&[u8], DriverError> {
        let slot = &mut self.slots[slot];
        self.device.fetch(slot, rows)?;
        Ok(slot.inputs.host())
    }

    fn held_bytes(&self) -> usize {
        HELD_BYTES
    }

    fn hold(&mut self, rows: &[DeviceRow], bytes: usize) -> Result<Option<Arc<dyn Foreign + Send>>, DriverError> {
        let Some(room) = self.held().filter(|room| bytes <= room.len()) else { return Ok(None) };
        self.device.gather(&self.slots[0], rows, &room)?;
        Ok(Some(room))
    }
}
