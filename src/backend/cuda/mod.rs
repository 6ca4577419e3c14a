//! The CUDA backend: the specification on a GPU.
//!
//! Reading order: `kernels/README.md` (what runs there), [`abi`] (what both sides share), [`ask`] (what a launch is asked),
//! [`pack`] (jobs to bytes), [`read`] (bytes to results), [`mod@shape`] (how a batch is laid over the GPU), this file
//! (launches in turn), `device` (the driver). Then [`mod@verify`] for drafts.

pub mod abi;
pub mod ask;
mod device;
pub mod pack;
pub mod read;
pub mod shape;
pub mod timing;
pub mod verify;
mod warm_up;

use super::{Backend, BackendInfo, DeviceLost, RowJob, VerifyJob, VerifyResult};
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::row::RowResult;
use ask::{Asked, Kernel, NoKernel, has_kernel};
use cudarc::driver::{DriverError, sys};
use device::{Device, Sizes, Slot};
use pack::Packer;
use read::Answer;
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

/// A launch that runs: which slot, and which rows.
struct Launched {
    slot: usize,
    rows: Vec<usize>,
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

    /// Asks about rows that have kernels: an answer each, in order.
    fn launch_all(&mut self, asked: &[Asked<'_>]) -> Result<Vec<Answer>, DriverError> {
        self.device.enter()?;
        let mut answers: Vec<Option<Answer>> = asked.iter().map(|_| None).collect();
        let mut running: Option<Launched> = None;
        for (kernel, dtype) in Kernel::ALL.into_iter().flat_map(|kernel| Dtype::ALL.map(|dtype| (kernel, dtype))) {
            let belongs = |&i: &usize| asked[i].kernel() == kernel && asked[i].row.logits.dtype() == dtype;
            let mut rest: Vec<usize> = (0..asked.len()).filter(belongs).collect();
            while !rest.is_empty() {
                let slot = running.as_ref().map_or(0, |launched| (launched.slot + 1) % SLOTS);
                let taken = self.pack(slot, asked, &rest);
                // At least one: a row that no launch has room for was handed over.
                let later = rest.split_off(taken);
                self.begin(slot, (kernel, dtype), asked, &rest)?;
                let launched = Launched { slot, rows: std::mem::replace(&mut rest, later) };
                if let Some(before) = running.replace(launched) {
                    self.finish(&before, &mut answers)?;
                }
            }
        }
        if let Some(last) = running {
            self.finish(&last, &mut answers)?;
        }
        Ok(answers.into_iter().map(|answer| answer.expect("every row was launched; this is a bug")).collect())
    }

    /// Packs as many of the rows as fit into one launch, and gives their number.
    fn pack(&mut self, slot: usize, asked: &[Asked<'_>], rows: &[usize]) -> usize {
        let packer = &mut self.packers[slot];
        packer.clear();
        let mut bytes = 0;
        for (taken, &row) in rows.iter().enumerate() {
            bytes += asked[row].room();
            if taken == MOST_ROWS || bytes > self.input_bytes || packer.outputs_bytes() > OUTPUT_BYTES / 2 {
                return taken;
            }
            packer.push(&asked[row]);
        }
        rows.len()
    }

    fn begin(
        &mut self,
        slot: usize,
        (kernel, dtype): (Kernel, Dtype),
        asked: &[Asked<'_>],
        rows: &[usize],
    ) -> Result<(), DriverError> {
        let (packer, slot) = (&self.packers[slot], &mut self.slots[slot]);
        packer.write(rows.iter().map(|&row| &asked[row]), slot.inputs.host_mut());
        let largest = rows.iter().map(|&row| asked[row].row.logits.vocab_size()).max().unwrap_or(0);
        let count = rows.len() as u32;
        let shape = shape(count, largest as u32, dtype.size() as u32, &self.device.facts);
        let sizes = Sizes { inputs: packer.inputs_bytes(), outputs: packer.outputs_bytes() };
        self.device.begin(slot, (kernel, dtype), count, sizes, shape)
    }

    fn finish(&mut self, launched: &Launched, to: &mut [Option<Answer>]) -> Result<(), DriverError> {
        self.device.finish(&self.slots[launched.slot])?;
        let outputs = self.slots[launched.slot].outputs.host();
        for (at, &row) in launched.rows.iter().enumerate() {
            to[row] = Some(self.packers[launched.slot].answer(at, outputs));
        }
        Ok(())
    }

    /// Runs rows on the device, and those it cannot do on the other backend.
    fn try_run(&mut self, jobs: &[RowJob<'_>]) -> Result<Vec<RowResult>, DriverError> {
        let mut results: Vec<Option<RowResult>> = jobs.iter().map(|_| None).collect();
        let (mut todo, mut asked) = (Vec::with_capacity(jobs.len()), Vec::with_capacity(jobs.len()));
        for (i, job) in jobs.iter().enumerate() {
            let row = Asked::row(*job);
            let fits = if row.room() > self.input_bytes { Err(NoKernel::TooLarge) } else { Ok(()) };
            match has_kernel(&job.spec).and(fits) {
                Ok(()) => (todo.push(i), asked.push(row)).0,
                Err(reason) => self.hand_over(reason, 1),
            }
        }
        for (&i, answer) in todo.iter().zip(self.launch_all(&asked)?) {
            results[i] = answer.result(&jobs[i]);
        }
        let contradicted = todo.iter().filter(|&&i| results[i].is_none()).count();
        self.hand_over(NoKernel::Contradiction, contradicted);
        let rest: Vec<RowJob<'_>> =
            jobs.iter().zip(&results).filter(|(_, r)| r.is_none()).map(|(job, _)| *job).collect();
        let others = if rest.is_empty() { vec![] } else { self.other.run(&rest) };
        Ok(filled(results, others))
    }

    /// Verifies drafts on the device, and those it cannot on the other backend.
    fn try_verify(&mut self, jobs: &[VerifyJob<'_>]) -> Result<Vec<VerifyResult>, DriverError> {
        let input_bytes = self.input_bytes;
        let verified = verify::verify(jobs, input_bytes, &mut |asked| self.launch_all(asked))?;
        let mut rest = Vec::new();
        for (job, reason) in jobs.iter().zip(&verified).filter_map(|(job, v)| Some((job, v.as_ref().err()?))) {
            self.hand_over(*reason, job.rows.len());
            rest.push(*job);
        }
        let others = if rest.is_empty() { vec![] } else { self.other.verify(&rest) };
        Ok(filled(verified.into_iter().map(Result::ok).collect(), others))
    }

    fn hand_over(&mut self, reason: NoKernel, rows: usize) {
        if reason == NoKernel::Contradiction && rows > 0 {
            tracing::error!(rows, "a kernel contradicted itself; the CPU does these rows");
        }
        self.handed_over[reason as usize].1 += rows as u64;
    }
}

/// Results, with those of another backend in the empty places.
fn filled<R>(results: Vec<Option<R>>, others: Vec<R>) -> Vec<R> {
    let mut others = others.into_iter();
    results.into_iter().filter_map(|done| done.or_else(|| others.next())).collect()
}

impl CudaBackend {
    /// A device that fails.
    fn lost(&self, error: DriverError) -> ! {
        // Errors of a context stay; what it answers from now on cannot be trusted.
        tracing::error!(%error, device = self.device.name, "the CUDA device is lost");
        std::panic::panic_any(DeviceLost)
    }
}

/// A row's bytes, looked at once.
fn copied(row: &RowJob<'_>) -> Vec<u8> {
    let mut bytes = vec![0; row.logits.byte_len()];
    row.logits.copy_to(&mut bytes);
    bytes
}

/// The row over its copy.
fn own<'a>((row, bytes): (&RowJob<'a>, &'a Vec<u8>)) -> RowJob<'a> {
    RowJob { logits: Logits::new(row.logits.dtype(), bytes), ..*row }
}

impl Backend for CudaBackend {
    fn info(&self) -> BackendInfo {
        let facts = &self.device.facts;
        BackendInfo { name: "cuda", device: self.device.name.clone(), parallelism: facts.multiprocessors as usize }
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        self.try_run(jobs).unwrap_or_else(|error| self.lost(error))
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        let foreign = jobs.iter().flat_map(|job| job.rows).any(|row| row.logits.is_foreign());
        if !foreign {
            return self.try_verify(jobs).unwrap_or_else(|error| self.lost(error));
        }
        // A row is looked at in several launches, which must all see the same values.
        let copies: Vec<Vec<Vec<u8>>> = jobs.iter().map(|job| job.rows.iter().map(copied).collect()).collect();
        let rows = jobs.iter().zip(&copies);
        let rows: Vec<Vec<RowJob<'_>>> =
            rows.map(|(job, copies)| job.rows.iter().zip(copies).map(own).collect()).collect();
        let jobs: Vec<VerifyJob<'_>> = jobs.iter().zip(&rows).map(|(job, rows)| VerifyJob { rows, ..*job }).collect();
        self.try_verify(&jobs).unwrap_or_else(|error| self.lost(error))
    }

    fn handed_over(&mut self) -> &mut [(&'static str, u64)] {
        &mut self.handed_over
    }
}
