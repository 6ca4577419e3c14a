//! Device memory for workers. Either it is allocated here and exported as a descriptor, or it belongs to another
//! process and is opened by its legacy IPC handle.

use super::DriverError;
use super::machine::DeviceRow;
use super::wait::{hangs, settle};
use crate::backend::device_memory::{Allocated, DeviceMemory, DeviceMemoryError, Lent, OnDevice};
use crate::sampling::logits::Foreign;
use cudarc::driver::{result, sys};
use std::os::fd::{FromRawFd, OwnedFd};
use sys::CUdevice_attribute_enum as Attribute;
use sys::CUpointer_attribute as Pointer;
use sys::cudaError_enum as Code;

/// A descriptor, which passes between processes.
const HANDLE_TYPE: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The memory of an open device.
#[derive(Debug)]
pub(super) struct CudaMemory {
    context: sys::CUcontext,
    properties: Properties,
    uuid: String,
    granularity: usize,
}

// SAFETY: driver handles may be used from any thread; each use makes the context current in its own.
unsafe impl Send for CudaMemory {}
// SAFETY: driver handles may be used from several threads at once; the driver's calls lock what they share.
unsafe impl Sync for CudaMemory {}

/// The properties of allocations.
struct Properties(sys::CUmemAllocationProp);

impl std::fmt::Debug for Properties {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Properties(..)")
    }
}

impl Properties {
    fn of(device: sys::CUdevice) -> Self {
        // SAFETY: plain data, for which zeros are a value.
        let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.requestedHandleTypes = HANDLE_TYPE;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = device;
        Self(properties)
    }
}

impl From<DriverError> for DeviceMemoryError {
    fn from(error: DriverError) -> Self {
        let text = error.to_string();
        if error.0 == Code::CUDA_ERROR_OUT_OF_MEMORY { Self::OutOfMemory(text) } else { Self::Driver(text) }
    }
}

impl CudaMemory {
    /// The memory of a device; `None` if it cannot be passed on as a descriptor.
    pub(super) fn of(
        device: sys::CUdevice,
        context: sys::CUcontext,
        uuid: String,
    ) -> Result<Option<Self>, DriverError> {
        let needed = [
            Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ];
        for attribute in needed {
            // SAFETY: the device came from the driver.
            if unsafe { result::device::get_attribute(device, attribute)? } == 0 {
                return Ok(None);
            }
        }
        let (properties, mut granularity) = (Properties::of(device), 0);
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: both pointers are to live values.
        unsafe { sys::cuMemGetAllocationGranularity(&raw mut granularity, &raw const properties.0, minimum) }
            .result()?;
        Ok(Some(Self { context, properties, uuid, granularity: granularity.max(1) }))
    }

    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { result::ctx::set_current(self.context) }
    }

    /// Checks whether the device is lost, after the driver has refused something without saying why. There may be no
    /// batch that would find out.
    fn look_behind(&self, refused: &DeviceMemoryError) {
        if matches!(refused, DeviceMemoryError::Driver(_) | DeviceMemoryError::Handle(_)) && !hangs() {
            let _ = self.enter().and_then(|()| settle());
        }
    }

    /// Allocates zeroed memory.
    fn make(&self, bytes: usize) -> Result<Allocated, DeviceMemoryError> {
        self.enter()?;
        let physical = Physical::create(bytes, &self.properties.0)?;
        let descriptor = physical.export()?;
        let mut mapped = Mapped { context: self.context, at: 0, bytes, is_mapped: false };
        // SAFETY: the pointer is to a live value.
        unsafe { sys::cuMemAddressReserve(&raw mut mapped.at, bytes, 0, 0, 0) }.result()?;
        // SAFETY: the addresses were just reserved, for this alone.
        unsafe { sys::cuMemMap(mapped.at, bytes, 0, physical.0, 0) }.result()?;
        mapped.is_mapped = true;
        let access = sys::CUmemAccessDesc {
            location: self.properties.0.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range was just mapped; one description is given.
        unsafe { sys::cuMemSetAccess(mapped.at, bytes, &raw const access, 1) }.result()?;
        // Zeroed, so that nobody can read what an earlier owner of these pages has left.
        // SAFETY: the memory is the mapping's own, and accessible.
        unsafe { result::memset_d8_sync(mapped.at, 0, bytes)? };
        result::ctx::synchronize()?;
        // The mapping and the descriptor keep the memory alive.
        drop(physical);
        Ok(Allocated { memory: Box::new(mapped), descriptor })
    }

    /// Opens memory of another process.
    fn opened(&self, lent: &Lent) -> Result<OnDevice, DeviceMemoryError> {
        self.enter()?;
        let handle = sys::CUipcMemHandle { reserved: lent.handle.map(|byte| byte as _) };
        let lazily = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut opened = Opened { context: self.context, at: 0, offset: 0, bytes: 0 };
        // SAFETY: the pointer is to a live value; the driver checks the handle.
        unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut opened.at, handle, lazily) }
            .result()
            .map_err(|error| DeviceMemoryError::Handle(error.to_string()))?;
        // The driver also opens memory of any other GPU that this one can reach.
        // SAFETY: this is an integer.
        let device: sys::CUdevice = unsafe { known(opened.at, Pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)? };
        if device != self.properties.0.location.id {
            return Err(DeviceMemoryError::Elsewhere { own: self.uuid.clone() });
        }
        let range = range(opened.at)
            .map_err(|error| DeviceMemoryError::Driver(format!("it does not tell where the memory ends: {error}")))?;
        (opened.offset, opened.bytes) = (within(lent, opened.at, range)?, lent.bytes);
        Ok(Box::new(opened))
    }
}

