//! Instruction sets: which ones there are, which of them this CPU has, and the passes compiled for each.

mod foreign;
mod instructions;
mod lists;
mod play;

use super::memory;
use super::passes::{
    self, Adapt, BLOCK, Keep, Raise, Range, Sample, Scan, Shape, Skip, Split, Squares, Terms, Values, Weigh,
};
use super::simd::portable::Portable;
use super::simd::{Bf16, F16, F32};
#[cfg(target_arch = "x86_64")]
use super::simd::{avx2::Avx2, avx512::Avx512};
use crate::sampling::logits::Dtype;
use crate::sampling::mask::TokenMask;
use crate::sampling::samplers::top_n_sigma::Moments;
use crate::sampling::watermark::greenlist::Greenlist;
use crate::sampling::watermark::race::Race;
pub(super) use instructions::levels;

/// Whether this CPU has all of these instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! has {
    (, $first:tt $(, $other:tt)*) => {
        is_x86_feature_detected!($first) $(&& is_x86_feature_detected!($other))*
    };
}

/// An instruction set that the passes are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The instructions of [`Level::Avx512`], in the order in which AMD's processors are fastest.
    Avx512Amd,
    /// AVX-512 F, BW, DQ, VL, and what [`Level::Avx2`] has.
    Avx512,
    /// AVX2, FMA, F16C, BMI1, POPCNT.
    Avx2,
    /// Any CPU.
    Portable,
}

impl Level {
    /// Every level, fastest first.
    pub const ALL: [Level; 4] = [Level::Avx512Amd, Level::Avx512, Level::Avx2, Level::Portable];

    /// The fastest level of this CPU.
    #[must_use]
    pub fn detect() -> Self {
        let is_fast = |level: &Level| *level != Level::Avx512Amd || memory::is_of_amd();
        Self::ALL.into_iter().filter(is_fast).find(|level| level.is_available()).unwrap_or(Level::Portable)
    }

    /// Whether this CPU has the instructions. The answer never changes.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Amd => levels!(avx512 has),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => levels!(avx2 has),
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx512 | Level::Avx512Amd | Level::Avx2 => false,
            Level::Portable => true,
        }
    }

    /// Name as used in flags and server info.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Avx512 => "avx512",
            Level::Avx512Amd => "avx512-amd",
            Level::Avx2 => "avx2",
            Level::Portable => "portable",
        }
    }

    /// The passes of this level for rows of `dtype`.
    ///
    /// # Panics
    /// If this CPU does not have the level. That is what makes every pass safe to call.
    pub(super) fn passes(self, dtype: Dtype) -> Passes {
        assert!(self.is_available(), "level {} was chosen on a CPU without it; this is a bug", self.name());
        let tables = match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Amd => &AVX512_AMD,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &AVX2,
            _ => &PORTABLE,
        };
        let table = match dtype {
            Dtype::F32 => &tables[0],
            Dtype::F16 => &tables[1],
            Dtype::Bf16 => &tables[2],
        };
        Passes(table)
    }
}

