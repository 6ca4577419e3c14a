//! No n-gram comes twice: `no_repeat_ngram` (fairseq; as in Hugging Face `NoRepeatNGramLogitsProcessor` and TensorRT-LLM
//! `no_repeat_ngram_size`; window and whitelist as in SGLang's processor for DeepSeek-OCR).
//!
//! With n = `size` tokens: a token is banned if it followed, somewhere in the last `window` tokens of prompt and output (0: 32,768),
//! the n - 1 tokens that the text ends with; the earlier n-gram must lie in the window as a whole. Tokens of the
//! whitelist are never banned. Costs as DRY's ([`repeats`]): one step for each place where the last n - 1
//! tokens stood before, and no more per match than n - 1 comparisons.

use super::in_order_once;
use super::repeats;
use super::text::Text;
use crate::params::history::MAX_LOOK_BACK;
use crate::params::steering::NoRepeatNgram;
use crate::speculative::propose::grams::Grams;

/// Tokens of the context that is looked up.
pub(super) fn context(params: &NoRepeatNgram) -> usize {
    params.size as usize - 1
}

/// Tokens that are looked back at.
pub(super) fn window(params: &NoRepeatNgram) -> usize {
    (if params.window == 0 { MAX_LOOK_BACK } else { params.window }) as usize
}

/// Adds what is banned after `text`. `grams` has chained the kept part with this
/// [`context`].
pub(super) fn ban(params: &NoRepeatNgram, text: &Text<'_>, grams: &Grams, banned: &mut Vec<u32>) {
    let reach = window(params).saturating_sub(context(params));
    let followed = repeats::places(text, grams, reach).filter_map(|at| text.get(at));
    let mut found: Vec<u32> = followed.filter(|token| !params.whitelist.contains(token)).collect();
    in_order_once(&mut found);
    banned.reserve_exact(found.len());
    banned.extend(found);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn banned(params: &NoRepeatNgram, tokens: &[u32], kept: usize) -> BTreeSet<u32> {
        let mut grams = Grams::new(context(params), 0);
        for at in 0..kept {
            grams.push(&tokens[..at], tokens[at]);
        }
        let mut banned = Vec::new();
        ban(params, &Text::new(&tokens[..kept], &tokens[kept..]), &grams, &mut banned);
        banned.into_iter().collect()
    }

    #[test]
    fn by_hand() {
        let of = |size, window, whitelist: &[u32], text: &[u32]| {
            let params = NoRepeatNgram { size, window, whitelist: whitelist.to_vec() };
            banned(&params, text, text.len()).into_iter().collect::<Vec<_>>()
        };
        // Hugging Face tests/generation/test_logits_process.py: input ids 1 1 2 1 and 0 1 0 1, sizes 2 and 3.
        assert_eq!((of(2, 0, &[], &[1, 1, 2, 1]), of(2, 0, &[], &[0, 1, 0, 1])), (vec![1, 2], vec![0]));
        assert_eq!((of(3, 0, &[], &[1, 1, 2, 1]), of(3, 0, &[], &[0, 1, 0, 1])), (vec![], vec![0]));
        assert_eq!(of(2, 0, &[2], &[1, 1, 2, 1]), [1]);
        // 1 2 lies in the last three tokens, 1 1 does not.
        assert_eq!((of(2, 3, &[], &[1, 1, 2, 1]), of(2, 2, &[], &[1, 1, 2, 1])), (vec![2], vec![]));
        assert_eq!((of(2, 0, &[], &[]), of(4, 0, &[], &[1, 1]), of(2, 1, &[], &[1, 1])), (vec![], vec![], vec![]));
    }

    proptest! {
        #[test]
        fn bans_are_those_of_the_definition(
            text in prop::collection::vec(0u32..3, 0..40),
            cut in 0usize..40,
            (size, window) in (2u32..5, prop_oneof![Just(0), 1u32..45]),
            whitelist in prop::collection::vec(0u32..3, 0..2),
        ) {
            let params = NoRepeatNgram { size, window, whitelist };
            let n = size as usize;
            let seen = if window == 0 { &text[..] } else { &text[text.len().saturating_sub(window as usize)..] };
            let mut expected = BTreeSet::new();
            if text.len() + 1 >= n {
                let end = &text[text.len() + 1 - n..];
                expected.extend(seen.windows(n).filter(|gram| &gram[..n - 1] == end).map(|gram| gram[n - 1]));
            }
            expected.retain(|token| !params.whitelist.contains(token));
            prop_assert_eq!(banned(&params, &text, cut.min(text.len())), expected);
        }
    }
}
