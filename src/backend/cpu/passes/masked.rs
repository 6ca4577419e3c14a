//! Passes over a row after a mask. See the [module](super) for safety.

use super::{BLOCK, Blocks, load};
use crate::backend::cpu::simd::{Format, Simd};
use crate::sampling::mask::{TOKENS, TokenMask};

const _: () = assert!(BLOCK == TOKENS);

/// The mask's bits for one vector of a block.
#[inline(always)]
fn lanes<S: Simd>(bits: u128, vector: usize) -> u32 {
    (bits >> (vector * S::LANES)) as u32 & (u32::MAX >> (32 - S::LANES))
}

/// Block maxima after a mask. `maxima` holds those of the row at first. The bits of tokens beyond the row do not
/// matter, since it is padded with −∞.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn masked<S: Simd, F: Format>(row: &[u8], mask: TokenMask<'_>, maxima: &mut [f32]) {
    // SAFETY: see the module.
    unsafe {
        let rows = Blocks::<F>::new(row);
        for (b, most) in maxima.iter_mut().enumerate().take(rows.count()) {
            let bits = mask.block(b);
            if bits == u128::MAX {
                continue;
            }
            if bits == 0 {
                *most = f32::NEG_INFINITY;
                continue;
            }
            let (at, mut max) = (rows.get(b), S::splat(f32::NEG_INFINITY));
            for v in 0..BLOCK / S::LANES {
                max = S::max(max, S::only(load::<S, F>(at, v), lanes::<S>(bits, v)));
            }
            *most = S::reduce_max(max);
        }
    }
}

/// Widens one block into BLOCK floats, padded with −∞. Values whose bit is 0 become −∞ too.
#[inline(always)]
pub(in crate::backend::cpu) unsafe fn widen<S: Simd, F: Format>(row: &[u8], block: usize, bits: u128, out: &mut [f32]) {
    assert!(out.len() >= BLOCK, "a block needs room; this is a bug");
    // SAFETY: see the module; the stores stay inside `out`, just checked.
    unsafe {
        let rows = Blocks::<F>::new(row);
        assert!(block < rows.count(), "a row has the block; this is a bug");
        let at = rows.get(block);
        for v in 0..BLOCK / S::LANES {
            let values = S::only(load::<S, F>(at, v), lanes::<S>(bits, v));
            S::store(out.as_mut_ptr().add(v * S::LANES), values);
        }
    }
}
