//! Temperatures: behind a filter that leaves a few tokens, and near 1.

use super::*;

/// Only the likeliest tokens of each row, divided by a temperature, with a number added.
fn cut(rows: &[Vec<f32>], left: usize, temperature: f32, shift: f32) -> Vec<Vec<f32>> {
    let of = |row: &Vec<f32>| {
        let mut sorted = row.clone();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        let least = sorted[left - 1];
        row.iter().map(|&logit| if logit < least { f32::NEG_INFINITY } else { logit / temperature + shift }).collect()
    };
    rows.iter().map(of).collect()
}

#[test]
fn a_temperature_is_found_behind_a_filter_that_leaves_two() {
    let plain = model(90);
    for left in 2..=7 {
        for temperature in [0.6, 0.8, 1.5] {
            let found = made(&cut(&plain, left, temperature, 0.0), &plain, &[]);
            assert!(found.temperature.is_some_and(|of| near(of, temperature.into())), "{left}: {found:?}");
            assert_eq!((found.shift, &found.changes[..]), (None, &[Change::Filtered { tokens_left: left }][..]));
        }
    }
    // Log-probabilities: two numbers could also come from any other temperature.
    for left in 2..=7 {
        let found = made(&cut(&plain, left, 0.6, -9.0), &plain, &[]);
        assert_eq!(found.temperature.is_some_and(|of| near(of, 0.6)), left > 2, "{left}: {found:?}");
        assert_eq!(found.shift.is_some(), left > 2, "{left}: {found:?}");
    }
}

#[test]
fn nothing_is_said_of_a_few_tokens_with_noise() {
    let mut normal = Normal(91);
    for seed in 0..40 {
        let plain = model(1000 + seed);
        let noisy = each(&plain, |_, logit| logit + 0.02 * normal.next());
        let bf = |rows: &[Vec<f32>]| each(rows, |_, logit| bf16::from_f32(logit).to_f32());
        let left = 1 + seed as usize % 7;
        let sound = [cut(&noisy, left, 1.0, 0.0), cut(&noisy, left, 1.0, -9.0), bf(&cut(&plain, left, 1.0, 0.0))];
        for sent in sound.into_iter().chain([bf(&cut(&noisy, left, 1.0, -9.0)), cut(&plain, left, 1.0, -9.0)]) {
            let compared = compared(&sent, &plain, &[]);
            let is_cold = |row: &ComparedRow| matches!(&row.is, Is::Plain(made) if made.temperature.is_some());
            assert!(!compared.rows.iter().any(is_cold), "{left}: {}", table::of(&compared));
        }
    }
}

#[test]
fn a_temperature_near_1_is_named_if_it_is_clear_of_the_noise() {
    let (plain, mut normal) = (model(92), Normal(93));
    for temperature in [0.99, 0.995, 1.005, 1.01] {
        let divided = each(&plain, |_, logit| logit / temperature);
        let found = made(&divided, &plain, &[]).temperature;
        assert!(found.is_some_and(|found| (found - f64::from(temperature)).abs() < 1e-4), "{found:?}");
        // The same behind the noise of a model that computes in bf16: 0.016 of the spread, which is 2.1.
        let noisy = each(&divided, |_, logit| logit + 0.034 * normal.next());
        assert_eq!(made(&noisy, &plain, &[]).temperature, None, "{temperature}");
    }
    // A factor that was rounded to bf16.
    for scale in [1.0 + 1.0 / 512.0, 1.0 - 1.0 / 512.0] {
        assert_eq!(made(&each(&plain, |_, logit| logit * scale), &plain, &[]).temperature, None);
    }
}
