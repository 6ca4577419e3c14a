//! Cases calculated by hand. Those with a source have their inputs and expected values from another engine's tests.

use super::super::candidates::Candidates;
use super::super::chain::{self, Chain, ChainStep};
use super::super::mass::{MASS_ONE, draw_point};
use super::super::observed::{Observed, Share, learned};
use super::super::order::Candidate;
use super::super::philox::{Purpose, uniform};
use super::super::row::Filters;
use super::top_n_sigma::Moments;
use super::*;
use crate::params::state::{Average, SamplerState};
use crate::params::{MirostatVersion, Sampler, TfsRule, TypicalRule, XtcRule};

mod ends;
mod engines;
mod infill;
mod min_k;
mod skewed;

const FILTERS: Filters = Filters::OFF;

fn candidates(probs: &[f64]) -> Vec<Candidate> {
    let candidate = |(token, p): (usize, &f64)| Candidate { token: token as u32, logit: p.ln() as f32 };
    probs.iter().enumerate().map(candidate).collect()
}

fn after(probs: &[f64], filters: Filters, chain: Chain<'_>) -> Vec<(u32, f64)> {
    let left = chain::run(candidates(probs), probs.len(), &filters, &chain);
    let total = left.total() as f64;
    let mut left: Vec<_> = left.kept().iter().map(|w| (w.candidate.token, w.mass as f64 / total)).collect();
    left.sort_by_key(|&(token, _)| token);
    left
}

fn chained(steps: &[ChainStep]) -> Chain<'_> {
    Chain {
        steps,
        min_keep: 1,
        protected: &[],
        eos: &[],
        xtc: 0,
        state: SamplerState::default(),
        infill: None,
        tournament: None,
    }
}

/// Checks which tokens are left, and that their probabilities are the expected ones.
#[track_caller]
fn check(probs: &[f64], step: ChainStep, expected: &[(u32, f64)]) {
    let got = after(probs, FILTERS, chained(&[step]));
    assert_eq!(got.len(), expected.len(), "{step:?} on {probs:?}: {got:?}");
    for (got, expected) in got.iter().zip(expected) {
        assert!(got.0 == expected.0 && (got.1 - expected.1).abs() < 1e-5, "{step:?} on {probs:?}: {got:?}");
    }
}

fn tokens(probs: &[f64], steps: &[ChainStep]) -> Vec<u32> {
    after(probs, FILTERS, chained(steps)).iter().map(|&(token, _)| token).collect()
}

const FOUR: [f64; 4] = [0.1, 0.2, 0.3, 0.4];

#[test]
fn llama_cpp_tests_of_typical() {
    check(&[0.97, 0.01, 0.01, 0.01], ChainStep::TypicalP(TypicalRule::Reached, 0.5), &[(0, 1.0)]);
    let third = 1.0 / 3.0;
    check(&[0.4, 0.2, 0.2, 0.2], ChainStep::TypicalP(TypicalRule::Reached, 0.5), &[(1, third), (2, third), (3, third)]);
}

#[test]
fn llama_cpp_tests_of_xtc() {
    let down = [0.4, 0.3, 0.2, 0.1];
    let left = |threshold| tokens(&down, &[ChainStep::Xtc { rule: XtcRule::default(), probability: 0.99, threshold }]);
    assert_eq!(left(0.09), [3]);
    assert_eq!(left(0.19), [2, 3]);
    assert_eq!(left(0.29), [1, 2, 3]);
    assert_eq!(left(0.39), [0, 1, 2, 3]);
}

#[test]
fn llama_cpp_tests_of_top_n_sigma() {
    check(&FOUR, ChainStep::TopNSigma(1.0), &[(2, 0.428_571), (3, 0.571_429)]);
    check(&FOUR, ChainStep::TopNSigma(3.0), &[(0, 0.1), (1, 0.2), (2, 0.3), (3, 0.4)]);
}

