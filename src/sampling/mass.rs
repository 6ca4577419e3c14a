//! The project's number arithmetic: integer masses, thresholds and the draw.
//!
//! A token's weight, its mass, is an integer, so the sum over a row does not depend on the order of addition: any
//! number of threads, blocks or SIMD lanes gives the same total, and so the same token. Every step before the integer
//! is one IEEE f32 operation in a fixed order, with `fma` exactly where written.
//!
//! | step | formula |
//! |---|---|
//! | distance | `y = (x - x_max) * s`, `s = f32(log2(e) / temperature)` |
//! | exponent | `n = round_ties_even(y)`, `f = y - n` (exact), `2^f` by [`EXP2`], Horner with fma |
//! | mass | `floor(2^f * 2^(n + 40))` as u64, 0 below `y = -64` |
//!
//! The polynomial's relative error against 2^y is below 2e-7, about that of rounding y itself; the floor
//! loses less than 2^-40 of the largest mass per token. A row of 2^20 tokens sums to at most 2^60.

/// Fractional bits of a mass: the most likely token has mass `1 << MASS_BITS`.
pub const MASS_BITS: u32 = 40;

/// The mass of the most likely token.
pub const MASS_ONE: u64 = 1 << MASS_BITS;

/// Below this `y` every mass is 0 (2^-64 * 2^40 < 1), so the exponent arithmetic never underflows.
pub const Y_FLOOR: f32 = -64.0;

/// Minimax polynomial of 2^f on [-0.5, 0.5], constant term 1, so that the maximum has mass exactly 2^40.
/// Coefficients of f^0 .. f^5 (linear programme on Chebyshev points, error 9.1e-8 before rounding).
#[allow(clippy::approx_constant)] // 0.693147 is a fitted coefficient; LN_2 would be another number
pub const EXP2: [f32; 6] = [1.0, 0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];

/// 1.5 * 2^23: floats of this size are all integers, so adding it rounds to an integer.
const INTEGERS: f32 = 12_582_912.0;

/// [`MASS_ONE`] as a float.
const SCALE: f32 = MASS_ONE as f32;

/// The factor from logit distance to exponent: `f32(log2(e) / temperature)`, rounded once from f64.
#[must_use]
pub fn scale(temperature: f32) -> f32 {
    scale_of(f64::from(temperature))
}

/// As [`scale`], for a temperature in f64: the product of several.
#[must_use]
pub fn scale_of(temperature: f64) -> f32 {
    (std::f64::consts::LOG2_E / temperature) as f32
}

/// The exponent of a token: `y = (x - x_max) * s`. −∞ for a masked token.
#[must_use]
#[inline]
pub fn exponent(logit: f32, max: f32, scale: f32) -> f32 {
    (logit - max) * scale
}

/// The mass of a token at exponent `y <= 0`.
#[must_use]
#[inline]
pub fn mass(y: f32) -> u64 {
    // NaN, which no checked row can produce, has mass 0 as well.
    let y = if y >= Y_FLOOR { y } else { Y_FLOOR };
    // At this size a float has no fractional bits, so the sum is rounded to the nearest integer, which stands in the
    // last bits.
    let shifted = y + INTEGERS;
    let n = shifted.to_bits().wrapping_sub(INTEGERS.to_bits());
    let f = y - (shifted - INTEGERS);
    let p = EXP2.iter().rev().skip(1).fold(EXP2[5], |p, &c| fma(p, f, c));
    // Both products are exact: p is in [0.7, 1.42] and the scaled exponent stays in [-25, 41].
    let power = f32::from_bits(n.wrapping_add(127) << 23);
    (p * SCALE * power) as i64 as u64
}

/// `a * b + c` with one rounding, for [`mass`] alone. Without an FMA instruction, calling a function for it would cost
/// more than everything else. Then the product is exact in f64, and the sum is rounded to f64 and then to f32. Two
/// roundings give another result only where the first one leaves the sum halfway between two f32. That happens at one
/// of all exponents, and the mass is the same even there.
#[inline]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
        a.mul_add(b, c)
    } else {
        (f64::from(a) * f64::from(b) + f64::from(c)) as f32
    }
}

/// A probability as a 32-bit fixed-point fraction, rounded down.
#[must_use]
pub fn fraction(probability: f32) -> u64 {
    (f64::from(probability) * 4_294_967_296.0) as u64
}

/// The mass a top-p prefix must reach: `ceil(fraction(top_p) * total / 2^32)`.
#[must_use]
pub fn top_p_need(top_p: f32, total: u64) -> u64 {
    let product = u128::from(fraction(top_p)) * u128::from(total);
    ((product + 0xFFFF_FFFF) >> 32) as u64
}

/// The mass that a prefix must reach to have more than its share: the least integer above
/// `fraction(top_p) * total / 2^32`.
#[must_use]
pub fn above_need(top_p: f32, total: u64) -> u64 {
    ((u128::from(fraction(top_p)) * u128::from(total)) >> 32) as u64 + 1
}

/// The least mass that min-p keeps: `ceil(min_p * 2^40)`, the largest mass being 2^40.
#[must_use]
pub fn min_p_need(min_p: f32) -> u64 {
    (f64::from(min_p) * MASS_ONE as f64).ceil() as u64
}

