//! Safe wrappers of the passes for watermarks, including tournaments.

use super::Passes;
use crate::backend::cpu::passes::{BLOCK, Raise};
use crate::sampling::watermark::greenlist::Greenlist;
use crate::sampling::watermark::race::Race;

// SAFETY (whole impl): Passes exist only for levels that this CPU has, and slices are as long as the passes index them.
impl Passes {
    pub(in crate::backend::cpu) fn raise(self, greens: &Greenlist, values: &mut [f32]) {
        unsafe { (self.0.raise)(greens, values) }
    }

    pub(in crate::backend::cpu) fn raised(self, row: &[u8], by: Raise<'_>, values: &mut [f32], maxima: &mut [f32]) {
        unsafe { (self.0.raised)(row, by, values, maxima) }
    }

    pub(in crate::backend::cpu) fn race_words(self, race: Race, block: usize, out: &mut [u32; BLOCK]) -> u32 {
        unsafe { (self.0.race_words)(race, block, out) }
    }

    pub(in crate::backend::cpu) fn patterns(self, turned: &[u8], begins: &[u32], out: &mut [u16]) {
        unsafe { (self.0.patterns)(turned, begins, out) }
    }

    pub(in crate::backend::cpu) fn merge(self, masses: &[f32], sums: &mut [f64]) {
        unsafe { (self.0.merge)(masses, sums) }
    }

    pub(in crate::backend::cpu) fn weigh_classes(self, masses: &[f32], products: &[f64], sums: &mut [f64]) {
        unsafe { (self.0.weigh_classes)(masses, products, sums) }
    }

    pub(in crate::backend::cpu) fn layer(self, weights: &mut [u64], bits: &[u64], layer: u32, factor: u64) -> [u64; 2] {
        unsafe { (self.0.layer)(weights, bits, layer, factor) }
    }
}
