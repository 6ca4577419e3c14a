//! The check of sent probabilities. See the [module](super) for safety.

use super::{Sent, by_format, full, padded, values};
use crate::backend::cpu::passes::{AHEAD, BLOCK, blocks, spread};
use crate::backend::cpu::simd::real::Real;
use crate::backend::cpu::simd::{Bf16, F16, F32, Format};
use crate::sampling::logits::Dtype;
use crate::speculative::draft::MAX_SENT;

/// A probability up to this has a mass of at most 2^27, so the sum of a block fits a u32.
const NARROW_SENT: f32 = 1.0 / 8192.0;

#[inline(always)]
pub(super) unsafe fn check<S: Real>(dtype: Dtype, row: &[u8]) -> Sent {
    // SAFETY: passed on.
    unsafe { by_format!(dtype, check_of::<S>(row)) }
}

/// Checks a row that was just sent and is read from memory: in the order of [`spread`], with prefetch hints.
#[inline(always)]
unsafe fn check_of<S: Real, F: Format>(row: &[u8]) -> Sent {
    let count = blocks(row.len() / F::SIZE);
    // SAFETY: see the module; a hint may be any address.
    unsafe {
        let mut total = S::mass_zero();
        for i in 0..count {
            let tail;
            let from = values!(tail, F, row, spread(i, count), [0; 4]);
            S::ahead(from, AHEAD, BLOCK * F::SIZE);
            match mass_of::<S, F>(from) {
                Some(mass) => total = S::mass_add(total, mass),
                None => return Sent { fine: false, total: 0 },
            }
        }
        Sent { fine: true, total: S::mass_sum(total) }
    }
}

/// Sums in narrow integers while it finds the largest number of a block, and again in wide ones if that is too large.
/// `None` if a number is no probability.
#[inline(always)]
unsafe fn mass_of<S: Real, F: Format>(from: *const u8) -> Option<S::Mass> {
    // SAFETY: see the module.
    unsafe {
        let (mut most, mut sum) = (S::narrow_zero(), S::narrow_zero());
        for v in (0..BLOCK).step_by(S::LANES) {
            let x = F::load::<S>(from.add(v * F::SIZE));
            most = S::most_bits(most, x);
            sum = S::narrow_add(sum, S::sent_narrow(x));
        }
        if !S::any_above(most, NARROW_SENT.to_bits()) {
            return Some(S::narrow_widen(sum));
        }
        if S::any_above(most, MAX_SENT.to_bits()) {
            return None;
        }
        let mut sum = S::mass_zero();
        for v in (0..BLOCK).step_by(S::LANES) {
            sum = S::mass_add(sum, S::sent(F::load::<S>(from.add(v * F::SIZE))));
        }
        Some(sum)
    }
}
