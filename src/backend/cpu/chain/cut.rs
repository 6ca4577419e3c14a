//! Finds where a prefix of candidates ends in an order, without sorting a list by it.
//!
//! Candidates are thrown into bins by a number that never falls along the order. Only the bin in which the prefix
//! reaches the weight it needs is sorted; all others are only added up.

use crate::backend::cpu::keys;

/// Number of bins.
const BINS: usize = 4096;

/// Storage of bins.
#[derive(Debug, Default)]
pub(super) struct Bins {
    weights: Vec<u64>,
    /// Each candidate's bin.
    places: Vec<u16>,
}

/// A candidate's place in an order: a number first, then its key.
pub(super) type Ordered = (u32, u64);

/// Maps distances of at least 0 to bins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ruler {
    per_unit: f32,
}

impl Ruler {
    /// For distances up to about `most`; larger ones share the last bin.
    pub(super) fn new(most: f32) -> Self {
        let per_unit = (BINS - 1) as f32 / most;
        Self { per_unit: if per_unit.is_finite() { per_unit } else { 0.0 } }
    }

    #[inline(always)]
    fn bin(self, distance: f32) -> u16 {
        // The cast saturates. Where the product is NaN, all candidates share one bin.
        ((distance * self.per_unit) as u32).min(BINS as u32 - 1) as u16
    }
}

/// What determines a candidate's place.
#[derive(Clone, Copy)]
pub(super) struct Along<'a, D> {
    pub(super) tokens: &'a [u32],
    pub(super) logits: &'a [f32],
    /// The distance, by which candidates are ordered before their keys. It never falls along the order.
    pub(super) distance: D,
    pub(super) ruler: Ruler,
    /// Whether the distance comes before the key. Otherwise the key alone decides, and the distance follows from it.
    pub(super) by_distance: bool,
}

impl<D: Fn(f32) -> f32> Along<'_, D> {
    /// A candidate's place.
    #[inline(always)]
    pub(super) fn place(&self, at: usize) -> Ordered {
        let logit = self.logits[at];
        let number = if self.by_distance { keys::ascending((self.distance)(logit)) } else { 0 };
        (number, keys::key(self.tokens[at], logit))
    }

    /// The place of the candidate with which the prefix reaches `need`; `None` if it never does.
    pub(super) fn crossing(&self, weight: impl Fn(usize) -> u64, need: u64, bins: &mut Bins) -> Option<Ordered> {
        let mut left = need;
        let bin = bins.throw(self, &weight).iter().position(|&sum| {
            let here = sum >= left && sum > 0;
            left -= if here { 0 } else { sum };
            here
        })?;
        let inside = bins.places.iter().enumerate().filter(|&(_, &place)| place as usize == bin);
        let mut inside: Vec<(Ordered, u64)> = inside.map(|(at, _)| (self.place(at), weight(at))).collect();
        inside.sort_unstable();
        let mut sum = 0;
        let crossing = inside.iter().find(|&&(_, weight)| {
            sum += weight;
            sum >= left
        });
        crossing.map(|&(place, _)| place)
    }
}

impl Bins {
    /// Puts candidates into bins. Returns the weight of each bin.
    fn throw<D: Fn(f32) -> f32>(&mut self, along: &Along<'_, D>, weight: &impl Fn(usize) -> u64) -> &[u64] {
        self.weights.clear();
        self.weights.resize(BINS, 0);
        self.places.clear();
        self.places.extend(along.logits[..along.tokens.len()].iter().map(|&x| along.ruler.bin((along.distance)(x))));
        for (at, &place) in self.places.iter().enumerate() {
            self.weights[place as usize] += weight(at);
        }
        &self.weights
    }
}
