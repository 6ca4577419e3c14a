//! Measures how long launches take on the device, for `benches/gpu.rs`.

use super::ask::{Asked, Kernel};
use super::gpu::Gpu;
use super::machine::Launch;
use super::verify::verify;
use super::{CudaBackend, DriverError, Machine, OpenError, RowJob, VerifyJob};
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::row::{Action, Filters, RowSpec};

/// Twice more than the caches of any GPU hold.
const COPY_BYTES: usize = 512 << 20;
/// What is read to flush the caches: so many rows of so many logits, 128 MiB. Their number format is one that nobody
/// measures, so that flushing does not load the code of a measured kernel into the caches.
const FLUSH: (Dtype, usize, usize) = (Dtype::F16, 256, 1 << 18);
/// How many launches run before one that has to find everything in the caches.
const HOT_AFTER: usize = 3;
/// The launches of a graph: enough that the time of the graph itself does not matter.
const IN_GRAPH: usize = 20;

/// Times of the device, in microseconds.
#[derive(Debug)]
pub struct Timing {
    /// For launches whose rows are in no cache.
    pub cold: Vec<f32>,
    /// For launches right after others over the same rows: the caches then have as many of the rows as they can hold.
    pub hot: Vec<f32>,
    /// For cold launches of the same shape that have no rows: no kernel can be faster than this.
    pub empty: Vec<f32>,
}

impl CudaBackend {
    /// Runs a batch of rows of one number format `rounds` times for each state of the caches. The rows must fit into
    /// one launch.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If the rows do not fit.
    pub fn time(&mut self, jobs: &[RowJob<'_>], rounds: usize) -> Result<Timing, OpenError> {
        let asked: Vec<Asked<'_>> = jobs.iter().map(|job| Asked::row(*job)).collect();
        Ok(self.time_launch(&asked, rounds)?)
    }

    /// The same for each launch that verifying drafts of one number format takes, in order. The rows of each round must
    /// fit into one launch, and use one kernel.
    ///
    /// # Errors
    /// If the driver fails, or a kernel contradicts itself.
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
            Some(reason) => Err(OpenError::Wrong(format!("drafts were handed over to the CPU: {}", reason.name()))),
            None => Ok(timings),
        }
    }

    /// How many bytes per microsecond a device copy reads and writes, the best of several. The memory for it is kept
    /// for the life of the process.
    ///
    /// # Errors
    /// If the driver fails.
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

    /// The microseconds of a launch as one of many in a CUDA graph, hot, `rounds` times: the cost for a server that
    /// plays its steps from graphs. The rows must fit into one launch.
    ///
    /// # Errors
    /// If the driver fails, or does not take the launch into a graph.
    ///
    /// # Panics
    /// If the rows do not fit.
    pub fn time_in_graph(&mut self, jobs: &[RowJob<'_>], rounds: usize) -> Result<Vec<f32>, OpenError> {
        let asked: Vec<Asked<'_>> = jobs.iter().map(|job| Asked::row(*job)).collect();
        let launch = self.upload(&asked)?;
        let Gpu { device, slots: [slot, _], .. } = &self.launches.machine;
        Ok(device.time_in_graph(slot, &launch, IN_GRAPH, rounds)?)
    }

    /// Runs rows of one kernel and number format once, in the first slot. They stay there.
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
        // A launch writes little, so hardly anything has to be written back from the caches while the next one is
        // measured.
        let cold = times(launch, &[(other, flush)])?;
        let empty = times(Launch { rows: 0, ..launch }, &[(other, flush)])?;
        let hot = times(launch, &[(slot, launch); HOT_AFTER])?;
        Ok(Timing { cold, hot, empty })
    }

    /// Begins the launch that flushes the caches, in the second slot. Its rows are greedy, so that it does little but
    /// read.
    fn begin_flush(&mut self) -> Result<Launch, DriverError> {
        let (dtype, count, vocab_size) = FLUSH;
        let launches = &mut self.launches;
        // Shorter rows if there is less room.
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
