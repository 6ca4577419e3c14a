//! Sums of masses, several vectors at a time. Computing a power is a chain of operations, each of which waits for the
//! one before, and a processor looks only so far ahead for others to do meanwhile.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::real::Real;
use super::{Simd, portable::Portable};
use crate::backend::cpu::passes::NARROW_Y;

/// How many vectors are worked on in parallel. A block consists of whole groups.
pub(in crate::backend::cpu) const GROUP: usize = 4;
/// How many blocks are added up lane by lane before the lanes are: as many as lanes have room for.
pub(in crate::backend::cpu) const BLOCKS_PER_LOT: usize = 8;
/// Eight masses of a block meet in a lane of AVX-512. With exponents up to this each is at most 2^19.5 and a little
/// more, so they are less than 2^23 together.
pub(in crate::backend::cpu) const SURELY_SMALL_Y: f32 = -20.5;

/// Operations that weigh blocks.
///
/// # Safety
/// As [`Simd`].
pub(in crate::backend::cpu) trait Sums: Real {
    /// The sum of the masses of one block.
    type Sum: Copy;
    /// The sum of the masses of a block whose masses are small.
    type Small: Copy;
    /// The sum of up to [`BLOCKS_PER_LOT`] blocks.
    type Lot: Copy;
    /// A block whose largest exponent is at most this is probably small.
    const SMALL_Y: f32;
    /// The unit of [shares](Self::shares): a power of two of mass.
    const UNIT: f32;

