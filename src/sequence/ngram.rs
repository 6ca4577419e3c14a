//! Bans tokens that would complete an n-gram a second time: `no_repeat_ngram` (fairseq; as in Hugging Face
//! `NoRepeatNGramLogitsProcessor` and TensorRT-LLM `no_repeat_ngram_size`; window and whitelist as in SGLang's
//! processor for DeepSeek-OCR).
//!
//! Let n be `size`. A token is banned if, somewhere in the last `window` tokens of prompt and output (0: 32,768), it
//! followed the n - 1 tokens that the text now ends with. The earlier n-gram must lie in the window as a whole. Tokens
//! of the whitelist are never banned. With n = 1 every token of the window is banned.
//!
//! With `prompt_size` (Hugging Face `EncoderNoRepeatNGramLogitsProcessor`; n = `prompt_size`) a token is also banned if
//! it followed the last n - 1 tokens anywhere in the prompt, however far back that is ([`PromptNgrams`]).
//!
//! Only the latest place of each n-gram is chained ([`Grams::push_over`]), because earlier ones would ban the same
//! token. So a token costs one step, and at most n - 1 comparisons, for each *different* token that followed the last
//! n - 1 ones, however often it did. Opening costs a step per token. A row that looks ahead costs a step more for each
//! token ahead. If n is 1, all tokens have the same, empty context. Their latest places are then kept in token order
//! ([`Singles`]), so that a row needs no sorting.

mod singles;

use super::in_order_once;
use super::text::TextView;
use crate::params::history::MAX_LOOK_BACK;
use crate::params::steering::NoRepeatNgram;
use crate::sampling::steps::step;
use crate::speculative::propose::grams::Grams;
use singles::Singles;

/// The places of earlier n-grams.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum NgramIndex {
    /// Chained by the tokens before their last one.
    Chained(Grams),
    /// Of single tokens, where n is 1.
    Singles(Singles),
}

impl NgramIndex {
    /// The n-grams of these tokens, each with `context` tokens before its last one.
    pub(super) fn latest(context: usize, tokens: &[u32]) -> Self {
        match context {
            0 => Self::Singles(Singles::latest(tokens)),
            _ => Self::Chained(Grams::latest(context, tokens)),
        }
    }

    /// Appends `token` to `tokens`.
    pub(super) fn push_over(&mut self, tokens: &[u32], token: u32) {
        match self {
            Self::Chained(grams) => grams.push_over(tokens, token),
            Self::Singles(singles) => singles.push(token, tokens.len()),
        }
    }

    /// The memory held, besides its own fields.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Chained(grams) => grams.bytes(),
            Self::Singles(singles) => singles.bytes(),
        }
    }

    /// The most that [`Self::bytes`] may be once the text has `len` tokens.
    pub(super) fn bytes_after(&self, len: usize) -> usize {
        match self {
            Self::Chained(grams) => grams.bytes_after(len),
            Self::Singles(singles) => singles.bytes_after(len),
        }
    }
}

/// How many tokens before an n-gram's last one are looked up.
pub(super) fn context(params: &NoRepeatNgram) -> usize {
    params.size as usize - 1
}

/// How many tokens are looked back at.
pub(super) fn window(params: &NoRepeatNgram) -> usize {
    (if params.window == 0 { MAX_LOOK_BACK } else { params.window }) as usize
}

/// Adds the tokens that are banned after `text` to `banned`. `index` has the latest places in the kept part of the
/// text, for this [`context`]. The whitelist is sorted.
pub(super) fn ban(params: &NoRepeatNgram, text: &TextView<'_>, index: &NgramIndex, banned: &mut Vec<u32>) {
    let (n, context) = (text.len(), context(params));
    let reach = window(params).saturating_sub(context);
    let is_near = |&at: &usize| n - at <= reach;
    let mut found = match index {
        NgramIndex::Singles(singles) => singles.from(n.saturating_sub(reach)),
        NgramIndex::Chained(_) => Vec::new(),
    };
    // Positions of tokens that are only looked ahead at are not chained. They are few, so all are tried.
    for at in (text.kept_len()..n).rev().take_while(is_near) {
        step();
        let place = text.get(at).and_then(|token| Some((found.binary_search(&token).err()?, token)));
        if let Some((place, token)) = place.filter(|_| text.repeats_before(at, context)) {
            found.insert(place, token);
        }
    }
    if let NgramIndex::Chained(grams) = index {
        let chained = grams.chain_behind(text.last(context)).take_while(is_near);
        found.extend(chained.filter(|&at| text.repeats_before(at, context)).filter_map(|at| text.get(at)));
        in_order_once(&mut found);
    }
    found.retain(|token| params.whitelist.binary_search(token).is_err());
    banned.reserve_exact(found.len());
    banned.extend(found);
}

/// The n-grams of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PromptNgrams {
    /// The prompt; empty if n is 1.
    tokens: Vec<u32>,
    index: NgramIndex,
}

