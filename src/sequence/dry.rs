//! DRY, "don't repeat yourself": makes a token that would extend a repeat less likely, the more so the longer the
//! repeat is (p-e-w, text-generation-webui pull request 5677; as in llama.cpp, `llama_sampler_dry_apply`).
//!
//! The text is the last `dry_penalty_last_n` tokens of prompt and output (-1: the last 32,768). The end of the text
//! repeats an earlier place by `L` tokens if the `L` tokens before that place are the last `L` of the text, all of them
//! in the window. `L` is cut to the number of tokens since the last sequence breaker ended. The token that followed at
//! that place would extend the repeat. For such a token, `L` is the largest over all places where it followed. If that
//! is at least `dry_allowed_length`, the token's logit is lessened by
//!
//! ```text
//! min(dry_multiplier * dry_base ^ (L - dry_allowed_length), 1e30)
//! ```
//!
//! [Bounds](bounds) on the search make some places count less, or not at all.
//!
//! The reduction is part of the bias. In the order of an engine that applies DRY behind the penalties, it comes behind
//! them ([`Nudge::late`]). A sequence breaker of one token is never penalised itself, except in KoboldCpp's order, as
//! there (`gpttype_adapter.cpp`, `sample_dry`). In that order nothing is penalised while only `dry_allowed_length`
//! tokens are behind the last breaker. The power is a product in f64, by squaring, rounded to f32 once, so that it has
//! the same bits everywhere.
//!
//! llama.cpp differs in these points. There, -1 is off (0.5.0). There, the exponent is cut where the power leaves f32;
//! here, the product is cut, so that no penalty is ever a ban, but no logit shows the difference. There, the breaker
//! that *begins* last limits repeats, which its source calls a flaw where one breaker lies inside another; here, it is
//! the one that ends last. There, a breaker that begins before the window does not count; here, one that ends in it
//! does. There, breakers are strings; here, they are [tokens or texts](breakers).

pub(super) mod bounds;
pub(super) mod breakers;

use super::length::{MAX_PENALTY, power};
use super::repeat_index::FARTHEST;
use super::repeats::{LONGEST_CONTEXT, Match};
use super::text::TextView;
use crate::params::history::HistoryParams;
use crate::sampling::adjust::Nudge;
use crate::speculative::propose::grams::Grams;
use bounds::Bounds;
use breakers::{BreakerDistance, Breakers};

/// How DRY penalises a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dry<'a> {
    pub(super) params: &'a HistoryParams,
    pub(super) breakers: Breakers<'a>,
    /// Whether it comes behind the penalties.
    pub(super) is_late: bool,
    /// Whether KoboldCpp's two rules of its own apply.
    pub(super) of_koboldcpp: bool,
}

/// Appends to `nudges` what is subtracted from single logits. `matches` are all those of at least `dry_allowed_length`
/// tokens, and maybe some shorter ones; the latest first. `counted` says where tokens stood, if [that](bounds::counted)
/// matters.
pub(super) fn penalise(
    dry: Dry<'_>,
    text: &TextView<'_>,
    matches: &[Match],
    since: BreakerDistance,
    counted: Option<&Grams>,
    nudges: &mut Vec<Nudge>,
) {
    let Dry { params, breakers, is_late, of_koboldcpp } = dry;
    let least = params.dry_allowed_length + u32::from(of_koboldcpp);
    let Some(window) = params.dry_window().filter(|_| since.tokens >= least) else { return };
    let inside = |m: &Match| u32::try_from(window.saturating_sub(text.len() - m.at as usize)).unwrap_or(u32::MAX);
    let Bounds { longest, exit } = Bounds::of(params);
    let length = |m: &Match| m.len.min(since.tokens).min(inside(m)).min(longest);
    let first = counted.map_or(0, |grams| bounds::first_place(text, grams, params.dry_max_occurrences));
    let (near, mut is_over) = (matches.partition_point(|m| m.at as usize >= first), false);
    let looked_at = matches[..near].iter().take_while(|m| {
        let ends = exit.is_some_and(|exit| length(m) >= exit);
        !std::mem::replace(&mut is_over, ends)
    });
    let long = looked_at.filter(|m| length(m) >= params.dry_allowed_length);
    // Packs token and inverted length into one number, so that sorting gives token order with the longest first.
    let followed = long.filter_map(|m| Some((u64::from(text.get(m.at as usize)?) << 32) | u64::from(!length(m))));
    let mut extended: Vec<u64> = followed.collect();
    extended.sort_unstable();
    extended.dedup_by_key(|packed| *packed >> 32);
    nudges.extend(extended.into_iter().filter_map(|packed| {
        let (token, length) = ((packed >> 32) as u32, !(packed as u32));
        let less = -penalty(params, length - params.dry_allowed_length);
        let (bias, late) = if is_late { (0.0, less) } else { (less, 0.0) };
        (of_koboldcpp || !breakers.has(token)).then_some(Nudge { token, bias, late })
    }));
}

