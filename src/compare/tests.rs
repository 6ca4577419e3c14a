use super::changes::Change;
use super::diagnosis::{Is, Made};
use super::*;
use crate::sampling::logits::Dtype;
use half::{bf16, f16};

mod curves;
mod few;
mod penalties;
mod shown;
mod sound;

const COLUMNS: usize = 4000;
const ROWS: usize = 8;
const TEXT: [u32; 12] = [5, 5, 5, 7, 7, 300, 41, 977, 1234, 2999, 3001, 12];

/// Nearly normally distributed numbers: sums of twelve numbers of a reproducible sequence.
struct Normal(u64);

impl Normal {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }

    fn next(&mut self) -> f32 {
        ((0..12).map(|_| self.uniform()).sum::<f64>() - 6.0) as f32
    }

    fn row(&mut self, spread: f32) -> Vec<f32> {
        (0..COLUMNS).map(|_| self.next() * spread).collect()
    }
}

/// Rows like those of a model. Frequent tokens are likely in all of them, so that half of each row is the same.
fn model(seed: u64) -> Vec<Vec<f32>> {
    let mut normal = Normal(seed);
    let frequent = normal.row(1.5);
    (0..ROWS).map(|_| normal.row(1.5).iter().zip(&frequent).map(|(own, all)| own + all - 2.0).collect()).collect()
}

fn each(rows: &[Vec<f32>], mut change: impl FnMut(usize, f32) -> f32) -> Vec<Vec<f32>> {
    let mut row = |row: &Vec<f32>| row.iter().enumerate().map(|(token, &logit)| change(token, logit)).collect();
    rows.iter().map(&mut row).collect()
}

fn compared(sent: &[Vec<f32>], plain: &[Vec<f32>], text: &[u32]) -> Comparison {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, rows: &[Vec<f32>]| {
        let path = dir.path().join(name);
        std::fs::write(&path, Dtype::F32.encode(&rows.concat())).unwrap();
        RowFile { path: Some(path), dtype: Some(Dtype::F32), vocab_size: Some(rows[0].len()), ..RowFile::default() }
    };
    let args = CompareArgs { sent: file("sent", sent), plain: file("plain", plain), text: text.to_vec(), json: false };
    compare(&args).unwrap()
}

/// How the first row was made. All rows must have been made in the same way.
fn made(sent: &[Vec<f32>], plain: &[Vec<f32>], text: &[u32]) -> Made {
    let compared = compared(sent, plain, text);
    let made = |row: &ComparedRow| match &row.is {
        Is::Plain(made) => made.clone(),
        other => panic!("row {} is {other:?}", row.row),
    };
    let first = made(&compared.rows[0]);
    for row in &compared.rows {
        let kinds = |made: &Made| made.changes.iter().map(std::mem::discriminant).collect::<Vec<_>>();
        assert_eq!(kinds(&made(row)), kinds(&first), "row {}: {:?}", row.row, row.is);
    }
    first
}

fn penalized(rows: &[Vec<f32>], by: f32) -> Vec<Vec<f32>> {
    each(rows, |token, logit| match TEXT.contains(&(token as u32)) {
        true if logit > 0.0 => logit / by,
        true => logit * by,
        false => logit,
    })
}

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 0.02
}

#[test]
fn rounding_and_log_probabilities_are_the_model_s() {
    let (plain, mut normal) = (model(1), Normal(2));
    let rounded = each(&plain, |_, logit| bf16::from_f32(logit).to_f32());
    let noisy = each(&plain, |_, logit| logit + 0.03 * normal.next());
    let shifted = each(&plain, |_, logit| logit - 11.25);
    for sent in [&plain, &rounded, &noisy, &shifted] {
        let compared = compared(sent, &plain, &TEXT);
        assert_eq!(compared.rows_as_plain, ROWS, "{}", table::of(&compared));
    }
    let shift = made(&shifted, &plain, &[]).shift;
    assert!(shift.is_some_and(|shift| near(shift, -11.25)), "{shift:?}");
    assert!(compared(&plain, &plain, &[]).rows.iter().all(|row| row.is == Is::Same && row.total_variation == 0.0));
}

/// There are so many rows that a false alarm in one row of a thousand would probably be noticed.
#[test]
fn sound_rows_are_not_said_to_be_changed() {
    let mut normal = Normal(3);
    for seed in 0..150 {
        let plain = model(100 + seed);
        let noise = [0.001, 0.01, 0.05][seed as usize % 3];
        let sent = each(&plain, |_, logit| bf16::from_f32(logit + noise * normal.next()).to_f32());
        let compared = compared(&sent, &plain, &TEXT);
        assert_eq!(compared.rows_as_plain, ROWS, "{seed}: {}", table::of(&compared));
    }
}

