//! Noticing that a text only repeats itself: `repetition_detection` (as in vLLM, `check_sequence_repetition`).
//!
//! The output ends with a loop if for some `p` from `min_pattern_size` to `max_pattern_size` its last
//! `p * min_count` tokens are `min_count` times the same `p` tokens. The sequence ends with the token that completes it,
//! though not before it has `min_tokens`. A text that goes on without a loop costs one comparison for each `p`.

use super::text::Text;
use crate::params::steering::RepetitionDetection;

/// Whether the text, whose last `output` tokens were emitted, ends with a loop.
pub(super) fn looping(params: &RepetitionDetection, text: &Text<'_>, output: u64) -> bool {
    let count = params.min_count as usize;
    (params.min_pattern_size.max(1)..=params.max_pattern_size).map(|pattern| pattern as usize).any(|pattern| {
        let (span, len) = (pattern * count, text.len());
        // Each token is the one a pattern earlier.
        let same = || text.back_from(len).zip(text.back_from(len - pattern)).take(span - pattern).all(|(a, b)| a == b);
        span as u64 <= output && span <= len && same()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(text: &[u32], output: u64, (min, max, count): (u32, u32, u32)) -> bool {
        let params = RepetitionDetection { max_pattern_size: max, min_pattern_size: min, min_count: count };
        looping(&params, &Text::new(&text[..text.len() / 2], &text[text.len() / 2..]), output)
    }

    #[test]
    fn by_hand() {
        for (text, output, sizes, expected) in [
            (&[1, 1, 1][..], 3, (1, 1, 3), true),
            (&[1, 1, 1], 3, (1, 1, 4), false),
            (&[1, 1, 1], 2, (1, 1, 3), false),
            (&[9, 1, 2, 1, 2], 5, (1, 2, 2), true),
            (&[9, 1, 2, 1, 2], 5, (1, 1, 2), false),
            (&[9, 1, 2, 1, 2], 5, (3, 4, 2), false),
            (&[1, 2, 1, 2, 1], 5, (2, 2, 2), true),
            (&[1, 1, 2, 1], 4, (1, 4, 2), false),
            (&[2, 2, 2, 2], 4, (2, 2, 2), true),
            (&[], 0, (1, 4, 2), false),
        ] {
            assert_eq!(found(text, output, sizes), expected, "{text:?} {output} {sizes:?}");
        }
    }

    proptest! {
        #[test]
        fn loops_are_those_of_the_definition(
            text in prop::collection::vec(0u32..2, 0..24),
            prompt in 0usize..6,
            (min, more, count) in (1u32..4, 0u32..3, 2u32..5),
        ) {
            let output = &text[prompt.min(text.len())..];
            let ends = |p: usize| {
                let pattern = &output[output.len().saturating_sub(p)..];
                pattern.len() == p && output.ends_with(&pattern.repeat(count as usize))
            };
            let expected = (min..=min + more).any(|p| ends(p as usize));
            prop_assert_eq!(found(&text, output.len() as u64, (min, min + more, count)), expected);
        }
    }
}
