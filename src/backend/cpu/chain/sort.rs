//! Logits in descending order.

use crate::backend::cpu::keys::{ascending, from_ascending};
use crate::sampling::sort::by_digits;

/// Storage of a sort.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    numbers: Vec<u32>,
    spare: Vec<u32>,
}

impl Sorter {
    /// Puts `logits` in descending order into `sorted`.
    pub(super) fn sort(&mut self, logits: &[f32], sorted: &mut Vec<f32>) {
        self.numbers.clear();
        self.numbers.extend(logits.iter().map(|&logit| !ascending(logit)));
        by_digits(&mut self.numbers, &mut self.spare, |&number| number);
        sorted.clear();
        sorted.extend(self.numbers.iter().map(|&number| from_ascending(!number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_descend() {
        let mut logits: Vec<f32> = (0..5000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9))).collect();
        logits.retain(|x| x.is_finite());
        logits.extend([0.0, -0.0, f32::MAX, f32::MIN, 1e-45]);
        let mut sorted = vec![];
        Sorter::default().sort(&logits, &mut sorted);
        logits.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(sorted, logits);
    }
}
