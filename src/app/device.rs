//! Opens the backend that the configuration describes.

use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, Level};
use crate::backend::cuda::{CudaBackend, OpenError};
use crate::config::{BackendChoice, Config};

/// The backend that is asked for, or why it cannot be had.
pub(super) fn open(config: &Config) -> Result<Box<dyn Backend>, OpenError> {
    let cpu = || Box::new(CpuBackend::with_level(config.threads(), config.simd.unwrap_or_else(Level::detect)));
    if config.backend == BackendChoice::Cpu {
        return Ok(cpu());
    }
    match CudaBackend::open(&config.device, cpu()) {
        Ok(cuda) => Ok(Box::new(cuda)),
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
