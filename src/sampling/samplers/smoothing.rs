//! Quadratic and cubic smoothing (kalomaze; text-generation-webui `QuadraticSamplingLogitsWarper`, Aphrodite
//! `ops/quadratic.py`).
//!
//! With `d` the distance to the largest logit at the temperature so far, `k = (3 - curve) / 2` and `s = (curve - 1) / 2`:
//! `x' = -k * factor * d^2 + s * factor * d^3`, the same up to a constant for all. The temperature so far has then been
//! used up: a temperature that comes later divides `x'`. A curve above 3 can raise tokens near the largest above it.

/// What makes a new logit of a distance `d <= 0`.
pub fn curve(factor: f32, curve: f32) -> impl Fn(f32) -> f32 + Copy {
    let square = factor * ((3.0 - curve) / 2.0);
    let cube = factor * ((curve - 1.0) / 2.0);
    // Without an end where d^2 is infinite: no candidate falls out.
    move |d| ((cube * d - square) * (d * d)).max(f32::MIN)
}
