//! The memory and the stream that a launch needs, on the device and on the host.

use crate::backend::cuda::abi::SCRATCH_BYTES;
use cudarc::driver::{DriverError, result, sys};

/// Equally long memory on the host and on the device. Kept for the life of the process.
#[derive(Debug)]
pub(in crate::backend::cuda) struct Staging {
    host: *mut u8,
    /// The address at which the device sees the host's memory.
    pub(super) seen: sys::CUdeviceptr,
    pub(super) device: sys::CUdeviceptr,
    pub(super) bytes: usize,
}

// SAFETY: the memory is this value's alone.
unsafe impl Send for Staging {}

impl Staging {
    fn new(bytes: usize) -> Result<Self, DriverError> {
        // Not write-combined, because processors read such memory slowly.
        // SAFETY: the memory is zeroed before anybody reads it.
        let host = unsafe { result::malloc_host(bytes, 0)? }.cast::<u8>();
        // SAFETY: `bytes` bytes were given at `host`.
        unsafe { host.write_bytes(0, bytes) };
        let mut seen = 0;
        // SAFETY: the memory is pinned; the driver writes one address.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut seen, host.cast(), 0) }.result()?;
        // SAFETY: nothing reads the device's before it is written.
        let device = unsafe { result::malloc_sync(bytes)? };
        Ok(Self { host, seen, device, bytes })
    }

    pub(in crate::backend::cuda) fn host(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes, this value's alone.
        unsafe { std::slice::from_raw_parts(self.host, self.bytes) }
    }

    pub(in crate::backend::cuda) fn host_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` initialised bytes, this value's alone, and borrowed once.
        unsafe { std::slice::from_raw_parts_mut(self.host, self.bytes) }
    }
}

/// What one launch needs. With two slots, the next launch can be packed meanwhile.
#[derive(Debug)]
pub(in crate::backend::cuda) struct Slot {
    pub(in crate::backend::cuda) inputs: Staging,
    pub(in crate::backend::cuda) outputs: Staging,
    pub(super) scratch: sys::CUdeviceptr,
    pub(super) stream: sys::CUstream,
}

// SAFETY: memory and handles are the slot's alone.
unsafe impl Send for Slot {}

impl Slot {
    /// A slot for launches of these sizes, with scratch memory for so many blocks.
    pub(in crate::backend::cuda) fn new(inputs: usize, outputs: usize, blocks: usize) -> Result<Self, DriverError> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        // SAFETY: zeroed in the next line, before any kernel runs.
        let scratch = unsafe { result::malloc_sync(blocks * SCRATCH_BYTES)? };
        // SAFETY: so many bytes were given.
        unsafe { result::memset_d8_sync(scratch, 0, blocks * SCRATCH_BYTES)? };
        // The memset may return before it is done, and the slot's stream does not wait for other streams.
        result::ctx::synchronize()?;
        Ok(Self { inputs: Staging::new(inputs)?, outputs: Staging::new(outputs)?, scratch, stream })
    }
}