#[test]
fn typical_keeps_the_crossing_token_and_at_least_one() {
    // H = 1.28; deviations from it: 1.02, 0.33, 0.08, 0.36.
    for (p, expected) in [(0.0, vec![2]), (0.3, vec![2]), (0.4, vec![1, 2]), (0.6, vec![1, 2, 3])] {
        assert_eq!(tokens(&FOUR, &[ChainStep::TypicalP(TypicalRule::Reached, p)]), expected, "{p}");
    }
}

#[test]
fn tail_free_by_hand() {
    // Sorted .5 .3 .1 .07 .03: slopes .2 .2 .03 .04, curvature 0 .17 .01.
    let kept = |z| tail_free::kept(&[500, 300, 100, 70, 30], 5, z);
    for (z, expected) in [(0.0, 2), (0.9, 2), (0.944, 2), (0.945, 3), (0.999, 3)] {
        assert_eq!(kept(z), expected, "{z}");
    }
    let with_a_tail = |masses: &[u64], z| tail_free::kept(masses, 9, z);
    for z in [0.0, 0.3, 0.6, 0.9, 0.999] {
        assert_eq!(with_a_tail(&[500, 300, 100], z), with_a_tail(&[500, 300, 100, 0, 0, 0, 0, 0, 0], z), "{z}");
    }
    assert_eq!(with_a_tail(&[500], 0.999), 1, "500 0 0: the only curvature is at the start");
    assert_eq!(tail_free::kept(&[5, 5, 5, 5], 4, 0.1), 4, "no curvature at all");
    assert_eq!(tail_free::kept(&[7, 5], 2, 0.1), 2, "too few to have one");
}

#[test]
fn cutoffs_by_hand() {
    // 0.4^2 = 0.16.
    for (a, expected) in [(0.5, vec![0, 1, 2, 3]), (0.7, vec![1, 2, 3]), (1.5, vec![2, 3]), (9.0, vec![3])] {
        assert_eq!(tokens(&FOUR, &[ChainStep::TopA(a)]), expected, "{a}");
    }
    for (epsilon, expected) in [(0.05, vec![0, 1, 2, 3]), (0.15, vec![1, 2, 3]), (0.35, vec![3]), (0.9, vec![3])] {
        assert_eq!(tokens(&FOUR, &[ChainStep::EpsilonCutoff(epsilon)]), expected, "{epsilon}");
    }
    // H = 1.28, exp(-H) = 0.278: eta(0.5) = min(0.5, 0.197), eta(0.05) = min(0.05, 0.062).
    for (eta, expected) in [(0.05, vec![0, 1, 2, 3]), (0.5, vec![1, 2, 3]), (1.0, vec![2, 3])] {
        assert_eq!(tokens(&FOUR, &[ChainStep::EtaCutoff(eta)]), expected, "{eta}");
    }
    assert_eq!(tokens(&[0.25; 4], &[ChainStep::TopA(100.0)]), [0, 1, 2, 3], "ties of the largest stay");
}

#[test]
fn top_h_by_hand() {
    // Terms of .4 .3 .2 .1: .3665 .3612 .3219 .2303, H = 1.2799.
    for (share, expected) in [(0.1, vec![3]), (0.29, vec![3]), (0.57, vec![2, 3]), (0.83, vec![1, 2, 3])] {
        assert_eq!(tokens(&FOUR, &[ChainStep::TopH(share)]), expected, "{share}");
    }
    assert_eq!(tokens(&[1.0; 150], &[ChainStep::TopH(1.0)]).len(), top_h::MAX_CANDIDATES, "only so many are looked at");
    for n in 1..=100 {
        assert_eq!(tokens(&vec![1.0; n], &[ChainStep::TopH(1.0)]).len(), n, "all of the entropy");
        let falling: Vec<f64> = (0..n).map(|i| 0.9f64.powi(i as i32)).collect();
        assert_eq!(tokens(&falling, &[ChainStep::TopH(1.0)]).len(), n, "all of the entropy");
    }
}

