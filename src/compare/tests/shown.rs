//! How results are put into words.

use super::*;

/// The cells behind the numbers of rows, of the only line.
fn line(sent: &[Vec<f32>], plain: &[Vec<f32>]) -> String {
    let text = table::of(&compared(sent, plain, &[]));
    text.lines().nth(4).unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn columns_beyond_the_plain_row_are_not_masks() {
    let plain = vec![vec![4.0, 3.0, 2.0, 1.0]];
    let compared = compared(&[vec![4.0, 3.0, 2.0, 1.0, 5.0]], &plain, &[]);
    let text = table::of(&compared);
    assert!(text.contains("the plain row, column 4 lies beyond the plain row\n"), "{text}");
    assert!(text.contains("Columns that stand for no token") && !text.contains("Masked tokens"), "{text}");
    let json = serde_json::to_value(&compared.rows[0]).unwrap();
    let expected = serde_json::json!([{ "kind": "padding", "from": 4, "columns": 1, "beyond": true }]);
    assert_eq!(json["changes"], expected);
    let several = line(&[vec![4.0, 3.0, 2.0, 1.0, f32::NEG_INFINITY, 0.0, 0.0]], &plain);
    assert!(several.ends_with("the last 2 columns (from 5 on) lie beyond the plain row"), "{several}");
}

#[test]
fn small_temperatures_have_digits() {
    let plain = each(&model(300), |_, logit| logit.max(-4.0));
    let shown = |temperature: f32| line(&each(&plain, |_, logit| logit / temperature), &plain);
    for (temperature, words) in [(0.05, "0.050"), (0.01, "0.010"), (0.7, "0.70"), (1.01, "1.010"), (100.0, "100.00")] {
        assert!(shown(temperature).ends_with(&format!("a temperature of {words}")), "{}", shown(temperature));
    }
    // f16 has no larger numbers than 65504: someone multiplied instead of dividing.
    let plain = vec![model(301).remove(0)];
    let overflown = each(&plain, |_, logit| f16::from_f32(logit * 5000.0).to_f32());
    let shown = line(&overflown, &plain);
    assert!(shown.contains("a temperature of 0.00020, only the"), "{shown}");
    // In logits of the plain row: the rounding of f16 is 5,000 times smaller there.
    assert!(shown.contains("  0.000  "), "{shown}");
}

#[test]
fn counts_are_given_and_one_is_singular() {
    let plain = model(302);
    let masked = each(&plain, |token, logit| if token >= 100 { f32::NEG_INFINITY } else { logit });
    let shown = line(&masked, &plain);
    assert!(shown.ends_with("the plain row, tokens 100, 101, 102, 103, 104 and 3,895 others masked"), "{shown}");
    let six = each(&plain, |token, logit| if token < 6 { f32::NEG_INFINITY } else { logit });
    assert!(line(&six, &plain).ends_with("tokens 0, 1, 2, 3, 4 and 1 other masked"), "{}", line(&six, &plain));
    // Rows with the same first tokens share a line, which gives the span of their counts.
    let mut more = six;
    (6..1006).for_each(|token| more[3][token] = f32::NEG_INFINITY);
    assert!(line(&more, &plain).ends_with("and 1 to 1,001 others masked"), "{}", line(&more, &plain));
    let one = each(&plain[..1], |_, logit| logit);
    let most = one[0].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let left = each(&one, |_, logit| if logit < most { f32::NEG_INFINITY } else { logit });
    assert!(line(&left, &plain).ends_with("the plain row, only the likeliest token left"), "{}", line(&left, &plain));
}

#[test]
fn a_row_beyond_the_plain_rows_goes_with_the_places_of_the_others() {
    let (plain, other) = (model(304), model(305));
    let told = |sent: &[Vec<f32>]| table::of(&compared(sent, &plain, &[]));
    let goes_with_that = |text: &str| {
        let all = ["unlike any plain row", "Row i of both files", "goes with that"];
        all.iter().all(|words| text.contains(words)) && !text.contains("another text")
    };
    // The first row belongs before the first plain row, or the last one behind the last.
    let late = [&other[..1], &plain[..ROWS - 1]].concat();
    let early = [&plain[1..], &other[..1]].concat();
    for text in [told(&late), told(&early)] {
        assert!(goes_with_that(&text), "{text}");
    }
    // In the middle, nothing but the row itself is to blame.
    let mut middle = late;
    middle[3] = other[3].clone();
    assert!(told(&middle).contains("comes from another text"), "{}", told(&middle));
    assert!(told(&other).contains("comes from another text") && !told(&other).contains("goes with that"));
}

#[test]
fn a_row_without_a_distribution_has_no_likeliest_token() {
    let plain = model(303);
    let likeliest = likeliest(&plain[0]) as usize;
    let nan = each(&plain[..1], |token, logit| if token + 1 == likeliest { f32::NAN } else { logit });
    let masked = each(&plain[..1], |_, _| f32::NEG_INFINITY);
    assert!(table::of(&compared(&nan, &plain, &[])).contains("- A NaN or +infinity comes from an overflow"));
    for sent in [nan, masked] {
        let shown = line(&sent, &plain);
        assert_eq!(shown.split_whitespace().nth(1), Some("-"), "{shown}");
    }
}
