//! Changes how likely EOS is with the length of the text: `length_penalty` (Hugging Face
//! `ExponentialDecayLengthPenalty`).
//!
//! From `start` output tokens on, the logit x of each of the stream's EOS tokens becomes, after all other penalties,
//!
//! ```text
//! x + |x| * (factor ^ (len - start) - 1)
//! ```
//!
//! where `len` is the number of output tokens so far. The factor of |x| is capped at 1e30. A `factor` above 1 ends
//! texts earlier, one below 1 later. As at Hugging Face, a logit of 0 stays 0. With `ignore_eos` the penalty is off,
//! and a banned token stays banned.

use crate::params::steering::LengthPenalty;

/// The largest multiple of a logit, and the largest penalty: above every logit, but small enough that later arithmetic
/// stays finite.
pub(super) const MAX_PENALTY: f64 = 1e30;

/// The multiple of its absolute value that is added to an EOS token's logit when the output has `len` tokens.
pub(super) fn share(params: &LengthPenalty, len: u64) -> f32 {
    let over = len.saturating_sub(params.start.into());
    (power(params.factor, over.try_into().unwrap_or(u32::MAX)) - 1.0).min(MAX_PENALTY) as f32
}

/// A power in f64, multiplied out by squaring, so that it has the same bits everywhere.
pub(super) fn power(base: f32, mut exponent: u32) -> f64 {
    let (mut power, mut square) = (1.0, f64::from(base));
    while exponent > 0 {
        if exponent & 1 == 1 {
            power *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let of = |start, factor, len| share(&LengthPenalty { start, factor }, len);
        assert_eq!((of(2, 1.5, 0), of(2, 1.5, 2), of(2, 1.5, 3), of(2, 1.5, 5)), (0.0, 0.0, 0.5, 2.375));
        assert_eq!((of(0, 0.5, 1), of(0, 0.5, 2), of(0, 1.0, 9)), (-0.5, -0.75, 0.0));
        assert_eq!((of(0, 100.0, 1000), of(0, 0.01, 1000), of(0, 2.0, u64::MAX)), (1e30, -1.0, 1e30));
        // Hugging Face tests/generation/test_logits_process.py: start 5, factor 1.1, a logit of 0.5 after 6 and 9
        // tokens.
        for (len, expected) in [(6u64, 1.1f64), (9, 1.1f64.powi(4))] {
            assert!((f64::from(of(5, 1.1, len)) + 1.0 - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn powers() {
        assert_eq!((power(3.0, 0), power(3.0, 5), power(1.0, u32::MAX), power(-2.0, 3)), (1.0, 243.0, 1.0, -8.0));
        assert_eq!((power(0.5, u32::MAX), power(2.0, u32::MAX)), (0.0, f64::INFINITY));
    }
}
