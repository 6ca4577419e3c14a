//! The pass that reshapes logits and adds up the masses of the new ones. See the [module](super) for safety.

// Blocks and vectors are counted, since their number is also their place in the row.
#![allow(clippy::needless_range_loop)]

use super::lot::{Exponents, block_mass};
use super::{Blocks, has_mass, load};
use crate::backend::cpu::simd::Format;
use crate::backend::cpu::simd::sums::{GROUP, Sums};
use crate::sampling::samplers::smoothing::Curve;
use std::marker::PhantomData;

/// How a logit becomes an exponent by way of another logit: `((x - max) * per_temperature`, on a curve if there is one,
/// `- top) * scale`. The exponent never falls as the logit rises.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::backend::cpu) struct Shape {
    /// The row's maximum.
    pub(in crate::backend::cpu) max: f32,
    pub(in crate::backend::cpu) per_temperature: f32,
    /// A curve that never falls.
    pub(in crate::backend::cpu) curve: Option<Curve>,
    /// The largest of the new logits.
    pub(in crate::backend::cpu) top: f32,
    pub(in crate::backend::cpu) scale: f32,
}

impl<S: Sums> Clone for Lanes<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Sums> Copy for Lanes<S> {}

impl Shape {
    /// The new logit of a logit.
    pub(in crate::backend::cpu) fn logit(&self, logit: f32) -> f32 {
        let d = (logit - self.max) * self.per_temperature;
        match self.curve {
            Some(Curve { square, cube }) => ((cube * d - square) * (d * d)).max(f32::MIN),
            None => d,
        }
    }

    /// The exponent of a logit.
    pub(in crate::backend::cpu) fn exponent(&self, logit: f32) -> f32 {
        (self.logit(logit) - self.top) * self.scale
    }
}

/// A shape in every lane.
struct Lanes<S: Sums> {
    max: S::Float,
    per_temperature: S::Float,
    square: S::Float,
    cube: S::Float,
    top: S::Float,
    scale: S::Float,
}

/// Exponents of reshaped logits, with a curve or without.
struct Shaped<S: Sums, F, const CURVED: bool>(Lanes<S>, PhantomData<F>);

impl<S: Sums, F, const CURVED: bool> Clone for Shaped<S, F, CURVED> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Sums, F, const CURVED: bool> Copy for Shaped<S, F, CURVED> {}

impl<S: Sums, F: Format, const CURVED: bool> Exponents<S> for Shaped<S, F, CURVED> {
    #[inline(always)]
    unsafe fn of(self, at: *const u8, first: usize) -> [S::Float; GROUP] {
        let by = self.0;
        // SAFETY: see the module; a block has whole groups.
        unsafe {
            let mut y = [by.max; GROUP];
            for i in 0..GROUP {
                let mut d = S::mul(S::sub(load::<S, F>(at, first + i), by.max), by.per_temperature);
                if CURVED {
                    // At −∞ the curve gives NaN, and this maximum is then its second operand.
                    let curved = S::mul(S::sub(S::mul(by.cube, d), by.square), S::mul(d, d));
                    d = S::max(curved, S::splat(f32::MIN));
                }
                y[i] = S::mul(S::sub(d, by.top), by.scale);
            }
            y
        }
    }
}

/// Mass of each block, and their total.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn shaped_sums<S: Sums, F: Format>(
    row: &[u8],
    maxima: &[f32],
    shape: Shape,
    sums: &mut [u64],
) -> u64 {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        let Curve { square, cube } = shape.curve.unwrap_or(Curve { square: 0.0, cube: 0.0 });
        let by = Lanes::<S> {
            max: S::splat(shape.max),
            per_temperature: S::splat(shape.per_temperature),
            square: S::splat(square),
            cube: S::splat(cube),
            top: S::splat(shape.top),
            scale: S::splat(shape.scale),
        };
        let mut total = 0;
        for b in 0..rows.count() {
            let (at, largest) = (rows.get(b), shape.exponent(maxima[b]));
            sums[b] = if !has_mass(largest) {
                0
            } else if shape.curve.is_some() {
                block_mass::<S>(at, largest, Shaped::<S, F, true>(by, PhantomData))
            } else {
                block_mass::<S>(at, largest, Shaped::<S, F, false>(by, PhantomData))
            };
            total += sums[b];
        }
        total
    }
}
