//! The CUDA backend: the specification on a GPU.
//!
//! Reading order: `kernels/README.md` (what runs there), [`abi`] (what both sides share), [`pack`] (jobs to bytes, bytes
//! to results), [`mod@shape`] (how a batch is laid over the GPU), this file (launches in turn), `device` (the driver).

pub mod abi;
mod device;
pub mod pack;
pub mod shape;
pub mod timing;
mod warm_up;

use super::{Backend, BackendInfo, DeviceLost, RowJob, VerifyJob, VerifyResult};
use crate::sampling::logits::Dtype;
use crate::sampling::row::RowResult;
use cudarc::driver::{DriverError, sys};
use device::{Device, Sizes, Slot};
use pack::{NoKernel, Packer, has_kernel};
use shape::{chunk, shape};

/// Bytes that one launch uploads at most: larger batches are several launches.
const INPUT_BYTES: usize = 64 << 20;
/// Bytes that one launch downloads at most.
const OUTPUT_BYTES: usize = 8 << 20;
/// Rows, and so teams, of one launch at most.
const MOST_ROWS: usize = 256;
/// One launch runs while the next is packed.
const SLOTS: usize = 2;

/// Why there is no CUDA backend.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No driver.
    #[error("there is no CUDA driver here: libcuda.so.1 cannot be loaded")]
    NoDriver,
    /// A driver without the device asked for.
    #[error("no CUDA device: {0}")]
    NoDevice(String),
    /// A device or driver that is too old.
    #[error("{0}")]
    Unsupported(String),
    /// The device has no room.
    #[error("the CUDA device is out of memory: {0}")]
    OutOfMemory(String),
    /// The driver fails.
    #[error("the CUDA driver fails: {0}")]
    Driver(String),
    /// The device gave another result than the specification.
    #[error("the CUDA device does not compute what it should ({0}); it is not used")]
    Wrong(String),
}

impl OpenError {
    /// Whether the machine simply has no GPU that can be used.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoDriver | Self::NoDevice(_) | Self::Unsupported(_))
    }
}

impl From<DriverError> for OpenError {
    fn from(error: DriverError) -> Self {
        let text = error.to_string();
        if error.0 == sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY {
            Self::OutOfMemory(text)
        } else {
            Self::Driver(text)
        }
    }
}

