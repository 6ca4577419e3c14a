//! The CUDA backend: samples and verifies on a GPU, with the specification's results.
//!
//! Reading order:
//!
//! 1. `kernels/README.md` (what the kernels do), [`abi`] (what host and kernels share)
//! 2. [`ask`] (what a launch is asked), [`pack`] and `tables` (jobs to bytes), [`read`] (bytes to results)
//! 3. `begun` (chains that a kernel begins and the host ends), `keep` (the distribution that a draft row was drawn
//!    from)
//! 4. `taken` (rows that others may write), `fetch` (rows on the device that the CPU samples)
//! 5. [`mod@shape`] (how a batch is laid over the GPU), [`costs`] and `tune` (the times that decide it)
//! 6. `launches` (launches one after the other), [`machine`] (what runs them), this file (which rows go to the GPU)
//! 7. `choose`, [`image`], `wait` and `device` (the driver), `lend` (device memory for workers)
//! 8. [`mod@verify`] (drafts), in it `assign` (which drafts go to the GPU) and `lists` (drafts of which the host gets lists)
//! 9. `kinds`, `warm_up`, `in_turn` and `spread` (what a device proves before it serves)

pub mod abi;
pub mod ask;
mod begun;
mod choose;
pub mod costs;
mod device;
mod fetch;
mod gpu;
pub mod image;
mod in_turn;
mod keep;
mod kinds;
mod known;
mod launches;
mod lend;
pub mod machine;
pub mod pack;
pub mod read;
pub mod shape;
mod spread;
mod tables;
mod taken;
pub mod timing;
mod tune;
pub mod verify;
mod wait;
mod warm_up;

use super::{Backend, BackendInfo, DeviceLost, DeviceMemory, RowJob, VerifyJob, VerifyResult};
use crate::sampling::row::RowResult;
pub use ask::HostRows;
use ask::{Asked, NoKernel, has_kernel};
use begun::{Begun, Outcome};
use costs::Costs;
use cudarc::driver::{DriverError, sys};
use gpu::Gpu;
use image::Image;
use launches::{Launches, OUTPUT_BYTES};
use machine::Machine;
use read::Answer;
use std::sync::Arc;
pub use wait::{hangs, is_lost};

/// The most bytes that one launch uploads. Larger batches take several launches.
const INPUT_BYTES: usize = 64 << 20;

/// Why there is no CUDA backend.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no driver.
    #[error("there is no CUDA driver: libcuda.so.1 cannot be loaded")]
    NoDriver,
    /// The driver does not have the device that was asked for.
    #[error("no CUDA device: {0}")]
    NoDevice(String),
    /// The driver is there but does not start.
    #[error("the CUDA driver does not start: {0}")]
    NotStarted(String),
    /// The device or the driver is too old.
    #[error("{0}")]
    Unsupported(String),
    /// The device has too little memory.
    #[error("the CUDA device is out of memory: {0}")]
    OutOfMemory(String),
    /// A call of the driver fails.
    #[error("the CUDA driver failed: {0}")]
    Driver(String),
    /// The device gave another result than the specification.
    #[error("the CUDA device computes wrong results ({0}); it is not used")]
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

/// Samples on a GPU. Rows without a kernel are handed to another backend in the same call, with the same results.
pub struct CudaBackend<M = Gpu> {
    launches: Launches<M>,
    other: Box<dyn Backend>,
    /// How many rows were handed over since this was last read, by reason.
    handed_over: [(&'static str, u64); NoKernel::ALL.len()],
}

/// A row that goes to the kernels.
struct ToDo {
    /// Its index among the jobs.
    at: usize,
    /// The part of its chain that the kernels begin, if it has a chain.
    begun: Option<Begun>,
}

impl<M: Machine> std::fmt::Debug for CudaBackend<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaBackend").field("machine", &self.launches.machine.name()).finish_non_exhaustive()
    }
}

impl CudaBackend {
    /// Opens a device by index or UUID, has it prove itself on rows of every kind and with teams of every size, and
    /// measures which teams are fast there. `other` takes the rows that the device cannot.
    ///
    /// # Errors
    /// [`OpenError`] if there is no such device, or if it cannot be used.
    pub fn open(device: &str, other: Box<dyn Backend>) -> Result<Self, OpenError> {
        let mut backend = Self::open_unproved(device, other, INPUT_BYTES)?;
        backend.prove()?;
        backend.tune()?;
        Ok(backend)
    }

