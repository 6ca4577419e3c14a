//! The vector operations that the passes in [`super::passes`] are written in, implemented once per instruction set. A
//! level supplies arithmetic only; every rule stays in the passes.
//!
//! All levels give the same bits: each operation is exact or one correctly rounded IEEE operation per
//! lane, and sums are of integers.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod greens;
pub(super) mod measures;
pub(super) mod portable;
pub(super) mod real;
pub(super) mod sums;

use super::passes::Words;

/// Vector operations of one instruction set.
///
/// # Safety
/// Every method must only be called when the CPU has the level's instructions (see
/// [`Level::is_available`](super::level::Level::is_available)); loads read `LANES` values from their
/// pointer, at any alignment.
pub(super) trait Simd {
    /// Values per vector; divides [`BLOCK`](super::passes::BLOCK).
    const LANES: usize;
    /// Whether memory in huge pages is read faster at several places at once. By measurement it is on an Intel Xeon
    /// with AVX-512 (64 rows, two threads, 0.9 ms instead of 1.0), and is not on an AMD EPYC with AVX2 (1.6 instead of
    /// 1.3).
    const SPREADS: bool;
    /// `LANES` f32.
    type Float: Copy;
    /// `LANES` u64 masses.
    type Mass: Copy;
    /// `LANES` u32 masses, for blocks whose masses are small.
    type Narrow: Copy;
    /// Philox's keys of all rounds.
    type Keys: Copy;

    unsafe fn splat(value: f32) -> Self::Float;
    unsafe fn load_f32(from: *const u8) -> Self::Float;
    unsafe fn load_f16(from: *const u8) -> Self::Float;
    unsafe fn load_bf16(from: *const u8) -> Self::Float;
    unsafe fn store(to: *mut f32, from: Self::Float);
    /// Loads from memory that others may write meanwhile, each value once. `from` is a multiple of the
    /// vector's bytes; with `KEEP` the bytes that were seen are stored at `to`.
    unsafe fn fetch_f32<const KEEP: bool>(from: *const u8, to: *mut u8) -> Self::Float;
    unsafe fn fetch_f16<const KEEP: bool>(from: *const u8, to: *mut u8) -> Self::Float;
    unsafe fn fetch_bf16<const KEEP: bool>(from: *const u8, to: *mut u8) -> Self::Float;
    /// Prefetch hint that `bytes` bytes will be read, `distance` bytes after `from`, which may be any address. Does
    /// nothing where hints do [harm](super::memory).
    unsafe fn ahead(from: *const u8, distance: usize, bytes: usize);

