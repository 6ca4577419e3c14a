//! The level for every CPU: plain arrays, which the compiler vectorises as far as the target allows.

use super::Simd;
use crate::backend::cpu::passes::Words;
use crate::sampling::mass;
use crate::sampling::philox::philox4x32_10;

const N: usize = 8;

pub(in crate::backend::cpu) struct Portable;

/// Reads `N` values of `B` bytes each and widens them.
#[inline(always)]
unsafe fn read<const B: usize>(from: *const u8, widen: impl Fn([u8; B]) -> f32) -> [f32; N] {
    // SAFETY: the caller promises N values of B bytes; byte arrays have no alignment.
    std::array::from_fn(|i| widen(unsafe { from.add(i * B).cast::<[u8; B]>().read() }))
}

/// Reads `W` words that others may write, each once. With `KEEP` it stores what it read at `to`.
#[inline(always)]
unsafe fn fetch<const W: usize, const KEEP: bool>(from: *const u8, to: *mut u8) -> [u64; W] {
    // SAFETY: the caller promises so many aligned words at `from`, and room for them at `to`.
    unsafe {
        let seen = std::array::from_fn(|i| from.cast::<u64>().add(i).read_volatile());
        if KEEP {
            to.cast::<[u64; W]>().write_unaligned(seen);
        }
        seen
    }
}

#[inline(always)]
fn bits(test: impl Fn(usize) -> bool) -> u32 {
    (0..N).fold(0, |bits, i| bits | u32::from(test(i)) << i)
}

// SAFETY (whole impl): nothing here needs an instruction set; loads and stores touch N values at the
// caller's pointer, without alignment.
impl Simd for Portable {
    const LANES: usize = N;
    const SPREADS: bool = false;
    type Float = [f32; N];
    type Mass = [u64; N];
    type Narrow = [u32; N];
    type Keys = [u32; 2];

