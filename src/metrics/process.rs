//! What the operating system says about the process.

use super::catalog as cat;
use super::cpu_wait::CpuWait;
use metrics::{Counter, Gauge, Recorder};
use metrics_process::collector;

/// Handles of what the operating system says about the process.
#[derive(Debug)]
pub(super) struct Process {
    cpu: Counter,
    waited: CpuWait,
    cpu_wait: Counter,
    resident: Gauge,
    virtual_memory: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    start: Gauge,
    threads: Gauge,
}

impl Process {
    pub(super) fn register(r: &dyn Recorder) -> Self {
        Self {
            cpu: cat::PROCESS_CPU.as_counter(r, &[]),
            waited: CpuWait::default(),
            cpu_wait: cat::CPU_WAIT.as_counter(r, &[]),
            resident: cat::PROCESS_RESIDENT.as_gauge(r, &[]),
            virtual_memory: cat::PROCESS_VIRTUAL.as_gauge(r, &[]),
            open_fds: cat::PROCESS_OPEN_FDS.as_gauge(r, &[]),
            max_fds: cat::PROCESS_MAX_FDS.as_gauge(r, &[]),
            start: cat::PROCESS_START.as_gauge(r, &[]),
            threads: cat::PROCESS_THREADS.as_gauge(r, &[]),
        }
    }

    /// Updates the gauges. Called for each scrape, not on a timer.
    pub(super) fn update(&self) {
        self.show(&collector::collect());
        self.cpu_wait.absolute(self.waited.update().as_secs());
    }

    /// Sets the gauges. Values that could not be read, for lack of a file descriptor, stay as they were: a start time
    /// of 0 would look like a restart.
    pub(super) fn show(&self, now: &collector::Metrics) {
        if let Some(cpu) = now.cpu_seconds_total {
            self.cpu.absolute(cpu as u64);
        }
        let gauges = [
            (&self.start, now.start_time_seconds),
            (&self.resident, now.resident_memory_bytes),
            (&self.virtual_memory, now.virtual_memory_bytes),
            (&self.open_fds, now.open_fds),
            (&self.max_fds, now.max_fds),
            (&self.threads, now.threads),
        ];
        for (gauge, value) in gauges {
            value.inspect(|value| gauge.set(*value as f64));
        }
    }
}
