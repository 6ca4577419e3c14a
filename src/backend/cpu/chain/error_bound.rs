//! Bounds how far a tournament in floats may be from the specification's, which is in integers.
//!
//! Here a token's weight is, up to rounding, its mass times one factor for each layer, `f` or `1 + f`. In the
//! specification it is such a product with factors `F`, less what is lost where weights become integers. Three numbers
//! bound the difference:
//!
//! | | of | in a layer |
//! |---|---|---|
//! | `spread` | all tokens but those that are gone: the largest difference of `ln(weight here / product there)` between two of them | `f / (1 - f)` and `F / (1 - F)` are then within it, so that it becomes at most `2 / (1 + f)` times as large |
//! | `lost` | one token: units of what it weighs there | `1 + (1 + f) * lost` |
//! | `gone` | tokens that had together so little beside all others that their factor is not known well: their share, here as there | `(1 + f) * gone`, and `f^2` of those that join |
//!
//! A layer does not change the sum of weights, except for what is lost.

/// No unit of weight in the specification is a larger share of all weights than this.
const UNIT: f64 = 1.0 / (1u64 << 60) as f64;

/// The bounds after some layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorBound {
    spread: f64,
    lost: f64,
    gone: f64,
    tokens: f64,
    /// The relative error between two tokens from summing up and from the few products of a layer.
    rounding: f64,
}

impl ErrorBound {
    /// For at most this many tokens.
    pub(super) fn new(tokens: usize) -> Self {
        let rounding = (tokens as f64 + 4096.0) * 2.0 * f64::EPSILON;
        Self { spread: 0.0, lost: 0.0, gone: 0.0, tokens: tokens as f64, rounding }
    }

    /// After a layer whose factor is `f` here.
    pub(super) fn play(&mut self, f: f64) {
        let spread = self.spread + self.rounding;
        // The error of a factor: it is made of sums with and without the lost and the gone, and is itself rounded down.
        let off = self.tokens * self.lost * UNIT + 2.0 * self.gone + UNIT;
        let (least, most) = (f * (1.0 - spread) - off, (f * (1.0 + 2.0 * spread) + off).min(1.0));
        self.gone *= 1.0 + most;
        // Takes the alternative that leaves the smaller bound.
        if off <= least * most * most {
            self.spread = spread * 2.0 / (1.0 + least) + off / least;
        } else {
            // All other tokens have the same factor.
            (self.spread, self.gone) = (spread, self.gone + most * most);
        }
        self.lost = self.lost * (1.0 + most) + 1.0;
    }

    /// After the last layer: how much the share of the mass that the tokens up to any one have may differ from their
    /// share of the specification's masses.
    pub(super) fn of_a_share(&self) -> f64 {
        let weights = (self.spread + self.rounding) / 4.0 + self.tokens * self.lost * UNIT + 2.0 * self.gone;
        // What differs between a weight and its mass: a logit that is rounded to f32, its distance to the largest,
        // times a scale that was rounded, and a polynomial. With d the distance in nats, that is 2^-24 * (4 d + what
        // the largest logit is below 0) and 2.6e-7. The mean of d is the entropy, at most ln n, less what the largest
        // is below 0.
        let logits = 4.0 * libm::log(self.tokens) * f64::from(f32::EPSILON) / 2.0 + 2.6e-7;
        // Masses are integers, and the largest is 2^40.
        let masses = self.tokens / (1u64 << 40) as f64;
        1.01 * (weights + logits + masses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound that is expected for large vocabularies is small enough to draw from.
    #[test]
    fn doubts_stay_small() {
        for (tokens, most) in [(1 << 10, 3e-6), (128_256, 4e-6), (1 << 20, 1e-5)] {
            let mut error_bound = ErrorBound::new(tokens);
            (0..30).for_each(|_| error_bound.play(0.5));
            assert!(error_bound.of_a_share() < most, "{tokens} {error_bound:?} {}", error_bound.of_a_share());
            // A row with one likely token, whose bit is set in every other layer: the other tokens have next to
            // nothing, or nearly all.
            let mut error_bound = ErrorBound::new(tokens);
            (0..30).for_each(|layer| error_bound.play(if layer % 2 == 0 { 1e-7 } else { 1.0 - 1e-7 }));
            assert!(error_bound.of_a_share() < 1e-3, "{tokens} {error_bound:?} {}", error_bound.of_a_share());
        }
        // No draw is certain if so much precision is lost.
        let mut error_bound = ErrorBound::new(1 << 20);
        (0..64).for_each(|_| error_bound.play(1.0));
        assert!(error_bound.of_a_share() > 0.5, "{error_bound:?}");
    }
}
