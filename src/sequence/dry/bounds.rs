//! Bounds on the search for repeats, with the meaning that Aphrodite gives them (`v1/sample/ops/dry.py`). In exact
//! numbers, where `L` is the length of a repeat within the window and since the last breaker, and places are counted
//! from the latest one back:
//!
//! | parameter | what it does |
//! |---|---|
//! | `dry_max_ngram` | so many tokens before the last one are compared: `L` is at most one more |
//! | `dry_max_occurrences` | only so many of the places that the last token stood at before are looked at, whatever stands before them |
//! | `dry_early_exit_match_len` | places before the first one whose `L` is that or more, and at least 2, are not looked at |
//!
//! A place costs a step for `dry_max_occurrences`, and as much memory as [`Grams`] of one token.

use super::super::text::TextView;
use crate::params::history::HistoryParams;
use crate::speculative::propose::grams::Grams;

/// Which places count, and how much.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// No repeat counts as longer than this.
    pub(super) longest: u32,
    /// The search ends at the first repeat of at least this length.
    pub(super) exit: Option<u32>,
}

impl Bounds {
    pub(super) fn of(params: &HistoryParams) -> Self {
        let longest = params.dry_max_ngram.checked_add(1).filter(|&longest| longest > 1).unwrap_or(u32::MAX);
        // At least 2, because a repeat of the last token alone is not a find yet.
        let exit = Some(params.dry_early_exit_match_len).filter(|&exit| exit > 0).map(|exit| exit.max(2));
        Self { longest, exit }
    }
}

/// The places of each token, if `dry_max_occurrences` counts them.
pub(in crate::sequence) fn counted(params: &HistoryParams, tokens: &[u32]) -> Option<Grams> {
    (params.dry_window().is_some() && params.dry_max_occurrences > 0).then(|| {
        let mut grams = Grams::new(1, tokens.len());
        tokens.iter().enumerate().for_each(|(at, &token)| grams.push(&tokens[..at], token));
        grams
    })
}