impl PromptNgrams {
    /// The prompt's n-grams for `prompt_size` of these parameters.
    pub(super) fn new(params: &NoRepeatNgram, prompt: &[u32]) -> Self {
        let context = params.prompt_size as usize - 1;
        let index = NgramIndex::latest(context, prompt);
        let tokens = if let NgramIndex::Chained(_) = index { prompt.to_vec() } else { Vec::new() };
        Self { tokens, index }
    }

    /// Adds the tokens that are banned after `text` to `banned`. The whitelist is sorted.
    pub(super) fn ban(&self, params: &NoRepeatNgram, text: &TextView<'_>, banned: &mut Vec<u32>) {
        let context = params.prompt_size as usize - 1;
        let mut found = match &self.index {
            NgramIndex::Singles(singles) => singles.from(0),
            NgramIndex::Chained(grams) => self.behind(grams, text, context),
        };
        found.retain(|token| params.whitelist.binary_search(token).is_err());
        // Exact, so that the list takes no more memory than is counted for it.
        banned.reserve_exact(found.len());
        banned.extend(found);
    }

    /// The tokens that followed the end of `text` in the prompt.
    fn behind(&self, grams: &Grams, text: &TextView<'_>, context: usize) -> Vec<u32> {
        if text.len() < context {
            return Vec::new();
        }
        let ends_so =
            |&at: &usize| at >= context && self.tokens[at - context..at].iter().copied().eq(text.last(context));
        let places = grams.chain_behind(text.last(context)).filter(ends_so);
        places.filter_map(|at| self.tokens.get(at).copied()).collect()
    }