    #[inline(always)]
    unsafe fn splat(value: f32) -> [f32; N] {
        [value; N]
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> [f32; N] {
        // SAFETY: as promised by the caller.
        unsafe { read(from, f32::from_le_bytes) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> [f32; N] {
        // SAFETY: as promised by the caller.
        unsafe { read(from, |b| half::f16::from_le_bytes(b).to_f32_const()) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> [f32; N] {
        // SAFETY: as promised by the caller.
        unsafe { read(from, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)) }
    }
    #[inline(always)]
    unsafe fn fetch_f32<const KEEP: bool>(from: *const u8, to: *mut u8) -> [f32; N] {
        // SAFETY: as promised by the caller.
        let seen: [u32; N] = bytemuck::cast(unsafe { fetch::<4, KEEP>(from, to) });
        seen.map(|bits| f32::from_bits(u32::from_le(bits)))
    }
    #[inline(always)]
    unsafe fn fetch_f16<const KEEP: bool>(from: *const u8, to: *mut u8) -> [f32; N] {
        // SAFETY: as promised by the caller.
        let seen: [u16; N] = bytemuck::cast(unsafe { fetch::<2, KEEP>(from, to) });
        seen.map(|bits| half::f16::from_bits(u16::from_le(bits)).to_f32_const())
    }
    #[inline(always)]
    unsafe fn fetch_bf16<const KEEP: bool>(from: *const u8, to: *mut u8) -> [f32; N] {
        // SAFETY: as promised by the caller.
        let seen: [u16; N] = bytemuck::cast(unsafe { fetch::<2, KEEP>(from, to) });
        seen.map(|bits| f32::from_bits(u32::from(u16::from_le(bits)) << 16))
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, from: [f32; N]) {
        // SAFETY: as promised by the caller.
        unsafe { to.cast::<[f32; N]>().write_unaligned(from) }
    }
    #[inline(always)]
    unsafe fn ahead(_: *const u8, _: usize, _: usize) {}
    #[inline(always)]
    unsafe fn sub(a: [f32; N], b: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; N], b: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn max(a: [f32; N], b: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn reduce_max(a: [f32; N]) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn either_nan(a: [f32; N], b: [f32; N]) -> u32 {
        bits(|i| a[i].is_nan() || b[i].is_nan())
    }
    #[inline(always)]
    unsafe fn ge(a: [f32; N], b: [f32; N]) -> u32 {
        bits(|i| a[i] >= b[i])
    }
    #[inline(always)]
    unsafe fn gt(a: [f32; N], b: [f32; N]) -> u32 {
        bits(|i| a[i] > b[i])
    }
    #[inline(always)]
    unsafe fn within(a: [f32; N], low: [f32; N], high: [f32; N]) -> u32 {
        bits(|i| a[i] >= low[i] && a[i] < high[i])
    }
    #[inline(always)]
    unsafe fn only(a: [f32; N], lanes: u32) -> [f32; N] {
        std::array::from_fn(|i| if lanes >> i & 1 == 1 { a[i] } else { f32::NEG_INFINITY })
    }
    #[inline(always)]
    unsafe fn pack(to: *mut f32, a: [f32; N], lanes: u32) {
        let mut packed = [0.0; N];
        for (at, i) in (0..N).filter(|i| lanes >> i & 1 == 1).enumerate() {
            packed[at] = a[i];
        }
        // SAFETY: the caller has room for N.
        unsafe { to.cast::<[f32; N]>().write_unaligned(packed) }
    }
    #[inline(always)]
    unsafe fn add_lanes(sum: [f32; N], a: [f32; N], lanes: u32) -> [f32; N] {
        std::array::from_fn(|i| if lanes >> i & 1 == 1 { sum[i] + a[i] } else { sum[i] })
    }
    #[inline(always)]
    unsafe fn power(y: [f32; N]) -> [f32; N] {
        y.map(|y| mass::mass(y) as f32)
    }
    #[inline(always)]
    unsafe fn mass(y: [f32; N]) -> [u64; N] {
        y.map(mass::mass)
    }
    #[inline(always)]
    unsafe fn mass_zero() -> [u64; N] {
        [0; N]
    }
    #[inline(always)]
    unsafe fn mass_add(a: [u64; N], b: [u64; N]) -> [u64; N] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mass_add_ge(sum: [u64; N], a: [u64; N], need: u64) -> [u64; N] {
        std::array::from_fn(|i| if a[i] >= need { sum[i] + a[i] } else { sum[i] })
    }
    #[inline(always)]
    unsafe fn mass_sum(a: [u64; N]) -> u64 {
        a.into_iter().sum()
    }
    #[inline(always)]
    unsafe fn mass_load(from: *const u64) -> [u64; N] {
        // SAFETY: as promised by the caller.
        unsafe { from.cast::<[u64; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn mass_store(to: *mut u64, from: [u64; N]) {
        // SAFETY: as promised by the caller.
        unsafe { to.cast::<[u64; N]>().write_unaligned(from) }
    }
    #[inline(always)]
    unsafe fn mass_add_lanes(sum: [u64; N], a: [u64; N], lanes: u32) -> [u64; N] {
        std::array::from_fn(|i| if lanes >> i & 1 == 1 { sum[i] + a[i] } else { sum[i] })
    }
    #[inline(always)]
    unsafe fn narrow_zero() -> [u32; N] {
        [0; N]
    }
    #[inline(always)]
    unsafe fn narrow_add(a: [u32; N], b: [u32; N]) -> [u32; N] {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn narrow_widen(a: [u32; N]) -> [u64; N] {
        a.map(u64::from)
    }
    #[inline(always)]
    unsafe fn keys(key: [u32; 2]) -> [u32; 2] {
        key
    }
    #[inline(always)]
    unsafe fn philox(first: u32, [a, b, c]: [u32; 3], &key: &[u32; 2]) -> Words {
        let mut words = Words::default();
        for lane in 0..words[0].len() {
            let block = philox4x32_10([first.wrapping_add(lane as u32), a, b, c], key);
            words.iter_mut().zip(block).for_each(|(words, word)| words[lane] = word);
        }
        words
    }
}
