//! Opens the backend that the configuration describes, and watches its device.

use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, Level};
use crate::backend::cuda::{CudaBackend, HostRows, OpenError, is_lost};
use crate::config::{BackendChoice, Config};
use std::time::Duration;

/// How long the loss of a device may go unnoticed while no batch runs on it.
const LOOKS_EVERY: Duration = Duration::from_millis(200);

/// Opens the configured backend, or says why it cannot be used.
pub(super) fn open(config: &Config) -> Result<Box<dyn Backend>, OpenError> {
    let cpu = || Box::new(CpuBackend::with_level(config.threads(), config.simd.unwrap_or_else(Level::detect)));
    if config.backend == BackendChoice::Cpu {
        return Ok(cpu());
    }
    match CudaBackend::open(&config.device, cpu()) {
        Ok(mut cuda) => {
            set_host_rows(&mut cuda, config.host_rows);
            Ok(Box::new(cuda))
        }
        Err(reason) if config.backend == BackendChoice::Auto && reason.is_absence() => {
            tracing::info!(%reason, "sampling on the CPU");
            Ok(cpu())
        }
        // Somebody meant to have a GPU here, and may have to do something about it.
        Err(reason @ OpenError::NotStarted(_)) if config.backend == BackendChoice::Auto => {
            tracing::warn!(%reason, "sampling on the CPU, although there may be a GPU");
            Ok(cpu())
        }
        Err(error) => Err(error),
    }
}

fn set_host_rows(cuda: &mut CudaBackend, host_rows: HostRows) {
    match host_rows {
        HostRows::Cpu => {
            tracing::info!("rows in the GPU's memory are sampled there, all others by the CPU (host_rows)")
        }
        HostRows::Cuda => tracing::info!("rows that are not in the GPU's memory are copied there (host_rows)"),
    }
    cuda.set_host_rows(host_rows);
}

/// Resolves when somebody other than the engine found the device lost. The engine's own finding ends its thread
/// instead.
pub(super) async fn lost(config: &Config) {
    if config.backend == BackendChoice::Cpu {
        return std::future::pending().await;
    }
    let mut interval = tokio::time::interval(LOOKS_EVERY);
    while !is_lost() {
        interval.tick().await;
    }
}