#[test]
fn dynamic_temperature_between_its_ends() {
    let step = |exponent| ChainStep::DynamicTemperature { low: 0.5, high: 2.0, exponent };
    // Equal candidates have the largest possible entropy, a single one has none.
    let hot = |d: f64| temperature::dynamic(d * 4f64.ln(), 4, 0.5, 2.0, 1.0);
    assert_eq!([hot(0.0), hot(0.5), hot(1.0), hot(1.0 + 1e-9)], [0.5, 1.25, 2.0, 2.0]);
    assert_eq!(temperature::dynamic(0.0, 1, 0.5, 2.0, 1.0), 0.5);
    assert_eq!(temperature::dynamic(0.0, 9, 0.0, 2.0, 1.0), f64::from(crate::params::MIN_TEMPERATURE));
    // H / ln 4 = 0.9232: T = 0.5 + 1.5 * 0.9232^2 = 1.7785, p ~ p^(1 / T).
    let powers: Vec<f64> = FOUR.iter().map(|p| p.powf(1.0 / 1.778_47)).collect();
    let total: f64 = powers.iter().sum();
    let expected: Vec<(u32, f64)> = (0..4).map(|i| (i, powers[i as usize] / total)).collect();
    check(&FOUR, step(2.0), &expected);
}

#[test]
fn smoothing_by_hand() {
    let quadratic = smoothing::curve(0.5, 1.0);
    assert_eq!([quadratic(0.0), quadratic(-1.0), quadratic(-4.0)], [0.0, -0.5, -8.0]);
    // k = 0.5, s = 0.5: -0.5 * 0.5 * 4 + 0.5 * 0.5 * -8.
    assert_eq!(smoothing::curve(0.5, 2.0)(-2.0), -3.0);
    assert_eq!(smoothing::curve(1.0, 1.0)(-1e30), f32::MIN, "no candidate falls out");
    // A temperature before it divides distances, one after it divides the result.
    let probs = [1.0, (-2.0f64).exp()];
    let steps = [ChainStep::Temperature, ChainStep::Smoothing { factor: 1.0, curve: 1.0 }];
    let share = |steps: &[ChainStep]| after(&probs, Filters { temperature: 2.0, ..FILTERS }, chained(steps))[1].1;
    let expected = |x: f64| x.exp() / (1.0 + x.exp());
    assert!((share(&steps) - expected(-1.0)).abs() < 1e-6);
    assert!((share(&[steps[1], steps[0]]) - expected(-2.0)).abs() < 1e-6);
}

#[test]
fn top_n_sigma_counts_candidates_only() {
    let logits = [10.0, 9.0, 8.0, f32::NEG_INFINITY, 7.0];
    let mut moments = Moments::new(10.0, top_n_sigma::least_finite(&logits));
    moments.add_all(&logits);
    // sigma = sqrt(1.25); text-generation-webui counts masked logits as 0, Aphrodite divides by n - 1.
    assert!((f64::from(moments.least(2.0)) - (10.0 - 2.0 * 1.25f64.sqrt())).abs() < 1e-5);
    // The deviation is right, however narrow or wide the row is.
    for scale in [1e-30f32, 1e-3, 1.0, 1e3, 1e30] {
        let logits = [0.0, -1.0, -1.5, -1.8].map(|x| x * scale);
        let mut moments = Moments::new(0.0, -1.8 * scale);
        moments.add_all(&logits);
        let (mean, squares) = (1.075f64, (1.0 + 2.25 + 3.24) / 4.0);
        let expected = -5.0 * (squares - mean * mean).sqrt() * f64::from(scale);
        assert!((f64::from(moments.least(5.0)) / expected - 1.0).abs() < 1e-5, "{scale}");
    }
    let mut widest = Moments::new(f32::MAX, f32::MIN);
    widest.add_all(&[f32::MIN, f32::MAX]);
    let expected = f64::from(f32::MAX) - 2f64.powi(127);
    assert_eq!(widest.least(1.0), expected as f32, "a spread that no f32 holds counts as the largest");
    let mut equal = Moments::new(3.0, 3.0);
    equal.add_all(&[3.0; 5]);
    assert_eq!(equal.least(9.0), 3.0);
}

