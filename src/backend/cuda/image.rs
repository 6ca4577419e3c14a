//! Chooses which of the compiled kernels run: machine code, of one compiler or the other, if the driver takes it;
//! otherwise PTX, which is slower and has no clusters.

use super::OpenError;
use super::ask::Kernel;
use crate::sampling::logits::Dtype;
use cudarc::driver::{DriverError, result, sys};
use std::ffi::CString;
use std::fmt;
use sys::CUfunction_attribute_enum as Attribute;
use sys::cudaError_enum as Code;

/// Aligns compiled kernels, because the driver must be able to read words from them.
#[repr(align(16))]
struct Aligned<T: ?Sized>(T);

/// Machine code for drivers of CUDA 13, and for the GPUs that it was compiled for.
static FATBIN: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../kernels/compiled/sample.fatbin"));
/// Machine code for drivers before CUDA 13, from R535 on, and for Hopper. It has clusters, which the PTX does not.
static HOPPER: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../kernels/compiled/sample.sm_90.cubin"));
/// For every driver from R535 on. The driver compiles it for its GPU.
static PTX: &str = concat!(include_str!("../../../kernels/compiled/sample.ptx"), "\0");

/// The first number of the compute capability from which on GPUs have clusters.
pub(super) const CLUSTERS_FROM: i32 = 9;
/// The first number of Hopper's compute capability.
const HOPPERS: i32 = 9;

/// Shared memory and L1 share a multiprocessor's memory. This gives all of it, in percent, to shared memory.
const ALL_SHARED: i32 = 100;

/// The functions of the kernels, by number format.
#[derive(Debug)]
pub(super) struct Functions {
    /// The kernels that are asked about rows.
    pub(super) rows: [[sys::CUfunction; 3]; 2],
    /// `spread_rows`.
    pub(super) spread: [sys::CUfunction; 3],
}

/// Which image of the kernels a device runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// Machine code for a GPU of this compute capability.
    Compiled {
        /// The GPU's compute capability.
        capability: (i32, i32),
    },
    /// Machine code of an older compiler, for Hopper.
    Hopper {
        /// Why the driver refused the newer code.
        because: String,
    },
    /// The PTX, compiled by the driver.
    Ptx {
        /// Why the driver refused the machine code.
        because: String,
    },
}

impl Image {
    /// Whether the blocks of a team form a cluster.
    #[must_use]
    pub fn has_clusters(&self) -> bool {
        match self {
            Self::Compiled { capability } => capability.0 >= CLUSTERS_FROM,
            Self::Hopper { .. } => true,
            Self::Ptx { .. } => false,
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clusters = if self.has_clusters() { "with clusters" } else { "without clusters" };
        match self {
            Self::Compiled { capability: (major, minor) } => {
                write!(f, "machine code for compute capability {major}.{minor}, {clusters}")
            }
            Self::Hopper { because } => {
                write!(f, "machine code of CUDA 12.2 for compute capability 9.0, {clusters}, ")?;
                write!(f, "because the driver refuses that of CUDA 13.0: {because}")
            }
            Self::Ptx { because } => {
                write!(f, "PTX, {clusters}, because the driver refuses the machine code: {because}")
            }
        }
    }
}

/// Loads the kernels for a GPU of this compute capability, whose blocks may have so much shared memory.
pub(super) fn load(capability: (i32, i32), shared_bytes: i32) -> Result<(Functions, Image), OpenError> {
    let (kernels, image) = load_first(capability, shared_bytes)?;
    if matches!(image, Image::Ptx { .. }) && capability.0 >= CLUSTERS_FROM {
        tracing::warn!(%image, "the kernels run slower than this GPU allows");
    } else {
        tracing::info!(%image, "the kernels are loaded");
    }
    Ok((kernels, image))
}

/// Loads the first image that the driver takes.
fn load_first(capability: (i32, i32), shared_bytes: i32) -> Result<(Functions, Image), DriverError> {
    // The functions are looked up at once, because a driver that loads lazily may not look at an image before that.
    let load = |image: *const u8| {
        // SAFETY: the images are whole; the PTX ends with a NUL.
        let module = unsafe { result::module::load_data(image.cast())? };
        functions(module, shared_bytes).inspect_err(|_| {
            // SAFETY: it was loaded just now, and nothing of it is used. An error of unloading it would tell nothing
            // new.
            let _ = unsafe { result::module::unload(module) };
        })
    };
    // There is no code for this GPU, the driver is older, or the error persists; then the next image fails too.
    let refusal = |error: DriverError| match error.0 {
        Code::CUDA_ERROR_OUT_OF_MEMORY => Err(error),
        _ => Ok(error.to_string()),
    };
    let mut because = match load(FATBIN.0.as_ptr()) {
        Ok(kernels) => return Ok((kernels, Image::Compiled { capability })),
        Err(error) => refusal(error)?,
    };
    if capability.0 == HOPPERS {
        because = match load(HOPPER.0.as_ptr()) {
            Ok(kernels) => return Ok((kernels, Image::Hopper { because })),
            Err(error) => refusal(error)?,
        };
    }
    Ok((load(PTX.as_ptr())?, Image::Ptx { because }))
}

fn function(module: sys::CUmodule, kernel: &str, dtype: Dtype) -> Result<sys::CUfunction, DriverError> {
    let name = CString::new(format!("{kernel}_{}", dtype.name())).expect("a name without NUL");
    // SAFETY: the module is loaded and stays so.
    unsafe { result::module::get_function(module, name) }
}

fn functions(module: sys::CUmodule, shared_bytes: i32) -> Result<Functions, DriverError> {
    let mut kernels = Functions { rows: [[std::ptr::null_mut(); 3]; 2], spread: [std::ptr::null_mut(); 3] };
    for (place, dtype) in kernels.spread.iter_mut().zip(Dtype::ALL) {
        *place = function(module, "spread_rows", dtype)?;
    }
    for (places, kernel) in kernels.rows.iter_mut().zip(Kernel::ALL) {
        for (place, dtype) in places.iter_mut().zip(Dtype::ALL) {
            let function = function(module, kernel.name(), dtype)?;
            *place = function;
            let set = |attribute, value| {
                // SAFETY: the function exists.
                unsafe { result::function::set_function_attribute(function, attribute, value) }
            };
            set(Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)?;
            // A sampling block takes most of this memory anyway. With the same split for weighing, the multiprocessor
            // need not be reconfigured between the kernels.
            if kernel == Kernel::Weigh {
                set(Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, ALL_SHARED)?;
            }
        }
    }
    Ok(kernels)
}
