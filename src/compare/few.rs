//! What can be said of a row of which a filter left only a few tokens. There is no noise to compare with, so something is
//! said only if all of these logits agree on it up to the rounding of their number format.

use super::line::{Pair, is_temperature, resolution};

/// Another explanation must be off by so many times the rounding.
const CLEAR: f64 = 4.0;
/// With fewer logits than this, a temperature and a shift together explain anything.
const LEAST_FOR_BOTH: usize = 3;

/// The scale and the shift of the row as sent: 1 and 0 if nothing can be said.
pub(super) fn scale_and_shift(pair: &Pair<'_>) -> (f64, f64) {
    let points: Vec<(f64, f64)> =
        pair.common().map(|token| (f64::from(pair.plain[token]), f64::from(pair.sent[token]))).collect();
    let resolution = resolution(pair.sent).max(resolution(pair.plain));
    // By how many times its rounding a logit lies off at most.
    let missed = |(scale, shift): (f64, f64)| {
        let of = |&(x, y): &(f64, f64)| {
            let rounding = resolution * (y.abs() + (scale * x).abs() + shift.abs());
            if rounding > 0.0 { (y - scale * x - shift).abs() / rounding } else { 0.0 }
        };
        points.iter().map(of).fold(0.0, f64::max)
    };
    let count = points.len() as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / count, points.iter().map(|p| p.1).sum::<f64>() / count);
    let slope = |x: f64, y: f64| {
        let products = |of: fn(f64, f64) -> f64| points.iter().map(|p| of(p.0 - x, p.1 - y)).sum::<f64>();
        products(|x, y| x * y) / products(|x, _| x * x)
    };
    let (shifted, divided) = ((1.0, y - x), (slope(0.0, 0.0), 0.0));
    let both = (slope(x, y), y - slope(x, y) * x);
    let is_alone = |found: (f64, f64), others: &[(f64, f64)]| {
        missed(found) <= 1.0 && is_temperature(found.0) && others.iter().all(|&other| missed(other) >= CLEAR)
    };
    if is_alone(divided, &[shifted]) {
        divided
    } else if points.len() >= LEAST_FOR_BOTH && is_alone(both, &[shifted, divided]) {
        both
    } else {
        (1.0, 0.0)
    }
}
