//! Drawn tokens have the distribution that they should: chi-square tests against an f64 softmax with the filters written naively from their
//! definitions, not from the code under test.
//!
//! Seeds are fixed, so a run is repeatable. With random seeds, each test would raise a false alarm with probability [`FALSE_ALARM`].
//! `a_wrong_tail_is_seen` shows that a lower half of the tokens that is 10 % too likely does not pass.

use crate::chi_square::{DEVIATE, FALSE_ALARM, deviate};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, RowJob};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, Filters, RowSpec};

const DRAWS: u64 = 200_000;

const OFF: Filters = Filters::OFF;

/// A pseudo-random row with this spread.
fn row(vocab: usize, spread: f64, seed: u64) -> Vec<f32> {
    let unit = |i: u64| uniform(seed, i, Purpose::Sample) as f64 / 2f64.powi(64);
    (0..vocab as u64).map(|i| (spread * (unit(3 * i) + unit(3 * i + 1) + unit(3 * i + 2) - 1.5)) as f32).collect()
}

/// Probabilities by definition, in f64: softmax at the temperature, top-k, top-p, min-p, renormalised.
fn probabilities(logits: &[f32], filters: &Filters) -> Vec<f64> {
    let scaled: Vec<f64> = logits.iter().map(|&x| f64::from(x) / f64::from(filters.temperature)).collect();
    let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = scaled.iter().map(|y| (y - max).exp()).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| scaled[b].total_cmp(&scaled[a]).then(a.cmp(&b)));
    let mut keep = if filters.top_k == 0 { order.len() } else { order.len().min(filters.top_k as usize) };
    if filters.top_p < 1.0 {
        let total: f64 = order[..keep].iter().map(|&t| weights[t]).sum();
        let mut sum = 0.0;
        let crossing = order[..keep].iter().position(|&t| {
            sum += weights[t];
            sum >= f64::from(filters.top_p) * total
        });
        keep = crossing.map_or(keep, |at| at + 1);
    }
    order[keep..].iter().for_each(|&t| weights[t] = 0.0);
    weights.iter_mut().for_each(|w| *w = if *w >= f64::from(filters.min_p) { *w } else { 0.0 });
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// How often each token is drawn by the CPU backend, over positions of one sequence.
fn draw(logits: &[f32], dtype: Dtype, filters: Filters, seed: u64) -> Vec<u64> {
    let bytes = dtype.encode(logits);
    let mut backend = CpuBackend::new(1);
    let mut counts = vec![0u64; logits.len()];
    for position in 0..DRAWS {
        let spec = RowSpec::plain(filters, Action::Draw { uniform: uniform(seed, position, Purpose::Sample) });
        let results = backend.run(&[RowJob { logits: Logits::new(dtype, &bytes), spec }]);
        counts[results[0].as_ref().expect("the row is fine").token as usize] += 1;
    }
    counts
}

fn check(name: &str, logits: &[f32], dtype: Dtype, filters: Filters) {
    // The row as the dtype represents it counts, because that is what was sent.
    let bytes = dtype.encode(logits);
    let sent = Logits::new(dtype, &bytes).widen();
    let expected = probabilities(&sent, &filters);
    let deviate = deviate(&draw(logits, dtype, filters, 0xC0FFEE), &expected);
    println!("{name}: {deviate:+.2} standard deviations (alarm above {DEVIATE}, false alarms {FALSE_ALARM})");
    assert!(deviate < DEVIATE, "{name}: drawn tokens do not have their probabilities ({deviate:.1} deviations)");
}

#[test]
fn temperature() {
    for (temperature, seed) in [(0.5, 1), (1.0, 2), (2.5, 3)] {
        check(&format!("temperature {temperature}"), &row(200, 4.0, seed), Dtype::F32, Filters { temperature, ..OFF });
    }
}

#[test]
fn top_k() {
    for (k, seed) in [(2, 4), (17, 5), (150, 6)] {
        check(&format!("top_k {k}"), &row(200, 3.0, seed), Dtype::F32, Filters { top_k: k, ..OFF });
    }
}

#[test]
fn top_p() {
    for (p, seed) in [(0.3, 7), (0.9, 8), (0.99, 9)] {
        check(&format!("top_p {p}"), &row(200, 3.0, seed), Dtype::F32, Filters { top_p: p, ..OFF });
    }
}

#[test]
fn min_p() {
    for (p, seed) in [(0.01, 10), (0.2, 11)] {
        check(&format!("min_p {p}"), &row(200, 3.0, seed), Dtype::F32, Filters { min_p: p, ..OFF });
    }
}

#[test]
fn all_filters_in_half_precision() {
    let filters = Filters { temperature: 0.7, top_k: 60, top_p: 0.95, min_p: 0.005 };
    check("all filters, f16", &row(300, 4.0, 12), Dtype::F16, filters);
    check("all filters, bf16", &row(300, 4.0, 13), Dtype::Bf16, filters);
}

#[test]
fn long_rows_and_flat_nuclei() {
    let flat = row(9000, 1.5, 14);
    check("9000 tokens", &flat, Dtype::F32, OFF);
    check("9000 tokens, top_p .9", &flat, Dtype::F32, Filters { top_p: 0.9, ..OFF });
    check("9000 tokens, top_k 3000", &flat, Dtype::F32, Filters { top_k: 3000, ..OFF });
}

/// The test has power: the same counts are rejected against a distribution whose tail is 10 % off, and so is a token that should have been
/// cut.
#[test]
fn a_wrong_tail_is_seen() {
    let logits = row(200, 2.0, 15);
    let right = probabilities(&logits, &OFF);
    let counts = draw(&logits, Dtype::F32, OFF, 77);
    assert!(deviate(&counts, &right) < DEVIATE);
    let mut sorted = right.clone();
    sorted.sort_by(f64::total_cmp);
    let mut off: Vec<f64> = right.iter().map(|&p| if p < sorted[100] { p * 0.9 } else { p }).collect();
    let total: f64 = off.iter().sum();
    off.iter_mut().for_each(|p| *p /= total);
    let seen = deviate(&counts, &off);
    let share: f64 = sorted[..100].iter().sum();
    println!("lower half of the tokens ({share:.3} of the mass) 10 % off: {seen:+.2} standard deviations");
    assert!(seen > DEVIATE, "a tail that is 10 % off would pass ({seen:.2})");
    let cut = probabilities(&logits, &Filters { top_k: 150, ..OFF });
    assert_eq!(deviate(&counts, &cut), f64::INFINITY, "tokens that top_k cuts were not noticed");
}
