use super::grams::Grams;
use super::index::Matches;
use super::*;
use proptest::prelude::*;
use std::cell::Cell;

thread_local! {
    static EXAMINED: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn count_candidate() {
    EXAMINED.set(EXAMINED.get() + 1);
}

/// The number of candidates that `search` examines.
fn examined(search: impl FnOnce()) -> usize {
    EXAMINED.set(0);
    search();
    EXAMINED.get()
}

fn params(kind: ProposerKind, min_match: u32, max_match: u32) -> ProposerParams {
    ProposerParams { min_match, max_match, max_draft_tokens: 16, ..ProposerParams::new(kind) }
}

fn proposed(params: &ProposerParams, text: &[u32]) -> Vec<u32> {
    Proposer::new(params, text, &[]).propose(usize::MAX).tokens
}

/// The definition: the longest match in a text, and every position after such a match, latest first.
fn reference_match(text: &[u32], shortest: usize, longest: usize) -> Option<Matches> {
    let behind = |length: usize| -> Vec<usize> {
        let end = &text[text.len() - length..];
        (length..text.len()).rev().filter(|&at| &text[at - length..at] == end).collect()
    };
    let lengths = (shortest..=longest.min(text.len())).rev();
    lengths.map(|length| Matches { length, positions: behind(length) }).find(|found| !found.positions.is_empty())
}

/// The definition of both proposers, based on the definition of matches: the draft is written after the text.
fn reference(params: &ProposerParams, text: &[u32]) -> Vec<u32> {
    let found = reference_match(text, params.min_match as usize, params.max_match as usize);
    let Some(Matches { length, positions }) = found else { return Vec::new() };
    let most = params.max_draft_tokens as usize;
    let mut whole = text.to_vec();
    if params.kind == ProposerKind::Ngram {
        (0..most).for_each(|i| whole.push(whole[positions[0] + i]));
        return whole.split_off(text.len());
    }
    for i in 0..most.min(length) {
        let agree = |at: &&usize| (0..i).all(|j| whole[**at + j] == whole[text.len() + j]);
        let votes: Vec<u32> = positions.iter().filter(agree).map(|at| whole[at + i]).collect();
        let count = |token: u32| votes.iter().filter(|&&vote| vote == token).count();
        let winner = votes.iter().copied().rev().max_by_key(|&token| count(token)).expect("votes");
        if (count(winner) as f32) / (positions.len() as f32) < params.min_token_prob {
            break;
        }
        whole.push(winner);
    }
    whole.split_off(text.len())
}

#[test]
fn prompt_lookup_takes_the_longest_match_then_the_latest() {
    let params = params(ProposerKind::Ngram, 2, 3);
    for (text, expected) in [
        (&[][..], &[][..]),
        (&[1], &[]),
        (&[1, 2, 3, 1], &[]),                          // a match of one token is too short
        (&[1, 2, 3, 9, 1, 2], &[3, 9, 1, 2, 3, 9]),    // goes on into itself
        (&[1, 2, 3, 1, 2, 4, 1, 2], &[4, 1, 2, 4]),    // the latest
        (&[9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], &[3, 8]), // the longest, though not the latest
        (&[8, 7, 7, 7, 1, 9, 7, 7, 7, 2, 8, 7, 7, 7], &[2, 8, 7]), // at most max_match: these two are alike
        (&[5, 5, 5], &[5, 5, 5, 5]),
    ] {
        let draft = proposed(&params, text);
        assert!(draft.starts_with(expected) && draft.is_empty() == expected.is_empty(), "{text:?}: {draft:?}");
    }
}

#[test]
fn suffix_matching_votes() {
    let params = |min_token_prob| ProposerParams { min_token_prob, ..params(ProposerKind::Suffix, 1, 8) };
    // 1 is followed by 2, 2, 5 and 2. The match is one token long, and so is the draft.
    let text = [1, 2, 3, 8, 1, 2, 4, 9, 1, 5, 7, 1, 2, 4, 6, 1];
    assert_eq!(proposed(&params(0.1), &text), [2]);
    // 1 2 is followed by 3, 4 and 4, and these by 9 and 6.
    let text = [&text[..], &[2]].concat();
    assert_eq!(proposed(&params(0.1), &text), [4, 6]);
    assert_eq!(proposed(&params(0.66), &text), [4]);
    assert!(proposed(&params(0.67), &text).is_empty());
    // One of two is 0.5, and the latest one is taken. Both then go on with 9.
    let text = [7, 1, 2, 9, 9, 7, 1, 3, 9, 8, 7, 1];
    assert_eq!(proposed(&params(0.5), &text), [3, 9]);
    assert!(proposed(&params(0.51), &text).is_empty());
    // Shares multiply: all, then two of four, then one of these two.
    let text = [6, 6, 6, 1, 2, 3, 6, 6, 6, 1, 2, 4, 6, 6, 6, 1, 5, 6, 6, 6, 1, 7, 6, 6, 6];
    assert_eq!(proposed(&params(0.5), &text), [1, 2]);
    assert_eq!(proposed(&params(0.25), &text), [1, 2, 4]);
}

#[test]
fn suffix_drafts_are_as_long_as_the_match() {
    let params = params(ProposerKind::Suffix, 1, 5);
    let text: Vec<u32> = (0..20).collect();
    for length in 1..8u32 {
        let draft = proposed(&params, &[&text[..], &text[..length as usize]].concat());
        let expected: Vec<u32> = (length..length + length.min(5)).collect();
        assert_eq!(draft, expected, "max_match is 5");
    }
}

#[test]
fn a_draft_is_never_longer_than_asked_for() {
    let text = [1, 2, 3, 4].repeat(20);
    for kind in [ProposerKind::Ngram, ProposerKind::Suffix] {
        let proposer = Proposer::new(&params(kind, 1, 64), &text, &[]);
        for max in [0, 1, 5, 16, 17, usize::MAX] {
            assert_eq!(proposer.propose(max).tokens, [1, 2, 3, 4].repeat(16)[..max.min(16)], "{kind:?}");
        }
    }
}

prop_compose! {
    fn any_params()(suffix: bool, longest in 1u32..=20, shortest in 1u32..=20, tenths in 0u8..=10, most in 1u32..=20)
        -> ProposerParams {
        let kind = if suffix { ProposerKind::Suffix } else { ProposerKind::Ngram };
        let min_token_prob = f32::from(tenths) / 10.0;
        ProposerParams {
            kind, max_draft_tokens: most, min_match: shortest.min(longest), max_match: longest, min_token_prob
        }
    }
}

/// Texts that repeat themselves: few tokens, and copies of earlier parts.
fn any_text(len: usize) -> impl Strategy<Value = Vec<u32>> {
    let parts = prop::collection::vec((any::<prop::sample::Index>(), 1usize..30, 0u32..9), 0..=len / 4);
    (1u32..=8, parts).prop_map(move |(alphabet, parts)| {
        let mut text: Vec<u32> = Vec::new();
        for (from, length, token) in parts {
            if !text.is_empty() {
                let from = from.index(text.len());
                text.extend_from_within(from..(from + length).min(text.len()));
            }
            text.push(token % alphabet);
        }
        text.truncate(len);
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A text of this length never has more candidates than a search examines.
    #[test]
    fn drafts_are_those_of_the_definition(params in any_params(), text in any_text(CANDIDATES)) {
        prop_assert_eq!(proposed(&params, &text), reference(&params, &text));
    }

    #[test]
    fn with_all_candidates_the_match_is_that_of_the_definition(params in any_params(), text in any_text(600)) {
        let (shortest, longest) = (params.min_match as usize, params.max_match as usize);
        let mut index = Index::new(shortest, longest, usize::MAX, 0);
        text.iter().for_each(|&token| index.push(token));
        // Positions after the longest comparable match end the search once there are enough of them.
        prop_assert_eq!(index.longest_match(usize::MAX), reference_match(&text, shortest, longest));
    }

    /// A full match may be missed if more other positions of its bucket come first than are examined: occasionally in a loop, and for
    /// tokens chosen to collide. It is still on its chain, and found if it is among the first.
    #[test]
    fn with_few_candidates_a_match_is_real_and_a_full_one_is_not_missed(
        params in any_params(), text in any_text(1500)
    ) {
        let (shortest, longest) = (params.min_match as usize, params.max_match as usize);
        let proposer = Proposer::new(&params, &text, &[]);
        let (found, all) = (proposer.index.as_ref().and_then(|index| index.longest_match(1)), reference_match(&text, shortest, longest));
        if let Some(found) = &found {
            let at = found.positions[0];
            prop_assert_eq!(&text[at - found.length..at], &text[text.len() - found.length..]);
            prop_assert!((shortest..=longest).contains(&found.length));
        }
        if let Some(all) = all.filter(|all| all.length == longest) {
            let mut grams = Grams::new(longest, 0);
            text.iter().enumerate().for_each(|(at, &token)| grams.push(&text[..at], token));
            let place = grams.chain().position(|position| position == all.positions[0]);
            if place.expect("a full match is chained") < CANDIDATES {
                let found = found.expect("a full match is there");
                prop_assert_eq!((found.length, found.positions[0]), (longest, all.positions[0]));
            }
        }
    }

    #[test]
    fn pushed_or_opened_with_its_tokens_it_is_the_same(
        params in any_params(), text in any_text(300), cut: prop::sample::Index, again: prop::sample::Index
    ) {
        let (cut, again) = (cut.index(text.len() + 1), again.index(text.len() + 1));
        let (cut, again) = (cut.min(again), cut.max(again));
        let mut pushed = Proposer::new(&params, &text[..cut], &[]);
        text[cut..].iter().for_each(|&token| pushed.push(token));
        let opened = Proposer::new(&params, &text[..cut], &text[cut..]);
        let opened_otherwise = Proposer::new(&params, &text[..again], &text[again..]);
        prop_assert_eq!(&pushed, &opened);
        prop_assert_eq!(&pushed, &opened_otherwise);
        prop_assert_eq!(pushed.propose(64), opened.propose(64));
    }
}

#[test]
fn what_is_predicted_is_proposed_from_the_first_token_on_and_no_further() {
    let predicted = [10, 11, 12, 13, 14, 15, 16];
    for kind in [ProposerKind::Ngram, ProposerKind::Suffix] {
        let params = params(kind, 1, 4);
        let mut proposer = Proposer::predicting(&params, &[1, 2, 3], &[], &predicted);
        assert_eq!(proposer.propose(2).tokens, [10, 11], "the prompt was continued like this before");
        let mut output = Vec::new();
        // As predicted, then not, and back again. Suffix matching drafts no more tokens than match.
        for (token, ngram, suffix) in [
            (10, &predicted[1..], &[11, 12, 13, 14][..]),
            (99, &[], &[]),
            (12, &[13, 14, 15, 16], &[13]),
            (13, &[14, 15, 16], &[14, 15]),
            (16, &[], &[]),
        ] {
            output.push(token);
            proposer.push(token);
            let expected = if kind == ProposerKind::Ngram { ngram } else { suffix };
            let found = proposer.propose(16);
            assert_eq!(found.tokens, expected, "{kind:?} after {output:?}");
            assert_eq!(found.is_predicted, !expected.is_empty(), "{kind:?} after {output:?}");
            let opened = Proposer::predicting(&params, &[1, 2, 3], &output, &predicted);
            assert_eq!(opened, proposer, "{kind:?} after {output:?}");
        }
        // Without a prompt the first token comes from nowhere.
        assert!(Proposer::predicting(&params, &[], &[], &predicted).propose(16).tokens.is_empty());
        assert_eq!(Proposer::predicting(&params, &[], &[15], &predicted).propose(16).tokens, [16]);
    }
}

#[test]
fn the_text_itself_counts_before_what_is_predicted() {
    // Both have a 7 behind 5 6, and the text's is the later one.
    let found = |tokens: &[u32], is_predicted| Found { tokens: tokens.to_vec(), is_predicted };
    let proposer = Proposer::predicting(&params(ProposerKind::Ngram, 2, 5), &[1, 5, 6, 8, 5, 6], &[], &[5, 6, 7]);
    assert_eq!(proposer.propose(1), found(&[5], true), "after the whole prompt, which ends with what stands before");
    let proposer = Proposer::predicting(&params(ProposerKind::Ngram, 2, 2), &[1, 5, 6, 8, 5, 6], &[], &[5, 6, 7]);
    assert_eq!(proposer.propose(1), found(&[8], false), "of equal matches, the latest");
    // What the text and the prediction go on with alike is the text's.
    for kind in [ProposerKind::Ngram, ProposerKind::Suffix] {
        let proposer =
            |prompt: &[u32], predicted: &[u32]| Proposer::predicting(&params(kind, 2, 2), prompt, &[], predicted);
        assert_eq!(proposer(&[5, 6, 7, 9, 5, 6], &[5, 6, 7, 4]).propose(1), found(&[7], false));
        assert_eq!(proposer(&[5, 6, 8, 9, 5, 6], &[]).propose(1), found(&[8], false));
    }
    // Three places of the prediction outvote one of the text.
    let proposer = Proposer::predicting(
        &params(ProposerKind::Suffix, 2, 2),
        &[5, 6, 8, 9, 5, 6],
        &[],
        &[5, 6, 7, 5, 6, 7, 5, 6, 7],
    );
    assert_eq!(proposer.propose(1), found(&[7], true));
}

/// Single tokens whose contexts fall into one bucket of a table of 2^15.
fn colliding(count: usize) -> Vec<u32> {
    let bucket = |token: u32| grams::bucket(grams::value(token), 1 << 15);
    (0..u32::MAX).filter(|&token| bucket(token) == bucket(0)).take(count).collect()
}

#[test]
fn whatever_the_text_work_and_memory_are_bounded() {
    let len = 20_000;
    let mut hostile: Vec<(String, Vec<u32>)> =
        (1..=5).map(|period| (format!("period {period}"), (0..period).cycle().take(len).collect())).collect();
    let mut state = 1u32;
    let mut coin = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 31
    };
    hostile.push(("coins".into(), (0..len).map(|_| coin()).collect()));
    hostile.push(("Thue-Morse".into(), (0..len as u32).map(|i| i.count_ones() & 1).collect()));
    hostile.push(("colliding".into(), colliding(1000).repeat(len / 1000)));
    hostile.push(("colliding, all different".into(), colliding(2000)));
    hostile.push(("all different".into(), (0..len as u32).collect()));
    for (name, text) in hostile {
        for (kind, levels) in [(ProposerKind::Ngram, 2), (ProposerKind::Suffix, 3)] {
            let params = ProposerParams::new(kind);
            let mut proposer = Proposer::new(&params, &[], &[]);
            let mut most = 0;
            for (i, &token) in text.iter().enumerate() {
                assert_eq!(examined(|| proposer.push(token)), 0, "a push looks at nothing");
                if i % 7 == 0 {
                    most = most.max(examined(|| drop(proposer.propose(64))));
                }
            }
            assert!(most <= levels * CANDIDATES, "{name}, {kind:?}: {most} candidates");
            let bytes = (proposer.bytes() - size_of::<Proposer>()) as f64 / text.len() as f64;
            assert!(bytes <= (5 + 13 * levels) as f64 + 1.0, "{name}, {kind:?}: {bytes} bytes per token");
        }
    }
}

#[test]
fn the_bound_of_work_is_reached() {
    let mut tokens = colliding(200);
    let last = tokens.pop().expect("a token");
    // The last token is new, but 199 others have its hash.
    let proposer = Proposer::new(&params(ProposerKind::Ngram, 1, 1), &tokens, &[last]);
    assert_eq!(examined(|| assert!(proposer.propose(8).tokens.is_empty())), CANDIDATES);
}

#[test]
fn a_full_match_is_found_among_the_first_of_its_bucket() {
    for others in [CANDIDATES - 1, CANDIDATES] {
        let mut text = colliding(others + 1);
        text.push(text[0]);
        let found = Proposer::new(&params(ProposerKind::Ngram, 1, 1), &text, &[])
            .index
            .and_then(|index| index.longest_match(1))
            .map(|found| found.positions[0]);
        assert_eq!(found, (others < CANDIDATES).then_some(1), "{others} others before it");
    }
}

#[test]
fn memory_is_counted_with_its_capacity() {
    let mut proposer = Proposer::new(&params(ProposerKind::Ngram, 2, 2), &[1; 1000], &[]);
    let before = proposer.bytes();
    // One level: 4 bytes a token for the text, 4 for its chain, 1024 heads.
    assert!((1000 * 8 + 1024 * 4..1000 * 8 + 1024 * 4 + 300).contains(&before), "{before}");
    proposer.push(1);
    // Text and chain grew by a quarter.
    assert_eq!(proposer.bytes() - before, 2 * 4 * (1000 / 4 + 16));
}
