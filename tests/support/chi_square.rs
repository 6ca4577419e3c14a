//! The chi-square test: whether counts have the distribution that they should.
//!
//! Seeds of tests are fixed, so a run is repeatable. With random seeds, one comparison would raise a false alarm with probability
//! [`FALSE_ALARM`].

#![allow(unreachable_pub)] // More than one test program has this as a module.

/// The probability of a false alarm in one comparison, one-sided.
pub const FALSE_ALARM: f64 = 1e-6;
/// The standard normal deviate with that upper tail.
pub const DEVIATE: f64 = 4.753_424;

/// The chi-square statistic's standard normal deviate (Wilson and Hilferty 1931). Tokens with a small expectation are pooled so that each
/// class expects at least ten. Infinite if a token without probability was drawn.
#[must_use]
pub fn deviate(counts: &[u64], expected: &[f64]) -> f64 {
    let draws: u64 = counts.iter().sum();
    let (mut classes, mut pool): (Vec<(f64, f64)>, _) = (Vec::new(), (0.0, 0.0));
    for (&count, &p) in counts.iter().zip(expected) {
        if p == 0.0 && count > 0 {
            return f64::INFINITY;
        }
        pool = (pool.0 + count as f64, pool.1 + p * draws as f64);
        if pool.1 >= 10.0 {
            classes.push(std::mem::take(&mut pool));
        }
    }
    // The rest of the pool counts too.
    if let Some(last) = classes.last_mut() {
        *last = (last.0 + pool.0, last.1 + pool.1);
    }
    if classes.len() < 2 {
        return 0.0;
    }
    let statistic: f64 = classes.iter().map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    let freedom = (classes.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}
