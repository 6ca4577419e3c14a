//! What launches take on the device, for `benches/gpu.rs`.

use super::ask::{Asked, Kernel};
use super::gpu::Gpu;
use super::machine::Launch;
use super::verify::verify;
use super::{CudaBackend, DriverError, Machine, OpenError, RowJob, VerifyJob};
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::row::{Action, Filters, RowSpec};

/// More than the caches of any GPU hold, twice.
const COPY_BYTES: usize = 512 << 20;
/// What is read to empty the caches: so many rows of so many logits, 128 MiB. Their format is one that nobody measures, so
/// that they do not bring a measured kernel's code into the caches.
const FLUSH: (Dtype, usize, usize) = (Dtype::F16, 256, 1 << 18);
/// Launches before one that is to find everything in the caches.
const HOT_AFTER: usize = 3;
/// Launches of a graph: so many that what the graph itself takes is no matter.
const IN_GRAPH: usize = 20;

/// Times of the device, in microseconds.
#[derive(Debug)]
pub struct Timing {
    /// Of each launch whose rows are in no cache.
    pub cold: Vec<f32>,
    /// Of each launch behind others of the same rows: as many of them are in the caches as these hold.
    pub hot: Vec<f32>,
    /// Of launches of the same shape that have no rows, cold: what no kernel can be faster than.
    pub empty: Vec<f32>,
}

impl CudaBackend {
    /// Runs a batch of rows of one number format `rounds` times in each state of the caches. The rows must fit into one launch.
    ///
    /// # Errors
    /// When the driver fails.
    ///
    /// # Panics
    /// If the rows do not fit.
    pub fn time(&mut self, jobs: &[RowJob<'_>], rounds: usize) -> Result<Timing, OpenError> {
        let asked: Vec<Asked<'_>> = jobs.iter().map(|job| Asked::row(*job)).collect();
        Ok(self.time_launch(&asked, rounds)?)
    }

    /// The same of each launch that verifying drafts of one number format takes, in order. Their rows must fit into one
    /// launch each, of one kernel.
    ///
    /// # Errors
    /// When the driver fails, or a kernel contradicts itself.
    ///
    /// # Panics
    /// If the rows do not fit.
    pub fn time_verification(&mut self, jobs: &[VerifyJob<'_>], rounds: usize) -> Result<Vec<Timing>, OpenError> {
        let mut timings = Vec::new();
        let limits = self.launches.limits();
        let verified = verify(jobs, limits, &mut |asked| {
            timings.push(self.time_launch(asked, rounds)?);
            self.launches.ask(asked, || ())
        })?;
        match verified.iter().find_map(|verified| verified.as_ref().err()) {
            Some(reason) => Err(OpenError::Wrong(format!("drafts were handed over: {}", reason.name()))),
            None => Ok(timings),
        }
    }

    /// Bytes per microsecond that a device copy reads and writes, the best of several. The memory for it is kept for the life
    /// of the process.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn copy_rate(&mut self) -> Result<f32, OpenError> {
        let machine = &mut self.launches.machine;
        machine.enter()?;
        let memory = machine.device.room(COPY_BYTES)?;
        let mut best = 0.0f32;
        for _ in 0..10 {
            let (time, bytes) = machine.device.time_copy(&machine.slots[0], &memory)?;
            best = best.max(bytes as f32 / time);
        }
        Ok(best)
    }

    /// The time of a launch as one of many in a CUDA graph, hot, in microseconds, `rounds` times: what a server would pay that
    /// plays its steps from graphs. The rows must fit into one launch.
    ///
    /// # Errors
    /// When the driver fails, or does not take the launch into a graph.
    ///
    /// # Panics
    /// If the rows do not fit.
    pub fn time_in_graph(&mut self, jobs: &[RowJob<'_>], rounds: usize) -> Result<Vec<f32>, OpenError> {
        let asked: Vec<Asked<'_>> = jobs.iter().map(|job| Asked::row(*job)).collect();
        let launch = self.upload(&asked)?;
        let Gpu { device, slots: [slot, _], .. } = &self.launches.machine;
        Ok(device.time_in_graph(slot, &launch, IN_GRAPH, rounds)?)
    }

    /// Runs rows of one kernel and number format once, in the first slot, where they stay.
    pub(super) fn upload(&mut self, asked: &[Asked<'_>]) -> Result<Launch, DriverError> {
        let launches = &mut self.launches;
        launches.machine.enter()?;
        let rows: Vec<usize> = (0..asked.len()).collect();
        let taken = launches.pack(0, asked, &rows, launches.input_bytes);
        assert_eq!(taken, asked.len(), "the rows fit into one launch");
        let (kernel, dtype) = (asked[0].kernel(), asked[0].row.logits.dtype());
        let is_alike = |asked: &Asked<'_>| asked.kernel() == kernel && asked.row.logits.dtype() == dtype;
        assert!(asked.iter().all(is_alike), "one kernel does them");
        let launch = launches.begin(0, kernel, dtype, asked, &rows)?;
        launches.wait(0)?;
        Ok(launch)
    }

    fn time_launch(&mut self, asked: &[Asked<'_>], rounds: usize) -> Result<Timing, DriverError> {
        // This first run is not counted.
        let launch = self.upload(asked)?;
        let flush = self.begin_flush()?;
        self.launches.wait(1)?;
        let Gpu { device, slots: [slot, other], .. } = &self.launches.machine;
        let times = |launch: Launch, before: &[_]| -> Result<Vec<f32>, DriverError> {
            (0..rounds).map(|_| device.time(slot, &launch, before)).collect()
        };
        // A launch writes little, so what it leaves in the caches needs not be written back while the next is measured.
        let cold = times(launch, &[(other, flush)])?;
        let empty = times(Launch { rows: 0, ..launch }, &[(other, flush)])?;
        let hot = times(launch, &[(slot, launch); HOT_AFTER])?;
        Ok(Timing { cold, hot, empty })
    }

    /// Begins the launch that empties the caches, in the second slot: greedy rows, which are read and hardly anything else.
    fn begin_flush(&mut self) -> Result<Launch, DriverError> {
        let (dtype, count, vocab_size) = FLUSH;
        let launches = &mut self.launches;
        // Smaller rows where there is not so much room.
        let vocab_size = vocab_size.min((launches.input_bytes / count).saturating_sub(2048) / dtype.size()).max(1);
        let zeros = vec![0; vocab_size * dtype.size()];
        let spec =
            RowSpec::plain(Filters { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 }, Action::Draw { uniform: 0 });
        let row = || Asked::row(RowJob { logits: Logits::new(dtype, &zeros), spec });
        let asked: Vec<Asked<'_>> = (0..count).map(|_| row()).collect();
        let rows: Vec<usize> = (0..count).collect();
        let taken = launches.pack(1, &asked, &rows, launches.input_bytes);
        launches.begin(1, Kernel::Sample, dtype, &asked, &rows[..taken])
    }
}
