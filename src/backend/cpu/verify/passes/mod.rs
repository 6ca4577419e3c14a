//! The passes of verification, by block. Each is written once, generic over
//! [`Real`](crate::backend::cpu::simd::real::Real).
//!
//! # Safety
//! As in [`passes`](crate::backend::cpu::passes): every function requires the level's instructions, pointers handed to
//! loads stay inside the row or the padded copy of its tail.

mod check;
mod weigh;

use crate::backend::cpu::level::{Level, levels};
use crate::backend::cpu::passes::{BLOCK, Weigh};
use crate::backend::cpu::simd::Format;
use crate::backend::cpu::simd::portable::Portable;
#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::simd::{avx2::Avx2, avx512::Avx512};
use crate::sampling::logits::Dtype;
use crate::speculative::weights::Residual;
use check::check;
use weigh::{as_masses, beyond, entropy, powers, reals, sum_beyond};

/// The masses of a block as f64.
pub(super) type Reals = [f64; BLOCK];

/// A block, and what is needed to compute masses from it.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) dtype: Dtype,
    pub(super) row: &'a [u8],
    /// The block's place in the row; it begins inside the row.
    pub(super) at: usize,
    pub(super) weigh: Weighing,
}

/// How values become masses.
#[derive(Clone, Copy)]
pub(super) enum Weighing {
    /// Logits. Only those above `above` (−∞: all) with a mass of at least `need` count.
    Logits { weigh: Weigh, above: f32, need: u64 },
    /// Sent probabilities.
    Sent,
}

/// What the check of a sent row found.
pub(super) struct Sent {
    /// Every number is at least 0 (and none a −0) and at most [`MAX_SENT`](crate::speculative::draft::MAX_SENT).
    pub(super) fine: bool,
    /// The sum of the masses, if the row is fine.
    pub(super) total: u64,
}

/// The passes of one level. Exists only for levels that this CPU has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passes(&'static Table);

#[derive(Debug)]
struct Table {
    reals: unsafe fn(&Block<'_>, &mut Reals),
    beyond: unsafe fn(&Reals, &Reals, Residual, &mut [u64; BLOCK]) -> u64,
    sum_beyond: unsafe fn(&Block<'_>, &Block<'_>, Residual) -> u64,
    powers: unsafe fn(&Reals, f64) -> [u64; 2],
    as_masses: unsafe fn(&[u64; BLOCK], &mut Reals),
    entropy: unsafe fn(&Block<'_>) -> u64,
    check: unsafe fn(Dtype, &[u8]) -> Sent,
}

/// Compiles the passes with a level's instructions.
macro_rules! table {
    ($name:ident, $module:ident, $simd:ty $(, $feature:tt)*) => {
        mod $module {
            use super::*;
            table!(@passes $simd, ($($feature)*),
                reals(block: &Block<'_>, out: &mut Reals) -> (),
                beyond(target: &Reals, draft: &Reals, by: Residual, out: &mut [u64; BLOCK]) -> u64,
                sum_beyond(target: &Block<'_>, draft: &Block<'_>, by: Residual) -> u64,
                powers(masses: &Reals, per: f64) -> [u64; 2],
                as_masses(weights: &[u64; BLOCK], out: &mut Reals) -> (),
                entropy(block: &Block<'_>) -> u64,
                check(dtype: Dtype, row: &[u8]) -> Sent,
            );
        }
        static $name: Table = Table {
            reals: $module::reals,
            beyond: $module::beyond,
            sum_beyond: $module::sum_beyond,
            powers: $module::powers,
            as_masses: $module::as_masses,
            entropy: $module::entropy,
            check: $module::check,
        };
    };
    (@passes $simd:ty, $features:tt, $($pass:ident $args:tt -> $output:ty,)*) => {
        $(table!(@pass $simd, $features, $pass $args -> $output);)*
    };
    (@pass $simd:ty, ($($feature:tt)*), $pass:ident($($arg:ident: $type:ty),*) -> $output:ty) => {
        $(#[target_feature(enable = $feature)])*
        pub(super) unsafe fn $pass($($arg: $type),*) -> $output {
            // SAFETY: compiled with the level's instructions; called only through the table of a level that the
            // CPU has.
            unsafe { super::$pass::<$simd>($($arg),*) }
        }
    };
}

levels!(table);

// SAFETY (whole impl): Passes exist only for levels that this CPU has, and blocks begin inside their rows.
impl Passes {
    /// # Panics
    /// If this CPU lacks the level, which makes every pass safe to call.
    pub(super) fn of(level: Level) -> Self {
        assert!(level.is_available(), "level {} was chosen on a CPU without it; this is a bug", level.name());
        Self(match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Amd => &AVX512_AMD,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &AVX2,
            _ => &PORTABLE,
        })
    }

    /// The masses of a block.
    pub(super) fn reals(self, block: &Block<'_>, out: &mut Reals) {
        unsafe { (self.0.reals)(block, out) }
    }

    /// Computes a residual's weights and returns their sum.
    pub(super) fn beyond(self, target: &Reals, draft: &Reals, by: Residual, out: &mut [u64; BLOCK]) -> u64 {
        unsafe { (self.0.beyond)(target, draft, by, out) }
    }

    /// The same sum without the weights, for two blocks of which no token is cut off; `None` if their formats differ.
    pub(super) fn sum_beyond(self, target: &Block<'_>, draft: &Block<'_>, by: Residual) -> Option<u64> {
        (target.dtype == draft.dtype).then(|| unsafe { (self.0.sum_beyond)(target, draft, by) })
    }

    /// The sums of [squared](crate::speculative::weights::squared) and of [cubed](crate::speculative::weights::cubed)
    /// shares.
    pub(super) fn powers(self, masses: &Reals, per: f64) -> [u64; 2] {
        unsafe { (self.0.powers)(masses, per) }
    }

    /// Weights below 2^52 as masses.
    pub(super) fn as_masses(self, weights: &[u64; BLOCK], out: &mut Reals) {
        unsafe { (self.0.as_masses)(weights, out) }
    }

    /// The sum of a block's entropy terms.
    pub(super) fn entropy(self, block: &Block<'_>) -> u64 {
        unsafe { (self.0.entropy)(block) }
    }

    /// Whether a sent row has valid probabilities, and the sum of their masses.
    pub(super) fn check(self, dtype: Dtype, row: &[u8]) -> Sent {
        unsafe { (self.0.check)(dtype, row) }
    }
}

/// Pointer to the values of block `at`, if the row has all of it.
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

/// Pointer to the values of a block: in place, or in `$tail`, which is filled first.
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

use {by_format, values};