/// The context that repeats are looked up by: no repeat that counts is shorter.
pub(super) fn context(params: &HistoryParams) -> usize {
    let least = Bounds::of(params).exit.map_or(u32::MAX, |exit| exit).min(params.dry_allowed_length);
    (least as usize).min(LONGEST_CONTEXT)
}

/// A length from which on all repeats are penalised alike; or a number that is [too far](FARTHEST).
pub(super) fn longest(params: &HistoryParams) -> usize {
    // Well above the largest penalty, so that rounding of the power does not matter.
    let is_most =
        |&excess: &u32| f64::from(params.dry_multiplier) * power(params.dry_base, excess) >= 2.0 * MAX_PENALTY;
    let grows = params.dry_base > 1.0;
    let excess = if grows { (0..=FARTHEST as u32).find(is_most).unwrap_or(u32::MAX) } else { 0 };
    let Bounds { longest, exit } = Bounds::of(params);
    params.dry_allowed_length.saturating_add(excess).max(exit.unwrap_or(0)).min(longest) as usize
}

/// The penalty for a repeat that is `excess` tokens longer than allowed.
fn penalty(params: &HistoryParams, excess: u32) -> f32 {
    (f64::from(params.dry_multiplier) * power(params.dry_base, excess)).min(MAX_PENALTY) as f32
}

#[cfg(test)]
mod tests {
    use super::super::repeat_index::RepeatIndex;
    use super::super::repeats;
    use super::*;
    use crate::automaton::Automaton;
    use crate::sampling::steps::steps;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn params(allowed: u32, last_n: i32, breakers: &[Vec<u32>]) -> HistoryParams {
        HistoryParams {
            dry_multiplier: 1.0,
            dry_base: 2.0,
            dry_allowed_length: allowed,
            dry_penalty_last_n: last_n,
            dry_sequence_breakers: breakers.to_vec(),
            ..HistoryParams::default()
        }
    }

    fn penalties(params: &HistoryParams, tokens: &[u32]) -> Vec<(u32, f32)> {
        penalties_of(params, tokens, false)
    }

    fn penalties_of(params: &HistoryParams, tokens: &[u32], of_koboldcpp: bool) -> Vec<(u32, f32)> {
        let text = TextView::new(tokens, &[]);
        let window = params.dry_window().expect("on");
        let breakers = Automaton::new(&params.dry_sequence_breakers);
        let breakers = Breakers { tokens: Some(&breakers), texts: None };
        let places = RepeatIndex::new(context(params), longest(params), tokens);
        let (matches, since) =
            (repeats::all(tokens, &places, window), BreakerDistance::after(tokens, breakers, window));
        let mut nudges = Vec::new();
        penalise(Dry { params, breakers, is_late: false, of_koboldcpp }, &text, &matches, since, None, &mut nudges);
        let mut late = Vec::new();
        penalise(Dry { params, breakers, is_late: true, of_koboldcpp }, &text, &matches, since, None, &mut late);
        assert!(late.iter().all(|n| n.bias == 0.0));
        assert!(nudges.iter().map(|n| (n.token, n.bias)).eq(late.into_iter().map(|n| (n.token, n.late))));
        nudges.into_iter().map(|n| (n.token, n.bias)).collect()
    }

