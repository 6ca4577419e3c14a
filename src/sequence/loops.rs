//! Detects a text that only repeats itself: `repetition_detection` (as in vLLM, `check_sequence_repetition`).
//!
//! The output ends with a loop if, for some `p` from `min_pattern_size` to `max_pattern_size`, its last `p * min_count`
//! tokens are the same `p` tokens `min_count` times. The sequence ends with the token that completes the loop, but not
//! before it has `min_tokens`.
//!
//! That is how far the end of the text repeats itself ([`EndRepeats`](super::text::EndRepeats)). So a token costs at most
//! one comparison for each `p` and one for each token of the longest possible loop, whatever the text.

use super::text::TextView;
use crate::params::steering::RepetitionDetection;

/// Whether the text, whose last `output` tokens were emitted, ends with a loop.
pub(super) fn looping(params: &RepetitionDetection, text: &TextView<'_>, output: u64) -> bool {
    let (count, max) = (params.min_count as usize, params.max_pattern_size as usize);
    let output = usize::try_from(output).unwrap_or(usize::MAX);
    let len = text.len().min(output).min(max.saturating_mul(count));
    let mut repeats = text.end_repeats(len);
    (1..=max.min(len.saturating_sub(1))).any(|pattern| {
        let (repeat, span) = (repeats.find_next(), pattern * count);
        pattern >= params.min_pattern_size as usize && span <= len && repeat >= span - pattern
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::steps::steps;
    use proptest::prelude::*;

    fn found(text: &[u32], output: u64, (min, max, count): (u32, u32, u32)) -> bool {
        let params = RepetitionDetection { max_pattern_size: max, min_pattern_size: min, min_count: count };
        looping(&params, &TextView::new(&text[..text.len() / 2], &text[text.len() / 2..]), output)
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

    /// A text that is nearly a loop of every size costs no more than its length.
    #[test]
    fn what_nearly_loops_costs_its_length() {
        let mut text = vec![1; 20_000];
        text[12_100] = 2;
        let cost = |text: &[u32], sizes| {
            let mut is_loop = false;
            let steps = steps(|| is_loop = found(text, 20_000, sizes));
            (is_loop, steps)
        };
        let (is_loop, steps) = cost(&text, (128, 256, 64));
        assert!(!is_loop && (7_000..17_000).contains(&steps), "{is_loop} {steps}");
        let (is_loop, steps) = cost(&text, (1, 256, 64));
        assert!(is_loop && steps < 17_000, "{is_loop} {steps}");
        text[19_999] = 3;
        assert_eq!(cost(&text, (1, 256, 64)), (false, 256));
    }

    proptest! {
        #[test]
        fn loops_are_those_of_the_definition(
            text in prop::collection::vec(0u32..2, 0..40),
            prompt in 0usize..6,
            (min, more, count) in (1u32..4, 0u32..8, 2u32..5),
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
