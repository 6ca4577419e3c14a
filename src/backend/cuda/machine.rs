//! What launches run on: a GPU, or in tests what stands for one.

use super::ask::Kernel;
use super::shape::{self, Shape};
use crate::sampling::logits::Dtype;

/// Launches that may be under way at once: one runs while the next is packed and uploaded.
pub const SLOTS: usize = 2;

/// One launch, laid out.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Which kernel.
    pub kernel: Kernel,
    /// Of which number format.
    pub dtype: Dtype,
    /// Rows.
    pub rows: u32,
    /// How they are laid over the machine.
    pub shape: Shape,
    /// Bytes of the inputs.
    pub inputs: usize,
    /// Bytes of the outputs.
    pub outputs: usize,
}

/// A machine that runs the kernels, driven by one thread. Each slot has memory for the inputs and outputs of one launch,
/// and what one slot does overlaps what the other does.
pub trait Machine: Send {
    /// Why it does not answer. Nothing that it answers afterwards is trusted.
    type Error: std::fmt::Display;

    /// In words.
    fn name(&self) -> &str;

    /// What decides how launches are laid out.
    fn facts(&self) -> shape::Device;

    /// Makes it that of the calling thread.
    ///
    /// # Errors
    /// When it does not answer.
    fn enter(&mut self) -> Result<(), Self::Error>;

    /// Where the inputs of a slot's next launch are written; nobody does so while a launch of the slot is under way.
    fn inputs(&mut self, slot: usize) -> &mut [u8];

    /// Begins a launch over the inputs that were written, and does not wait for it.
    ///
    /// # Errors
    /// When it does not answer.
    fn begin(&mut self, slot: usize, launch: &Launch) -> Result<(), Self::Error>;

    /// Waits for the slot's launch, and gives its inputs and outputs.
    ///
    /// # Errors
    /// When it does not answer.
    fn finish(&mut self, slot: usize) -> Result<(&[u8], &[u8]), Self::Error>;
}