/// Samples on a GPU. What has no kernel is handed to another backend, in the same call, with the same results.
pub struct CudaBackend {
    device: Device,
    slots: [Slot; SLOTS],
    packers: [Packer; SLOTS],
    input_bytes: usize,
    other: Box<dyn Backend>,
    /// Rows handed over since last asked, by reason.
    handed_over: [(&'static str, u64); NoKernel::ALL.len()],
}

impl std::fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaBackend").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A launch that runs: which slot, and which jobs.
struct Launched {
    slot: usize,
    jobs: Vec<usize>,
}

impl CudaBackend {
    /// Opens a device by index or UUID, and has it prove itself on rows of every kind. `other` does what it cannot.
    ///
    /// # Errors
    /// [`OpenError`] when there is no such device, or it cannot be used.
    pub fn open(device: &str, other: Box<dyn Backend>) -> Result<Self, OpenError> {
        Self::open_with(device, other, INPUT_BYTES)
    }

    /// As [`Self::open`], with so much room for one launch.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(device: &str, other: Box<dyn Backend>, input_bytes: usize) -> Result<Self, OpenError> {
        let device = Device::open(device)?;
        let slot = || Slot::new(input_bytes, OUTPUT_BYTES, MOST_ROWS);
        let packer = || Packer::new(chunk(device.facts.threads));
        let (slots, packers) = ([slot()?, slot()?], [packer(), packer()]);
        let handed_over = NoKernel::ALL.map(|reason| (reason.name(), 0));
        let mut backend = Self { device, slots, packers, input_bytes, other, handed_over };
        warm_up::prove(&mut backend)?;
        Ok(backend)
    }

    /// Runs rows that have kernels; results go to their places.
    fn launch_all(
        &mut self,
        jobs: &[RowJob<'_>],
        todo: &[usize],
        to: &mut [Option<RowResult>],
    ) -> Result<(), DriverError> {
        self.device.enter()?;
        let mut running: Option<Launched> = None;
        for dtype in Dtype::ALL {
            let mut rest: Vec<usize> = todo.iter().copied().filter(|&i| jobs[i].logits.dtype() == dtype).collect();
            while !rest.is_empty() {
                let slot = running.as_ref().map_or(0, |launched| (launched.slot + 1) % SLOTS);
                let taken = self.pack(slot, jobs, &rest);
                // At least one: a row that no launch has room for was handed over.
                let later = rest.split_off(taken);
                self.begin(slot, dtype, jobs, &rest)?;
                let launched = Launched { slot, jobs: std::mem::replace(&mut rest, later) };
                if let Some(before) = running.replace(launched) {
                    self.finish(&before, jobs, to)?;
                }
            }
        }
        running.map_or(Ok(()), |last| self.finish(&last, jobs, to))
    }

    /// Packs as many of the rows as fit into one launch, and gives their number.
    fn pack(&mut self, slot: usize, jobs: &[RowJob<'_>], rows: &[usize]) -> usize {
        let packer = &mut self.packers[slot];
        packer.clear();
        let mut logits = 0;
        for (taken, &row) in rows.iter().enumerate() {
            logits += room(&jobs[row]);
            if taken == MOST_ROWS || logits > self.input_bytes || packer.outputs_bytes() > OUTPUT_BYTES / 2 {
                return taken;
            }
            packer.push(&jobs[row]);
        }
        rows.len()
    }

    fn begin(&mut self, slot: usize, dtype: Dtype, jobs: &[RowJob<'_>], rows: &[usize]) -> Result<(), DriverError> {
        let (packer, slot) = (&self.packers[slot], &mut self.slots[slot]);
        packer.write(rows.iter().map(|&row| &jobs[row]), slot.inputs.host_mut());
        let largest = rows.iter().map(|&row| jobs[row].logits.vocab_size()).max().unwrap_or(0);
        let count = rows.len() as u32;
        let shape = shape(count, largest as u32, dtype.size() as u32, &self.device.facts);
        let sizes = Sizes { inputs: packer.inputs_bytes(), outputs: packer.outputs_bytes() };
        self.device.begin(slot, dtype, count, sizes, shape)
    }

    fn finish(
        &mut self,
        launched: &Launched,
        jobs: &[RowJob<'_>],
        to: &mut [Option<RowResult>],
    ) -> Result<(), DriverError> {
        self.device.finish(&self.slots[launched.slot])?;
        let outputs = self.slots[launched.slot].outputs.host();
        for (at, &row) in launched.jobs.iter().enumerate() {
            to[row] = self.packers[launched.slot].result(at, &jobs[row], outputs);
        }
        Ok(())
    }

    /// Runs rows on the device, and those it cannot do on the other backend.
    fn try_run(&mut self, jobs: &[RowJob<'_>]) -> Result<Vec<RowResult>, DriverError> {
        let mut results: Vec<Option<RowResult>> = jobs.iter().map(|_| None).collect();
        let mut todo = Vec::with_capacity(jobs.len());
        for (i, job) in jobs.iter().enumerate() {
            let fits = if room(job) > self.input_bytes { Err(NoKernel::TooLarge) } else { Ok(()) };
            match has_kernel(&job.spec).and(fits) {
                Ok(()) => todo.push(i),
                Err(reason) => self.hand_over(reason, 1),
            }
        }
        self.launch_all(jobs, &todo, &mut results)?;
        let contradicted = todo.iter().filter(|&&i| results[i].is_none()).count();
        if contradicted > 0 {
            tracing::error!(rows = contradicted, "a kernel contradicted itself; the CPU does these rows");
            self.hand_over(NoKernel::Contradiction, contradicted);
        }
        let rest: Vec<RowJob<'_>> =
            jobs.iter().zip(&results).filter(|(_, r)| r.is_none()).map(|(job, _)| *job).collect();
        let mut others = if rest.is_empty() { vec![] } else { self.other.run(&rest) }.into_iter();
        let result = |done: Option<RowResult>| done.or_else(|| others.next());
        Ok(results.into_iter().filter_map(result).collect())
    }

    fn hand_over(&mut self, reason: NoKernel, rows: usize) {
        self.handed_over[reason as usize].1 += rows as u64;
    }
}

/// Bytes of the inputs that a row may need.
fn room(job: &RowJob<'_>) -> usize {
    let known = job.spec.adjusts.len_bound() + job.spec.banned.len() + job.spec.allowed.map_or(0, <[u32]>::len);
    let wanted = job.spec.logprobs.map_or(0, |wanted| wanted.tokens.len());
    job.logits.bytes().len() + 16 * known + 4 * wanted + 1024
}

impl Backend for CudaBackend {
    fn info(&self) -> BackendInfo {
        let facts = &self.device.facts;
        BackendInfo { name: "cuda", device: self.device.name.clone(), parallelism: facts.multiprocessors as usize }
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        self.try_run(jobs).unwrap_or_else(|error| {
            // Errors of a context stay; what it answers from now on cannot be trusted.
            tracing::error!(%error, device = self.device.name, "the CUDA device is lost");
            std::panic::panic_any(DeviceLost)
        })
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        self.hand_over(NoKernel::Verify, jobs.len());
        self.other.verify(jobs)
    }

    fn handed_over(&mut self) -> &mut [(&'static str, u64)] {
        &mut self.handed_over
    }
}