    /// `2^y * 2^40` of each lane: its integer part is the [mass](Simd::mass).
    unsafe fn powers(y: [Self::Float; GROUP]) -> [Self::Float; GROUP];
    /// The powers divided by [`UNIT`](Self::UNIT): the form in which large masses are added up.
    unsafe fn shares(y: [Self::Float; GROUP]) -> [Self::Float; GROUP];
    /// The value where `x >= bound`, 0 elsewhere.
    unsafe fn where_ge(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float;
    /// The value where `x > bound`, 0 elsewhere.
    unsafe fn where_gt(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float;
    /// The sum of a block to which nothing has been added.
    unsafe fn sum_zero() -> Self::Sum;
    /// Adds the masses of a group of the block. Their exponents are at most 0.
    unsafe fn sum_add(sum: Self::Sum, shares: [Self::Float; GROUP]) -> Self::Sum;
    /// The mass in a sum to which all groups of the block have been added.
    #[inline(always)]
    unsafe fn sum_total(sum: Self::Sum) -> u64 {
        // SAFETY: passed on.
        unsafe { Self::lot_total(Self::lot_add(Self::lot_zero(), sum)) }
    }
    /// The sum of a small block to which nothing has been added.
    unsafe fn small_zero() -> Self::Small;
    /// Adds the masses of a group of powers. Their exponents are at most [`SMALL_Y`](Self::SMALL_Y).
    unsafe fn small_add(sum: Self::Small, powers: [Self::Float; GROUP]) -> Self::Small;
    /// The larger of two in each lane.
    unsafe fn small_most(a: Self::Small, b: Self::Small) -> Self::Small;
    /// Whether every lane had room for its masses; otherwise the sums are meaningless. Always true for exponents of at
    /// most [`SURELY_SMALL_Y`].
    unsafe fn small_holds(most: Self::Small) -> bool;
    /// Adds the integer parts of powers. Their exponents are at most [`NARROW_Y`].
    unsafe fn narrow_sum(sum: Self::Narrow, powers: [Self::Float; GROUP]) -> Self::Narrow;
    unsafe fn lot_zero() -> Self::Lot;
    unsafe fn lot_add(lot: Self::Lot, sum: Self::Sum) -> Self::Lot;
    unsafe fn lot_add_narrow(lot: Self::Lot, sum: Self::Narrow) -> Self::Lot;
    unsafe fn lot_add_small(lot: Self::Lot, sum: Self::Small) -> Self::Lot;
    unsafe fn lot_total(lot: Self::Lot) -> u64;

    /// The mass of a share, as a float; -1 where the value `x` that it was computed from is −∞.
    unsafe fn weight(share: Self::Float, x: Self::Float) -> Self::Float;

    /// Adds the [entropy terms](crate::sampling::entropy::entropy_term) of exponents that have these shares. They are
    /// at least [`Y_FLOOR`](crate::sampling::mass::Y_FLOOR).
    unsafe fn terms_add(terms: Self::Mass, y: [Self::Float; GROUP], shares: [Self::Float; GROUP]) -> Self::Mass;
}

// SAFETY (whole impl): as Simd of the same level.
impl Sums for Portable {
    type Sum = Self::Mass;
    type Small = Self::Narrow;
    type Lot = Self::Mass;
    const SMALL_Y: f32 = NARROW_Y;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    unsafe fn powers(y: [Self::Float; GROUP]) -> [Self::Float; GROUP] {
        unsafe { y.map(|y| Self::power(y)) }
    }
    #[inline(always)]
    unsafe fn shares(y: [Self::Float; GROUP]) -> [Self::Float; GROUP] {
        unsafe { Self::powers(y) }
    }
    #[inline(always)]
    unsafe fn where_ge(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float {
        std::array::from_fn(|i| if x[i] >= bound[i] { value[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn where_gt(value: Self::Float, x: Self::Float, bound: Self::Float) -> Self::Float {
        std::array::from_fn(|i| if x[i] > bound[i] { value[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn weight(power: Self::Float, x: Self::Float) -> Self::Float {
        std::array::from_fn(|i| if x[i] > f32::NEG_INFINITY { (power[i] as u64) as f32 } else { -1.0 })
    }
    #[inline(always)]
    unsafe fn sum_zero() -> Self::Mass {
        unsafe { Self::mass_zero() }
    }
    #[inline(always)]
    unsafe fn sum_add(mut sum: Self::Mass, powers: [Self::Float; GROUP]) -> Self::Mass {
        for powers in powers {
            sum = unsafe { Self::mass_add(sum, powers.map(|power| power as u64)) };
        }
        sum
    }
    #[inline(always)]
    unsafe fn small_zero() -> Self::Narrow {
        unsafe { Self::narrow_zero() }
    }
    #[inline(always)]
    unsafe fn small_add(sum: Self::Narrow, powers: [Self::Float; GROUP]) -> Self::Narrow {
        unsafe { Self::narrow_sum(sum, powers) }
    }
    #[inline(always)]
    unsafe fn small_most(a: Self::Narrow, _: Self::Narrow) -> Self::Narrow {
        a
    }
    #[inline(always)]
    unsafe fn small_holds(_: Self::Narrow) -> bool {
        true
    }
    #[inline(always)]
    unsafe fn lot_zero() -> Self::Mass {
        unsafe { Self::mass_zero() }
    }
    #[inline(always)]
    unsafe fn lot_add(lot: Self::Mass, sum: Self::Mass) -> Self::Mass {
        unsafe { Self::mass_add(lot, sum) }
    }
    #[inline(always)]
    unsafe fn narrow_sum(mut sum: Self::Narrow, powers: [Self::Float; GROUP]) -> Self::Narrow {
        for powers in powers {
            sum = unsafe { Self::narrow_add(sum, powers.map(|power| power as u32)) };
        }
        sum
    }
    #[inline(always)]
    unsafe fn lot_add_narrow(lot: Self::Mass, sum: Self::Narrow) -> Self::Mass {
        unsafe { Self::mass_add(lot, Self::narrow_widen(sum)) }
    }
    #[inline(always)]
    unsafe fn lot_add_small(lot: Self::Mass, sum: Self::Narrow) -> Self::Mass {
        unsafe { Self::lot_add_narrow(lot, sum) }
    }
    #[inline(always)]
    unsafe fn lot_total(lot: Self::Mass) -> u64 {
        unsafe { Self::mass_sum(lot) }
    }
    #[inline(always)]
    unsafe fn terms_add(mut terms: Self::Mass, y: [Self::Float; GROUP], shares: [Self::Float; GROUP]) -> Self::Mass {
        for (y, shares) in y.into_iter().zip(shares) {
            // SAFETY: the portable level needs nothing.
            unsafe {
                let masses = Self::real(shares.map(|share| share as u64));
                terms = Self::mass_add(terms, Self::count(Self::real_mul(masses, Self::widened(y.map(|y| -y)))));
            }
        }
        terms
    }
}

/// 2^52: from here on f64 are integers.
#[cfg(target_arch = "x86_64")]
const SHIFT: f64 = (1u64 << 52) as f64;
/// What the shift adds to the bits of the terms of a group.
#[cfg(target_arch = "x86_64")]
const EXTRA: i64 = SHIFT.to_bits().wrapping_mul(GROUP as u64).cast_signed();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::level::Level;
    use crate::backend::cpu::passes::{BLOCK, MAX_Y, Weigh};
    use crate::sampling::logits::Dtype;
    use crate::sampling::mass::mass;

    #[test]
    fn portable_groups_are_masses() {
        let y: [[f32; 8]; GROUP] = std::array::from_fn(|i| {
            std::array::from_fn(|j| -1.7 * (i * 8 + j) as f32 - if i == 3 { 40.0 } else { 0.0 })
        });
        // SAFETY: the portable level needs nothing.
        let (sum, expected) = unsafe {
            let sum = Portable::sum_total(Portable::sum_add(Portable::sum_zero(), Portable::shares(y)));
            let expected = y.iter().fold([0; 8], |all, &y| Portable::mass_add(all, Portable::mass(y)));
            (sum, Portable::mass_sum(expected))
        };
        assert_eq!(sum, expected);
    }

    /// With the largest possible exponents in every lane, where a sum in too few bits would not be exact; with
    /// exponents between two integers; and without mass.
    #[test]
    fn sums_of_blocks_are_exact_at_every_level() {
        let mixed = |i: usize| match i % 5 {
            0 => f32::NEG_INFINITY,
            1 => -(i as f32) * 0.37,
            2 => -13.0 - i as f32 * 0.111,
            _ => MAX_Y - (i as f32) * 1e-3,
        };
        let rows: [[f32; BLOCK]; 6] = [
            [MAX_Y; BLOCK],
            [f32::from_bits(MAX_Y.to_bits() - 1); BLOCK],
            [0.0; BLOCK],
            [-1.234_567; BLOCK],
            std::array::from_fn(mixed),
            std::array::from_fn(|i| -40.0 - i as f32),
        ];
        let weigh = Weigh { max: 0.0, scale: 1.0 };
        for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
            for values in &rows {
                let row: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let expected: u64 = values.iter().map(|&y| mass(y)).sum();
                let (passes, mut sums) = (level.passes(Dtype::F32), [0; 1]);
                assert_eq!(passes.sums(&row, &[largest; 16], weigh, &mut sums), expected, "{level:?} {values:?}");
                assert_eq!(sums, [expected], "{level:?}");
                if largest <= 0.0 {
                    assert_eq!(passes.total(&row, &[largest; 16], weigh), expected, "{level:?} {values:?}");
                }
            }
        }
    }

    /// Blocks that look small but are not, after other blocks of their lot.
    #[test]
    fn lots_are_exact_whatever_their_blocks_are() {
        let weigh = Weigh { max: 0.0, scale: 1.0 };
        let largest =
            [-18.0, -19.9, -18.5, -25.0, -18.3, -20.5, -30.0, f32::NEG_INFINITY, -14.0, -13.0, -16.9, 0.0, -3.7];
        for seed in 0..40 {
            // Mostly small blocks, or blocks of all kinds.
            let kinds = if seed % 2 == 0 { 7 } else { largest.len() };
            let value = |i: usize| {
                let block = i / BLOCK;
                let largest = largest[(block * (block + seed) + seed) % kinds];
                largest - if block % 3 == seed % 3 { 0.0 } else { (i * (seed + 1) % 50) as f32 * 0.21 }
            };
            let values: Vec<f32> = (0..37 * BLOCK - 5).map(value).collect();
            let row: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let by = |size: usize| values.chunks(size).map(|values| values.iter().map(|&y| mass(y)).sum::<u64>());
            let (blocks, lots): (Vec<u64>, Vec<u64>) = (by(BLOCK).collect(), by(BLOCKS_PER_LOT * BLOCK).collect());
            let total: u64 = blocks.iter().sum();
            let above = |cut: f32| values.iter().filter(|&&y| y >= cut).map(|&y| mass(y)).sum::<u64>();
            for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
                let (passes, mut maxima) = (level.passes(Dtype::F32), [f32::NEG_INFINITY; 48]);
                passes.scan(&row, &mut maxima);
                let (mut sums, mut lot_sums) = ([0; 37], [0; 5]);
                assert_eq!(passes.total(&row, &maxima, weigh), total, "{level:?} {seed}");
                assert_eq!(passes.sums(&row, &maxima, weigh, &mut sums), total, "{level:?} {seed}");
                assert_eq!(sums[..], blocks, "{level:?} {seed}");
                assert_eq!(passes.lot_sums(&row, &maxima, weigh, &mut lot_sums), total, "{level:?} {seed}");
                assert_eq!(lot_sums[..], lots, "{level:?} {seed}");
                for cut in [-22.0, -18.5, -3.7] {
                    let split = passes.split(&row, &maxima, weigh, cut, &mut sums);
                    assert_eq!((split.total, split.above), (total, above(cut)), "{level:?} {seed} {cut}");
                }
            }
        }
    }
}