#[test]
fn a_temperature_is_found_also_of_rounded_and_penalized_rows() {
    let plain = model(1);
    for temperature in [0.3, 0.7, 0.9, 1.1, 2.0] {
        let divided = each(&plain, |_, logit| logit / temperature);
        let rounded = each(&penalized(&plain, 1.2), |_, logit| bf16::from_f32(logit / temperature).to_f32());
        for (sent, changes) in [(divided, 0), (rounded, 1)] {
            let made = made(&sent, &plain, &[]);
            assert!(made.temperature.is_some_and(|found| near(found, temperature.into())), "{made:?}");
            assert_eq!((made.changes.len(), made.plain_row), (changes, 0), "{made:?}");
        }
    }
}

#[test]
fn penalties_are_told_apart() {
    let (plain, mut normal) = (model(1), Normal(5));
    let count = |token: usize| TEXT.iter().filter(|&&other| other as usize == token).count() as f32;
    let noisy = each(&plain, |_, logit| logit + 0.01 * normal.next());
    let log_probabilities = each(&plain, |_, logit| logit - 9.0);
    for sent in [penalized(&plain, 1.3), penalized(&noisy, 1.3), penalized(&log_probabilities, 1.3)] {
        match &made(&sent, &plain, &TEXT).changes[..] {
            [Change::RepetitionPenalty { penalty, tokens, in_text }] => {
                assert!(near(*penalty, 1.3) && *in_text == Some(*tokens), "{penalty} {tokens} {in_text:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let counted = each(&plain, |token, logit| logit - if count(token) > 0.0 { 0.5 + 0.2 * count(token) } else { 0.0 });
    match &made(&counted, &plain, &TEXT).changes[..] {
        [Change::CountPenalty { presence, frequency, subtracted_first: false, tokens: 9 }] => {
            assert!(near(*presence, 0.5) && near(*frequency, 0.2), "{presence} {frequency}");
        }
        other => panic!("{other:?}"),
    }
    match &made(&counted, &plain, &[]).changes[..] {
        [Change::Changed { tokens: 9, most, in_text: None, .. }] => assert!(near(*most, -1.1), "{most}"),
        other => panic!("{other:?}"),
    }
    let biased = each(&plain, |token, logit| if token < 3 { logit + 2.0 } else { logit });
    match &made(&biased, &plain, &TEXT).changes[..] {
        [Change::Bias { bias, tokens: 3, in_text: Some(0), first }] => {
            assert!(near(*bias, 2.0) && *first == [0, 1, 2], "{bias} {first:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn masks_filters_and_padding_are_told_apart() {
    let (plain, mut normal) = (model(1), Normal(6));
    let masked = each(&plain, |token, logit| if token % 3 == 0 { f32::NEG_INFINITY } else { logit });
    let large = each(&plain, |token, logit| if token % 3 == 0 { -1e9 } else { logit });
    for sent in [&masked, &large] {
        let expected = Change::Masked { tokens: COLUMNS.div_ceil(3), first: vec![0, 3, 6, 9, 12] };
        assert_eq!(made(sent, &plain, &[]).changes, [expected]);
    }
    assert!(matches!(made(&plain, &masked, &[]).changes[..], [Change::Unmasked { .. }]));
    for left in [1, 3, 50] {
        let top: Vec<Vec<f32>> = plain
            .iter()
            .map(|row| {
                let mut sorted = row.clone();
                sorted.sort_unstable_by(|a, b| b.total_cmp(a));
                row.iter().map(|&logit| if logit < sorted[left - 1] { f32::NEG_INFINITY } else { logit }).collect()
            })
            .collect();
        assert_eq!(made(&top, &plain, &[]).changes, [Change::Filtered { tokens_left: left }]);
    }
    let from = COLUMNS - 96;
    let stale = each(&plain, |token, logit| if token >= from { 40.0 * normal.next() } else { logit });
    let padding = |beyond| Change::Padding { from: from as u32, columns: 96, beyond };
    assert_eq!(made(&stale, &plain, &[]).changes, [padding(false)]);
    // The same if the plain rows have as many columns as there are tokens.
    let short: Vec<Vec<f32>> = plain.iter().map(|row| row[..from].to_vec()).collect();
    assert_eq!(made(&stale, &short, &[]).changes, [padding(true)]);
}

#[test]
fn rows_of_another_place_are_found_and_rows_of_none_are_not() {
    let (plain, mut normal) = (model(1), Normal(7));
    let places = |sent: &[Vec<f32>]| {
        let compared = compared(sent, &plain, &[]);
        assert_eq!(compared.rows_as_plain, 0);
        let place = |row: &ComparedRow| match &row.is {
            Is::Plain(made) => Some(made.plain_row),
            _ => None,
        };
        compared.rows.iter().map(place).collect::<Vec<_>>()
    };
    let early = each(&plain[1..], |_, logit| bf16::from_f32(logit).to_f32());
    assert_eq!(places(&early), (1..ROWS).map(Some).collect::<Vec<_>>());
    let swapped = [plain[1].clone(), plain[0].clone()];
    assert_eq!(places(&swapped), [Some(1), Some(0)]);
    // Another text, whose rows are at least as similar as the model's rows are to each other.
    let leaking = each(&plain, |_, logit| logit + 0.6 * normal.next());
    assert_eq!(places(&leaking), vec![None; ROWS]);
    assert_eq!(places(&model(8)), vec![None; ROWS]);
    assert_eq!(places(&each(&plain, |_, logit| -logit)), vec![None; ROWS]);
    // A quantized model: the same row, but reported as imprecise.
    let rough = made(&each(&plain, |_, logit| logit + 0.2 * normal.next()), &plain, &[]);
    assert!(!rough.precise && rough.plain_row == 0, "{rough:?}");
}

#[test]
fn what_is_no_logit_is_told() {
    let plain = model(1);
    let probabilities: Vec<Vec<f32>> =
        plain.iter().map(|row| softmax(row).iter().map(|&p| p as f32).collect()).collect();
    assert!(compared(&probabilities, &plain, &[]).rows.iter().all(|row| row.is == Is::Probabilities));
    let nan = each(&plain, |token, logit| if token == 9 { f32::NAN } else { logit });
    let compared_nan = compared(&nan, &plain, &[]);
    assert!(compared_nan.rows.iter().all(|row| row.is == Is::NotFinite { token: 9 } && row.total_variation == 1.0));
    let masked = each(&plain, |_, _| f32::NEG_INFINITY);
    let compared_masked = compared(&masked, &plain, &[]);
    assert!(compared_masked.rows.iter().all(|row| row.is == Is::AllMasked && row.total_variation == 1.0));
}

#[test]
fn the_table_groups_rows_and_says_what_to_do() {
    let plain = model(1);
    let mut sent = plain.clone();
    sent[2] = each(&plain[2..3], |_, logit| logit / 0.5).remove(0);
    sent[5] = plain[4].clone();
    let text = table::of(&compared(&sent, &plain, &[]));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("8 rows of 4,000 logits (f32)"), "{text}");
    assert!(lines[4].starts_with("0-1, 3-4, 6-7     6 of 6           0.0000      -  the plain row, number"), "{text}");
    assert!(
        lines[5].starts_with("2 ") && lines[5].ends_with("the plain row, divided by a temperature of 0.50"),
        "{text}"
    );
    assert!(lines[6].starts_with("5 ") && lines[6].ends_with("the plain row of the previous position"), "{text}");
    assert_eq!(lines[8], "rows that match the model: 6 of 8");
    assert_eq!(lines.len(), 11, "a line of advice for each: {text}");
}

#[test]
fn rows_that_are_rounded_on_both_sides_are_the_model_s() {
    let mut normal = Normal(9);
    for seed in 0..30 {
        let noise = [1e-6, 1e-5, 1e-4, 1e-3][seed as usize % 4];
        let exact = model(300 + seed);
        let other = each(&exact, |_, logit| logit * (1.0 + noise * normal.next()) + noise * normal.next());
        let bf = |rows: &[Vec<f32>]| each(rows, |_, logit| bf16::from_f32(logit).to_f32());
        let half = |rows: &[Vec<f32>]| each(rows, |_, logit| f16::from_f32(logit).to_f32());
        for (sent, plain) in [(bf(&other), bf(&exact)), (half(&other), half(&exact)), (half(&other), bf(&exact))] {
            let compared = compared(&sent, &plain, &TEXT);
            assert_eq!(compared.rows_as_plain, ROWS, "{seed}: {}", table::of(&compared));
        }
    }
    // What vLLM does: penalties in f32 on some tokens of rows of bf16.
    let rounded = each(&model(1), |_, logit| bf16::from_f32(logit).to_f32());
    let other = each(&model(1), |_, logit| bf16::from_f32(logit + 1e-4).to_f32());
    match &made(&penalized(&other, 1.3), &rounded, &TEXT).changes[..] {
        [Change::RepetitionPenalty { penalty, .. }] => assert!(near(*penalty, 1.3), "{penalty}"),
        changes => panic!("{changes:?}"),
    }
}

#[test]
fn columns_that_are_mixed_up_or_missing_are_told() {
    let (plain, mut normal) = (model(1), Normal(10));
    for (count, order) in [(2, vec![1, 0]), (4, vec![0, 2, 1, 3]), (8, vec![0, 1, 2, 3, 4, 5, 7, 6])] {
        let size = COLUMNS / count;
        let gathered = |row: &Vec<f32>| order.iter().flat_map(|&at| row[at * size..][..size].to_vec()).collect();
        let sent: Vec<Vec<f32>> = plain.iter().map(gathered).collect();
        for sent in [each(&sent, |_, logit| logit + 0.02 * normal.next()), sent] {
            let compared = compared(&sent, &plain, &[]);
            let is = Is::Blocks { order: order.clone() };
            assert!(compared.rows.iter().all(|row| row.is == is), "{}", table::of(&compared));
        }
    }
    let half: Vec<Vec<f32>> = plain.iter().map(|row| row[..COLUMNS / 2].to_vec()).collect();
    let compared = compared(&half, &plain, &[]);
    assert_eq!(compared.rows_as_plain, 0, "{}", table::of(&compared));
    assert!(compared.rows.iter().all(|row| row.left_out > 0.2), "{}", table::of(&compared));
    let shown = table::of(&compared);
    assert!(
        shown.contains("the plain row without its last columns, which have ") && !shown.contains("number for number")
    );
}

#[test]
fn filters_behind_noise_are_filters() {
    let (plain, mut normal) = (model(1), Normal(11));
    let noisy = each(&plain, |_, logit| logit + 0.02 * normal.next());
    for (left, temperature) in [(2, 1.0), (3, 0.7), (5, 1.0), (50, 1.0), (50, 0.7), (400, 0.7)] {
        let cut = |row: &Vec<f32>| {
            let mut sorted = row.clone();
            sorted.sort_unstable_by(|a, b| b.total_cmp(a));
            let least = sorted[left - 1];
            row.iter().map(|&logit| if logit < least { f32::NEG_INFINITY } else { logit / temperature }).collect()
        };
        let sent: Vec<Vec<f32>> = noisy.iter().map(cut).collect();
        let made = made(&sent, &plain, &TEXT);
        assert_eq!(made.changes, [Change::Filtered { tokens_left: left }], "{left}");
        assert_eq!(made.temperature.is_some(), left == 400 || left == 50 && temperature < 1.0, "{left}: {made:?}");
    }
}

#[test]
fn a_temperature_of_rows_with_few_values_is_found() {
    let mut row = vec![-10.0; 96];
    (row[3], row[7], row[20]) = (2.0, 1.0, 0.0);
    let plain = vec![row];
    let sent = each(&plain, |_, logit| logit / 0.5);
    let found = made(&sent, &plain, &[]);
    assert!(found.temperature.is_some_and(|temperature| near(temperature, 0.5)), "{found:?}");
    assert_eq!(compared(&each(&plain, |_, logit| logit + 1e-6), &plain, &[]).rows_as_plain, 1);
}

#[test]
fn files_that_cannot_be_compared_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        RowFile { path: Some(dir.path().join(name)), vocab_size: Some(2), ..RowFile::default() }
    };
    let (two, one) = (file("two", "1 2 3 4"), file("one", "1 2"));
    let args = |sent: &RowFile, plain: &RowFile| CompareArgs {
        sent: sent.clone(),
        plain: plain.clone(),
        ..CompareArgs::default()
    };
    let told = compare(&args(&two, &one)).unwrap_err();
    assert!(told.contains("one: has 1 row, but ") && told.contains("two has 2; save the plain rows"), "{told}");
    assert_eq!(compare(&args(&one, &two)).unwrap().rows_as_plain, 1, "plain rows that nobody asks about");
    let told = |text| compare(&args(&one, &file("bad", text))).unwrap_err();
    let nothing = "so there is nothing to compare with; check the plain pass";
    assert!(told("1 nan").ends_with(&format!("bad: row 0 has NaN for token 1, {nothing}")));
    assert!(told("1 2 -inf -inf").ends_with(&format!("bad: row 1 has -infinity for every token, {nothing}")));
    let text = CompareArgs { text: vec![1, 2], ..args(&one, &two) };
    assert_eq!(compare(&text).unwrap_err(), "--text: token 2 must be below 2, the number of logits in a row");
    assert!(
        compare(&args(&one, &RowFile { path: Some("/nowhere".into()), ..RowFile::default() }))
            .unwrap_err()
            .starts_with("/nowhere: ")
    );
}