    /// The most tokens that it bans at a position.
    pub(super) fn most_banned(&self) -> usize {
        if let NgramIndex::Singles(singles) = &self.index { singles.len() } else { self.tokens.len() }
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        self.tokens.capacity() * size_of::<u32>() + self.index.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::steps::steps;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn banned(params: &NoRepeatNgram, tokens: &[u32], kept: usize) -> BTreeSet<u32> {
        // A part of the text was there when it was opened.
        let opened = kept / 2;
        let mut index = NgramIndex::latest(context(params), &tokens[..opened]);
        for at in opened..kept {
            index.push_over(&tokens[..at], tokens[at]);
        }
        let mut banned = Vec::new();
        ban(params, &TextView::new(&tokens[..kept], &tokens[kept..]), &index, &mut banned);
        assert!(banned.is_sorted_by(|a, b| a < b));
        banned.into_iter().collect()
    }

    #[test]
    fn by_hand() {
        let of = |size, window, whitelist: &[u32], text: &[u32]| {
            let params = NoRepeatNgram { size, window, whitelist: whitelist.to_vec(), prompt_size: 0 };
            banned(&params, text, text.len()).into_iter().collect::<Vec<_>>()
        };
        // Hugging Face tests/generation/test_logits_process.py: input ids 1 1 2 1 and 0 1 0 1, sizes 2 and 3.
        assert_eq!((of(2, 0, &[], &[1, 1, 2, 1]), of(2, 0, &[], &[0, 1, 0, 1])), (vec![1, 2], vec![0]));
        assert_eq!((of(3, 0, &[], &[1, 1, 2, 1]), of(3, 0, &[], &[0, 1, 0, 1])), (vec![], vec![0]));
        assert_eq!(of(2, 0, &[2], &[1, 1, 2, 1]), [1]);
        // 1 2 is in the last three tokens, 1 1 is not.
        assert_eq!((of(2, 3, &[], &[1, 1, 2, 1]), of(2, 2, &[], &[1, 1, 2, 1])), (vec![2], vec![]));
        // With single tokens, all tokens in the window are banned.
        assert_eq!((of(1, 0, &[], &[3, 1, 3]), of(1, 2, &[], &[3, 1, 3, 1])), (vec![1, 3], vec![1, 3]));
        assert_eq!((of(1, 1, &[], &[3, 1]), of(1, 0, &[1], &[3, 1]), of(1, 0, &[], &[])), (vec![1], vec![3], vec![]));
        assert_eq!((of(2, 0, &[], &[]), of(4, 0, &[], &[1, 1]), of(2, 1, &[], &[1, 1])), (vec![], vec![], vec![]));
    }

    #[test]
    fn of_the_prompt_by_hand() {
        let of = |prompt_size, whitelist: &[u32], prompt: &[u32], text: &[u32]| {
            let params = NoRepeatNgram { prompt_size, whitelist: whitelist.to_vec(), ..Default::default() };
            let (mut banned, half) = (Vec::new(), text.len() / 2);
            PromptNgrams::new(&params, prompt).ban(&params, &TextView::new(&text[..half], &text[half..]), &mut banned);
            in_order_once(&mut banned);
            banned
        };
        // Hugging Face tests/generation/test_logits_process.py: encoder ids, input ids and banned ids, for size 2 and
        // for size 3.
        let cases: [[&[u32]; 4]; 5] = [
            [&[1, 2, 1, 1], &[1, 2, 1], &[1, 2], &[1]],
            [&[1, 2, 1, 1], &[8, 0, 2], &[1], &[]],
            [&[1, 2, 1, 1], &[1, 0, 2], &[1], &[]],
            [&[0, 0, 2, 1], &[0, 0, 0], &[0, 2], &[2]],
            [&[0, 0, 2, 1], &[0, 2, 2], &[1], &[]],
        ];
        for [prompt, text, two, three] in cases {
            assert_eq!((of(2, &[], prompt, text).as_slice(), of(3, &[], prompt, text).as_slice()), (two, three));
        }
        assert_eq!(of(2, &[1], &[1, 2, 1, 1], &[1, 2, 1]), [2]);
        assert_eq!(
            (of(1, &[], &[5, 2, 5], &[9]), of(1, &[2], &[5, 2], &[]), of(1, &[], &[], &[1])),
            (vec![2, 5], vec![5], vec![])
        );
        assert_eq!(
            (of(2, &[], &[], &[1]), of(4, &[], &[1, 1, 1, 1], &[1, 1]), of(2, &[], &[1], &[1])),
            (vec![], vec![], vec![])
        );
    }

    /// Texts that repeat one token, that cycle, of two random tokens, and of pairs that occur once each.
    fn degenerate(len: u32) -> [Vec<u32>; 4] {
        let chance = |i: u32| (i.wrapping_mul(0x9E37_79B9) ^ i << 7).wrapping_mul(0x85EB_CA6B) >> 31;
        let pairs = |i: u32| if i.is_multiple_of(2) { 0 } else { i };
        [
            vec![1; len as usize],
            (0..len).map(|i| i % 7).collect(),
            (0..len).map(chance).collect(),
            (0..len).map(pairs).collect(),
        ]
    }

    #[test]
    fn opening_costs_a_step_a_token_and_a_token_one_for_each_that_followed() {
        for (size, [whole, half]) in
            [(1, [1u32 << 15, 1 << 14]), (2, [1 << 15, 1 << 14]), (3, [1 << 15, 1 << 14]), (64, [1 << 13, 1 << 12])]
        {
            let params = NoRepeatNgram { size, whitelist: (2..4098).collect(), ..Default::default() };
            let context = context(&params);
            for (text, shorter) in degenerate(whole).iter().zip(degenerate(half)) {
                let opening = |text: &[u32]| steps(|| NgramIndex::latest(context, text));
                assert!(opening(text) <= whole as usize && opening(&shorter) <= half as usize);
                let mut index = NgramIndex::latest(context, text);
                let end = &text[text.len() - context..];
                let followed: BTreeSet<_> = text.windows(size as usize).filter(|gram| gram.starts_with(end)).collect();
                let mut banned = Vec::new();
                let row = steps(|| ban(&params, &TextView::new(text, &[]), &index, &mut banned));
                // There are only few others with the same hash.
                assert!(row <= followed.len() + 8, "{row} steps, {} tokens followed", followed.len());
                let token = text[text.len() / 2];
                let pushed = steps(|| index.push_over(text, token));
                assert!(pushed <= followed.len() + 8, "{pushed} steps, {} tokens followed", followed.len());
            }
        }
    }

    #[test]
    fn a_row_that_looks_ahead_costs_a_step_a_token_ahead() {
        let params = NoRepeatNgram { size: 2, ..Default::default() };
        let (text, ahead) = (vec![1; 1 << 15], vec![1; 1000]);
        let grams = NgramIndex::latest(1, &text);
        let row = |ahead| steps(|| ban(&params, &TextView::new(&text, ahead), &grams, &mut Vec::new()));
        assert!(row(&ahead) <= 1001 && row(&ahead[..500]) <= 501, "{} {}", row(&ahead), row(&ahead[..500]));
    }

    proptest! {
        #[test]
        fn bans_are_those_of_the_definition(
            text in prop::collection::vec(0u32..3, 0..40),
            cut in 0usize..40,
            (size, window) in (1u32..5, prop_oneof![Just(0), 1u32..45]),
            mut whitelist in prop::collection::vec(0u32..3, 0..2),
        ) {
            in_order_once(&mut whitelist);
            let params = NoRepeatNgram { size, window, whitelist, prompt_size: 0 };
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

        #[test]
        fn bans_of_the_prompt_are_those_of_the_definition(
            prompt in prop::collection::vec(0u32..3, 0..40),
            output in prop::collection::vec(0u32..3, 0..8),
            prompt_size in 1u32..5,
        ) {
            let params = NoRepeatNgram { prompt_size, ..Default::default() };
            let (text, n) = ([&prompt[..], &output[..]].concat(), prompt_size as usize);
            let mut expected = BTreeSet::new();
            if text.len() + 1 >= n {
                let end = &text[text.len() + 1 - n..];
                expected.extend(prompt.windows(n).filter(|gram| &gram[..n - 1] == end).map(|gram| gram[n - 1]));
            }
            let mut banned = Vec::new();
            PromptNgrams::new(&params, &prompt).ban(&params, &TextView::new(&text, &[]), &mut banned);
            prop_assert_eq!(banned.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }
}
