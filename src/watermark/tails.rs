//! Upper tails of distributions: the probability of a value or more.

/// Smaller terms do not change a sum.
const SMALL: f64 = 1e-18;

/// The upper tail of the standard normal distribution.
#[must_use]
pub fn normal(z: f64) -> f64 {
    0.5 * libm::erfc(z / std::f64::consts::SQRT_2)
}

/// The probability of at least this many successes in `trials` trials with this chance, `0 < chance < 1`.
#[must_use]
pub fn binomial(successes: usize, trials: usize, chance: f64) -> f64 {
    let (n, odds) = (trials as f64, chance / (1.0 - chance));
    let term = |k: f64| {
        let ways = libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0);
        libm::exp(ways + k * libm::log(chance) + (n - k) * libm::log1p(-chance))
    };
    if successes == 0 {
        1.0
    } else if successes as f64 > n * chance {
        // From here on the terms become smaller.
        series(term(successes as f64), successes, Way::Up, |k| (n - k) / (k + 1.0) * odds)
    } else {
        let below = series(term(successes as f64 - 1.0), successes - 1, Way::Down, |k| k / ((n - k + 1.0) * odds));
        (1.0 - below).clamp(0.0, 1.0)
    }
}

/// The direction in which terms are added up.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Up,
    /// Down to place 0, where the ratio is 0.
    Down,
}

/// The sum of terms that become smaller. The first one is at the place `from`. Each next term is the one before times
/// `ratio` at that one's place.
fn series(first: f64, from: usize, way: Way, ratio: impl Fn(f64) -> f64) -> f64 {
    let (mut term, mut sum, mut place) = (first, first, from as f64);
    loop {
        term *= ratio(place);
        sum += term;
        place += if way == Way::Up { 1.0 } else { -1.0 };
        if term <= sum * SMALL {
            return sum.min(1.0);
        }
    }
}

/// The upper tail of the Gamma distribution with this whole shape and scale 1.
#[must_use]
pub fn gamma(shape: usize, sum: f64) -> f64 {
    if shape == 0 || sum <= 0.0 {
        return 1.0;
    }
    // The terms are those of a Poisson distribution: the Gamma value is above `sum` exactly if fewer than `shape`
    // events happen up to `sum`.
    let term = |k: f64| libm::exp(k * libm::log(sum) - sum - libm::lgamma(k + 1.0));
    if sum > shape as f64 {
        series(term(shape as f64 - 1.0), shape - 1, Way::Down, |k| k / sum)
    } else {
        let above = series(term(shape as f64), shape, Way::Up, |k| sum / (k + 1.0));
        (1.0 - above).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found:e} {expected:e}");
    }

    #[test]
    fn normal_by_table() {
        assert_eq!(normal(0.0), 0.5);
        near(normal(3.0), 1.349_898_031_630_094_6e-3);
        near(normal(10.0), 7.619_853_024_160_526e-24);
        near(normal(-1.0), 0.841_344_746_068_542_9);
    }

    #[test]
    fn binomial_by_hand() {
        near(binomial(2, 2, 0.25), 0.0625);
        near(binomial(1, 2, 0.25), 0.4375);
        near(binomial(0, 2, 0.25), 1.0);
        near(binomial(3, 4, 0.5), 5.0 / 16.0);
        near(binomial(1, 4, 0.5), 15.0 / 16.0);
        // Computed by adding up all terms one by one.
        for (n, chance) in [(30usize, 0.25f64), (57, 0.5), (20, 0.9)] {
            let pick = |k: usize| (0..k).fold(1.0, |ways, i| ways * (n - i) as f64 / (i + 1) as f64);
            let terms: Vec<f64> =
                (0..=n).map(|k| pick(k) * chance.powi(k as i32) * (1.0 - chance).powi((n - k) as i32)).collect();
            for from in 0..=n {
                let expected: f64 = terms[from..].iter().sum();
                assert!((binomial(from, n, chance) - expected).abs() < 1e-12 * expected.max(1e-3), "{n} {from}");
            }
        }
        assert!(binomial(900_000, 1_000_000, 0.5) < 1e-300);
        assert!((binomial(250_000, 1_000_000, 0.25) - 0.500384).abs() < 1e-5);
    }

    #[test]
    fn gamma_by_hand() {
        near(gamma(1, 2.0), (-2f64).exp());
        near(gamma(2, 2.0), 3.0 * (-2f64).exp());
        near(gamma(3, 0.5), (-0.5f64).exp() * (1.0 + 0.5 + 0.125));
        near(gamma(3, 30.0), (-30f64).exp() * (1.0 + 30.0 + 450.0));
        assert_eq!((gamma(0, 0.0), gamma(5, 0.0)), (1.0, 1.0));
        // Near its mean, a Gamma distribution with a large shape is almost normal.
        assert!((gamma(10_000, 10_000.0) - 0.498_67).abs() < 1e-4);
    }
}