/// The least mass above min-p's threshold: `floor(min_p * 2^40) + 1`, but at most the largest mass, so that the first
/// candidate stays.
#[must_use]
pub fn min_p_above(min_p: f32) -> u64 {
    ((f64::from(min_p) * MASS_ONE as f64).floor() as u64 + 1).min(MASS_ONE)
}

/// The point of the inverse CDF that is drawn: `floor(uniform * total / 2^64)`, which lies in `0 .. total`.
#[must_use]
pub fn draw_point(uniform: u64, total: u64) -> u64 {
    ((u128::from(uniform) * u128::from(total)) >> 64) as u64
}

/// `ln(total / 2^40)`, by the portable logarithm of the `libm` crate: the platforms' own logarithms differ in the last
/// bits.
#[must_use]
pub fn log_total(total: u64) -> f64 {
    libm::log(total as f64 / MASS_ONE as f64)
}

/// Natural logarithm of a token's probability, from its unclamped exponent and the distribution's [`log_total`]:
/// `y ln 2 - ln(total / 2^40)` in f64, then rounded once. It is right even for tokens far below the smallest mass, and
/// −∞ only for a masked token.
#[must_use]
pub fn logprob(y: f32, log_total: f64) -> f32 {
    // Adding 0 makes −0 a +0: the sign of a zero distance depends on the signs of zero logits.
    (f64::from(y) * std::f64::consts::LN_2 - log_total) as f32 + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_has_mass_one() {
        assert_eq!(mass(0.0), MASS_ONE);
        assert_eq!(mass(-0.0), MASS_ONE);
        assert_eq!(mass(-1.0), MASS_ONE / 2);
        assert_eq!(mass(-40.0), 1);
        assert_eq!(mass(-42.0), 0);
        assert_eq!(mass(-64.1), 0);
        assert_eq!(mass(f32::NEG_INFINITY), 0);
        assert_eq!(mass(f32::NAN), 0);
    }

    #[test]
    fn mass_is_close_to_exp2() {
        for i in 0..2_000_000 {
            let y = -(i as f32) * 1.1e-5;
            let exact = f64::from(y).exp2() * MASS_ONE as f64;
            assert!((mass(y) as f64 - exact).abs() <= 2e-7 * exact + 1.0, "y = {y}");
        }
    }

    /// The arithmetic of the table above, with an instruction or a call for each operation.
    fn plain(y: f32) -> u64 {
        let n = y.round_ties_even();
        let p = EXP2.iter().rev().skip(1).fold(EXP2[5], |p, &c| p.mul_add(y - n, c));
        (p * SCALE * f32::from_bits(((n as i32 + 127) as u32) << 23)) as u64
    }

    /// A sample of the 1,115,684,865 exponents down to the floor, and of those above 0 that a sum of masses may meet.
    /// With steps of 1 the test takes a minute or two, and passes too.
    #[test]
    fn masses_are_those_of_fused_operations() {
        let check = |y: f32| assert_eq!(mass(y), plain(y), "y = {y:e}");
        // Here a sum that is rounded twice gives another result.
        check(f32::from_bits(0xB44E_CAFA));
        let all = (0x8000_0000..=Y_FLOOR.to_bits()).chain(0..=4f32.to_bits());
        all.step_by(97).map(f32::from_bits).for_each(check);
        (0..=128).map(|half| -0.5 * half as f32).for_each(check);
    }

    #[test]
    fn top_p_need_is_a_ceiling_and_edges_hold() {
        assert_eq!(top_p_need(0.5, 100), 50);
        assert_eq!(top_p_need(0.5, 101), 51);
        assert_eq!(top_p_need(0.0, 100), 0);
        assert_eq!(top_p_need(1.0, u64::from(u32::MAX) << 28), u64::from(u32::MAX) << 28);
        assert_eq!(top_p_need(f32::MIN_POSITIVE, 100), 0);
        assert_eq!([above_need(0.5, 100), above_need(0.5, 101), above_need(0.0, 100)], [51, 51, 1]);
    }

    #[test]
    fn min_p_need_at_the_edges() {
        assert_eq!(min_p_need(1.0), MASS_ONE);
        assert_eq!(min_p_need(0.5), MASS_ONE / 2);
        assert_eq!(min_p_need(f32::MIN_POSITIVE), 1);
    }

    #[test]
    fn draw_point_stays_below_the_total() {
        assert_eq!(draw_point(u64::MAX, 10), 9);
        assert_eq!(draw_point(0, 10), 0);
        assert_eq!(draw_point(1 << 63, 10), 5);
    }

    /// A row may have 2^60 points, and all bits of a number choose among them.
    #[test]
    fn every_point_can_be_drawn() {
        let total = 1 << 60;
        for point in [0, 1, 2, 12_345, (1 << 59) + 1, total - 2, total - 1] {
            assert_eq!([draw_point(point << 4, total), draw_point(point << 4 | 15, total)], [point; 2]);
        }
    }

    #[test]
    fn logprob_is_true_far_below_the_smallest_mass() {
        let y = -200.0f32;
        assert_eq!(mass(y), 0);
        let expected = f64::from(y) * std::f64::consts::LN_2;
        assert!((f64::from(logprob(y, log_total(MASS_ONE))) - expected).abs() < 1e-4);
        assert_eq!(logprob(f32::NEG_INFINITY, 0.0), f32::NEG_INFINITY);
        assert_eq!(logprob(-0.0, 0.0).to_bits(), 0);
    }
}
