//! Logits in descending order: a radix sort of 32-bit numbers, three passes of 11 bits.

use crate::backend::cpu::keys::{ascending, from_ascending};

const BITS: u32 = 11;
const DIGITS: usize = 1 << BITS;

/// Storage of a sort.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    from: Vec<u32>,
    to: Vec<u32>,
}

impl Sorter {
    /// Puts `logits` in descending order into `sorted`.
    pub(super) fn sort(&mut self, logits: &[f32], sorted: &mut Vec<f32>) {
        self.from.clear();
        self.from.extend(logits.iter().map(|&logit| !ascending(logit)));
        self.to.resize(logits.len(), 0);
        for pass in 0..3 {
            let digit = |number: u32| (number >> (BITS * pass)) as usize % DIGITS;
            let mut places = [0usize; DIGITS];
            self.from.iter().for_each(|&number| places[digit(number)] += 1);
            let mut before = 0;
            places.iter_mut().for_each(|place| before += std::mem::replace(place, before));
            for &number in &self.from {
                let place = &mut places[digit(number)];
                self.to[*place] = number;
                *place += 1;
            }
            std::mem::swap(&mut self.from, &mut self.to);
            self.to.resize(logits.len(), 0);
        }
        sorted.clear();
        sorted.extend(self.from.iter().map(|&number| from_ascending(!number)));
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