    unsafe fn sub(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    /// Lane maximum of values that are not NaN.
    unsafe fn max(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn reduce_max(a: Self::Float) -> f32;
    /// Bit i: lane i of either is NaN.
    unsafe fn either_nan(a: Self::Float, b: Self::Float) -> u32;
    /// Bit i: `a[i] >= b[i]`.
    unsafe fn ge(a: Self::Float, b: Self::Float) -> u32;
    /// Bit i: `a[i] > b[i]`.
    unsafe fn gt(a: Self::Float, b: Self::Float) -> u32;
    /// Bit i: `low[i] <= a[i] < high[i]`.
    unsafe fn within(a: Self::Float, low: Self::Float, high: Self::Float) -> u32;
    /// Where bit i of `lanes` is set, the values; −∞ elsewhere.
    unsafe fn only(a: Self::Float, lanes: u32) -> Self::Float;
    /// Stores the lanes whose bit is set, one after another. What it writes behind them, up to `LANES` values, is
    /// arbitrary.
    unsafe fn pack(to: *mut f32, a: Self::Float, lanes: u32);
    /// `sum + a` in the lanes whose bit is set, `sum` elsewhere.
    unsafe fn add_lanes(sum: Self::Float, a: Self::Float, lanes: u32) -> Self::Float;

    /// `2^y * 2^40` before it is rounded down to an integer, for guesses.
    unsafe fn power(y: Self::Float) -> Self::Float;

    /// The mass of each lane's exponent, as [`mass`](crate::sampling::mass::mass). Exponents must be <= 0 or −∞.
    unsafe fn mass(y: Self::Float) -> Self::Mass;
    unsafe fn mass_zero() -> Self::Mass;
    unsafe fn mass_add(a: Self::Mass, b: Self::Mass) -> Self::Mass;
    /// `sum + a` where `a >= need`, `sum` elsewhere.
    unsafe fn mass_add_ge(sum: Self::Mass, a: Self::Mass, need: u64) -> Self::Mass;
    unsafe fn mass_sum(a: Self::Mass) -> u64;
    unsafe fn mass_load(from: *const u64) -> Self::Mass;
    unsafe fn mass_store(to: *mut u64, from: Self::Mass);
    /// `sum + a` in the lanes whose bit is set, `sum` elsewhere.
    unsafe fn mass_add_lanes(sum: Self::Mass, a: Self::Mass, lanes: u32) -> Self::Mass;

    unsafe fn narrow_zero() -> Self::Narrow;
    unsafe fn narrow_add(a: Self::Narrow, b: Self::Narrow) -> Self::Narrow;
    /// Wide masses that have the same sum.
    unsafe fn narrow_widen(a: Self::Narrow) -> Self::Mass;

    /// Several Philox blocks in parallel, as [`philox4x32_10`](crate::sampling::philox::philox4x32_10), for the
    /// counters `(first + lane, rest)`.
    unsafe fn philox(first: u32, rest: [u32; 3], keys: &Self::Keys) -> Words;
    /// The key of each round.
    unsafe fn keys(key: [u32; 2]) -> Self::Keys;
}

/// Bytes that a processor gets from memory at once.
#[cfg(target_arch = "x86_64")]
pub(super) const LINE: usize = 64;

/// A number format, as the passes load it.
pub(super) trait Format {
    /// Bytes per value.
    const SIZE: usize;
    /// The bytes of −∞, which pad the last block.
    const NEG_INFINITY: [u8; 4];
    /// Loads `S::LANES` values.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn load<S: Simd>(from: *const u8) -> S::Float;
    /// The same, from memory that others may write.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn fetch<S: Simd, const KEEP: bool>(from: *const u8, to: *mut u8) -> S::Float;
    /// One value.
    ///
    /// # Safety
    /// `from` points to `SIZE` bytes.
    unsafe fn value(from: *const u8) -> f32;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Format for F32 {
    const SIZE: usize = 4;
    const NEG_INFINITY: [u8; 4] = f32::NEG_INFINITY.to_le_bytes();
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::Float {
        // SAFETY: passed on.
        unsafe { S::load_f32(from) }
    }
    #[inline(always)]
    unsafe fn fetch<S: Simd, const KEEP: bool>(from: *const u8, to: *mut u8) -> S::Float {
        // SAFETY: passed on.
        unsafe { S::fetch_f32::<KEEP>(from, to) }
    }
    #[inline(always)]
    unsafe fn value(from: *const u8) -> f32 {
        // SAFETY: as promised by the caller; byte arrays have no alignment.
        f32::from_le_bytes(unsafe { from.cast::<[u8; 4]>().read() })
    }
}

impl Format for F16 {
    const SIZE: usize = 2;
    const NEG_INFINITY: [u8; 4] = [0x00, 0xFC, 0x00, 0xFC];
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::Float {
        // SAFETY: passed on.
        unsafe { S::load_f16(from) }
    }
    #[inline(always)]
    unsafe fn fetch<S: Simd, const KEEP: bool>(from: *const u8, to: *mut u8) -> S::Float {
        // SAFETY: passed on.
        unsafe { S::fetch_f16::<KEEP>(from, to) }
    }
    #[inline(always)]
    unsafe fn value(from: *const u8) -> f32 {
        // SAFETY: as promised by the caller; byte arrays have no alignment.
        half::f16::from_le_bytes(unsafe { from.cast::<[u8; 2]>().read() }).to_f32_const()
    }
}

impl Format for Bf16 {
    const SIZE: usize = 2;
    const NEG_INFINITY: [u8; 4] = [0x80, 0xFF, 0x80, 0xFF];
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S::Float {
        // SAFETY: passed on.
        unsafe { S::load_bf16(from) }
    }
    #[inline(always)]
    unsafe fn fetch<S: Simd, const KEEP: bool>(from: *const u8, to: *mut u8) -> S::Float {
        // SAFETY: passed on.
        unsafe { S::fetch_bf16::<KEEP>(from, to) }
    }
    #[inline(always)]
    unsafe fn value(from: *const u8) -> f32 {
        // SAFETY: as promised by the caller; byte arrays have no alignment.
        half::bf16::from_le_bytes(unsafe { from.cast::<[u8; 2]>().read() }).to_f32()
    }
}