    #[test]
    fn by_hand() {
        // Token 9 follows no repeat. 3 follows one of 2 tokens, 4 follows one of 3 and one of 1.
        type Case = (u32, i32, &'static [&'static [u32]], &'static [u32], &'static [(u32, f32)]);
        let cases: [Case; 14] = [
            (2, -1, &[], &[], &[]),
            (2, -1, &[], &[7, 8], &[]),
            (2, -1, &[], &[1, 2, 3, 9, 1, 2], &[(3, -1.0)]),
            (1, -1, &[], &[1, 2, 3, 9, 1, 2], &[(3, -2.0)]),
            (3, -1, &[], &[1, 2, 3, 9, 1, 2], &[]),
            // The longest repeat counts for each token.
            (2, -1, &[], &[5, 1, 2, 4, 8, 1, 2, 4, 5, 1, 2], &[(4, -2.0)]),
            (2, -1, &[], &[5, 1, 2, 4, 8, 1, 2, 3, 5, 1, 2], &[(3, -1.0), (4, -2.0)]),
            // In the window: 1 2 3 9 1 2 needs all six tokens.
            (2, 6, &[], &[1, 2, 3, 9, 1, 2], &[(3, -1.0)]),
            (2, 5, &[], &[1, 2, 3, 9, 1, 2], &[]),
            // One token repeated: L is 4 of 5.
            (1, -1, &[], &[7, 7, 7, 7, 7], &[(7, -8.0)]),
            (1, 4, &[], &[7, 7, 7, 7, 7], &[(7, -4.0)]),
            // Two tokens after the breaker.
            (2, -1, &[&[1]], &[5, 1, 2, 3, 4, 8, 5, 1, 2, 3], &[(4, -1.0)]),
            (2, -1, &[&[8, 5, 1, 2]], &[5, 1, 2, 3, 4, 8, 5, 1, 2, 3], &[]),
            // The token that would continue the repeat is a breaker. A longer breaker may be penalised.
            (2, -1, &[&[3], &[8, 4]], &[1, 2, 3, 1, 2, 4, 9, 1, 2], &[(4, -1.0)]),
        ];
        for (allowed, last_n, breakers, text, expected) in cases {
            let breakers: Vec<Vec<u32>> = breakers.iter().map(|breaker| breaker.to_vec()).collect();
            let found = penalties(&params(allowed, last_n, &breakers), text);
            assert_eq!(found, expected, "{allowed} {last_n} {breakers:?} {text:?}");
        }
    }

    #[test]
    fn koboldcpp_penalises_breakers_and_waits_for_one_token_more() {
        // A breaker that would continue the repeat; then two tokens after the last breaker, and three.
        type Case = (u32, &'static [u32], [&'static [(u32, f32)]; 2]);
        let cases: [Case; 3] = [
            (3, &[1, 2, 3, 9, 1, 2], [&[], &[(3, -1.0)]]),
            (0, &[5, 1, 2, 7, 0, 1, 2], [&[(7, -1.0)], &[]]),
            (0, &[5, 1, 2, 7, 0, 5, 1, 2], [&[(7, -2.0)], &[(7, -2.0)]]),
        ];
        for (breaker, text, expected) in cases {
            let params = params(2, -1, &[vec![breaker]]);
            let found = [false, true].map(|of_koboldcpp| penalties_of(&params, text, of_koboldcpp));
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn the_values_of_llama_cpp() {
        // tests/test-sampling.cpp: tokens 0 1 2 0 1, multiplier 1, base 1.1, allowed 2 gives four equal tokens, of
        // which token 2 is penalised by 1, 0.109232 against 0.296923.
        let exact = HistoryParams { dry_base: 1.1, ..params(2, 4, &[]) };
        assert_eq!(penalties(&exact, &[0, 1, 2, 0, 1]), []);
        let exact = HistoryParams { dry_base: 1.1, ..params(2, 5, &[]) };
        assert_eq!(penalties(&exact, &[0, 1, 2, 0, 1]), [(2, -1.0)]);
        let (rest, penalised) = (1.0, (-1.0f64).exp());
        let total = 3.0 * rest + penalised;
        assert!((rest / total - 0.296_923).abs() < 1e-6 && (penalised / total - 0.109_232).abs() < 1e-6);
    }

    #[test]
    fn a_penalty_is_finite_and_a_power() {
        let of = |dry_multiplier, dry_base, excess| {
            penalty(&HistoryParams { dry_multiplier, dry_base, ..HistoryParams::default() }, excess)
        };
        assert_eq!((of(0.8, 1.75, 0), of(0.8, 1.75, 1)), (0.8, (f64::from(0.8f32) * 1.75) as f32));
        assert_eq!((of(1.0, 3.0, 5), of(1.0, 1.0, u32::MAX)), (243.0, 1.0));
        assert_eq!((of(1e4, 1e4, u32::MAX), of(1.0, 1.75, 1 << 20)), (1e30, 1e30));
        // llama.cpp: multiplier * pow(base, excess).
        for excess in 0..40 {
            let (ours, theirs) = (of(0.8, 1.75, excess), 0.8 * 1.75f64.powi(excess as i32));
            assert!((f64::from(ours) / theirs - 1.0).abs() < 1e-6, "{excess}");
        }
    }

    #[test]
    fn repeats_beyond_the_longest_are_penalised_alike() {
        let with = |dry_multiplier, dry_base, dry_allowed_length| {
            let params = HistoryParams { dry_multiplier, dry_base, dry_allowed_length, ..HistoryParams::default() };
            let longest = longest(&params);
            let at = |len: usize| penalty(&params, len as u32 - dry_allowed_length);
            if longest <= FARTHEST {
                assert!((longest..longest + 3000).all(|len| at(len) == at(longest)), "{params:?}");
                assert_eq!(at(longest), penalty(&params, u32::MAX), "{params:?}");
            }
            longest
        };
        // log(2e30 / 0.8) / log(1.75) = 125.2
        assert_eq!((with(0.8, 1.75, 2), with(1e4, 1e4, 1), with(3.0, 1.0, 7)), (128, 1 + 7, 7));
        assert!(with(1.0, 1.001, 2) > FARTHEST && with(0.8, 1.2, 2) < FARTHEST && with(1.0, 2.0, 600) > FARTHEST);
        assert!(with(1e-3, 1.2, 1) <= FARTHEST);
    }

    /// llama.cpp's steps, one after the other, without an efficient algorithm: quadratic.
    fn naive(params: &HistoryParams, text: &[u32]) -> Vec<(u32, f32)> {
        let window = params.dry_window().expect("on").min(text.len());
        let breakers = &params.dry_sequence_breakers;
        let since = since(text, breakers);
        let text = &text[text.len() - window..];
        let n = text.len();
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        for at in 1..n {
            let len = (0..at).take_while(|&l| text[at - 1 - l] == text[n - 1 - l]).count();
            let len = len.min(since.unwrap_or(usize::MAX));
            if len >= params.dry_allowed_length as usize && !breakers.contains(&vec![text[at]]) {
                let known = longest.entry(text[at]).or_default();
                *known = len.max(*known);
            }
        }
        let excess = |len: usize| (len - params.dry_allowed_length as usize) as i32;
        longest.into_iter().map(|(token, len)| (token, -2f32.powi(excess(len)))).collect()
    }

    /// From the definition: each breaker is tried at each place.
    fn since(text: &[u32], breakers: &[Vec<u32>]) -> Option<usize> {
        (0..text.len()).find(|&since| breakers.iter().any(|breaker| text[..text.len() - since].ends_with(breaker)))
    }

    #[test]
    fn breakers_cost_two_steps_a_token_whatever_they_are() {
        let breakers = Automaton::new(&vec![[vec![9], vec![1; 63]].concat(); 1024]);
        let breakers = Breakers { tokens: Some(&breakers), texts: None };
        let text = vec![1; 1 << 15];
        let opening = |len: usize| steps(|| _ = BreakerDistance::after(&text[..len], breakers, len));
        assert!(
            opening(1 << 14) <= 2 << 14 && opening(1 << 15) <= 2 << 15,
            "{} {}",
            opening(1 << 14),
            opening(1 << 15)
        );
        let mut since = BreakerDistance::after(&text, breakers, text.len());
        let going_on = steps(|| (0..1000).for_each(|_| since.push(1, breakers)));
        assert!(going_on <= 2000, "{going_on}");
        assert_eq!(since.tokens, u32::MAX);
    }

    proptest! {
        #[test]
        fn what_is_since_a_breaker_is_that_of_the_definition(
            text in prop::collection::vec(0u32..3, 0..50),
            breakers in prop::collection::vec(prop::collection::vec(0u32..4, 1..5), 0..5),
            window in 1usize..60,
        ) {
            let automaton = Automaton::new(&breakers);
            let of = Breakers { tokens: Some(&automaton), texts: None };
            let expected = |len: usize| since(&text[..len], &breakers);
            let opened = BreakerDistance::after(&text, of, window);
            let near = expected(text.len()).filter(|&since| since < window);
            prop_assert_eq!(opened.tokens, near.map_or(u32::MAX, |since| since as u32));
            let mut since = BreakerDistance::after(&[], of, window);
            for (at, &token) in text.iter().enumerate() {
                since.push(token, of);
                prop_assert_eq!(since.tokens, expected(at + 1).map_or(u32::MAX, |since| since as u32));
            }
            // Tokens that follow count the same.
            since.push(0, of);
            let mut going_on = opened;
            going_on.push(0, of);
            prop_assert_eq!(since.tokens == 0, going_on.tokens == 0);
        }

        #[test]
        fn penalties_are_those_of_the_definition(
            text in prop_oneof![prop::collection::vec(0u32..3, 0..50), prop::collection::vec(0u32..5, 0..50)],
            allowed in 1u32..4,
            last_n in prop_oneof![Just(-1), 1i32..60],
            breakers in prop::collection::vec(prop::collection::vec(0u32..5, 1..4), 0..3),
        ) {
            let params = params(allowed, last_n, &breakers);
            prop_assert_eq!(penalties(&params, &text), naive(&params, &text));
        }
    }
}