#[test]
fn xtc_spares_what_is_protected_and_weighs_anew() {
    let step = [ChainStep::Xtc { rule: XtcRule::default(), probability: 1.0, threshold: 0.15 }];
    let down = [0.4, 0.3, 0.2, 0.1];
    let left = after(&down, FILTERS, Chain { protected: &[0], ..chained(&step) });
    assert_eq!(left.iter().map(|l| l.0).collect::<Vec<_>>(), [0, 2, 3]);
    let rare = [1.0 - 3e-15, 1e-15, 2e-15];
    let left = chain::run(
        candidates(&rare),
        3,
        &FILTERS,
        &chained(&[ChainStep::Xtc { rule: XtcRule::default(), probability: 1.0, threshold: 0.0 }]),
    );
    assert_eq!(left.kept().iter().map(|w| (w.candidate.token, w.mass)).collect::<Vec<_>>(), [(1, MASS_ONE)]);
}

#[test]
fn xtc_happens_as_often_as_it_should() {
    let last = |n: u64| n << 40 | 0xFF_FFFF_FFFF;
    assert!(!xtc::happens(0.0, 0) && xtc::happens(1.0, u64::MAX));
    assert!(xtc::happens(0.5, last((1 << 23) - 1)) && !xtc::happens(0.5, 1 << 63));
}

#[test]
fn no_filter_leaves_fewer_than_min_keep() {
    let steps = [
        ChainStep::TopK,
        ChainStep::TopKTies,
        ChainStep::AtMost(1),
        ChainStep::TopP,
        ChainStep::MinP,
        ChainStep::MinPAbove,
        ChainStep::TypicalP(TypicalRule::Reached, 0.0),
        ChainStep::TypicalP(TypicalRule::Above, 0.0),
        ChainStep::TypicalP(TypicalRule::Ties, 0.0),
        ChainStep::Tfs(TfsRule::Left, 0.0),
        ChainStep::Tfs(TfsRule::WithRemoved, 0.0),
        ChainStep::Tfs(TfsRule::OneFewer, 0.0),
        ChainStep::TopA(9.0),
        ChainStep::TopNSigma(1e-3),
        ChainStep::MinK(0.0),
        ChainStep::EpsilonCutoff(0.9),
        ChainStep::EtaCutoff(1.0),
        ChainStep::TopH(1e-3),
        ChainStep::Xtc { rule: XtcRule::default(), probability: 1.0, threshold: 0.1 },
        ChainStep::Xtc { rule: XtcRule { expected: false, unless_ignored: true }, probability: 1.0, threshold: 0.1 },
        ChainStep::Xtc { rule: XtcRule::EXPECTED, probability: 1.0, threshold: 0.1 },
        ChainStep::Xtc { rule: XtcRule { expected: true, unless_ignored: true }, probability: 1.0, threshold: 0.1 },
    ];
    let filters = Filters { top_k: 1, top_p: 0.0, min_p: 1.0, ..FILTERS };
    let probs = [0.05, 0.1, 0.15, 0.2, 0.5];
    for step in steps {
        for min_keep in [1, 3, 9] {
            let left = after(&probs, filters, Chain { min_keep, ..chained(&[step]) });
            assert!(left.len() >= (min_keep as usize).min(probs.len()), "{step:?}, {min_keep}: {left:?}");
            assert!((left.iter().map(|l| l.1).sum::<f64>() - 1.0).abs() < 1e-9);
        }
    }
}

#[test]
fn the_order_is_what_it_says() {
    // With temperature last, the result is what the filter leaves of the row without temperature.
    let filters = Filters { temperature: 5.0, min_p: 0.5, ..FILTERS };
    let left = |steps: &[ChainStep]| after(&FOUR, filters, chained(steps)).len();
    assert_eq!(left(&[ChainStep::MinP, ChainStep::Temperature]), 3);
    assert_eq!(left(&[ChainStep::Temperature, ChainStep::MinP]), 4);
}

