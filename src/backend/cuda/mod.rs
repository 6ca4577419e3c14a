//! The CUDA backend: the specification on a GPU.
//!
//! Reading order: `kernels/README.md` (what runs there), [`abi`] (what both sides share), [`pack`] (jobs to bytes, bytes
//! to results), [`shape`] (how a batch is laid over the GPU).

pub mod abi;
pub mod pack;
pub mod shape;
