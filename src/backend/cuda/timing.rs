//! What launches take on the device, for `benches/gpu.rs`.

use super::device::Staging;
use super::{CudaBackend, OpenError, RowJob, shape};

/// More than the caches of any GPU hold.
const FLUSH_BYTES: usize = 512 << 20;

/// Times of the device, in microseconds.
#[derive(Debug)]
pub struct Timing {
    /// Of each launch.
    pub launches: Vec<f32>,
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
        self.device.enter()?;
        let rows: Vec<usize> = (0..jobs.len()).collect();
        assert_eq!(self.pack(0, jobs, &rows), jobs.len(), "the rows fit into one launch");
        let dtype = jobs[0].logits.dtype();
        // The first run uploads, and is not counted.
        self.begin(0, dtype, jobs, &rows)?;
        self.device.finish(&self.slots[0])?;
        let largest = jobs.iter().map(|job| job.logits.vocab_size()).max().unwrap_or(0) as u32;
        let count = jobs.len() as u32;
        let shape = shape(count, largest, dtype.size() as u32, &self.device.facts);
        let flush = Staging::new(FLUSH_BYTES)?;
        let slot = &self.slots[0];
        let launches =
            (0..rounds).map(|_| self.device.time(slot, dtype, count, shape, &flush)).collect::<Result<_, _>>()?;
        let mut copy_rate = 0.0f32;
        for _ in 0..10 {
            let (time, bytes) = self.device.time_copy(slot, &flush)?;
            copy_rate = copy_rate.max(bytes as f32 / time);
        }
        Ok(Timing { launches, copy_rate })
    }
}
