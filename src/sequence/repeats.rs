//! Finds where the end of a text stood before, and how much of it: the repeats that DRY penalises.
//!
//! A match is a position before the end, together with a length: that many tokens before the position are also the last
//! tokens of the text. The length is at most what [can matter](RepeatIndex). Matches shorter than the context are not
//! kept, and of matches that are the same only the latest is kept. With a window, only matches whose tokens lie in it
//! count. When a token is appended, a match whose text went on with that token grows by one, and every other match
//! ends. New matches are found among the chained positions and compared with the end of the text.
//!
//! | | cost |
//! |---|---|
//! | a token | a step for each match; for a new one as many as it is long |
//! | opening | at most two steps per token (Z-function), however often they repeat, and what [`RepeatIndex`] takes |
//! | memory | the places, and 8 bytes for each match |
//!
//! A text that says one thing over and over has at most as many matches as tokens can matter. A text that repeats the
//! same few tokens in changing order has one match for each place where they stood.

use super::repeat_index::RepeatIndex;
use super::text::TextView;
use crate::sampling::steps::step;

/// The longest context that is looked up at once. Longer matches are found as they grow.
pub(super) const LONGEST_CONTEXT: usize = 32;

/// A position whose preceding tokens are also the last ones of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// The position, which is before the end.
    pub(super) at: u32,
    /// How many tokens agree; at least the context.
    pub(super) len: u32,
}

/// Computes the matches in the last `window` tokens of a text from scratch, the latest first. `places` are those of the
/// text.
pub(super) fn all(text: &[u32], places: &RepeatIndex, window: usize) -> Vec<Match> {
    let lens = lens(&text[text.len().saturating_sub(window)..]);
    let measured = |at: usize| lens[text.len() - at].min(places.matter());
    matches(&TextView::new(text, &[]), 0..0, places, window, measured)
}

/// The matches of `text` after its last token was appended. `old` are the matches before that token; `places` are those
/// of the kept part of the text.
pub(super) fn appended(old: &[Match], text: &TextView<'_>, places: &RepeatIndex, window: usize) -> Vec<Match> {
    let (n, matter) = (text.len(), places.matter());
    let Some(token) = n.checked_sub(1).and_then(|last| text.get(last)) else { return Vec::new() };
    let mut old = old.iter().peekable();
    let measured = |at: usize| {
        while old.next_if(|m| m.at as usize >= at).is_some() {}
        match old.next_if(|m| m.at as usize + 1 == at) {
            Some(before) if text.get(at - 1) == Some(token) => (before.len as usize + 1).min(matter),
            Some(_) => 0,
            None => text.repeated_before(at, matter),
        }
    };
    // Positions of tokens that are only looked ahead at are not chained. They are few, so all are tried.
    matches(text, text.kept_len()..n, places, window, measured)
}

/// The matches among the positions in `ahead` and the chained ones, with the lengths that `measured` gives.
fn matches(
    text: &TextView<'_>,
    ahead: std::ops::Range<usize>,
    places: &RepeatIndex,
    window: usize,
    mut measured: impl FnMut(usize) -> usize,
) -> Vec<Match> {
    let (n, context) = (text.len(), places.context());
    let reach = window.saturating_sub(context);
    let mut matches = Vec::new();
    let mut measure = |at: usize| {
        step();
        let len = measured(at);
        if len >= context {
            matches.push(Match { at: at as u32, len: len as u32 });
        }
    };
    ahead.rev().take_while(|at| n - at <= reach).for_each(&mut measure);
    let mut next = places.latest(text.last(context));
    while let Some(at) = next.filter(|at| n - at <= reach) {
        measure(at);
        next = places.before(at);
    }
    matches.shrink_to_fit();
    matches
}

/// For each distance from the end: how many tokens before that place agree with the last ones of the text.
fn lens(text: &[u32]) -> Vec<usize> {
    let mut repeats = TextView::new(text, &[]).end_repeats(text.len());
    (1..text.len()).for_each(|_| _ = repeats.find_next());
    repeats.into_lens()
}

/// The most bytes of matches that a text of `len` tokens may have.
pub(super) fn most_bytes(len: usize, window: usize) -> usize {
    len.min(window) * size_of::<Match>()
}

#[cfg(test)]
mod tests {
    use super::super::repeat_index::FARTHEST;
    use super::*;
    use crate::sampling::steps::steps;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The longest repeat that each token followed, from the definition: no longer than the window shows, and cut to
    /// the length that can matter.
    fn naive(text: &[u32], context: usize, longest: usize, window: usize) -> BTreeMap<u32, usize> {
        let n = text.len();
        let seen = |at: usize| window.saturating_sub(n - at).min(longest);
        let len = |at: usize| (1..=at).take_while(|&l| text[at - l] == text[n - l]).count().min(seen(at));
        best((1..n).map(|at| (text[at], len(at))).filter(|found| found.1 >= context))
    }

