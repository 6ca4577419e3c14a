//! Values of a row that are packed together to be weighed, block by block and without their tokens.

use super::Values;

impl Values {
    /// Room for this many values. There are none in it yet.
    pub(super) fn room(&mut self, values: usize) -> *mut f32 {
        self.tokens.clear();
        self.logits.clear();
        self.logits.reserve(values);
        self.logits.as_mut_ptr()
    }

    /// The first `count` values, and the place for their masses, padded to whole vectors.
    ///
    /// # Safety
    /// They were written, and there is [room](Self::room) for [`PAD`](super::PAD) more.
    pub(super) unsafe fn packed(&mut self, count: usize) -> (&[f32], &mut [u64]) {
        // SAFETY: as promised.
        unsafe { self.logits.set_len(count) };
        self.pad();
        (&self.logits, &mut self.masses)
    }

    /// Turns the end of each block in the list into the sum of the block's masses of at least `need`. Returns the sum
    /// of all.
    #[inline(always)]
    pub(super) fn packed_by_block(&mut self, need: u64, ends: &mut [u64]) -> u64 {
        // First computes the sum up to each value: blocks have few values, and how many cannot be predicted.
        let mut total = 0;
        for mass in &mut self.masses {
            total += if *mass >= need { *mass } else { 0 };
            *mass = total;
        }
        let mut before = 0;
        for end in ends {
            let up_to = if *end == 0 { 0 } else { self.masses[*end as usize - 1] };
            *end = up_to - before;
            before = up_to;
        }
        total
    }
}
