//! The passes of verification, by block, each written once over [`Real`].
//!
//! # Safety
//! As in [`super::super::passes`]: every function requires the level's instructions, pointers handed to loads stay
//! inside the row or the padded copy of its tail.

use crate::backend::cpu::level::Level;
use crate::backend::cpu::passes::{BLOCK, Weigh};
use crate::backend::cpu::simd::portable::Portable;
use crate::backend::cpu::simd::real::Real;
use crate::backend::cpu::simd::{Bf16, F16, F32, Format};
#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::simd::{avx2::Avx2, avx512::Avx512};
use crate::sampling::logits::Dtype;
use crate::sampling::mass::Y_FLOOR;
use crate::speculative::draft::MOST_SENT;
use crate::speculative::weights::Residual;

/// The masses of a block as f64.
pub(super) type Reals = [f64; BLOCK];
/// A probability that is at most this has a mass of at most 2^27, of which a block fits a u32.
const NARROW_SENT: f32 = 1.0 / 8192.0;

/// A block and what makes masses of it.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) dtype: Dtype,
    pub(super) row: &'a [u8],
    /// Its place in the row; it begins inside.
    pub(super) at: usize,
    pub(super) weigh: Weighing,
}

/// How values become masses.
#[derive(Clone, Copy)]
pub(super) enum Weighing {
    /// Logits: those above `above` (all for −∞) whose mass is at least `need`.
    Logits { weigh: Weigh, above: f32, need: u64 },
    /// Sent probabilities.
    Sent,
}

/// What the check of a sent row found.
pub(super) struct Sent {
    /// Every number is at least 0 (and none a −0) and at most [`MOST_SENT`].
    pub(super) fine: bool,
    /// The sum of the masses, if so.
    pub(super) total: u64,
}

