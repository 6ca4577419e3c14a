//! Quadratic and cubic smoothing (kalomaze; text-generation-webui `QuadraticSamplingLogitsWarper`, Aphrodite
//! `ops/quadratic.py`).
//!
//! With `d` the distance to the largest logit at the temperature so far, `k = (3 - curve) / 2` and `s = (curve - 1) / 2`:
//! `x' = -k * factor * d^2 + s * factor * d^3`, the same up to a constant for all. The temperature so far has then been
//! used up: a temperature that comes later divides `x'`. A curve above 3 can raise tokens near the largest above it.

/// What makes a new logit of a distance `d <= 0`.
pub fn curve(factor: f32, curve: f32) -> impl Fn(f32) -> f32 + Copy {
    let Curve { square, cube } = Curve::new(factor, curve);
    // Without an end where d^2 is infinite: no candidate falls out.
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
    /// Of these parameters.
    #[must_use]
    pub fn new(factor: f32, curve: f32) -> Self {
        Self { square: factor * ((3.0 - curve) / 2.0), cube: factor * ((curve - 1.0) / 2.0) }
    }

    /// Whether it never falls as `d` rises to 0. Both factors fall or stay then, each operation rounded, and so does no
    /// product of theirs.
    #[must_use]
    pub fn is_rising(&self) -> bool {
        self.square >= 0.0 && self.cube >= 0.0
    }
}
