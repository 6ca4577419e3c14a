//! Penalties by the number of occurrences, and several penalties at once.

use super::*;

const SEEN: [u32; 6] = [11, 11, 22, 33, 33, 33];

/// With a repetition penalty first, then a presence and a frequency penalty.
fn with(rows: &[Vec<f32>], repetition: f32, presence: f32, frequency: f32, text: &[u32]) -> Vec<Vec<f32>> {
    counted(rows, text, |logit, count| repeated(logit, repetition) - presence - frequency * count)
}

/// With a presence and a frequency penalty first, then a repetition penalty.
fn subtracted_first(rows: &[Vec<f32>], repetition: f32, presence: f32, frequency: f32) -> Vec<Vec<f32>> {
    counted(rows, &TEXT, |logit, count| repeated(logit - presence - frequency * count, repetition))
}

fn repeated(logit: f32, penalty: f32) -> f32 {
    if logit > 0.0 { logit / penalty } else { logit * penalty }
}

/// With other logits for the tokens of the text. `change` gets the number of occurrences too.
fn counted(rows: &[Vec<f32>], text: &[u32], change: impl Fn(f32, f32) -> f32) -> Vec<Vec<f32>> {
    each(rows, |token, logit| match text.iter().filter(|&&other| other as usize == token).count() as f32 {
        0.0 => logit,
        count => change(logit, count),
    })
}

/// The penalties that were found: repetition, presence, frequency.
fn found(made: &Made) -> (f64, f64, f64) {
    let (mut all, counted) = ((1.0, 0.0, 0.0), |change: &Change| match change {
        Change::CountPenalty { presence, frequency, .. } => Some((*presence, *frequency)),
        _ => None,
    });
    for change in &made.changes {
        match change {
            Change::RepetitionPenalty { penalty, .. } => all.0 = *penalty,
            other => (all.1, all.2) = counted(other).unwrap_or_else(|| panic!("{made:?}")),
        }
    }
    all
}

#[test]
fn every_mixture_of_penalties_is_named() {
    let plain = model(200);
    // Three tokens cannot tell three penalties.
    let mixtures = [
        (1.0, 0.5, 0.0, &SEEN[..]),
        (1.0, 0.0, 0.5, &SEEN[..]),
        (1.0, 0.0, -0.3, &SEEN[..]),
        (1.0, 0.2, 0.4, &SEEN[..]),
        (1.3, 0.0, 0.2, &SEEN[..]),
        (1.3, 0.2, 0.0, &TEXT[..]),
        (1.2, 0.0, 0.1, &TEXT[..]),
        (1.2, 0.4, 0.1, &TEXT[..]),
        (0.8, 0.0, 0.5, &TEXT[..]),
    ];
    for (repetition, presence, frequency, text) in mixtures {
        let sent = with(&plain, repetition, presence, frequency, text);
        for sent in [each(&sent, |_, logit| logit / 0.8), sent] {
            let made = made(&sent, &plain, text);
            let (a, b, c) = found(&made);
            let is_right = near(a, repetition.into()) && near(b, presence.into()) && near(c, frequency.into());
            assert!(is_right && !is_first(&made), "{repetition} {presence} {frequency}: {made:?}");
            assert_eq!(b == 0.0 && c == 0.0, presence == 0.0 && frequency == 0.0, "{made:?}");
        }
    }
}

/// Whether a rule was found in which presence and frequency penalties come first.
fn is_first(made: &Made) -> bool {
    made.changes.iter().any(|change| matches!(change, Change::CountPenalty { subtracted_first: true, .. }))
}

#[test]
fn the_order_of_penalties_is_named() {
    let plain = model(204);
    for (repetition, presence, frequency) in [(1.3, 0.5, 0.0), (1.5, 0.0, 0.3), (1.2, 0.4, 0.3), (0.7, 0.5, 0.2)] {
        let sent = subtracted_first(&plain, repetition, presence, frequency);
        for sent in [each(&sent, |_, logit| logit / 0.8), sent] {
            let made = made(&sent, &plain, &TEXT);
            let (a, b, c) = found(&made);
            let is_right = near(a, repetition.into()) && near(b, presence.into()) && near(c, frequency.into());
            assert!(is_right && is_first(&made), "{repetition} {presence} {frequency}: {made:?}");
        }
    }
    let shown = table::of(&compared(&subtracted_first(&plain, 1.3, 0.5, 0.25), &plain, &TEXT));
    let both = "a repetition penalty of 1.30 (all in the text), a presence penalty of 0.50 and a frequency penalty of \
                0.25 before it\n";
    assert!(shown.contains(both), "{shown}");
}

/// Where all logits have one sign, both orders can make the same rows.
#[test]
fn the_usual_order_is_named_unless_the_other_fits_better() {
    let plain = each(&model(205), |_, logit| logit + 100.0);
    for (repetition, presence, frequency) in [(1.3, 0.5, 0.0), (1.2, 0.4, 0.3)] {
        for sent in [
            with(&plain, repetition, presence, frequency, &TEXT),
            subtracted_first(&plain, repetition, presence * repetition, frequency * repetition),
        ] {
            let made = made(&sent, &plain, &TEXT);
            let (a, b, c) = found(&made);
            let is_right = near(a, repetition.into()) && near(b, presence.into()) && near(c, frequency.into());
            assert!(is_right && !is_first(&made), "{repetition} {presence} {frequency}: {made:?}");
        }
    }
}

#[test]
fn penalties_that_are_none_are_not_named() {
    let plain = model(201);
    let shown =
        |presence, frequency| table::of(&compared(&with(&plain, 1.0, presence, frequency, &SEEN), &plain, &SEEN));
    assert!(shown(0.0, -0.3).contains("the plain row, a frequency penalty of -0.30\n"), "{}", shown(0.0, -0.3));
    assert!(shown(0.5, 0.0).contains("the plain row, a presence penalty of 0.50\n"), "{}", shown(0.5, 0.0));
    let both = shown(0.2, 0.4);
    assert!(both.contains("a presence penalty of 0.20 and a frequency penalty of 0.40\n"), "{both}");
}

#[test]
fn a_bias_on_some_tokens_of_the_text_is_no_presence_penalty() {
    let plain = model(202);
    let biased = each(&plain, |token, logit| if [5, 7].contains(&token) { logit - 0.5 } else { logit });
    assert!(matches!(made(&biased, &plain, &TEXT).changes[..], [Change::Bias { tokens: 2, in_text: Some(2), .. }]));
    // If each token occurs once, a presence penalty and a frequency penalty are the same.
    let once = with(&plain, 1.0, 0.5, 0.0, &[11, 22, 33]);
    assert!(matches!(made(&once, &plain, &[11, 22, 33]).changes[..], [Change::Bias { tokens: 3, .. }]));
}

#[test]
fn arbitrary_changes_to_the_text_s_tokens_are_not_named() {
    let mut normal = Normal(203);
    let (mut named, mut all) = (0, 0);
    for seed in 0..30 {
        let plain = model(2000 + seed);
        let sent =
            each(&plain, |token, logit| if TEXT.contains(&(token as u32)) { logit + normal.next() } else { logit });
        for row in &compared(&sent, &plain, &TEXT).rows {
            let Is::Plain(made) = &row.is else { panic!("{row:?}") };
            named += usize::from(!matches!(made.changes[..], [Change::Changed { .. }]));
            all += 1;
        }
    }
    assert!(named * 100 <= all, "{named} of {all}");
}