impl DeviceMemory for CudaMemory {
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn granularity(&self) -> usize {
        self.granularity
    }

    fn allocate(&self, bytes: usize) -> Result<Allocated, DeviceMemoryError> {
        self.make(bytes).inspect_err(|error| self.look_behind(error))
    }

    fn open(&self, lent: &Lent) -> Result<OnDevice, DeviceMemoryError> {
        self.opened(lent).inspect_err(|error| self.look_behind(error))
    }
}

/// The start and the length of the memory that contains an address.
fn range(at: sys::CUdeviceptr) -> Result<(u64, usize), DriverError> {
    let (mut base, mut len) = (0, 0);
    // SAFETY: the pointers are to live values.
    match unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut len, at) } {
        Code::CUDA_SUCCESS => Ok((base, len)),
        // No documentation says whether the call above knows memory of another process.
        // SAFETY: the first is an address, the second a size.
        Code::CUDA_ERROR_INVALID_VALUE | Code::CUDA_ERROR_NOT_FOUND => unsafe {
            let base = known(at, Pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?;
            Ok((base, known(at, Pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE)?))
        },
        failed => Err(DriverError(failed)),
    }
}

/// An attribute of an address, from the driver.
///
/// # Safety
/// The attribute must be a `T`, and every pattern of bits must be a `T`.
unsafe fn known<T: Default>(at: sys::CUdeviceptr, what: Pointer) -> Result<T, DriverError> {
    let mut told = T::default();
    // SAFETY: the pointer is to a live value, of the type that the driver writes.
    unsafe { sys::cuPointerGetAttribute((&raw mut told).cast(), what, at) }.result()?;
    Ok(told)
}

/// The offset of what is lent from an address. The address is in memory that begins at `base` and has `len` bytes, but
/// need not be its beginning.
fn within(&Lent { offset, bytes, .. }: &Lent, at: u64, (base, len): (u64, usize)) -> Result<u64, DeviceMemoryError> {
    let len = (base + len as u64).saturating_sub(at) as usize;
    let end = usize::try_from(offset).ok().and_then(|start| start.checked_add(bytes));
    let too_short = DeviceMemoryError::TooShort { offset, bytes, len };
    if end.is_some_and(|end| end <= len) { Ok(offset) } else { Err(too_short) }
}

/// Memory without an address.
struct Physical(sys::CUmemGenericAllocationHandle);

impl Physical {
    fn create(bytes: usize, properties: &sys::CUmemAllocationProp) -> Result<Self, DriverError> {
        let mut handle = 0;
        // SAFETY: both pointers are to live values.
        unsafe { sys::cuMemCreate(&raw mut handle, bytes, properties, 0) }.result()?;
        Ok(Self(handle))
    }

    fn export(&self) -> Result<OwnedFd, DriverError> {
        let mut descriptor: std::ffi::c_int = -1;
        // SAFETY: a descriptor is an integer, and there is room for one.
        unsafe { sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), self.0, HANDLE_TYPE, 0) }.result()?;
        // SAFETY: the driver opened it for the caller, who has it alone.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: the handle was created by this value and is released once. It fails only on a lost device.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

/// Memory allocated here, and mapped to its addresses.
#[derive(Debug)]
struct Mapped {
    context: sys::CUcontext,
    at: sys::CUdeviceptr,
    bytes: usize,
    is_mapped: bool,
}

// SAFETY: addresses and handles may be used from any thread.
unsafe impl Send for Mapped {}
// SAFETY: addresses and handles may be used from several threads at once; the memory is read by copying only.
unsafe impl Sync for Mapped {}

