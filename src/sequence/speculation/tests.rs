//! Drafts that a sequence proposes, whatever forces them.

use super::*;
use crate::params::ProposerParams;
use crate::params::history::HistoryParams;
use crate::params::steering::ThinkingBudget;
use crate::sequence::Rules;
use proptest::prelude::*;
use std::sync::Arc;

fn speculation(advice: bool) -> Speculation {
    let params = SamplingParams {
        proposer: Some(ProposerParams::new(ProposerKind::Ngram)),
        draft_length: advice.then(|| DraftLengthParams::new(0.9)),
        ..SamplingParams::default()
    };
    *Speculation::new(&params, &[1, 2, 3, 4, 5, 6, 7, 1, 2], &[3], &[]).expect("it is asked for")
}

fn trial(depth: usize, accepted: bool) -> Trial {
    let (expected, total_variation, chances, rejected_rank) = (None, None, None, None);
    Trial {
        index: depth,
        depth,
        number: 0,
        is_first: true,
        accepted,
        expected,
        total_variation,
        chances,
        rejected_rank,
        repeat: None,
        shifts: Default::default(),
    }
}

#[test]
fn nothing_asked_nothing_remembered() {
    assert_eq!(Speculation::new(&SamplingParams::default(), &[1; 9], &[], &[]), None);
}

#[test]
fn its_own_proposals_are_known_again() {
    let mut speculation = speculation(false);
    let next = speculation.next(usize::MAX);
    assert_eq!((&next.tokens[..4], next.advised), (&[4, 5, 6, 7][..], None));
    assert_eq!(speculation.next(2).tokens, [4, 5], "no more than can be emitted");
    let next = speculation.next(usize::MAX);
    assert!(next.tokens.len() > 2);
    let of = |draft: &[u32]| speculation.origin_of(draft);
    assert_eq!((of(&[4, 5]), of(&[4, 6]), of(&[])), (Some(DraftOrigin::Found(ProposerKind::Ngram)), None, None));
}

#[test]
fn proposals_are_as_long_as_is_advised() {
    let mut speculation = speculation(true);
    for _ in 0..50 {
        speculation.record(&[trial(0, true), trial(1, false)]);
    }
    let next = speculation.next(usize::MAX);
    assert_eq!((next.tokens, next.advised), (vec![4], Some(1)));
    // Siblings: one accepted is enough.
    for _ in 0..200 {
        let later = Trial { is_first: false, ..trial(0, true) };
        speculation.record(&[trial(0, false), later, trial(1, true), trial(2, true), trial(3, true)]);
    }
    assert!(speculation.next(usize::MAX).advised > Some(3));
    for _ in 0..200 {
        speculation.record(&[trial(0, false)]);
    }
    assert_eq!(speculation.next(usize::MAX), NextDraft { tokens: vec![], advised: Some(0) });
    for _ in 0..200 {
        speculation.record(&[]);
        speculation.next(usize::MAX);
    }
    assert_eq!(speculation.next(usize::MAX).advised, Some(1), "it is tried again some time");
}

#[test]
fn a_step_without_a_draft_is_recorded_only_where_none_was_advised() {
    let mut speculation = speculation(true);
    (0..50).for_each(|_| speculation.record(&[trial(0, true), trial(1, false)]));
    assert_eq!(speculation.next(usize::MAX).advised, Some(1));
    let seen = speculation.seen.clone();
    speculation.record(&[]);
    assert_eq!(speculation.seen, seen, "one was worth while, and nobody tried it");
    (0..200).for_each(|_| speculation.record(&[trial(0, false)]));
    assert_eq!(speculation.next(usize::MAX).advised, Some(0));
    let seen = speculation.seen.clone();
    speculation.record(&[]);
    assert_ne!(speculation.seen, seen, "what was seen before counts less");
}

/// A text that thinks between tokens 1 and 2, and asks for drafts.
fn thinking(budget: u32, forced: &[u32], most: u32, prompt: &[u32], output: &[u32]) -> Sequence {
    let thinking = ThinkingBudget {
        start_token_ids: vec![1],
        end_token_ids: vec![2],
        budget,
        forced_token_ids: forced.to_vec(),
        ..Default::default()
    };
    let history = HistoryParams { thinking_budget: Some(Box::new(thinking)), ..HistoryParams::default() };
    let proposer = ProposerParams { max_draft_tokens: most, ..ProposerParams::new(ProposerKind::Ngram) };
    let params = SamplingParams { history: history.into(), proposer: Some(proposer), ..SamplingParams::default() };
    Sequence::open(Arc::new(Rules::new(params, &[])), 7, prompt, output)
}

