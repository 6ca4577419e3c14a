//! Values of a row that are put together to be weighed, block by block and without their tokens.

use super::Values;

impl Values {
    /// Room for so many values, of which there are none yet.
    pub(super) fn room(&mut self, values: usize) -> *mut f32 {
        self.tokens.clear();
        self.logits.clear();
        self.logits.reserve(values);
        self.logits.as_mut_ptr()
    }

    /// The first `count` values and where their masses go, padded to whole vectors.
    ///
    /// # Safety
    /// They were written, and there is [room](Self::room) for [`PAD`](super::PAD) more.
    pub(super) unsafe fn packed(&mut self, count: usize) -> (&[f32], &mut [u64]) {
        // SAFETY: as promised.
        unsafe { self.logits.set_len(count) };
        self.pad();
        (&self.logits, &mut self.masses)
    }

    /// Turns the place where each block ends into the sum of its masses of at least `need`. Returns the sum of all.
    #[inline(always)]
    pub(super) fn packed_by_block(&mut self, need: u64, ends: &mut [u64]) -> u64 {
        // First the sum up to each value: blocks have few of them, and how many cannot be predicted.
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