// SAFETY: the memory is freed when `self` is dropped, and is on the device, where no reference can be.
unsafe impl Foreign for Mapped {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        copy(self.context, self.at, self.bytes, offset, to);
    }

    fn device_address(&self) -> Option<u64> {
        Some(self.at)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if hangs() {
            return;
        }
        // A launch that a panic left behind may still read from here.
        // SAFETY: the context is retained for the life of the process; the range is this value's. On a lost device all of it
        // fails, and the process ends.
        unsafe {
            let _ = result::ctx::set_current(self.context).and_then(|()| settle());
            if self.is_mapped {
                let _ = sys::cuMemUnmap(self.at, self.bytes);
            }
            if self.at != 0 {
                let _ = sys::cuMemAddressFree(self.at, self.bytes);
            }
        }
    }
}

/// Memory of another process.
#[derive(Debug)]
struct Opened {
    context: sys::CUcontext,
    at: sys::CUdeviceptr,
    offset: u64,
    bytes: usize,
}

// SAFETY: addresses may be used from any thread.
unsafe impl Send for Opened {}
// SAFETY: addresses may be used from several threads at once; the memory is read by copying only.
unsafe impl Sync for Opened {}

// SAFETY: the memory is freed when `self` is dropped, and is on the device, where no reference can be.
unsafe impl Foreign for Opened {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        copy(self.context, self.at + self.offset, self.bytes, offset, to);
    }

    fn device_address(&self) -> Option<u64> {
        Some(self.at + self.offset)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.at == 0 || hangs() {
            return;
        }
        // SAFETY: the context is retained for the life of the process; the memory was opened once, by this value. On a
        // lost device all of it fails, and the process ends.
        unsafe {
            let _ = result::ctx::set_current(self.context).and_then(|()| settle());
            let _ = sys::cuIpcCloseMemHandle(self.at);
        }
    }
}

/// Memory for the backend itself. Kept for the life of the process.
#[derive(Debug)]
pub(super) struct Room {
    context: sys::CUcontext,
    at: sys::CUdeviceptr,
    bytes: usize,
}

// SAFETY: addresses may be used from any thread.
unsafe impl Send for Room {}
// SAFETY: addresses may be used from several threads at once; only the thread that drives the device writes the memory,
// and no launch reads it then.
unsafe impl Sync for Room {}

impl Room {
    pub(super) fn new(context: sys::CUcontext, bytes: usize) -> Result<Self, DriverError> {
        // SAFETY: nothing is read that was not written: rows are copied here whole.
        Ok(Self { context, at: unsafe { result::malloc_sync(bytes)? }, bytes })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Begins copying its first half to its second.
    pub(super) fn copy_half(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        let half = self.bytes / 2;
        // SAFETY: both halves are its own.
        unsafe { result::memcpy_dtod_async(self.at + half as u64, self.at, half, stream) }
    }

    /// Begins copying a row to its place here.
    pub(super) fn take(&self, row: &DeviceRow, stream: sys::CUstream) -> Result<(), DriverError> {
        assert!(row.to + row.bytes <= self.bytes, "a row has its place; this is a bug");
        // SAFETY: the row lies in a region, which lives until its step is answered; its place was just checked.
        unsafe { result::memcpy_dtod_async(self.at + row.to as u64, row.from, row.bytes, stream) }
    }
}

// SAFETY: the memory is freed when `self` is dropped, and is on the device, where no reference can be.
unsafe impl Foreign for Room {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        copy(self.context, self.at, self.bytes, offset, to);
    }

    fn device_address(&self) -> Option<u64> {
        Some(self.at)
    }
}

/// Copies bytes of the device's memory, and waits.
fn copy(context: sys::CUcontext, at: sys::CUdeviceptr, len: usize, offset: usize, to: &mut [u8]) {
    let end = offset.checked_add(to.len());
    assert!(end.is_some_and(|end| end <= len), "a row lies in its region; this is a bug");
    // SAFETY: the range lies in the memory, as was just checked; the context is retained for the life of the process.
    let copied =
        unsafe { result::ctx::set_current(context).and_then(|()| result::memcpy_dtoh_sync(to, at + offset as u64)) };
    if let Err(error) = copied {
        // As in the backend: what a context answers after an error cannot be trusted.
        tracing::error!(%error, "the CUDA device is lost");
        std::panic::panic_any(crate::backend::DeviceLost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_ends_where_the_memory_does() {
        let lent = |offset, bytes| Lent { handle: [0; _], offset, bytes };
        // From the beginning of the memory, and from an address after it.
        for (at, len) in [(4096, 300), (4196, 200)] {
            let within = |lent| within(&lent, at, (4096, 300));
            assert_eq!(within(lent(56, len - 56)), Ok(56));
            assert_eq!(within(lent(len as u64, 0)), Ok(len as u64));
            for (offset, bytes) in [(56, len - 55), (len as u64 + 1, 0), (0, usize::MAX), (u64::MAX, 1)] {
                assert_eq!(within(lent(offset, bytes)), Err(DeviceMemoryError::TooShort { offset, bytes, len }));
            }
        }
    }
}