    /// Opens a device without proving it, with so much room for one launch: to measure it, or to run it under a
    /// sanitizer. Do not serve from it.
    ///
    /// # Errors
    /// As [`Self::open`], except that wrong results are not noticed.
    pub fn open_unproved(device: &str, other: Box<dyn Backend>, input_bytes: usize) -> Result<Self, OpenError> {
        Ok(Self::on(Gpu::open(device, input_bytes, OUTPUT_BYTES)?, other, input_bytes))
    }

    /// Has the device prove itself.
    ///
    /// # Errors
    /// If a result differs, or the driver fails.
    pub fn prove(&mut self) -> Result<(), OpenError> {
        warm_up::prove(self)?;
        spread::prove(self)?;
        self.prove_teams()
    }

    /// The last part of [`Self::prove`]: teams of every size, each with one row after another.
    ///
    /// # Errors
    /// As [`Self::prove`].
    pub fn prove_teams(&mut self) -> Result<(), OpenError> {
        in_turn::prove(self)
    }

    /// Measures how long teams of each size take; from then on this decides which teams are used. No result depends on
    /// it.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn tune(&mut self) -> Result<(), OpenError> {
        let costs = tune::measure(self)?;
        self.set_costs(costs);
        tracing::info!(costs = %self.costs(), "measured how long teams of 1 to 8 blocks take, in us for a row and for each chunk");
        Ok(())
    }

    /// The costs by which teams are chosen.
    #[must_use]
    pub fn costs(&self) -> &Costs {
        &self.launches.machine.device.facts.costs
    }

    /// Has teams chosen by other costs.
    pub fn set_costs(&mut self, costs: Costs) {
        self.launches.machine.device.facts.costs = costs;
    }

    /// The image of the kernels that the device runs.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.launches.machine.device.image
    }
}

impl<M: Machine> CudaBackend<M> {
    /// A backend on a machine with so much room for one launch. The machine is not proved.
    #[must_use]
    pub fn on(machine: M, other: Box<dyn Backend>, input_bytes: usize) -> Self {
        let handed_over = NoKernel::ALL.map(|reason| (reason.name(), 0));
        Self { launches: Launches::new(machine, input_bytes), other, handed_over }
    }

    /// The same, with launches of about so many bytes, for tests with short rows.
    #[must_use]
    pub fn in_pieces_of(self, bytes: usize) -> Self {
        Self { launches: self.launches.in_pieces_of(bytes), ..self }
    }

    /// Sets who takes rows in the host's memory. At first it is the device, so that it proves itself on them.
    pub fn set_host_rows(&mut self, host_rows: HostRows) {
        self.launches.host_rows = host_rows;
    }

    /// The machine it runs on.
    pub fn machine(&mut self) -> &mut M {
        &mut self.launches.machine
    }