/// The passes of one level. Exists only for levels that this CPU has.
#[derive(Clone, Copy)]
pub(super) struct Passes(&'static Table);

struct Table {
    reals: unsafe fn(&Block<'_>, &mut Reals),
    beyond: unsafe fn(&Reals, &Reals, Residual, &mut [u64; BLOCK]) -> u64,
    as_masses: unsafe fn(&[u64; BLOCK], &mut Reals),
    entropy: unsafe fn(&Block<'_>) -> u64,
    check: unsafe fn(Dtype, &[u8]) -> Sent,
}

/// Compiles the passes with a level's instructions.
macro_rules! table {
    ($name:ident, $module:ident, $simd:ty $(, $features:literal)?) => {
        mod $module {
            use super::*;
            table!(@passes $simd, ($($features)?),
                reals(block: &Block<'_>, out: &mut Reals) -> (),
                beyond(target: &Reals, draft: &Reals, by: Residual, out: &mut [u64; BLOCK]) -> u64,
                as_masses(weights: &[u64; BLOCK], out: &mut Reals) -> (),
                entropy(block: &Block<'_>) -> u64,
                check(dtype: Dtype, row: &[u8]) -> Sent,
            );
        }
        static $name: Table = Table {
            reals: $module::reals,
            beyond: $module::beyond,
            as_masses: $module::as_masses,
            entropy: $module::entropy,
            check: $module::check,
        };
    };
    (@passes $simd:ty, $features:tt, $($pass:ident $args:tt -> $output:ty,)*) => {
        $(table!(@pass $simd, $features, $pass $args -> $output);)*
    };
    (@pass $simd:ty, ($($features:literal)?), $pass:ident($($arg:ident: $type:ty),*) -> $output:ty) => {
        $(#[target_feature(enable = $features)])?
        pub(super) unsafe fn $pass($($arg: $type),*) -> $output {
            // SAFETY: compiled with the level's instructions; called only through the table of a level that the
            // CPU has.
            unsafe { super::$pass::<$simd>($($arg),*) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
table!(AVX512, avx512, Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
table!(AVX2, avx2, Avx2, "avx2,fma,f16c");
table!(PORTABLE, portable, Portable);

impl Passes {
    /// # Panics
    /// If this CPU lacks the level, which makes every pass safe to call.
    pub(super) fn of(level: Level) -> Self {
        assert!(level.is_available(), "level {} was chosen on a CPU without it; this is a bug", level.name());
        Self(match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &AVX2,
            _ => &PORTABLE,
        })
    }

    /// The masses of a block.
    pub(super) fn reals(self, block: &Block<'_>, out: &mut Reals) {
        // SAFETY: Passes exist only for levels that the CPU has (so below).
        unsafe { (self.0.reals)(block, out) }
    }

    /// A residual's weights, and their sum.
    pub(super) fn beyond(self, target: &Reals, draft: &Reals, by: Residual, out: &mut [u64; BLOCK]) -> u64 {
        // SAFETY: as above.
        unsafe { (self.0.beyond)(target, draft, by, out) }
    }

    /// Weights below 2^52 as masses.
    pub(super) fn as_masses(self, weights: &[u64; BLOCK], out: &mut Reals) {
        // SAFETY: as above.
        unsafe { (self.0.as_masses)(weights, out) }
    }

    /// The sum of a block's entropy terms.
    pub(super) fn entropy(self, block: &Block<'_>) -> u64 {
        // SAFETY: as above.
        unsafe { (self.0.entropy)(block) }
    }

    /// Whether a sent row is one, and what it sums to.
    pub(super) fn check(self, dtype: Dtype, row: &[u8]) -> Sent {
        // SAFETY: as above.
        unsafe { (self.0.check)(dtype, row) }
    }
}

/// The values of block `at` if it is full.
#[inline(always)]
fn full<F: Format>(row: &[u8], at: usize) -> Option<*const u8> {
    let size = BLOCK * F::SIZE;
    row.get(at * size..(at + 1) * size).map(<[u8]>::as_ptr)
}

/// A copy of the last block, padded with `pad`.
#[cold]
fn padded<F: Format>(row: &[u8], at: usize, pad: [u8; 4]) -> [u8; BLOCK * 4] {
    let mut tail = std::array::from_fn(|at| pad[at % 4]);
    let rest = &row[at * BLOCK * F::SIZE..];
    tail[..rest.len()].copy_from_slice(rest);
    tail
}

/// Pointer to the values of a block, in place or in `$tail`, which is then made.
macro_rules! values {
    ($tail:ident, $format:ty, $row:expr, $at:expr, $pad:expr) => {
        match full::<$format>($row, $at) {
            Some(values) => values,
            None => {
                $tail = padded::<$format>($row, $at, $pad);
                $tail.as_ptr()
            }
        }
    };
}

/// Calls a pass with the format of a dtype.
macro_rules! by_format {
    ($dtype:expr, $pass:ident::<$simd:ty>($($arg:expr),*)) => {
        match $dtype {
            Dtype::F32 => $pass::<$simd, F32>($($arg),*),
            Dtype::F16 => $pass::<$simd, F16>($($arg),*),
            Dtype::Bf16 => $pass::<$simd, Bf16>($($arg),*),
        }
    };
}

#[inline(always)]
unsafe fn reals<S: Real>(block: &Block<'_>, out: &mut Reals) {
    // SAFETY: passed on.
    unsafe { by_format!(block.dtype, reals_of::<S>(block, out)) }
}

#[inline(always)]
unsafe fn reals_of<S: Real, F: Format>(block: &Block<'_>, out: &mut Reals) {
    let tail;
    // SAFETY: see the module; a block has BLOCK values, and so has `out`.
    unsafe {
        match block.weigh {
            Weighing::Logits { weigh, above, need } => {
                let at = values!(tail, F, block.row, block.at, F::NEG_INFINITY);
                let (max, scale, bound) = (S::splat(weigh.max), S::splat(weigh.scale), S::splat(above));
                for v in (0..BLOCK).step_by(S::LANES) {
                    let x = F::load::<S>(at.add(v * F::SIZE));
                    let y = S::only(S::mul(S::sub(x, max), scale), S::gt(x, bound));
                    let mass = S::mass(y);
                    let mass = if need > 0 { S::mass_add_ge(S::mass_zero(), mass, need) } else { mass };
                    S::real_store(out.as_mut_ptr().add(v), S::real(mass));
                }
            }
            Weighing::Sent => {
                let at = values!(tail, F, block.row, block.at, [0; 4]);
                for v in (0..BLOCK).step_by(S::LANES) {
                    let mass = S::sent(F::load::<S>(at.add(v * F::SIZE)));
                    S::real_store(out.as_mut_ptr().add(v), S::real(mass));
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn beyond<S: Real>(target: &Reals, draft: &Reals, by: Residual, out: &mut [u64; BLOCK]) -> u64 {
    // SAFETY: see the module; all have BLOCK values.
    unsafe {
        let (a, b) = (S::real_splat(by.target), S::real_splat(by.draft));
        let mut sum = S::mass_zero();
        for v in (0..BLOCK).step_by(S::LANES) {
            let target = S::real_mul(S::real_load(target.as_ptr().add(v)), a);
            let draft = S::real_mul(S::real_load(draft.as_ptr().add(v)), b);
            let weight = S::count(S::real_beyond(target, draft));
            S::mass_store(out.as_mut_ptr().add(v), weight);
            sum = S::mass_add(sum, weight);
        }
        S::mass_sum(sum)
    }
}

#[inline(always)]
unsafe fn as_masses<S: Real>(weights: &[u64; BLOCK], out: &mut Reals) {
    // SAFETY: see the module; both have BLOCK values.
    unsafe {
        for v in (0..BLOCK).step_by(S::LANES) {
            S::real_store(out.as_mut_ptr().add(v), S::real(S::mass_load(weights.as_ptr().add(v))));
        }
    }
}

#[inline(always)]
unsafe fn entropy<S: Real>(block: &Block<'_>) -> u64 {
    // SAFETY: passed on.
    unsafe { by_format!(block.dtype, entropy_of::<S>(block)) }
}

#[inline(always)]
unsafe fn entropy_of<S: Real, F: Format>(block: &Block<'_>) -> u64 {
    let Weighing::Logits { weigh, above, need } = block.weigh else {
        unreachable!("the entropy of a target; this is a bug")
    };
    let tail;
    // SAFETY: see the module.
    unsafe {
        let at = values!(tail, F, block.row, block.at, F::NEG_INFINITY);
        let (max, scale, bound) = (S::splat(weigh.max), S::splat(weigh.scale), S::splat(above));
        let (floor, zero) = (S::splat(Y_FLOOR), S::splat(0.0));
        let mut sum = S::mass_zero();
        for v in (0..BLOCK).step_by(S::LANES) {
            let x = F::load::<S>(at.add(v * F::SIZE));
            let y = S::only(S::mul(S::sub(x, max), scale), S::gt(x, bound));
            let mass = S::mass(y);
            let mass = if need > 0 { S::mass_add_ge(S::mass_zero(), mass, need) } else { mass };
            let distance = S::widened(S::sub(zero, S::max(y, floor)));
            sum = S::mass_add(sum, S::count(S::real_mul(S::real(mass), distance)));
        }
        S::mass_sum(sum)
    }
}

#[inline(always)]
unsafe fn check<S: Real>(dtype: Dtype, row: &[u8]) -> Sent {
    // SAFETY: passed on.
    unsafe { by_format!(dtype, check_of::<S>(row)) }
}

/// Sums narrowly while it looks at the sizes of a block's numbers, and again widely where one is too large for that.
#[inline(always)]
unsafe fn check_of<S: Real, F: Format>(row: &[u8]) -> Sent {
    let mut total = 0;
    for at in 0..row.len().div_ceil(BLOCK * F::SIZE) {
        let tail;
        // SAFETY: see the module.
        unsafe {
            let from = values!(tail, F, row, at, [0; 4]);
            let (mut most, mut sum) = (S::narrow_zero(), S::narrow_zero());
            for v in (0..BLOCK).step_by(S::LANES) {
                let x = F::load::<S>(from.add(v * F::SIZE));
                most = S::most_bits(most, x);
                sum = S::narrow_add(sum, S::sent_narrow(x));
            }
            total += if !S::any_above(most, NARROW_SENT.to_bits()) {
                S::mass_sum(S::narrow_widen(sum))
            } else if !S::any_above(most, MOST_SENT.to_bits()) {
                let mut sum = S::mass_zero();
                for v in (0..BLOCK).step_by(S::LANES) {
                    sum = S::mass_add(sum, S::sent(F::load::<S>(from.add(v * F::SIZE))));
                }
                S::mass_sum(sum)
            } else {
                return Sent { fine: false, total: 0 };
            };
        }
    }
    Sent { fine: true, total }
}
