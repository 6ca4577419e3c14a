//! Safe wrappers of the passes over lists of values.

use super::Passes;
use crate::backend::cpu::passes::{Keep, Sample, Values, Weigh};

// SAFETY (whole impl): Passes exist only for levels that this CPU has, and slices are as long as the passes index them.
impl Passes {
    pub(in crate::backend::cpu) fn packed_sums(
        self,
        row: &[u8],
        maxima: &[f32],
        weigh: Weigh,
        keep: Keep,
        packed: &mut Values,
        sums: &mut [u64],
    ) -> u64 {
        unsafe { (self.0.packed_sums)(row, maxima, weigh, keep, packed, sums) }
    }

    pub(in crate::backend::cpu) fn count_ge(self, values: &[f32], bound: f32) -> usize {
        unsafe { (self.0.count_ge)(values, bound) }
    }

    pub(in crate::backend::cpu) fn sum_ge(self, values: &[f32], masses: &[u64], bound: f32) -> u64 {
        unsafe { (self.0.sum_ge)(values, masses, bound) }
    }

    pub(in crate::backend::cpu) fn sampled_ge(self, spread: &Sample, bound: f32) -> f32 {
        unsafe { (self.0.sampled_ge)(spread, bound) }
    }

    pub(in crate::backend::cpu) fn masses(self, values: &[f32], weigh: Weigh, masses: &mut [u64]) {
        unsafe { (self.0.masses)(values, weigh, masses) }
    }
}