    /// Samples rows on the device, and the rest on the other backend. Rows that are on the host already run there while
    /// the device works.
    fn try_run(&mut self, jobs: &[RowJob<'_>]) -> Result<Vec<RowResult>, M::Error> {
        let mut results: Vec<Option<RowResult>> = jobs.iter().map(|_| None).collect();
        let (todo, asked) = self.sorted(jobs);
        let mut is_asked = vec![false; jobs.len()];
        todo.iter().for_each(|todo| is_asked[todo.at] = true);
        let here = |&i: &usize| !is_asked[i] && jobs[i].logits.device_address().is_none();
        let here: Vec<usize> = (0..jobs.len()).filter(here).collect();
        let (mut others, other) = (Vec::new(), &mut self.other);
        let answers = self.launches.ask(&asked, || {
            let rows: Vec<RowJob<'_>> = here.iter().map(|&i| jobs[i]).collect();
            others = if rows.is_empty() { vec![] } else { other.run(&rows) };
        })?;
        here.into_iter().zip(others).for_each(|(i, result)| results[i] = Some(result));
        let mut outcomes = self.ended(jobs, todo, answers);
        begun::score(jobs, &mut outcomes, |asked| self.launches.ask(asked, || ()))?;
        for (i, outcome) in outcomes {
            match outcome {
                Ok(result) => results[i] = Some(result),
                Err(reason) => self.hand_over(reason, 1),
            }
        }
        let rest: Vec<RowJob<'_>> =
            jobs.iter().zip(&results).filter(|(_, r)| r.is_none()).map(|(job, _)| *job).collect();
        let mut others = Vec::with_capacity(rest.len());
        while others.len() < rest.len() {
            let rows = self.launches.fetched(rest[others.len()..].iter().map(std::slice::from_ref))?;
            others.extend(self.other.run(&rows.concat()));
        }
        Ok(filled(results, others))
    }

    /// The rows that go to the kernels, and what is asked about each. The others are counted as handed over.
    fn sorted<'a>(&mut self, jobs: &[RowJob<'a>]) -> (Vec<ToDo>, Vec<Asked<'a>>) {
        let limits = self.launches.limits();
        let (mut todo, mut asked) = (Vec::with_capacity(jobs.len()), Vec::with_capacity(jobs.len()));
        for (i, job) in jobs.iter().enumerate() {
            let ready = limits.check_logits(job).and_then(|()| {
                let begun = Begun::of(job);
                let row = begun.as_ref().map_or_else(|| Asked::row(*job), |begun| begun.asked(job));
                // The room of all that the job wants, which any launch about it may need.
                let room = Asked::row(*job).room();
                has_kernel(&row.row.spec).and_then(|()| limits.check_size(job, room)).map(|()| (begun, row))
            });
            match ready {
                Ok((begun, row)) => (todo.push(ToDo { at: i, begun }), asked.push(row)).0,
                Err(reason) => self.hand_over(reason, 1),
            }
        }
        (todo, asked)
    }

    /// Results of rows that went to the kernels, with their indices among `jobs`, in any order.
    fn ended(&mut self, jobs: &[RowJob<'_>], todo: Vec<ToDo>, answers: Vec<Answer>) -> Vec<Outcome> {
        let (mut outcomes, mut places, mut halves) = (Vec::with_capacity(todo.len()), Vec::new(), Vec::new());
        for (ToDo { at: i, begun }, answer) in todo.into_iter().zip(answers) {
            match begun {
                Some(begun) => (places.push(i), halves.push((jobs[i], begun, answer))).0,
                None => outcomes.push((i, answer.result(&jobs[i]).ok_or(NoKernel::Contradiction))),
            }
        }
        outcomes.extend(places.into_iter().zip(begun::ended(&halves, &mut *self.other)));
        outcomes
    }

    fn hand_over(&mut self, reason: NoKernel, rows: usize) {
        if reason == NoKernel::Contradiction && rows > 0 {
            tracing::error!(rows, "a kernel contradicted itself; the CPU samples these rows");
        }
        self.handed_over[reason as usize].1 += rows as u64;
    }

    /// Gives up a device that fails.
    fn lost(&self, error: &M::Error) -> ! {
        // Errors of a context persist, so nothing that it answers from now on can be trusted.
        tracing::error!(%error, device = self.launches.machine.name(), "the CUDA device is lost");
        std::panic::panic_any(DeviceLost)
    }
}

/// Fills the empty places of `results` with those of another backend.
fn filled<R>(results: Vec<Option<R>>, others: Vec<R>) -> Vec<R> {
    let mut others = others.into_iter();
    results.into_iter().filter_map(|done| done.or_else(|| others.next())).collect()
}

impl<M: Machine> Backend for CudaBackend<M> {
    fn info(&self) -> BackendInfo {
        let machine = &self.launches.machine;
        let parallelism = machine.facts().multiprocessors as usize;
        BackendInfo { name: "cuda", device: machine.name().to_owned(), parallelism }
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        self.try_run(jobs).unwrap_or_else(|error| self.lost(&error))
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        self.verify_all(jobs).unwrap_or_else(|error| self.lost(&error))
    }

    fn handed_over(&mut self) -> &mut [(&'static str, u64)] {
        &mut self.handed_over
    }

    fn device_memory(&self) -> Option<Arc<dyn DeviceMemory>> {
        self.launches.machine.memory()
    }
}