#[test]
fn a_temperature_beside_another_multiplies() {
    let mut left = Candidates::new(candidates(&FOUR), 4, 1);
    left.cool(2.0);
    left.cool(3.0);
    let mut once = Candidates::new(candidates(&FOUR), 4, 1);
    once.cool(6.0);
    assert_eq!(left, once);
}

#[test]
fn p_less_by_hand() {
    // Sums of squares: 0.365, 0.345, 0.25.
    for (probs, expected) in [(vec![0.05, 0.5, 0.3, 0.15], vec![1]), (vec![0.25, 0.4, 0.35], vec![1, 2])] {
        assert_eq!(tokens(&probs, &[ChainStep::PLess { norm: false }]), expected, "{probs:?}");
    }
    assert_eq!(
        tokens(&[0.25; 4], &[ChainStep::PLess { norm: false }]),
        [0, 1, 2, 3],
        "the threshold of equal ones is exact"
    );
    // (4 * .3 - 1) / 3 = .0667, (3 * .58 - 1) / 2 = .37, (5 * .3 - 1) / 4 = .125 with one that has no mass.
    for (probs, expected) in
        [(&FOUR[..], &[0, 1, 2, 3][..]), (&[0.3, 0.7, 0.0001], &[1]), (&[0.1, 0.2, 0.3, 0.4, 1e-20], &[1, 2, 3])]
    {
        assert_eq!(tokens(probs, &[ChainStep::PLess { norm: true }]), expected, "{probs:?}");
    }
    assert_eq!(tokens(&[0.25; 4], &[ChainStep::PLess { norm: true }]), [0, 1, 2, 3]);
    assert_eq!(tokens(&[0.25], &[ChainStep::PLess { norm: true }]), [0], "there are no others");
    let (one, most) = (u128::from(MASS_ONE), 1u128 << 20);
    assert_eq!(cutoffs::p_less_norm(most * one * one, most * one, 1 << 20), 0, "the most there can be");
    assert_eq!(cutoffs::p_less_norm(10, 4, 2), 1, "masses 3 and 1: (20 - 16) / 4, exactly");
    assert_eq!(cutoffs::p_less_norm(26, 6, 2), 3, "masses 5 and 1: (52 - 36) / 6, up");
}

fn remembering(mirostat_mu: Option<f64>, adaptive: Option<Average>) -> SamplerState {
    SamplerState { mirostat_mu, adaptive }
}

#[test]
fn mirostat_two_by_hand() {
    // Surprises: 3.32, 2.32, 1.74, 1.32 bits.
    let step = [ChainStep::Mirostat { version: MirostatVersion::Two, tau: 1.0, eta: 0.1 }];
    let left = |mu| {
        let left = after(&FOUR, FILTERS, Chain { state: remembering(mu, None), ..chained(&step) });
        left.iter().map(|l| l.0).collect::<Vec<_>>()
    };
    for (mu, expected) in [(4.0, vec![0, 1, 2, 3]), (2.5, vec![1, 2, 3]), (1.5, vec![3]), (-1e9, vec![3])] {
        assert_eq!(left(Some(mu)), expected, "{mu}");
    }
    assert_eq!(left(None), [0, 1, 2, 3], "without a state it does nothing");
    let share = |mass, total| Share { mass, total };
    assert!((mirostat::learned(10.0, 5.0, 0.1, share(1, 4)) - 10.3).abs() < 1e-6, "2 bits, 3 fewer than wanted");
    assert_eq!(mirostat::learned(1.0, 0.0, 1.0, share(0, 4)), -1.0, "no mass counts as a mass of 1");
    assert_eq!(mirostat::learned(1e9, 100.0, 100.0, share(1, 1)), 1e9, "it has an end");
}

