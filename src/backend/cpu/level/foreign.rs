//! Safe wrappers of the passes over memory that others may write.

use super::Passes;
use crate::backend::cpu::passes::{BLOCK, Scan};
use crate::sampling::logits::Mapped;

impl Passes {
    /// Scans the first blocks of a row: as many as `maxima` has entries, and only whole ones.
    pub(in crate::backend::cpu) fn look(self, row: Mapped<'_>, maxima: &mut [f32]) -> Scan {
        let count = row.len() / (BLOCK * row.dtype().size());
        // SAFETY: Passes exist only for levels that this CPU has; the blocks lie in what is mapped, at a line.
        unsafe { (self.0.look)(row.at(), count, &mut maxima[..count]) }
    }

    /// As `look`, and copies these blocks to `to`.
    pub(in crate::backend::cpu) fn fetch(self, row: Mapped<'_>, to: &mut [u8], maxima: &mut [f32]) -> Scan {
        let block = BLOCK * row.dtype().size();
        let count = row.len() / block;
        // SAFETY: Passes exist only for levels that this CPU has; the blocks lie in what is mapped, at a line, and `to`
        // has room for them.
        unsafe { (self.0.fetch)(row.at(), &mut to[..count * block], &mut maxima[..count]) }
    }
}