/// The first of the `most` latest places behind the last token of `text`; 0 if there are fewer. `grams` are those of
/// the text's kept part.
pub(super) fn first_place(text: &TextView<'_>, grams: &Grams, most: u32) -> usize {
    let Some(last) = text.len().checked_sub(1).and_then(|at| text.get(at)) else { return 0 };
    let ahead = (text.kept_len().max(1)..text.len()).rev();
    let places = ahead.chain(grams.chain_behind([last].into_iter()));
    let mut stood = places.filter(|&at| text.get(at - 1) == Some(last));
    stood.nth(most as usize - 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::super::repeat_index::RepeatIndex;
    use super::super::super::repeats;
    use super::super::*;
    use super::counted;
    use crate::automaton::Automaton;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Like [`penalise`], where the last tokens look ahead.
    fn penalties(params: &HistoryParams, tokens: &[u32], kept: usize) -> Vec<(u32, f32)> {
        let window = params.dry_window().expect("on");
        let breakers = Automaton::new(&params.dry_sequence_breakers);
        let breakers = Breakers { tokens: Some(&breakers), texts: None };
        let (before, ahead) = tokens.split_at(kept);
        let places = RepeatIndex::new(context(params), longest(params), before);
        let (mut matches, counted) = (repeats::all(before, &places, window), counted(params, before));
        let mut since = BreakerDistance::after(before, breakers, window);
        for more in 1..=ahead.len() {
            since.push(ahead[more - 1], breakers);
            matches = repeats::appended(&matches, &TextView::new(before, &ahead[..more]), &places, window);
        }
        let (text, mut nudges) = (TextView::new(before, ahead), Vec::new());
        let dry = Dry { params, breakers, is_late: false, of_koboldcpp: false };
        penalise(dry, &text, &matches, since, counted.as_ref(), &mut nudges);
        nudges.into_iter().map(|n| (n.token, n.bias)).collect()
    }

    /// Aphrodite's loop with its numbers, place by place; quadratic. Its differences from DRY without bounds are left
    /// out: repeats shorter than the allowed length, or since a breaker, do not count, and breakers are not penalised.
    fn aphrodite(params: &HistoryParams, text: &[u32]) -> Vec<(u32, f32)> {
        let is_breaker = |token: u32| params.dry_sequence_breakers.contains(&vec![token]);
        let window = params.dry_window().expect("on").min(text.len());
        let text = &text[text.len() - window..];
        let Some((&last, before)) = text.split_last() else { return Vec::new() };
        let mut endpoints: Vec<usize> = (0..before.len()).filter(|&at| text[at] == last).collect();
        let (most, max_ngram) = (params.dry_max_occurrences as usize, params.dry_max_ngram as usize);
        if most > 0 && endpoints.len() > most {
            endpoints.drain(..endpoints.len() - most);
        }
        let mut longest: BTreeMap<u32, u32> = BTreeMap::new();
        for &at in endpoints.iter().rev() {
            if is_breaker(last) {
                break;
            }
            let mut match_len = 0;
            for unwind in 1..=at.min(if max_ngram > 0 { max_ngram } else { usize::MAX }) {
                let token = text[at - unwind];
                if is_breaker(token) || token != text[text.len() - 1 - unwind] {
                    break;
                }
                match_len = unwind as u32;
            }
            let known = longest.entry(text[at + 1]).or_default();
            *known = (match_len + 1).max(*known);
            let exit = params.dry_early_exit_match_len;
            if match_len > 0 && exit > 0 && match_len + 1 >= exit {
                break;
            }
        }
        longest.retain(|&token, len| *len >= params.dry_allowed_length && !is_breaker(token));
        let less = |len: u32| params.dry_multiplier * params.dry_base.powi((len - params.dry_allowed_length) as i32);
        longest.into_iter().map(|(token, len)| (token, -less(len))).collect()
    }

    fn bounded(allowed: u32, (max_ngram, occurrences, exit): (u32, u32, u32)) -> HistoryParams {
        HistoryParams {
            dry_multiplier: 1.0,
            dry_base: 2.0,
            dry_allowed_length: allowed,
            dry_max_ngram: max_ngram,
            dry_max_occurrences: occurrences,
            dry_early_exit_match_len: exit,
            ..HistoryParams::default()
        }
    }

    #[test]
    fn by_hand() {
        // 1 2 occurs four times: before 3 with 5 before it, before 4 with 6 5 before it, before 7 with no common token
        // before it, and at the end.
        let text = [5, 1, 2, 3, 6, 5, 1, 2, 4, 0, 1, 2, 7, 6, 5, 1, 2];
        type Case = ((u32, u32, u32), &'static [(u32, f32)]);
        let cases: [Case; 12] = [
            // Repeats of 3, 4 and 2 tokens.
            ((0, 0, 0), &[(3, -2.0), (4, -4.0), (7, -1.0)]),
            ((9, 9, 9), &[(3, -2.0), (4, -4.0), (7, -1.0)]),
            // Three tokens before the last one are as many as match.
            ((3, 0, 0), &[(3, -2.0), (4, -4.0), (7, -1.0)]),
            ((0, 1, 0), &[(7, -1.0)]),
            ((0, 2, 0), &[(4, -4.0), (7, -1.0)]),
            ((0, 3, 0), &[(3, -2.0), (4, -4.0), (7, -1.0)]),
            // The latest place matches two tokens, the next one four.
            ((0, 0, 1), &[(7, -1.0)]),
            ((0, 0, 2), &[(7, -1.0)]),
            ((0, 0, 3), &[(4, -4.0), (7, -1.0)]),
            ((0, 0, 4), &[(4, -4.0), (7, -1.0)]),
            ((0, 0, 5), &[(3, -2.0), (4, -4.0), (7, -1.0)]),
            ((3, 1, 3), &[(7, -1.0)]),
        ];
        for (bounds, expected) in cases {
            for kept in [text.len(), 9, 0] {
                assert_eq!(penalties(&bounded(2, bounds), &text, kept), expected, "{bounds:?} {kept}");
            }
        }
        let short = bounded(1, (2, 0, 0));
        assert_eq!(penalties(&short, &text, 17), [(3, -4.0), (4, -4.0), (7, -2.0)], "3 of 4 tokens");
        // A place where only the last token matches counts among the occurrences.
        assert_eq!(penalties(&bounded(2, (0, 1, 0)), &[1, 2, 3, 0, 2, 9, 1, 2], 8), []);
        assert_eq!(penalties(&bounded(2, (0, 2, 0)), &[1, 2, 3, 0, 2, 9, 1, 2], 8), [(3, -1.0)]);
    }

    fn bound(most: u32) -> impl Strategy<Value = u32> {
        prop_oneof![Just(0), 1..most]
    }

    proptest! {
        #[test]
        fn penalties_are_those_of_the_loop_over_all_places(
            text in prop_oneof![
                prop::collection::vec(0u32..3, 0..60),
                prop::collection::vec(0u32..5, 0..60),
                (prop::collection::vec(0u32..4, 1..6), 1usize..12).prop_map(|(piece, times)| piece.repeat(times)),
            ],
            kept in 0usize..80,
            allowed in 1u32..5,
            (above, occurrences, exit) in (bound(6), bound(9), bound(9)),
            last_n in prop_oneof![Just(-1), 1i32..60],
            breakers in prop::collection::vec(0u32..5, 0..2),
        ) {
            let max_ngram = if above == 0 { 0 } else { allowed + above };
            let mut params = bounded(allowed, (max_ngram, occurrences, exit));
            params.dry_penalty_last_n = last_n;
            params.dry_sequence_breakers = breakers.into_iter().map(|token| vec![token]).collect();
            prop_assert_eq!(params.validate(10), Ok(()));
            prop_assert_eq!(penalties(&params, &text, kept.min(text.len())), aphrodite(&params, &text));
        }
    }
}
