//! Where the end of a text stood before, and how much of it: what DRY counts in.
//!
//! A match is a position before the end whose last tokens are the last tokens of the text, as many as its length says.
//! Only matches of at least the context of the [`Grams`] are kept, and within the window only those whose tokens lie in
//! it can matter. When a token is appended, a match whose text went on with that token grows by one, and every other
//! one ends; new ones have exactly the length of the context, and stand among the positions that the grams have chained.
//!
//! | | cost |
//! |---|---|
//! | a token | one step for each place in the window where the last tokens, as many as the context, stood before |
//! | opening | one step per token (Z-algorithm), however often they repeat |
//! | memory | the grams, and 8 bytes for each match |
//!
//! A text that says one thing over and over has a match at each of its places: then a token costs a step for each token
//! of the window, as it does in llama.cpp for every text. The window has a bound.

use super::text::Text;
use crate::sampling::steps::step;
use crate::speculative::propose::grams::Grams;

/// Longest context that is looked up at once; longer matches are found as they grow.
pub(super) const LONGEST_CONTEXT: usize = 32;

/// The tokens before a position are the last ones of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// The position, which is before the end.
    pub(super) at: u32,
    /// How many tokens, at least the context.
    pub(super) len: u32,
}

/// All matches of the last `window` tokens of a text, the latest first, from nothing (Z-algorithm on the text in
/// reverse).
pub(super) fn all(text: &[u32], context: usize, window: usize) -> Vec<Match> {
    let from = text.len().saturating_sub(window);
    let text = &text[from..];
    let n = text.len();
    let token = |i: usize| text[n - 1 - i];
    let mut lens = vec![0usize; n];
    let (mut left, mut right) = (0, 0);
    for k in 1..n {
        let mut len = if k < right { lens[k - left].min(right - k) } else { 0 };
        step();
        while k + len < n && token(len) == token(k + len) {
            step();
            len += 1;
        }
        lens[k] = len;
        if k + len > right {
            (left, right) = (k, k + len);
        }
    }
    let found = (1..n).filter(|&k| lens[k] >= context);
    let mut matches: Vec<Match> = found.map(|k| Match { at: (from + n - k) as u32, len: lens[k] as u32 }).collect();
    matches.shrink_to_fit();
    matches
}

/// The matches of `text`, which the last token was just appended to, from those before it: `old`. `grams` has chained
/// the kept part of the text.
pub(super) fn appended(old: &[Match], text: &Text<'_>, grams: &Grams, window: usize) -> Vec<Match> {
    let (n, context) = (text.len(), grams.context());
    let Some(token) = n.checked_sub(1).and_then(|last| text.get(last)) else { return Vec::new() };
    let mut old = old.iter().peekable();
    // Positions that look ahead are not chained; they are few.
    let ahead = (text.kept_len()..n).rev();
    let chained = grams.chain_behind(text.last(context));
    let reach = window.saturating_sub(context);
    let mut matches = Vec::new();
    for at in ahead.chain(chained).take_while(|&at| n - at <= reach) {
        step();
        while old.next_if(|m| m.at as usize >= at).is_some() {}
        let before = old.next_if(|m| m.at as usize + 1 == at);
        let len = match before {
            Some(before) if text.get(at - 1) == Some(token) => before.len + 1,
            // Another match of the same hash, or none.
            Some(_) => continue,
            None if text.repeats_before(at, context) => context as u32,
            None => continue,
        };
        matches.push(Match { at: at as u32, len });
    }
    matches.shrink_to_fit();
    matches
}

/// Bytes of matches of a text of `len` tokens, at most.
pub(super) fn most_bytes(len: usize, window: usize) -> usize {
    len.min(window) * size_of::<Match>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// From the definition, the latest first, no longer than the window shows.
    fn naive(text: &[u32], context: usize, window: usize) -> Vec<Match> {
        let n = text.len();
        let seen = |at: usize| window.saturating_sub(n - at);
        let len = |at: usize| (1..=at).take_while(|&l| text[at - l] == text[n - l]).count().min(seen(at));
        let found = (1..n).rev().map(|at| Match { at: at as u32, len: len(at) as u32 });
        found.filter(|m| m.len as usize >= context).collect()
    }

    /// Matches may be longer than the window shows, and stand too far back: whoever counts cuts them.
    fn cut(matches: &[Match], n: usize, window: usize, context: usize) -> Vec<Match> {
        let seen = |m: &Match| window.saturating_sub(n - m.at as usize).min(m.len as usize) as u32;
        let cut = matches.iter().map(|m| Match { len: seen(m), ..*m });
        cut.filter(|m| m.len as usize >= context).collect()
    }

    proptest! {
        #[test]
        fn appended_token_by_token_matches_are_those_of_the_definition(
            text in prop_oneof![
                prop::collection::vec(0u32..3, 0..60), prop::collection::vec(0u32..2, 0..60), Just(vec![5; 40])
            ],
            ahead_from in 0usize..60,
            context in 1usize..5,
            window in prop_oneof![Just(usize::MAX), 1usize..30],
        ) {
            let mut grams = Grams::new(context, 0);
            let cut_at = ahead_from.min(text.len());
            let mut matches = all(&[], context, window);
            for n in 1..=text.len() {
                if n <= cut_at {
                    grams.push(&text[..n - 1], text[n - 1]);
                }
                let kept = n.min(cut_at);
                matches = appended(&matches, &Text::new(&text[..kept], &text[kept..n]), &grams, window);
                let expected = naive(&text[..n], context, window);
                prop_assert_eq!(&cut(&matches, n, window, context), &expected, "{} of {:?}", n, text);
                prop_assert_eq!(&cut(&all(&text[..n], context, window), n, window, context), &expected);
                prop_assert!(matches.capacity() * size_of::<Match>() <= most_bytes(n, window));
            }
        }
    }
}
