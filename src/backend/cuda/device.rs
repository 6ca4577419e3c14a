//! One GPU: its kernels, and one launch at a time per slot.

mod slot;
mod timing;

use super::OpenError;
use super::abi::{RowResult, THREADS, UNWRITTEN};
use super::choose::{attribute, choose};
use super::costs::Costs;
use super::image::{Functions, Image, load};
use super::lend::{CudaMemory, Room};
use super::machine::{DeviceRow, Launch, uploads};
use super::shape::{self, Shape};
use super::wait::wait;
use crate::sampling::logits::Dtype;
use cudarc::driver::{DriverError, result, sys};
pub(super) use slot::Slot;
use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::sync::Arc;
use sys::CUdevice_attribute_enum as Attribute;

/// An open device. It is driven by one thread at a time, whichever that is.
#[derive(Debug)]
pub(super) struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
    kernels: Functions,
    uuid: String,
    pub(super) name: String,
    pub(super) image: Image,
    pub(super) facts: shape::Device,
}

// SAFETY: driver handles may be used from any thread; `enter` makes the context current in the one that does.
unsafe impl Send for Device {}

impl Device {
    /// Opens a device.
    pub(super) fn open(wanted: &str) -> Result<Self, OpenError> {
        let choice = choose(wanted)?;
        let device = choice.device;
        let shared_bytes = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let multiprocessors = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // SAFETY: `device` came from the driver; the context is kept for the life of the process.
        let context = unsafe { result::primary_ctx::retain(device)? };
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context)? };
        let (kernels, image) = load(choice.capability, shared_bytes)?;
        let clusters = image.has_clusters();
        let facts = shape::Device {
            threads: THREADS,
            multiprocessors: multiprocessors.unsigned_abs(),
            shared_bytes: shared_bytes.unsigned_abs(),
            clusters,
            resident: std::array::from_fn(|at| match clusters {
                true => resident(&kernels, at as u32 + 1, shared_bytes.unsigned_abs()),
                false => 0,
            }),
            costs: Costs::PREDICTED,
        };
        let name = choice.to_string();
        Ok(Self { device, context, kernels, uuid: choice.uuid, name, image, facts })
    }

    /// Makes the device current in the calling thread.
    pub(super) fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { result::ctx::set_current(self.context) }
    }

    /// The device's memory for workers, if it can lend any.
    pub(super) fn memory(&self) -> Result<Option<CudaMemory>, DriverError> {
        CudaMemory::of(self.device, self.context, self.uuid.clone())
    }

    /// Begins a launch: upload, kernel, download, in the order of the slot's stream.
    ///
    /// Rows that are on the device are copied there, or spread, between upload and kernel. A worker may write them at any
    /// time, but a kernel reads a row several times and must see the same values.
    pub(super) fn begin(&self, slot: &mut Slot, launch: &Launch, rows: &[DeviceRow]) -> Result<(), DriverError> {
        let inputs = &slot.inputs;
        for part in uploads(launch.inputs, rows) {
            let to = inputs.device + part.start as u64;
            // SAFETY: the pinned memory is the slot's, as long as the device's, and nobody touches it until `finish`.
            unsafe { result::memcpy_htod_async(to, &inputs.host()[part], slot.stream)? };
        }
        for &DeviceRow { from, to, bytes, columns, .. } in rows {
            assert!(to + bytes <= inputs.bytes, "a row has its place in the inputs; this is a bug");
            if columns.is_some() {
                continue;
            }
            // SAFETY: the row lies in a region, which lives until its step is answered and is given up only when the device
            // has done its work; its place is the slot's, as was just checked.
            unsafe { result::memcpy_dtod_async(inputs.device + to as u64, from, bytes, slot.stream)? };
        }
        self.spread(slot, launch)?;
        self.unwrite(slot, launch)?;
        self.launch(slot, launch)?;
        if launch.is_written_to_host() {
            return Ok(());
        }
        let (from, stream) = (slot.outputs.device, slot.stream);
        // SAFETY: the pinned memory is the slot's, as long as the device's, and nobody touches it until `finish`.
        unsafe { result::memcpy_dtoh_async(&mut slot.outputs.host_mut()[..launch.outputs], from, stream) }
    }

    /// Marks the results in the slot's memory as unwritten, so that a row that the kernel leaves out does not get the
    /// result of an earlier launch.
    fn unwrite(&self, slot: &mut Slot, launch: &Launch) -> Result<(), DriverError> {
        let bytes = launch.rows as usize * size_of::<RowResult>();
        if launch.is_written_to_host() {
            slot.outputs.host_mut()[..bytes].fill(UNWRITTEN);
            return Ok(());
        }
        // SAFETY: the results stand first in the outputs, which are the slot's.
        unsafe { result::memset_d8_async(slot.outputs.device, UNWRITTEN, bytes, slot.stream) }
    }

    /// Begins spreading rows over the vocabulary, into their places in the inputs.
    fn spread(&self, slot: &Slot, launch: &Launch) -> Result<(), DriverError> {
        if launch.spread == 0 {
            return Ok(());
        }
        let parts = launch.spread_parts(self.facts.multiprocessors);
        let (kernel, inputs) = (self.kernels.spread[format(launch)], slot.inputs.device);
        let shape = Shape {
            team_size: 1,
            teams: launch.spread * parts,
            shared_bytes: 0,
            slice_chunks: parts,
            cached_vectors: launch.spread_at as u32,
        };
        self.launch_part(slot.stream, kernel, (inputs, inputs, slot.scratch), 0..launch.spread, shape)
    }

    fn launch(&self, slot: &Slot, launch: &Launch) -> Result<(), DriverError> {
        self.launch_on(slot.stream, slot, launch)
    }

    fn launch_on(&self, stream: sys::CUstream, slot: &Slot, launch: &Launch) -> Result<(), DriverError> {
        let kernel = self.kernels.rows[launch.kernel as usize][format(launch)];
        let outputs = if launch.is_written_to_host() { slot.outputs.seen } else { slot.outputs.device };
        let memory = (slot.inputs.device, outputs, slot.scratch);
        launch.parts().try_for_each(|(rows, shape)| self.launch_part(stream, kernel, memory, rows, shape))
    }

    fn launch_part(
        &self,
        stream: sys::CUstream,
        kernel: sys::CUfunction,
        (inputs, outputs, scratch): (sys::CUdeviceptr, sys::CUdeviceptr, sys::CUdeviceptr),
        rows: Range<u32>,
        shape: Shape,
    ) -> Result<(), DriverError> {
        let mut arguments = (inputs, outputs, scratch, rows.start, rows.end);
        let mut laid = (shape.slice_chunks, shape.cached_vectors);
        let mut pointers = [
            (&raw mut arguments.0).cast::<c_void>(),
            (&raw mut arguments.1).cast(),
            (&raw mut arguments.2).cast(),
            (&raw mut arguments.3).cast(),
            (&raw mut arguments.4).cast(),
            (&raw mut laid.0).cast(),
            (&raw mut laid.1).cast(),
        ];
        let mut attribute = launch_attribute(shape.team_size, self.facts.clusters);
        let config = sys::CUlaunchConfig {
            gridDimX: shape.team_size,
            gridDimY: shape.teams,
            gridDimZ: 1,
            blockDimX: THREADS,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared_bytes,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: c_uint::from(shape.team_size > 1),
        };
        // SAFETY: the arguments are those of the kernels (kernels/sample.cu), and live until the call returns.
        unsafe { sys::cuLaunchKernelEx(&raw const config, kernel, pointers.as_mut_ptr(), std::ptr::null_mut()) }
            .result()?;
        Ok(())
    }

    /// Writes bytes to the slot's inputs on the device, and waits. Returns their address. No launch of it may be under way.
    pub(super) fn lay(&self, slot: &mut Slot, bytes: &[u8]) -> Result<u64, DriverError> {
        slot.inputs.host_mut()[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: the pinned memory is the slot's, as long as the device's, and nobody touches it until `finish`.
        unsafe { result::memcpy_htod_async(slot.inputs.device, &slot.inputs.host()[..bytes.len()], slot.stream)? };
        self.finish(slot)?;
        Ok(slot.inputs.device)
    }

    /// Brings parts of a launch's inputs back to the host, as they are on the device.
    pub(super) fn bring(&self, slot: &mut Slot, parts: &[Range<usize>]) -> Result<(), DriverError> {
        for part in parts {
            let (from, stream) = (slot.inputs.device + part.start as u64, slot.stream);
            // SAFETY: both places are the slot's, and no launch of it is under way.
            unsafe { result::memcpy_dtoh_async(&mut slot.inputs.host_mut()[part.clone()], from, stream)? };
        }
        self.finish(slot)
    }

    /// Copies rows on the device to the host, into the slot's inputs.
    pub(super) fn fetch(&self, slot: &mut Slot, rows: &[DeviceRow]) -> Result<(), DriverError> {
        for &DeviceRow { from, to, bytes, .. } in rows {
            let host = &mut slot.inputs.host_mut()[to..to + bytes];
            // SAFETY: the row lies in a region, which lives until its step is answered and is given up only when the device has done
            // its work; its place is the slot's, and nobody touches it until `finish`.
            unsafe { result::memcpy_dtoh_async(host, from, slot.stream)? };
        }
        self.finish(slot)
    }

    /// Allocates room for rows.
    pub(super) fn room(&self, bytes: usize) -> Result<Arc<Room>, DriverError> {
        Ok(Arc::new(Room::new(self.context, bytes)?))
    }

    /// Copies rows on the device into such room, and waits.
    pub(super) fn gather(&self, slot: &Slot, rows: &[DeviceRow], room: &Room) -> Result<(), DriverError> {
        rows.iter().try_for_each(|row| room.take(row, slot.stream))?;
        self.finish(slot)
    }

    /// Waits for the slot's launch.
    pub(super) fn finish(&self, slot: &Slot) -> Result<(), DriverError> {
        wait(slot.stream)
    }
}

