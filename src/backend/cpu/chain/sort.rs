//! Logits in descending order: a radix sort of 32-bit numbers, four passes of 8 bits, whose places stay in the first cache.

use crate::backend::cpu::keys::{ascending, from_ascending};

const BITS: u32 = 8;
const DIGITS: usize = 1 << BITS;
const PASSES: usize = 4;

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
        let mut places = places(&self.from);
        for (pass, places) in places.iter_mut().enumerate() {
            for &number in &self.from {
                let place = &mut places[digit(number, pass)];
                self.to[*place as usize] = number;
                *place += 1;
            }
            std::mem::swap(&mut self.from, &mut self.to);
            self.to.resize(logits.len(), 0);
        }
        sorted.clear();
        sorted.extend(self.from.iter().map(|&number| from_ascending(!number)));
    }
}

#[inline(always)]
fn digit(number: u32, pass: usize) -> usize {
    (number >> (BITS * pass as u32)) as usize % DIGITS
}

/// Where the first number of each digit goes, in each pass.
fn places(numbers: &[u32]) -> [[u32; DIGITS]; PASSES] {
    // Neighbours often share a digit, and a count waits for the one before to come back from memory: so two by turns.
    let mut counts = [[[0u32; DIGITS]; PASSES]; 2];
    for pair in numbers.chunks(2) {
        for (counts, &number) in counts.iter_mut().zip(pair) {
            (0..PASSES).for_each(|pass| counts[pass][digit(number, pass)] += 1);
        }
    }
    let [mut places, others] = counts;
    for (places, others) in places.iter_mut().zip(&others) {
        let mut before = 0;
        for (place, other) in places.iter_mut().zip(others) {
            let count = *place + other;
            *place = before;
            before += count;
        }
    }
    places
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
