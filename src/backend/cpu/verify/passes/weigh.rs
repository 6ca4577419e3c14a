//! Passes that weigh blocks. See the [module](super) for safety.

use super::{Block, Reals, Weighing, by_format, full, padded, values};
use crate::backend::cpu::passes::{AHEAD, BLOCK, Weigh};
use crate::backend::cpu::simd::real::Real;
use crate::backend::cpu::simd::{Bf16, F16, F32, Format};
use crate::sampling::logits::Dtype;
use crate::sampling::mass::Y_FLOOR;
use crate::speculative::weights::{ONE, Residual};

#[inline(always)]
pub(super) unsafe fn reals<S: Real>(block: &Block<'_>, out: &mut Reals) {
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
                S::ahead(at, AHEAD, BLOCK * F::SIZE);
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
                S::ahead(at, AHEAD, BLOCK * F::SIZE);
                for v in (0..BLOCK).step_by(S::LANES) {
                    let mass = S::sent(F::load::<S>(at.add(v * F::SIZE)));
                    S::real_store(out.as_mut_ptr().add(v), S::real(mass));
                }
            }
        }
    }
}

#[inline(always)]
pub(super) unsafe fn beyond<S: Real>(target: &Reals, draft: &Reals, by: Residual, out: &mut [u64; BLOCK]) -> u64 {
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

/// As `beyond` with the masses of two blocks of one format, of which no token is cut off; but stores no weights.
#[inline(always)]
pub(super) unsafe fn sum_beyond<S: Real>(target: &Block<'_>, draft: &Block<'_>, by: Residual) -> u64 {
    // SAFETY: passed on.
    unsafe { by_format!(target.dtype, sum_beyond_of::<S>(target, draft, by)) }
}

#[inline(always)]
unsafe fn sum_beyond_of<S: Real, F: Format>(target: &Block<'_>, draft: &Block<'_>, by: Residual) -> u64 {
    let Weighing::Logits { weigh: of_target, .. } = target.weigh else {
        unreachable!("a target has logits; this is a bug")
    };
    let (target_tail, draft_tail);
    // SAFETY: see the module; a hint may be any address.
    unsafe {
        let target = values!(target_tail, F, target.row, target.at, F::NEG_INFINITY);
        S::ahead(target, AHEAD, BLOCK * F::SIZE);
        match draft.weigh {
            Weighing::Logits { weigh, .. } => {
                let draft = values!(draft_tail, F, draft.row, draft.at, F::NEG_INFINITY);
                sum_beyond_by::<S, F, false>(target, draft, [of_target, weigh], by)
            }
            Weighing::Sent => {
                let draft = values!(draft_tail, F, draft.row, draft.at, [0; 4]);
                sum_beyond_by::<S, F, true>(target, draft, [of_target; 2], by)
            }
        }
    }
}

/// For a draft block of sent probabilities (`SENT`) or of logits. Without closures, which would be calls for each
/// vector.
#[inline(always)]
unsafe fn sum_beyond_by<S: Real, F: Format, const SENT: bool>(
    target: *const u8,
    draft: *const u8,
    [of_target, of_draft]: [Weigh; 2],
    by: Residual,
) -> u64 {
    // SAFETY: see the module; a hint may be any address.
    unsafe {
        S::ahead(draft, AHEAD, BLOCK * F::SIZE);
        let (a, b) = (S::real_splat(by.target), S::real_splat(by.draft));
        let (max, scale) = (S::splat(of_target.max), S::splat(of_target.scale));
        let (draft_max, draft_scale) = (S::splat(of_draft.max), S::splat(of_draft.scale));
        let mut sum = S::mass_zero();
        for v in (0..BLOCK).step_by(S::LANES) {
            let t = S::mass(S::mul(S::sub(F::load::<S>(target.add(v * F::SIZE)), max), scale));
            let d = F::load::<S>(draft.add(v * F::SIZE));
            let d = if SENT { S::sent(d) } else { S::mass(S::mul(S::sub(d, draft_max), draft_scale)) };
            let beyond = S::real_beyond(S::real_mul(S::real(t), a), S::real_mul(S::real(d), b));
            sum = S::mass_add(sum, S::count(beyond));
        }
        S::mass_sum(sum)
    }
}

#[inline(always)]
pub(super) unsafe fn powers<S: Real>(masses: &Reals, per: f64) -> [u64; 2] {
    // SAFETY: see the module; there are BLOCK masses.
    unsafe {
        let (per, one) = (S::real_splat(per), S::real_splat(ONE));
        let (mut squares, mut cubes) = (S::mass_zero(), S::mass_zero());
        for v in (0..BLOCK).step_by(S::LANES) {
            let share = S::real_mul(S::real_load(masses.as_ptr().add(v)), per);
            let square = S::real_mul(share, share);
            squares = S::mass_add(squares, S::count(S::real_mul(square, one)));
            cubes = S::mass_add(cubes, S::count(S::real_mul(S::real_mul(square, share), one)));
        }
        [S::mass_sum(squares), S::mass_sum(cubes)]
    }
}

#[inline(always)]
pub(super) unsafe fn as_masses<S: Real>(weights: &[u64; BLOCK], out: &mut Reals) {
    // SAFETY: see the module; both have BLOCK values.
    unsafe {
        for v in (0..BLOCK).step_by(S::LANES) {
            S::real_store(out.as_mut_ptr().add(v), S::real(S::mass_load(weights.as_ptr().add(v))));
        }
    }
}

#[inline(always)]
pub(super) unsafe fn entropy<S: Real>(block: &Block<'_>) -> u64 {
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