/// The index of a launch's number format.
fn format(launch: &Launch) -> usize {
    Dtype::ALL.iter().position(|&d| d == launch.dtype).expect("every format is listed")
}

/// How many clusters of so many blocks run at once with so much shared memory, one block on a multiprocessor, whichever
/// the kernel.
fn resident(kernels: &Functions, team_size: u32, shared_bytes: u32) -> u32 {
    let of_each = kernels.rows.iter().flatten().map(|&kernel| resident_of(kernel, team_size, shared_bytes));
    of_each.min().expect("there are kernels")
}

/// The same for one kernel. 0 if such clusters cannot run at all, which a driver reports as 0 or by refusing the size;
/// no bound if the driver cannot say.
fn resident_of(kernel: sys::CUfunction, team_size: u32, shared_bytes: u32) -> u32 {
    let mut attribute = launch_attribute(team_size, true);
    let config = sys::CUlaunchConfig {
        gridDimX: team_size,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: THREADS,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared_bytes,
        hStream: std::ptr::null_mut(),
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    let mut clusters = 0;
    // SAFETY: the function and the attribute are live; the driver writes one number.
    match unsafe { sys::cuOccupancyMaxActiveClusters(&raw mut clusters, kernel, &raw const config) }.result() {
        Ok(()) => u32::try_from(clusters).unwrap_or(u32::MAX),
        Err(DriverError(sys::cudaError_enum::CUDA_ERROR_INVALID_CLUSTER_SIZE)) => 0,
        Err(_) => u32::MAX,
    }
}

/// Says how the blocks of a team may wait for each other: as a cluster, or because all blocks are resident at once.
fn launch_attribute(team_size: u32, clusters: bool) -> sys::CUlaunchAttribute {
    // SAFETY: the attribute is plain data, for which zeros are a value.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    if clusters {
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: team_size, y: 1, z: 1 };
    } else {
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attribute.value.cooperative = 1;
    }
    attribute
}
