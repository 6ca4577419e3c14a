//! The GPU as the machine that launches run on.

use super::OpenError;
use super::device::{Device, Slot, Staging};
use super::machine::{Launch, Machine, SLOTS};
use super::shape;
use cudarc::driver::DriverError;

/// An open device with its slots.
#[derive(Debug)]
pub struct Gpu {
    pub(super) device: Device,
    pub(super) slots: [Slot; SLOTS],
    /// What empties the caches before a launch is timed. Made once: such memory is kept for the life of the process.
    pub(super) flush: Option<Staging>,
}

impl Gpu {
    /// Opens a device, with so much room for each launch.
    pub(super) fn open(wanted: &str, inputs: usize, outputs: usize) -> Result<Self, OpenError> {
        let device = Device::open(wanted)?;
        let slot = || Slot::new(inputs, outputs, device.facts.scratch_blocks() as usize);
        let slots = [slot()?, slot()?];
        Ok(Self { device, slots, flush: None })
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

    fn enter(&mut self) -> Result<(), DriverError> {
        self.device.enter()
    }

    fn inputs(&mut self, slot: usize) -> &mut [u8] {
        self.slots[slot].inputs.host_mut()
    }

    fn begin(&mut self, slot: usize, launch: &Launch) -> Result<(), DriverError> {
        self.device.begin(&mut self.slots[slot], launch)
    }

    fn finish(&mut self, slot: usize) -> Result<(&[u8], &[u8]), DriverError> {
        let slot = &self.slots[slot];
        self.device.finish(slot)?;
        Ok((slot.inputs.host(), slot.outputs.host()))
    }
}
