//! A fake device without a GPU, whose memory is a file in memory.

use croupier::backend::device_memory::{Allocated, DeviceMemory, DeviceMemoryError, IPC_HANDLE_BYTES, Lent, OnDevice};
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::region::Memory;
use croupier::sampling::logits::Foreign;
use croupier::sampling::row::RowResult;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) const UUID: &str = "GPU-11111111-2222-3333-4444-555555555555";
pub(crate) const GRANULARITY: usize = 8192;

/// The device. It counts the regions whose memory is held.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// Regions whose memory is held.
    pub(crate) live: Arc<AtomicUsize>,
    /// The number of further allocations that the device has room for; none if unlimited.
    pub(crate) room: Mutex<Option<usize>>,
    buffers: Mutex<Vec<Arc<Vec<u8>>>>,
}

#[derive(Debug)]
struct Live<M> {
    memory: M,
    live: Arc<AtomicUsize>,
}

impl<M> Live<M> {
    fn new(memory: M, live: &Arc<AtomicUsize>) -> Self {
        live.fetch_add(1, Ordering::SeqCst);
        Self { memory, live: Arc::clone(live) }
    }
}

impl<M> Drop for Live<M> {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: nothing is read at these addresses.
unsafe impl Foreign for Live<Memory> {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        self.memory.copy(offset, to);
    }

    fn device_address(&self) -> Option<u64> {
        Some(1 << 40)
    }
}

#[derive(Debug)]
struct Part {
    buffer: Arc<Vec<u8>>,
    offset: usize,
}

// SAFETY: nothing is read at these addresses.
unsafe impl Foreign for Live<Part> {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.memory.buffer[self.memory.offset + offset..][..to.len()]);
    }

    fn device_address(&self) -> Option<u64> {
        Some(1 << 41)
    }
}

impl Device {
    /// A buffer of the worker, and its handle.
    pub(crate) fn buffer(&self, bytes: Vec<u8>) -> Vec<u8> {
        let mut buffers = self.buffers.lock().unwrap();
        buffers.push(Arc::new(bytes));
        vec![buffers.len() as u8; IPC_HANDLE_BYTES]
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }
}

impl DeviceMemory for Device {
    fn uuid(&self) -> &str {
        UUID
    }

    fn granularity(&self) -> usize {
        GRANULARITY
    }

    fn allocate(&self, bytes: usize) -> Result<Allocated, DeviceMemoryError> {
        assert_eq!(bytes % GRANULARITY, 0);
        if let Some(room) = self.room.lock().unwrap().as_mut() {
            *room = room.checked_sub(1).ok_or_else(|| DeviceMemoryError::OutOfMemory("the test says so".to_owned()))?;
        }
        let memory = Memory::create(bytes).unwrap();
        let descriptor = memory.descriptor().try_clone_to_owned().unwrap();
        Ok(Allocated { memory: Box::new(Live::new(memory, &self.live)), descriptor })
    }

    fn open(&self, lent: &Lent) -> Result<OnDevice, DeviceMemoryError> {
        let Lent { handle, offset, bytes } = *lent;
        let buffers = self.buffers.lock().unwrap();
        let found = buffers.get((handle[0] as usize).wrapping_sub(1));
        let buffer = found.ok_or_else(|| DeviceMemoryError::Handle("no such handle".to_owned()))?;
        let end = usize::try_from(offset).ok().and_then(|start| start.checked_add(bytes));
        if end.is_none_or(|end| end > buffer.len()) {
            return Err(DeviceMemoryError::TooShort { offset, bytes, len: buffer.len() });
        }
        let part = Part { buffer: Arc::clone(buffer), offset: offset as usize };
        Ok(Box::new(Live::new(part, &self.live)))
    }
}

/// A backend on this device.
pub(crate) struct OnFake {
    pub(crate) device: Arc<Device>,
    pub(crate) backend: Box<dyn Backend>,
}

impl Backend for OnFake {
    fn info(&self) -> BackendInfo {
        self.backend.info()
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        self.backend.run(jobs)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        self.backend.verify(jobs)
    }

    fn device_memory(&self) -> Option<Arc<dyn DeviceMemory>> {
        Some(Arc::clone(&self.device) as Arc<dyn DeviceMemory>)
    }
}