#[test]
fn mirostat_one_on_zipfs_law() {
    let zipf = |s: f32, n: usize| (1..=n).map(move |rank| -s * (rank as f32).log2());
    // (0.5 * 2^mu / (1 - 1000^-0.5))^(1 / 1.5), 2^mu / ln 1000, and as the first.
    for (s, mu, expected) in [(1.5, 6.0, 10), (1.0, 5.0, 4), (2.0, 6.2, 8), (1.5, -100.0, 1)] {
        assert_eq!(mirostat::first(zipf(s, 1000), 1000, mu), expected, "{s} {mu}");
    }
    let flat = |mu| mirostat::first([0.0; 10].into_iter(), 10, mu);
    assert!(flat(3.0) == 1 && flat(4.0) >= 10, "2^mu / 9 is below or above 1");
    assert_eq!(mirostat::first([0.0].into_iter(), 1, 5.0), 1, "no slope");
    assert_eq!(mirostat::first([0.0, f32::NEG_INFINITY].into_iter(), 2, 0.0), 1, "an infinite distance is cut");
}

#[test]
fn adaptive_p_by_hand() {
    let average = |sum, weight| Average { sum, weight };
    let adapted = |average| adaptive_p::adapted(0.5, average);
    assert_eq!(
        [adapted(average(5.0, 10.0)), adapted(average(2.5, 10.0)), adapted(average(0.0, 0.0))],
        [0.5, 0.75, 0.5]
    );
    assert_eq!([adapted(average(20.0, 10.0)), adapted(average(-1e3, 10.0))], [0.0, 1.0], "it is a probability");
    let curve = adaptive_p::curve(0.2, 100);
    assert_eq!(curve(20), 0.0);
    assert!((curve(50) + 5.0).abs() < 1e-5, "one width away: -10 / 2");
    let share = Share { mass: 1, total: 2 };
    assert_eq!(adaptive_p::learned(average(4.0, 8.0), 0.75, share), average(3.5, 7.0));
    // Target 0.3, and an average of 0.3 before: logits -10 d^2 / (1 + d) with d = 2/3, 1/3, 0, 1/3.
    let step = [ChainStep::AdaptiveP { target: 0.3, decay: 0.9 }];
    let state = remembering(None, Some(average(3.0, 10.0)));
    let left = after(&FOUR, FILTERS, Chain { state, ..chained(&step) });
    let weights = [2.0f64 / 3.0, 1.0 / 3.0, 0.0, 1.0 / 3.0].map(|d| (-10.0 * d * d / (1.0 + d)).exp());
    let total: f64 = weights.iter().sum();
    for ((token, got), weight) in left.iter().zip(weights) {
        assert!((got - weight / total).abs() < 1e-5, "{token}: {got}");
    }
    assert_eq!(after(&FOUR, FILTERS, chained(&step)).len(), 4, "without a state it does nothing");
}

/// Mirostat reaches the surprise that it aims at, whatever the row.
#[test]
fn mirostat_learns() {
    let probs: Vec<f64> = (1..400).map(|rank| 1.0 / f64::from(rank)).collect();
    for tau in [2.0f32, 4.0] {
        let (steps, mut sum) = ([ChainStep::Mirostat { version: MirostatVersion::Two, tau, eta: 0.1 }], 0.0);
        let mut state = remembering(Some(2.0 * f64::from(tau)), None);
        for position in 0..2000u64 {
            let left = chain::run(candidates(&probs), probs.len(), &FILTERS, &Chain { state, ..chained(&steps) });
            let point = draw_point(uniform(1, position, Purpose::Sample), left.total());
            let mut below = 0;
            let drawn = left.kept().iter().find(|w| {
                below += w.mass;
                below > point
            });
            let drawn = Share { mass: drawn.map_or(0, |w| w.mass), total: left.total() };
            state = learned(state, &steps, Observed { drawn, seen: drawn });
            sum += if position < 1000 { 0.0 } else { (drawn.total as f64 / drawn.mass as f64).log2() };
        }
        // mu changes by eta times the distance of the mean, so the mean of n tokens is off by mu's total change over n
        // * eta.
        assert!((sum / 1000.0 - f64::from(tau)).abs() < 0.1, "{tau}: {}", sum / 1000.0);
    }
}
