//! Safe calls of the passes of tournaments.

use super::Passes;

impl Passes {
    pub(in crate::backend::cpu) fn patterns(self, turned: &[u8], begins: &[u32], out: &mut [u16]) {
        // SAFETY: Passes exist only for levels that the CPU has (so below).
        unsafe { (self.0.patterns)(turned, begins, out) }
    }

    pub(in crate::backend::cpu) fn merge(self, masses: &[f32], sums: &mut [f64]) {
        // SAFETY: as above.
        unsafe { (self.0.merge)(masses, sums) }
    }

    pub(in crate::backend::cpu) fn weigh_classes(self, masses: &[f32], products: &[f64], sums: &mut [f64]) {
        // SAFETY: as above.
        unsafe { (self.0.weigh_classes)(masses, products, sums) }
    }

    pub(in crate::backend::cpu) fn layer(self, weights: &mut [u64], bits: &[u64], layer: u32, factor: u64) -> [u64; 2] {
        // SAFETY: as above.
        unsafe { (self.0.layer)(weights, bits, layer, factor) }
    }
}