/// The passes of one level and number format. Exists only for levels that this CPU has.
#[derive(Clone, Copy)]
pub(super) struct Passes(&'static Table);

type SplitPass = unsafe fn(&[u8], &[f32], Weigh, f32, &mut [u64]) -> Split;
type KeptSums = unsafe fn(&[u8], &[f32], Weigh, Keep, &mut [u64]) -> u64;

/// The functions are described in [`passes`].
struct Table {
    scan: unsafe fn(&[u8], &mut [f32]) -> Scan,
    far_scan: unsafe fn(&[u8], &mut [f32]) -> Scan,
    look: unsafe fn(*const u8, usize, &mut [f32]) -> Scan,
    fetch: unsafe fn(*const u8, &mut [u8], &mut [f32]) -> Scan,
    sums: unsafe fn(&[u8], &[f32], Weigh, &mut [u64]) -> u64,
    lot_sums: unsafe fn(&[u8], &[f32], Weigh, &mut [u64]) -> u64,
    total: unsafe fn(&[u8], &[f32], Weigh) -> u64,
    split: SplitPass,
    kept_sums: KeptSums,
    packed_sums: unsafe fn(&[u8], &[f32], Weigh, Keep, &mut Values, &mut [u64]) -> u64,
    range_sums: unsafe fn(&[u8], &[f32], Weigh, Range, &mut [u64]) -> u64,
    shaped_sums: unsafe fn(&[u8], &[f32], Shape, &mut [u64]) -> u64,
    collect: unsafe fn(&[u8], &[f32], f32, &mut Vec<u64>),
    between: unsafe fn(&[u8], &[f32], Range, &mut Values),
    sample: unsafe fn(&[u8], Weigh, f32, &mut Sample),
    preceding: unsafe fn(&[u8], &[f32], Skip, f32) -> u64,
    least: unsafe fn(&[u8], &[f32]) -> f32,
    moments: unsafe fn(&[u8], &[f32], &mut Moments),
    widen: unsafe fn(&[u8], usize, u128, &mut [f32]),
    masked: unsafe fn(&[u8], TokenMask<'_>, &mut [f32]),
    terms: unsafe fn(&[u8], &[f32], Weigh) -> Terms,
    squares: unsafe fn(&[u8], &[f32], Weigh) -> Squares,
    weights: unsafe fn(&[u8], &[f32], Weigh, &mut [f32]) -> u64,
    adapted: unsafe fn(&[f32], Adapt<'_>, &mut [u64]) -> u64,
    count_ge: unsafe fn(&[f32], f32) -> usize,
    sum_ge: unsafe fn(&[f32], &[u64], f32) -> u64,
    sampled_ge: unsafe fn(&Sample, f32) -> f32,
    masses: unsafe fn(&[f32], Weigh, &mut [u64]),
    raise: unsafe fn(&Greenlist, &mut [f32]),
    raised: unsafe fn(&[u8], Raise<'_>, &mut [f32], &mut [f32]),
    race_words: unsafe fn(Race, usize, &mut [u32; BLOCK]) -> u32,
    patterns: unsafe fn(&[u8], &[u32], &mut [u16]),
    merge: unsafe fn(&[f32], &mut [f64]),
    weigh_classes: unsafe fn(&[f32], &[f64], &mut [f64]),
    layer: unsafe fn(&mut [u64], &[u64], u32, u64) -> [u64; 2],
}

/// Compiles each pass with a level's instructions, and makes a table of them for each number format.
macro_rules! tables {
    ($name:ident, $module:ident, $simd:ty $(, $feature:tt)*) => {
        mod $module {
            use super::super::simd::Format;
            use super::*;

            tables!(@passes $simd, ($($feature)*),
                scan(row: &[u8], maxima: &mut [f32]) -> Scan,
                far_scan(row: &[u8], maxima: &mut [f32]) -> Scan,
                look(from: *const u8, count: usize, maxima: &mut [f32]) -> Scan,
                fetch(from: *const u8, to: &mut [u8], maxima: &mut [f32]) -> Scan,
                sums(row: &[u8], maxima: &[f32], weigh: Weigh, sums: &mut [u64]) -> u64,
                lot_sums(row: &[u8], maxima: &[f32], weigh: Weigh, sums: &mut [u64]) -> u64,
                total(row: &[u8], maxima: &[f32], weigh: Weigh) -> u64,
                split(row: &[u8], maxima: &[f32], weigh: Weigh, cut: f32, above: &mut [u64]) -> Split,
                kept_sums(row: &[u8], maxima: &[f32], weigh: Weigh, keep: Keep, sums: &mut [u64]) -> u64,
                packed_sums(
                    row: &[u8],
                    maxima: &[f32],
                    weigh: Weigh,
                    keep: Keep,
                    packed: &mut Values,
                    sums: &mut [u64]
                ) -> u64,
                range_sums(row: &[u8], maxima: &[f32], weigh: Weigh, range: Range, sums: &mut [u64]) -> u64,
                shaped_sums(row: &[u8], maxima: &[f32], shape: Shape, sums: &mut [u64]) -> u64,
                collect(row: &[u8], maxima: &[f32], at_least: f32, keys: &mut Vec<u64>) -> (),
                between(row: &[u8], maxima: &[f32], range: Range, inside: &mut Values) -> (),
                sample(row: &[u8], weigh: Weigh, below: f32, spread: &mut Sample) -> (),
                preceding(row: &[u8], maxima: &[f32], skip: Skip, value: f32) -> u64,
                least(row: &[u8], maxima: &[f32]) -> f32,
                moments(row: &[u8], maxima: &[f32], into: &mut Moments) -> (),
                widen(row: &[u8], block: usize, bits: u128, out: &mut [f32]) -> (),
                masked(row: &[u8], mask: TokenMask<'_>, maxima: &mut [f32]) -> (),
                terms(row: &[u8], maxima: &[f32], weigh: Weigh) -> Terms,
                squares(row: &[u8], maxima: &[f32], weigh: Weigh) -> Squares,
                weights(row: &[u8], maxima: &[f32], weigh: Weigh, out: &mut [f32]) -> u64,
                raised(row: &[u8], by: Raise<'_>, values: &mut [f32], maxima: &mut [f32]) -> (),
            );
            tables!(@plain $simd, ($($feature)*),
                adapted(weights: &[f32], by: Adapt<'_>, sums: &mut [u64]) -> u64,
                count_ge(values: &[f32], bound: f32) -> usize,
                sum_ge(values: &[f32], masses: &[u64], bound: f32) -> u64,
                sampled_ge(spread: &Sample, bound: f32) -> f32,
                masses(values: &[f32], weigh: Weigh, masses: &mut [u64]) -> (),
                raise(greens: &Greenlist, values: &mut [f32]) -> (),
                race_words(race: Race, block: usize, out: &mut [u32; BLOCK]) -> u32,
            );

            tables!(@safe ($($feature)*),
                patterns(turned: &[u8], begins: &[u32], out: &mut [u16]) -> (),
                merge(masses: &[f32], sums: &mut [f64]) -> (),
                weigh_classes(masses: &[f32], products: &[f64], sums: &mut [f64]) -> (),
                layer(weights: &mut [u64], bits: &[u64], layer: u32, factor: u64) -> [u64; 2],
            );

            pub(super) const fn table<F: Format>() -> Table {
                Table {
                    scan: scan::<F>,
                    far_scan: far_scan::<F>,
                    look: look::<F>,
                    fetch: fetch::<F>,
                    sums: sums::<F>,
                    lot_sums: lot_sums::<F>,
                    total: total::<F>,
                    split: split::<F>,
                    kept_sums: kept_sums::<F>,
                    packed_sums: packed_sums::<F>,
                    range_sums: range_sums::<F>,
                    shaped_sums: shaped_sums::<F>,
                    collect: collect::<F>,
                    between: between::<F>,
                    sample: sample::<F>,
                    preceding: preceding::<F>,
                    least: least::<F>,
                    moments: moments::<F>,
                    widen: widen::<F>,
                    masked: masked::<F>,
                    terms: terms::<F>,
                    squares: squares::<F>,
                    weights: weights::<F>,
                    raised: raised::<F>,
                    adapted,
                    count_ge,
                    sum_ge,
                    sampled_ge,
                    masses,
                    raise,
                    race_words,
                    patterns,
                    merge,
                    weigh_classes,
                    layer,
                }
            }
        }

        static $name: [Table; 3] = [$module::table::<F32>(), $module::table::<F16>(), $module::table::<Bf16>()];
    };
    (@passes $simd:ty, $features:tt, $($pass:ident $args:tt -> $output:ty,)*) => {
        $(tables!(@pass $simd, $features, $pass $args -> $output);)*
    };
    (@plain $simd:ty, $features:tt, $($pass:ident $args:tt -> $output:ty,)*) => {
        $(tables!(@without $simd, $features, $pass $args -> $output);)*
    };
    (@without $simd:ty, ($($feature:tt)*), $pass:ident($($arg:ident: $type:ty),*) -> $output:ty) => {
        $(#[target_feature(enable = $feature)])*
        pub(super) unsafe fn $pass($($arg: $type),*) -> $output {
            // SAFETY: compiled with the level's instructions; called only through a table of a level that
            // the CPU has.
            unsafe { passes::$pass::<$simd>($($arg),*) }
        }
    };
    (@safe $features:tt, $($pass:ident $args:tt -> $output:ty,)*) => {
        $(tables!(@loop $features, $pass $args -> $output);)*
    };
    (@loop ($($feature:tt)*), $pass:ident($($arg:ident: $type:ty),*) -> $output:ty) => {
        $(#[target_feature(enable = $feature)])*
        pub(super) unsafe fn $pass($($arg: $type),*) -> $output {
            passes::$pass($($arg),*)
        }
    };
    (@pass $simd:ty, ($($feature:tt)*), $pass:ident($($arg:ident: $type:ty),*) -> $output:ty) => {
        $(#[target_feature(enable = $feature)])*
        pub(super) unsafe fn $pass<F: Format>($($arg: $type),*) -> $output {
            // SAFETY: compiled with the level's instructions; called only through a table of a level that
            // the CPU has.
            unsafe { passes::$pass::<$simd, F>($($arg),*) }
        }
    };
}

levels!(tables);

/// Safe wrappers.
// SAFETY (whole impl): Passes exist only for levels that this CPU has, and slices are as long as the passes index them.
impl Passes {
    pub(super) fn scan(self, row: &[u8], maxima: &mut [f32]) -> Scan {
        unsafe { (self.0.scan)(row, maxima) }
    }

    pub(super) fn far_scan(self, row: &[u8], maxima: &mut [f32]) -> Scan {
        unsafe { (self.0.far_scan)(row, maxima) }
    }

    pub(super) fn sums(self, row: &[u8], maxima: &[f32], weigh: Weigh, sums: &mut [u64]) -> u64 {
        unsafe { (self.0.sums)(row, maxima, weigh, sums) }
    }

    pub(super) fn lot_sums(self, row: &[u8], maxima: &[f32], weigh: Weigh, sums: &mut [u64]) -> u64 {
        unsafe { (self.0.lot_sums)(row, maxima, weigh, sums) }
    }

    pub(super) fn kept_sums(self, row: &[u8], maxima: &[f32], weigh: Weigh, keep: Keep, sums: &mut [u64]) -> u64 {
        unsafe { (self.0.kept_sums)(row, maxima, weigh, keep, sums) }
    }

    pub(super) fn range_sums(self, row: &[u8], maxima: &[f32], weigh: Weigh, range: Range, sums: &mut [u64]) -> u64 {
        unsafe { (self.0.range_sums)(row, maxima, weigh, range, sums) }
    }

    pub(super) fn shaped_sums(self, row: &[u8], maxima: &[f32], shape: Shape, sums: &mut [u64]) -> u64 {
        unsafe { (self.0.shaped_sums)(row, maxima, shape, sums) }
    }

    pub(super) fn collect(self, row: &[u8], maxima: &[f32], at_least: f32, keys: &mut Vec<u64>) {
        unsafe { (self.0.collect)(row, maxima, at_least, keys) }
    }

    pub(super) fn total(self, row: &[u8], maxima: &[f32], weigh: Weigh) -> u64 {
        unsafe { (self.0.total)(row, maxima, weigh) }
    }

    pub(super) fn split(self, row: &[u8], maxima: &[f32], weigh: Weigh, cut: f32, above: &mut [u64]) -> Split {
        unsafe { (self.0.split)(row, maxima, weigh, cut, above) }
    }

    pub(super) fn between(self, row: &[u8], maxima: &[f32], range: Range, inside: &mut Values) {
        unsafe { (self.0.between)(row, maxima, range, inside) }
    }

    pub(super) fn sample(self, row: &[u8], weigh: Weigh, below: f32, spread: &mut Sample) {
        unsafe { (self.0.sample)(row, weigh, below, spread) }
    }

    pub(super) fn preceding(self, row: &[u8], maxima: &[f32], skip: Skip, value: f32) -> u64 {
        unsafe { (self.0.preceding)(row, maxima, skip, value) }
    }

    pub(super) fn least(self, row: &[u8], maxima: &[f32]) -> f32 {
        unsafe { (self.0.least)(row, maxima) }
    }

    pub(super) fn moments(self, row: &[u8], maxima: &[f32], into: &mut Moments) {
        unsafe { (self.0.moments)(row, maxima, into) }
    }

    pub(super) fn widen(self, row: &[u8], block: usize, bits: u128, out: &mut [f32]) {
        unsafe { (self.0.widen)(row, block, bits, out) }
    }

    pub(super) fn masked(self, row: &[u8], mask: TokenMask<'_>, maxima: &mut [f32]) {
        unsafe { (self.0.masked)(row, mask, maxima) }
    }

    pub(super) fn terms(self, row: &[u8], maxima: &[f32], weigh: Weigh) -> Terms {
        unsafe { (self.0.terms)(row, maxima, weigh) }
    }

    pub(super) fn squares(self, row: &[u8], maxima: &[f32], weigh: Weigh) -> Squares {
        unsafe { (self.0.squares)(row, maxima, weigh) }
    }

    pub(super) fn weights(self, row: &[u8], maxima: &[f32], weigh: Weigh, out: &mut [f32]) -> u64 {
        unsafe { (self.0.weights)(row, maxima, weigh, out) }
    }

    pub(super) fn adapted(self, weights: &[f32], by: Adapt<'_>, sums: &mut [u64]) -> u64 {
        unsafe { (self.0.adapted)(weights, by, sums) }
    }
}
