//! Adds up the masses of blocks. See the [module](super) for safety.

use super::{BLOCK, Blocks, NARROW_Y, Weigh, exponents};
use crate::backend::cpu::simd::Format;
use crate::backend::cpu::simd::sums::{BLOCKS_PER_LOT, GROUP, SURELY_SMALL_Y, Sums};
use std::marker::PhantomData;

/// Computes exponents from the values of a block.
pub(super) trait Exponents<S: Sums>: Copy {
    /// The exponents of a group of vectors.
    unsafe fn of(self, at: *const u8, first: usize) -> [S::Float; GROUP];
}

/// The exponents of values as they are.
pub(super) struct Plain<S: Sums, F> {
    max: S::Float,
    scale: S::Float,
    format: PhantomData<F>,
}

impl<S: Sums, F> Clone for Plain<S, F> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Sums, F> Copy for Plain<S, F> {}

impl<S: Sums, F: Format> Plain<S, F> {
    #[inline(always)]
    pub(super) unsafe fn new(weigh: Weigh) -> Self {
        // SAFETY: see the module.
        unsafe { Self { max: S::splat(weigh.max), scale: S::splat(weigh.scale), format: PhantomData } }
    }
}

impl<S: Sums, F: Format> Exponents<S> for Plain<S, F> {
    #[inline(always)]
    unsafe fn of(self, at: *const u8, first: usize) -> [S::Float; GROUP] {
        // SAFETY: passed on.
        unsafe { exponents::<S, F>(at, first, self.max, self.scale) }
    }
}

/// Adds up blocks, at most [`BLOCKS_PER_LOT`] of them at a time. Blocks that are probably small are added up as such;
/// if one was not, the lot has to be added again. Checking each block would cost as much as small sums save.
pub(super) struct Adding<S: Sums> {
    lot: S::Lot,
    /// The largest of the small sums.
    most: S::Small,
    /// Blocks with larger exponents do not count as small.
    small_y: f32,
}

impl<S: Sums> Adding<S> {
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        // SAFETY: passed on.
        unsafe { Self::up_to(S::SMALL_Y) }
    }

    /// Blocks with larger exponents do not count as small.
    #[inline(always)]
    unsafe fn up_to(small_y: f32) -> Self {
        // SAFETY: see the module.
        unsafe { Self { lot: S::lot_zero(), most: S::small_zero(), small_y } }
    }

    /// Adds a block, whose largest exponent is at most 0.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, at: *const u8, largest: f32, by: impl Exponents<S>) {
        debug_assert!(largest <= 0.0, "{largest} is above the maximum");
        // SAFETY: passed on.
        unsafe {
            if largest <= self.small_y {
                let sum = small::<S>(at, by);
                self.lot = S::lot_add_small(self.lot, sum);
                self.most = S::small_most(self.most, sum);
            } else if largest <= NARROW_Y {
                self.lot = S::lot_add_narrow(self.lot, narrow::<S>(at, by));
            } else {
                self.add_sum(large::<S>(at, by));
            }
        }
    }

    /// Adds the sum of a block.
    #[inline(always)]
    pub(super) unsafe fn add_sum(&mut self, sum: S::Sum) {
        // SAFETY: see the module.
        self.lot = unsafe { S::lot_add(self.lot, sum) };
    }

    /// Takes out the mass of what was added, and begins anew. `None` if the same blocks have to be added again.
    #[inline(always)]
    pub(super) unsafe fn take(&mut self) -> Option<u64> {
        // SAFETY: see the module.
        unsafe {
            let holds = S::small_holds(self.most);
            let small_y = if holds { self.small_y } else { lower(self.small_y) };
            let lot = std::mem::replace(self, Self::up_to(small_y)).lot;
            holds.then(|| S::lot_total(lot))
        }
    }
}

/// The mass of a single block, with any largest exponent.
#[inline(always)]
pub(super) unsafe fn block_mass<S: Sums>(at: *const u8, largest: f32, by: impl Exponents<S>) -> u64 {
    // SAFETY: passed on.
    unsafe {
        if largest <= NARROW_Y {
            return S::lot_total(S::lot_add_narrow(S::lot_zero(), narrow::<S>(at, by)));
        }
        if largest <= 0.0 { S::sum_total(large::<S>(at, by)) } else { beyond::<S>(at, by) }
    }
}

/// A lower limit for what counts as small. After a few such steps blocks below the limit are surely small, so a row
/// with many wrong guesses costs little more.
fn lower(small_y: f32) -> f32 {
    (small_y - 0.5).max(SURELY_SMALL_Y)
}

#[inline(always)]
unsafe fn small<S: Sums>(at: *const u8, by: impl Exponents<S>) -> S::Small {
    // SAFETY: see the module; a block has whole groups.
    unsafe {
        let mut sum = S::small_zero();
        for v in (0..BLOCK / S::LANES).step_by(GROUP) {
            sum = S::small_add(sum, S::powers(by.of(at, v)));
        }
        sum
    }
}

#[inline(always)]
unsafe fn narrow<S: Sums>(at: *const u8, by: impl Exponents<S>) -> S::Narrow {
    // SAFETY: see the module; a block has whole groups.
    unsafe {
        let mut sum = S::narrow_zero();
        for v in (0..BLOCK / S::LANES).step_by(GROUP) {
            sum = S::narrow_sum(sum, S::powers(by.of(at, v)));
        }
        sum
    }
}

#[inline(always)]
unsafe fn large<S: Sums>(at: *const u8, by: impl Exponents<S>) -> S::Sum {
    // SAFETY: see the module; a block has whole groups.
    unsafe {
        let mut sum = S::sum_zero();
        for v in (0..BLOCK / S::LANES).step_by(GROUP) {
            sum = S::sum_add(sum, S::shares(by.of(at, v)));
        }
        sum
    }
}

/// Mass of a block that has values above the maximum. There are few such blocks.
#[inline(always)]
unsafe fn beyond<S: Sums>(at: *const u8, by: impl Exponents<S>) -> u64 {
    // SAFETY: see the module; a block has whole groups.
    unsafe {
        let mut sum = S::mass_zero();
        for v in (0..BLOCK / S::LANES).step_by(GROUP) {
            for y in by.of(at, v) {
                sum = S::mass_add(sum, S::mass(y));
            }
        }
        S::mass_sum(sum)
    }
}

impl<F: Format> Blocks<'_, F> {
    /// The blocks of the row in lots.
    #[inline(always)]
    pub(super) fn lots(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<F> {
        let count = self.count();
        (0..count).step_by(BLOCKS_PER_LOT).map(move |first| first..count.min(first + BLOCKS_PER_LOT))
    }
}
