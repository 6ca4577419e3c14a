//! Quadratic and cubic smoothing (kalomaze; text-generation-webui `QuadraticSamplingLogitsWarper`, Aphrodite
//! `ops/quadratic.py`).
//!
//! With `d` the distance to the largest logit at the temperature so far, `k = (3 - curve) / 2` and
//! `s = (curve - 1) / 2`: `x' = -k * factor * d^2 + s * factor * d^3`, up to a constant that is the same for all. The
//! temperature so far has then been used up: a later temperature divides `x'`. A curve above 3 can raise tokens near
//! the largest above it.

/// The function that makes a new logit from a distance `d <= 0`.
pub fn curve(factor: f32, curve: f32) -> impl Fn(f32) -> f32 + Copy {
    let Curve { square, cube } = Curve::new(factor, curve);
    // The bound keeps the logit finite where d^2 is infinite, so that no candidate falls out.
    move |d| ((cube * d - square) * (d * d)).max(f32::MIN)
}

/// `-square * d^2 + cube * d^3`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Curve {
    /// `k * factor`.
    pub square: f32,
    /// `s * factor`.
    pub cube: f32,
}

impl Curve {
    /// The curve with these parameters.
    #[must_use]
    pub fn new(factor: f32, curve: f32) -> Self {
        Self { square: factor * ((3.0 - curve) / 2.0), cube: factor * ((curve - 1.0) / 2.0) }
    }

    /// Whether the curve never falls as `d` rises to 0. It does not if both numbers are at least 0: then the magnitudes
    /// of both factors fall or stay, even with each operation rounded, and so does that of their product, which is not
    /// positive.
    #[must_use]
    pub fn is_rising(&self) -> bool {
        self.square >= 0.0 && self.cube >= 0.0
    }
}
