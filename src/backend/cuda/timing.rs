//! What launches take on the device, for `benches/gpu.rs`.

use super::ask::Asked;
use super::device::Staging;
use super::gpu::Gpu;
use super::machine::Launch;
use super::verify::verify;
use super::{CudaBackend, DriverError, Machine, OpenError, RowJob, VerifyJob};

/// More than the caches of any GPU hold.
const FLUSH_BYTES: usize = 512 << 20;

/// Times of the device, in microseconds.
#[derive(Debug)]
pub struct Timing {
    /// Of each launch.
    pub launches: Vec<f32>,
    /// Of launches of the same shape that have no rows: what no kernel can be faster than.
    pub empty: Vec<f32>,
    /// Bytes per microsecond that a device copy reads and writes, the best of several.
    pub copy_rate: f32,
}

impl CudaBackend {
    /// Runs a batch of rows of one number format `rounds` times from cold caches. The rows must fit into one launch.
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
    /// When the driver fails.
    ///
    /// # Panics
    /// If the rows do not fit, or have no kernel.
    pub fn time_verification(&mut self, jobs: &[VerifyJob<'_>], rounds: usize) -> Result<Vec<Timing>, OpenError> {
        let mut timings = Vec::new();
        let input_bytes = self.launches.input_bytes;
        let verified = verify(jobs, input_bytes, &mut |asked| {
            timings.push(self.time_launch(asked, rounds)?);
            self.launches.ask(asked)
        })?;
        assert!(verified.iter().all(Result::is_ok), "the drafts have kernels");
        Ok(timings)
    }

    fn time_launch(&mut self, asked: &[Asked<'_>], rounds: usize) -> Result<Timing, DriverError> {
        let launches = &mut self.launches;
        launches.machine.enter()?;
        let rows: Vec<usize> = (0..asked.len()).collect();
        let taken = launches.pack(0, asked, &rows, launches.input_bytes);
        assert_eq!(taken, asked.len(), "the rows fit into one launch");
        let which = (asked[0].kernel(), asked[0].row.logits.dtype());
        assert!(asked.iter().all(|asked| (asked.kernel(), asked.row.logits.dtype()) == which), "one kernel does them");
        // The first run uploads, and is not counted.
        let launch = launches.begin(0, which, asked, &rows)?;
        launches.wait(0)?;
        let Gpu { device, slots: [slot, ..], flush, .. } = &mut launches.machine;
        let flush = match flush {
            Some(flush) => flush,
            None => flush.insert(Staging::new(FLUSH_BYTES)?),
        };
        let nothing = Launch { rows: 0, ..launch };
        let times = |launch: &Launch| -> Result<Vec<f32>, DriverError> {
            (0..rounds).map(|_| device.time(slot, launch, flush)).collect()
        };
        let (launches, empty) = (times(&launch)?, times(&nothing)?);
        let mut copy_rate = 0.0f32;
        for _ in 0..10 {
            let (time, bytes) = device.time_copy(slot, flush)?;
            copy_rate = copy_rate.max(bytes as f32 / time);
        }
        Ok(Timing { launches, empty, copy_rate })
    }
}
