//! Softcaps and other curves, and bits that are read in another format.

use super::*;
use crate::compare::curve::Softcap;
use crate::compare::reshaped::Reshape;

/// Rows like those of a language model: logits around 3 with some up to 20, and biases that all rows have.
fn wide(seed: u64) -> Vec<Vec<f32>> {
    each(&model(seed), |_, logit| 1.6 * logit + 4.0)
}

fn capped(rows: &[Vec<f32>], cap: f32) -> Vec<Vec<f32>> {
    each(rows, |_, logit| cap * (logit / cap).tanh())
}

fn in_bf16(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    each(rows, |_, logit| bf16::from_f32(logit).to_f32())
}

fn cap_of(made: &Made) -> f64 {
    match made.softcap {
        Some(Softcap::Applied { cap }) => cap,
        Some(Softcap::Missing { cap }) => -cap,
        None => 0.0,
    }
}

#[test]
fn a_softcap_is_named_and_nothing_else() {
    for (seed, cap) in [10.0, 15.0, 20.0, 30.0, 50.0, 100.0].into_iter().enumerate() {
        let plain = wide(40 + seed as u64);
        for (sent, plain, sign) in [(capped(&plain, cap), &plain, 1.0), (plain.clone(), &capped(&plain, cap), -1.0)] {
            let compared = compared(&sent, plain, &TEXT);
            for row in &compared.rows {
                let Is::Plain(made) = &row.is else { panic!("{cap}: {}", table::of(&compared)) };
                let found = cap_of(made) * sign;
                assert!((found / f64::from(cap) - 1.0).abs() < 0.01, "{cap}: {made:?}");
                let others = (made.temperature, made.shift, made.changes.len(), made.precise);
                assert_eq!(others, (None, None, 0, true), "{cap}: {made:?}");
                assert!(!row.is.is_plain_row(row.row));
            }
            let text = table::of(&compared);
            let words = if sign > 0.0 { "through a softcap of" } else { "without its softcap of" };
            assert!(text.contains(&format!("{words} {cap}\n")) && text.contains("final_logit_softcapping"), "{text}");
        }
    }
}

#[test]
fn a_softcap_is_named_behind_rounding_and_with_what_else_was_done() {
    let (plain, mut normal) = (wide(50), Normal(51));
    let noisy = each(&plain, |_, logit| logit + 0.01 * normal.next());
    for cap in [10.0, 20.0, 30.0] {
        let divided = each(&capped(&plain, cap), |_, logit| logit / 0.8);
        let log_probabilities = each(&capped(&plain, cap), |_, logit| logit - 21.5);
        let penalized = penalized(&capped(&plain, cap), 1.3);
        let rows = [in_bf16(&capped(&plain, cap)), capped(&noisy, cap), divided, log_probabilities, penalized];
        for (at, sent) in rows.iter().enumerate() {
            let made = made(sent, &plain, &TEXT);
            assert!((cap_of(&made) / f64::from(cap) - 1.0).abs() < 0.05, "{at}: {made:?}");
            assert_eq!(made.temperature.is_some_and(|found| near(found, 0.8)), at == 2, "{at}: {made:?}");
            assert_eq!(made.shift.is_some_and(|found| near(found, -21.5)), at == 3, "{at}: {made:?}");
            assert_eq!(made.changes.len(), usize::from(at == 4), "{at}: {made:?}");
        }
    }
}

#[test]
fn another_curve_is_called_one() {
    let plain = wide(60);
    let root = each(&plain, |_, logit| logit.cbrt());
    let clipped = each(&plain, |_, logit| logit + 0.04 * logit * logit.abs());
    for sent in [root, clipped] {
        let compared = compared(&sent, &plain, &[]);
        let is = Is::Reshaped { by: Reshape::Curve };
        assert!(compared.rows.iter().all(|row| row.is == is), "{}", table::of(&compared));
    }
    // A row that is flat from somewhere on is not on a softcap, although most of it may be near one.
    let flat = each(&plain, |_, logit| logit.max(1.0));
    let compared = compared(&flat, &plain, &[]);
    assert!(!table::of(&compared).contains("softcap of"), "{}", table::of(&compared));
}

#[test]
fn bits_of_another_format_are_told_in_every_row() {
    let mut plain = wide(70);
    for scale in [0.25, 1.0, 3.0] {
        let plain_row = each(&plain, |_, logit| logit * scale);
        let as_f16 = each(&plain_row, |_, logit| f16::from_bits(bf16::from_f32(logit).to_bits()).to_f32());
        let as_bf16 = each(&plain_row, |_, logit| bf16::from_bits(f16::from_f32(logit).to_bits()).to_f32());
        for (sent, bits_of, read_as) in [(as_f16, "bf16", "f16"), (as_bf16, "f16", "bf16")] {
            let compared = compared(&sent, &plain_row, &[]);
            let is = Is::Reshaped { by: Reshape::Format { bits_of, read_as } };
            assert!(compared.rows.iter().all(|row| row.is == is), "{}", table::of(&compared));
        }
    }
    // -infinity in bf16 is a NaN in f16.
    plain[0][17] = f32::NEG_INFINITY;
    let sent = each(&plain[..1], |_, logit| f16::from_bits(bf16::from_f32(logit).to_bits()).to_f32());
    assert!(sent[0][17].is_nan());
    let json = serde_json::to_value(&compared(&sent, &plain, &[]).rows[0]).unwrap();
    assert_eq!(json["is"], "reshaped");
    assert_eq!(json["by"], serde_json::json!({ "kind": "format", "bits_of": "bf16", "read_as": "f16" }));
}

#[test]
fn a_softcap_is_a_field_of_its_own() {
    let plain = wide(80);
    let json = serde_json::to_value(&compared(&capped(&plain, 30.0), &plain, &[]).rows[0]).unwrap();
    assert_eq!((&json["is"], &json["softcap"]["kind"]), (&"plain".into(), &"applied".into()), "{json}");
    let json = serde_json::to_value(&compared(&in_bf16(&plain), &plain, &[]).rows[0]).unwrap();
    assert_eq!((&json["is"], &json["softcap"]), (&"plain".into(), &serde_json::Value::Null), "{json}");
}