    fn best(found: impl Iterator<Item = (u32, usize)>) -> BTreeMap<u32, usize> {
        found.fold(BTreeMap::new(), |mut best, (token, len)| {
            best.entry(token).and_modify(|best: &mut usize| *best = len.max(*best)).or_insert(len);
            best
        })
    }

    /// Matches may be longer than the window shows, and too far back. The code that counts them cuts them.
    fn cut(matches: &[Match], text: &[u32], (context, longest, window): (usize, usize, usize)) -> BTreeMap<u32, usize> {
        assert!(matches.is_sorted_by(|a, b| a.at > b.at));
        let seen = |m: &Match| window.saturating_sub(text.len() - m.at as usize).min(m.len as usize).min(longest);
        best(matches.iter().map(|m| (text[m.at as usize], seen(m))).filter(|found| found.1 >= context))
    }

    fn texts() -> impl Strategy<Value = Vec<u32>> {
        let piece = (prop::collection::vec(0u32..3, 1..6), 1usize..9);
        let looping = prop::collection::vec(piece, 0..8);
        prop_oneof![
            prop::collection::vec(0u32..3, 0..60),
            prop::collection::vec(0u32..2, 0..60),
            looping.prop_map(|pieces| pieces.into_iter().flat_map(|(piece, times)| piece.repeat(times)).collect()),
            Just(vec![5; 40])
        ]
    }

    proptest! {
        #[test]
        fn appended_token_by_token_the_longest_are_those_of_the_definition(
            text in texts(),
            ahead_from in 0usize..100,
            context in 1usize..5,
            more in prop_oneof![Just(FARTHEST + 1), 0usize..12],
            window in prop_oneof![Just(usize::MAX), 1usize..30],
        ) {
            let longest = context + more;
            let mut places = RepeatIndex::new(context, longest, &[]);
            let cut_at = ahead_from.min(text.len());
            let mut matches = all(&[], &places, window);
            for n in 1..=text.len() {
                if n <= cut_at {
                    places.push(&text[..n - 1], text[n - 1]);
                }
                let kept = n.min(cut_at);
                matches = appended(&matches, &TextView::new(&text[..kept], &text[kept..n]), &places, window);
                let expected = naive(&text[..n], context, longest, window);
                let bounds = (context, longest, window);
                prop_assert_eq!(&cut(&matches, &text[..n], bounds), &expected, "{} of {:?}", n, text);
                let reopened = RepeatIndex::new(context, longest, &text[..n]);
                prop_assert_eq!(&cut(&all(&text[..n], &reopened, window), &text[..n], bounds), &expected);
                prop_assert!(n > cut_at || reopened == places);
                prop_assert!(matches.capacity() * size_of::<Match>() <= most_bytes(n, window));
            }
        }
    }

    /// Texts that repeat one token, that cycle, of two random tokens, and of one token with an occasional other one.
    /// With each comes the number of steps that a token of it may cost if 126 matter.
    fn degenerate(len: u32) -> [(Vec<u32>, usize); 4] {
        let chance = |i: u32| (i.wrapping_mul(0x9E37_79B9) ^ i << 7).wrapping_mul(0x85EB_CA6B) >> 31;
        let odd = |i: u32| if i % 2000 == 1999 { 1 + i % 3 } else { 0 };
        [
            (vec![1; len as usize], 2 * 126),
            ((0..len).map(|i| i % 7).collect(), 2 * 126),
            ((0..len).map(chance).collect(), len as usize),
            ((0..len).map(odd).collect(), 2 * 17 * 126),
        ]
    }

    #[test]
    fn a_loop_costs_what_can_matter_and_opening_a_few_steps_a_token() {
        let window = 1 << 15;
        for (which, (text, most)) in degenerate(1 << 15).into_iter().enumerate() {
            let mut places = None;
            let opening = steps(|| places = Some(RepeatIndex::new(2, 126, &text)));
            let mut places = places.expect("made");
            let mut matches = Vec::new();
            let looking = steps(|| matches = all(&text, &places, window));
            assert!(opening.max(looking) <= 4 << 15, "{which}: {opening} {looking}");
            let mut grown = text.clone();
            for &token in &text[..300] {
                places.push(&grown, token);
                grown.push(token);
                let cost = steps(|| matches = appended(&matches, &TextView::new(&grown, &[]), &places, window));
                assert!(cost <= most, "{which}: {cost}");
            }
        }
    }
}