#[test]
fn what_a_spent_budget_forces_is_a_draft() {
    let next = |budget, forced: &[u32], most, output: &[u32]| {
        let mut sequence = thinking(budget, forced, most, &[3, 4, 5, 6, 9, 9], output);
        let tokens = sequence.next_draft(&[]).tokens;
        (tokens.clone(), sequence.speculation().and_then(|own| own.origin_of(&tokens)))
    };
    let (found, forced) = (Some(DraftOrigin::Found(ProposerKind::Ngram)), Some(DraftOrigin::Thinking));
    assert_eq!(next(2, &[7, 8, 2], 8, &[1, 9, 9]), (vec![7, 8, 2], forced));
    assert_eq!(next(2, &[7, 8, 2], 2, &[1, 9, 9]), (vec![7, 8], forced), "no more than were asked for");
    assert_eq!(next(2, &[7, 8, 2], 8, &[1, 9, 9, 7, 8]), (vec![2], forced), "what is left of them");
    // The prompt goes on with 5, 6, 9, 9.
    assert_eq!(next(9, &[7, 8, 2], 4, &[1, 3, 4]), (vec![5, 6, 9, 9], found));
    assert_eq!(next(4, &[7, 8, 2], 4, &[1, 3, 4]), (vec![5, 6], found), "no further than the budget goes");
    assert_eq!(next(4, &[9, 9, 2], 8, &[1, 3, 4]), (vec![5, 6, 9, 9], found), "a forced token may be found");
    assert_eq!(next(3, &[7, 2], 6, &[3, 4]), (vec![5, 6, 9, 9, 3, 4], found), "it does not think");
    // The prompt goes on with 1, 5, 6, 9: it thinks, and the third token after that has to be 7.
    let begun = |most| thinking(2, &[7, 2], most, &[3, 4, 1, 5, 6, 9, 2, 8], &[3, 4]).next_draft(&[]).tokens;
    for most in 3..8 {
        assert_eq!(begun(most), [1, 5, 6], "a draft of {most} that begins to think");
    }
}

#[test]
fn what_a_grammar_forces_gives_way_to_a_budget() {
    let by_grammar = |budget, output: &[u32], forced: &[u32], is_forced| {
        let mut sequence = thinking(budget, &[7, 8, 2], 8, &[3], output);
        sequence.next_draft(&[]);
        let tokens = sequence.drafts_by_grammar(Proposed { tokens: forced.to_vec(), is_forced }).tokens;
        (tokens.clone(), sequence.speculation().and_then(|own| own.origin_of(&tokens)))
    };
    let (budgets, grammars) = (Some(DraftOrigin::Thinking), Some(DraftOrigin::Grammar));
    assert_eq!(by_grammar(2, &[1, 9, 9], &[7, 9, 9, 9], true), (vec![7, 8, 2], budgets));
    assert_eq!(by_grammar(2, &[1, 9, 9], &[7, 8], false), (vec![7, 8], budgets), "it allows no more");
    assert_eq!(by_grammar(3, &[1, 9], &[5, 6, 5, 5], true), (vec![5, 6], grammars), "as far as the budget goes");
    assert_eq!(by_grammar(9, &[1, 9], &[5, 6, 5, 5], true), (vec![5, 6, 5, 5], grammars));
}

/// What is certain is advised, but no more than is ever advised.
#[test]
fn what_is_certain_is_advised() {
    let advised = |most, learned: bool| {
        let mut speculation = speculation(true);
        speculation.length.as_mut().expect("it is asked for").max_draft_tokens = most;
        (0..200).for_each(|_| speculation.record(&[trial(0, learned)]));
        let by_others = speculation.next(usize::MAX).advised;
        let forced = speculation.certain(vec![7; 6], DraftOrigin::Thinking).advised;
        (by_others, forced, speculation.cut(2).advised)
    };
    assert_eq!(advised(16, false), (Some(0), Some(6), Some(2)));
    assert_eq!(advised(4, false), (Some(0), Some(4), Some(2)));
    assert_eq!(advised(4, true), (Some(3), Some(4), Some(3)));
}

proptest! {
    /// Whatever the text is: no draft token contradicts a forced one, and all tokens that are forced here are drafted.
    #[test]
    fn no_draft_stands_against_a_budget(
        budget in 0u32..8,
        most in 1u32..9,
        forced in prop::collection::vec(1u32..6, 0..5),
        prompt in prop::collection::vec(1u32..6, 0..20),
        output in prop::collection::vec(1u32..6, 1..20),
    ) {
        let mut sequence = thinking(budget, &forced, most, &prompt, &output);
        let draft = sequence.next_draft(&[]).tokens;
        let free = thinking(u32::MAX, &forced, most, &prompt, &output).next_draft(&[]).tokens;
        let (mut ahead, mut is_forced) = (sequence.ahead(), Vec::new());
        for &token in &draft {
            let due = ahead.here(&sequence.history).forced().first().copied();
            prop_assert!(due.is_none_or(|due| due == token), "{draft:?}");
            is_forced.push(due.is_some());
            sequence.grow(&mut ahead, token);
        }
        let due = ahead.here(&sequence.history).forced().first().copied();
        if sequence.history.here().forced().is_empty() {
            prop_assert!(free.starts_with(&draft));
            // It is shorter only if another token is forced.
            prop_assert!(free.get(draft.len()).is_none_or(|&next| due.is_some_and(|due| due != next)));
        } else {
            prop_assert!(is_forced.iter().all(|&is_forced| is_forced));
            prop_assert!(draft.len() == most as usize || due.is_none());
        }
    }
}
