use super::patterns::Patterns;
use super::table::{ChargedSequence, Table};
use super::*;
use crate::error::Refusal;
use crate::params::chain::SamplerParams;
use crate::params::history::HistoryParams;
use crate::params::report::ReportParams;
use crate::params::steering::{SequenceBias, ThinkingBudget};
use crate::params::{EngineOrder, Filters, LogprobsParams, SamplerOrder, SamplingParams, ThinkingFilters};
use crate::permits::Counter;
use crate::sampling::adjust::{Adjusts, TokenAdjust};
use crate::sampling::kept::Form;
use crate::sampling::row::LogprobsMode;
use proptest::prelude::*;

mod places;
mod tools;
use tools::any_history;

const EOS: [u32; 2] = [2, 9];

fn opened(change: impl FnOnce(&mut SamplingParams), prompt: &[u32], output: &[u32]) -> Sequence {
    let mut params = SamplingParams::default();
    change(&mut params);
    params.validate(100, 20).expect("valid parameters");
    Sequence::open(Arc::new(Rules::new(params, &EOS)), 7, prompt, output)
}

/// All that a backend is told about the next row.
fn next_row(sequence: &Sequence) -> String {
    shown(&sequence.spec(sequence.draw(Purpose::Sample)))
}

fn shown(spec: &RowSpec<'_>) -> String {
    let adjusts: Vec<_> = spec.adjusts.iter().collect();
    let rest = RowSpec { adjusts: Adjusts::default(), ..*spec };
    format!("{adjusts:?} {rest:?}")
}

fn banned(sequence: &Sequence) -> Vec<u32> {
    sequence.spec(sequence.draw(Purpose::Sample)).banned.to_vec()
}

#[test]
fn a_stop_token_goes_before_eos_and_both_before_the_length() {
    let (stop_eos, stop, both) = (vec![2, 3], vec![3], |p: &mut SamplingParams| p.max_tokens = 1);
    type Change = Box<dyn Fn(&mut SamplingParams)>;
    let cases: [(Option<FinishReason>, u32, Change); 9] = [
        (None, 5, Box::new(|_| ())),
        (Some(FinishReason::Eos), 2, Box::new(|_| ())),
        (Some(FinishReason::Eos), 9, Box::new(both)),
        (Some(FinishReason::MaxTokens), 5, Box::new(both)),
        (Some(FinishReason::StopToken), 3, Box::new(move |p| (p.max_tokens, p.stop_token_ids) = (1, stop.clone()))),
        (None, 2, Box::new(|p| p.ignore_eos = true)),
        (Some(FinishReason::MaxTokens), 2, Box::new(|p| (p.ignore_eos, p.max_tokens) = (true, 1))),
        (Some(FinishReason::StopToken), 2, Box::new(|p| p.stop_token_ids = vec![2])),
        // If EOS is given as a stop token, it ends the sequence whatever ignore_eos says.
        (
            Some(FinishReason::StopToken),
            2,
            Box::new(move |p| (p.ignore_eos, p.stop_token_ids) = (true, stop_eos.clone())),
        ),
    ];
    for (expected, token, change) in cases {
        let mut sequence = opened(&change, &[1], &[]);
        assert_eq!(sequence.commit(token), expected);
        assert_eq!(sequence.finished(), expected);
        assert_eq!(opened(&change, &[1], &[token]).finished(), expected, "re-opened");
    }
}

#[test]
fn temperature_goes_along_a_line_and_stays_at_its_end() {
    let change = |p: &mut SamplingParams| {
        (p.samplers.temperature_end, p.samplers.temperature_tokens) = (0.5, 4);
    };
    let mut sequence = opened(change, &[1], &[]);
    for (position, expected) in [1.0, 0.875, 0.75, 0.625, 0.5, 0.5].into_iter().enumerate() {
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        assert_eq!(spec.filters.temperature, expected, "{position}");
        sequence.commit(5);
    }
}

#[test]
fn a_text_that_thinks_has_filters_of_its_own() {
    let change = |p: &mut SamplingParams| {
        (p.temperature, p.top_k) = (0.0, 9);
        let filters = ThinkingFilters { temperature: Some(0.5), top_p: Some(0.9), ..Default::default() };
        let (start_token_ids, end_token_ids, budget) = (vec![5], vec![6], 4);
        let thinking = ThinkingBudget { start_token_ids, end_token_ids, budget, filters, ..Default::default() };
        p.history.thinking_budget = Some(Box::new(thinking));
    };
    let answer = Filters { temperature: 0.0, top_k: 9, top_p: 1.0, min_p: 0.0 };
    let thought = Filters { temperature: 0.5, top_p: 0.9, ..answer };
    let mut sequence = opened(change, &[1], &[]);
    let mut ahead = sequence.ahead();
    // The budget is spent with the fourth token after the start: the end is forced, and belongs to the thought.
    let text = [(5, answer), (7, thought), (6, thought), (5, answer), (7, thought), (7, thought)];
    let rest = [(7, thought), (7, thought), (6, thought), (7, answer)];
    for (at, (token, expected)) in text.into_iter().chain(rest).enumerate() {
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        assert_eq!((spec.filters, spec.allowed), (expected, (at == 8).then_some(&[6][..])), "{at}");
        assert_eq!(sequence.spec_ahead(&ahead, Action::Draw { uniform: 0 }).filters, expected, "a draft, {at}");
        sequence.grow(&mut ahead, token);
        sequence.commit(token);
    }
}

#[test]
fn ends_are_banned_until_min_tokens() {
    let mut sequence = opened(|p| (p.min_tokens, p.stop_token_ids) = (2, vec![30, 2, 1]), &[], &[]);
    assert_eq!(banned(&sequence), [1, 2, 9, 30]);
    sequence.commit(5);
    assert_eq!(banned(&sequence), [1, 2, 9, 30]);
    sequence.commit(5);
    assert_eq!(banned(&sequence), [0; 0]);
    let ignoring = opened(|p| (p.min_tokens, p.ignore_eos, p.stop_token_ids) = (2, true, vec![30]), &[], &[]);
    assert_eq!(banned(&ignoring), [30]);
}

#[test]
fn a_bad_word_is_not_completed() {
    let words = || vec![vec![4], vec![5, 6], vec![5, 5, 7], vec![8, 5, 6]];
    // The prompt does not count: only the output must not contain a bad word.
    let mut sequence = opened(|p| p.bad_words = words(), &[5, 5], &[]);
    let adjusts = sequence.spec(sequence.draw(Purpose::Sample)).adjusts.iter().map(|a| a.known).collect::<Vec<_>>();
    assert_eq!(adjusts, [TokenAdjust { token: 4, flags: TokenAdjust::BANNED, ..TokenAdjust::default() }]);
    assert_eq!(banned(&sequence), [0; 0], "a word longer than the history");
    sequence.commit(5);
    assert_eq!(banned(&sequence), [6]);
    sequence.commit(5);
    assert_eq!(banned(&sequence), [6, 7]);
    sequence.commit(8);
    assert_eq!(banned(&sequence), [0; 0]);
    sequence.commit(5);
    assert_eq!(banned(&sequence), [6]);
}

#[test]
fn history_is_counted_only_when_a_penalty_asks() {
    let mut plain = opened(|p| p.logit_bias = vec![(9, 1.0), (3, -1.0)], &[1, 2], &[3]);
    plain.commit(4);
    let tokens = |s: &Sequence| s.spec(s.draw(Purpose::Sample)).adjusts.iter().map(|a| a.token()).collect::<Vec<_>>();
    assert_eq!(tokens(&plain), [3, 9]);
    let mut counting = opened(|p| p.frequency_penalty = 0.5, &[1, 2], &[3, 3]);
    counting.commit(3);
    let spec = counting.spec(counting.draw(Purpose::Sample));
    let three = TokenAdjust { token: 3, flags: TokenAdjust::SEEN, bias: 0.0, output_count: 3 };
    assert_eq!(spec.adjusts, [three].as_slice().into(), "the prompt matters to the repetition penalty alone");
    let whole = |p: &mut SamplingParams| (p.presence_penalty, p.history.penalties_count_prompt) = (0.5, Some(true));
    let mut whole = opened(whole, &[3, 1, 3], &[3]);
    whole.commit(3);
    let spec = whole.spec(whole.draw(Purpose::Sample));
    let expected = [TokenAdjust { token: 1, output_count: 1, ..three }, TokenAdjust { output_count: 4, ..three }];
    assert_eq!(spec.adjusts, expected.as_slice().into(), "the prompt counts");
    assert_eq!(tokens(&opened(|p| p.history.penalties_count_prompt = Some(true), &[1], &[3])), [0; 0]);
    assert_eq!(tokens(&opened(|p| p.repetition_penalty = 1.1, &[2, 1, 1], &[3])), [1, 2, 3]);
}

#[test]
fn breakers_are_there_once_and_counted() {
    let breakers = |params: &mut SamplingParams| params.history.dry_sequence_breakers = vec![vec![7, 8, 9]; 500];
    let (mut params, plain) = (SamplingParams::default(), Arc::new(Rules::new(SamplingParams::default(), &EOS)));
    breakers(&mut params);
    let base = Arc::new(Rules::new(params.clone(), &EOS));
    assert!(base.bytes() >= plain.bytes() + 500 * (3 * size_of::<u32>() + size_of::<Vec<u32>>()));
    // Rules with a base keep only the automaton, and not even that if they have no breakers of their own.
    let (own, none) = (Rules::over(&plain, params), Rules::over(&base, SamplingParams::default()));
    assert!((none.bytes() + 4 * 12..base.bytes() / 2).contains(&own.bytes()), "{} {}", own.bytes(), none.bytes());
    assert!(
        own.breakers().tokens.zip(none.breakers().tokens).is_some_and(|(own, none)| own == none && own.longest() == 3)
    );
}

#[test]
fn patterns_are_there_once_and_counted() {
    let base = SamplingParams { bad_words: vec![vec![7, 8, 9]; 500], ..SamplingParams::default() };
    let base = Arc::new(Rules::new(base, &EOS));
    let mut biased = SamplingParams::default();
    biased.history.sequence_bias =
        (0..500).map(|last| SequenceBias { token_ids: vec![1, 2, 3, last], bias: 1.0 }).collect();
    let [none, own] = [SamplingParams::default(), biased].map(|params| Rules::over(&base, params));
    assert!(own.bytes() >= none.bytes() + own.params().bytes() - none.params().bytes() + 4 * 20 + 500 * 4);
    // Anything that rules do not have themselves comes from the base.
    let in_force = |rules: &Rules| (rules.words().map_or(0, Patterns::len), rules.biased().map_or(0, Patterns::len));
    assert!(in_force(&own) == (500, 500) && in_force(&none) == (500, 0));
    assert!(base.bytes() > none.bytes() && none.bytes() <= size_of::<Rules>() + none.params().bytes() + 64);
    let short = Rules::over(&base, SamplingParams { bad_words: vec![vec![5]], ..SamplingParams::default() });
    assert_eq!(in_force(&short), (0, 0), "a ban, in place of the base's words");
}

#[test]
fn a_plain_sequence_takes_a_kibibyte() {
    // It has its own parameters over a stream's long lists, and its place in the table.
    let base = SamplingParams { allowed_token_ids: (0..100).collect(), ..SamplingParams::default() };
    let base = Arc::new(Rules::new(base, &EOS));
    let rules = Rules::over(&base, SamplingParams { temperature: 0.5, ..SamplingParams::default() });
    assert!(rules.bytes() < base.bytes() && base.bytes() > 2 * 100 * size_of::<u32>());
    let bytes = ChargedSequence::PLACE + rules.bytes();
    assert!(bytes <= 1024, "{bytes} bytes");
    let mut sequence = opened(|_| (), &[1; 1000], &[]);
    for _ in 0..1000 {
        sequence.commit(5);
    }
    assert_eq!((sequence.bytes(), sequence.bytes_after(1000)), (0, 0), "history grows without being needed");
}

#[test]
fn room_is_for_what_a_sequence_takes() {
    let server = Counter::new(1 << 20, metrics::Gauge::noop());
    let mut table = Table::new(1, Arc::clone(&server));
    let penalised = || opened(|p| p.frequency_penalty = 0.5, &[], &[]);
    // The place of the table comes out of the same counter here.
    table.open(1, ChargedSequence::new(penalised(), &server).expect("room")).expect("open");
    for token in 0..99 {
        assert!(table.may_grow(1, 1, 0));
        let sequence = table.get_mut(1).expect("open");
        sequence.commit(token);
        let taken = ChargedSequence::PLACE + sequence.bytes() + 1;
        table.settle(1);
        assert_eq!(server.used(), taken);
    }
    assert!(server.used() > 99 * size_of::<TokenAdjust>());
    let full = server.take(server.limit() - server.used()).expect("the rest");
    assert!(
        !table.may_grow(1, 1000, 0) && !table.may_grow(1, 0, 1) && table.may_grow(1, 0, 0),
        "nothing is taken in part"
    );
    assert!(matches!(ChargedSequence::new(penalised(), &server), Err(OpenError::Refused(Refusal::StateBytes))));
    drop((full, table));
    assert_eq!(server.used(), 0);
}

prop_compose! {
    fn any_params()(
        penalties in (prop_oneof![Just(1.0f32), 0.5f32..2.0], prop_oneof![Just(0.0f32), -2.0f32..2.0]),
        presence in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        bias in prop::collection::btree_map(0u32..20, -2.0f32..2.0, 0..5),
        lists in prop::collection::vec(prop::collection::vec(0u32..20, 0..4), 3),
        bad_words in prop::collection::vec(prop::collection::vec(0u32..4, 1..4), 0..5),
        ends in (0u32..6, 0u32..10, any::<bool>()),
        top_n in 0u32..3,
        (history, is_late) in (any_history(), any::<bool>()),
    ) -> SamplingParams {
        let ends = if history.forced_last_token.is_some() { (ends.0, ends.1.max(1), ends.2) } else { ends };
        let logprobs = LogprobsParams { top_n, mode: LogprobsMode::Processed, token_ids: lists[0].clone() };
        SamplingParams {
            repetition_penalty: penalties.0,
            frequency_penalty: penalties.1,
            presence_penalty: presence,
            logit_bias: bias.into_iter().collect(),
            allowed_token_ids: lists[0].clone(),
            banned_token_ids: lists[1].clone(),
            stop_token_ids: lists[2].clone(),
            bad_words,
            min_tokens: ends.0,
            max_tokens: if ends.1 == 0 { 0 } else { ends.1 + 6 },
            ignore_eos: ends.2,
            logprobs: (top_n > 0).then_some(logprobs),
            samplers: SamplerParams {
                report: (top_n > 1).then(|| Box::new(ReportParams { entropy: true, ..ReportParams::default() })),
                sampler_order: SamplerOrder::Engine(if is_late { EngineOrder::LlamaCpp } else { EngineOrder::Croupier }),
                ..SamplerParams::default()
            }
            .into(),
            history: history.into(),
            ..SamplingParams::default()
        }
    }
}

proptest! {
    #[test]
    fn reopened_with_its_tokens_a_sequence_goes_on_bit_for_bit(
        params in any_params(),
        prompt in prop::collection::vec(0u32..20, 0..10),
        tokens in prop::collection::vec(0u32..6, 0..20),
        seed in any::<u64>(),
    ) {
        prop_assert!(params.validate(20, 20).is_ok());
        let rules = Arc::new(Rules::new(params, &EOS));
        let mut grown = Sequence::open(Arc::clone(&rules), seed, &prompt, &[]);
        let mut ahead = grown.ahead();
        let fresh = grown.clone();
        let most = grown.bytes_after(tokens.len());
        for at in 0..=tokens.len() {
            let reopened = Sequence::open(Arc::clone(&rules), seed, &prompt, &tokens[..at]);
            prop_assert_eq!(next_row(&grown), next_row(&reopened));
            prop_assert_eq!(grown.finished(), reopened.finished());
            prop_assert_eq!(grown.history_len(), reopened.history_len());
            // Looking ahead, a row is asked for what it would be asked for if the tokens had been emitted.
            prop_assert_eq!(ahead.here(&fresh.history).position(), grown.position());
            prop_assert_eq!(&next_row(&grown), &shown(&fresh.spec_ahead(&ahead, grown.draw(Purpose::Sample))));
            if let Some(&token) = tokens.get(at) {
                let most = grown.bytes_after(1);
                prop_assert_eq!(fresh.grow(&mut ahead, token), grown.commit(token));
                prop_assert!(grown.bytes() <= most);
            }
        }
        prop_assert!(grown.bytes() <= most);
    }

    #[test]
    fn rules_over_others_are_those_of_all_parameters_together(
        base in any_params(),
        own in any_params(),
        tokens in prop::collection::vec(0u32..20, 0..8),
    ) {
        fn or<T>(own: &[T], base: &[T]) -> Vec<T> where T: Clone {
            if own.is_empty() { base.to_vec() } else { own.to_vec() }
        }
        let together = SamplingParams {
            logit_bias: or(&own.logit_bias, &base.logit_bias),
            allowed_token_ids: or(&own.allowed_token_ids, &base.allowed_token_ids),
            banned_token_ids: or(&own.banned_token_ids, &base.banned_token_ids),
            bad_words: or(&own.bad_words, &base.bad_words),
            stop_token_ids: or(&own.stop_token_ids, &base.stop_token_ids),
            logprobs: own.logprobs.clone().or(base.logprobs.clone()),
            samplers: SamplerParams {
                report: own.samplers.report.clone().or(base.samplers.report.clone()),
                ..(*own.samplers).clone()
            }
            .into(),
            history: HistoryParams {
                dry_sequence_breakers: or(
                    &own.history.dry_sequence_breakers,
                    &base.history.dry_sequence_breakers,
                ),
                sequence_bias: or(&own.history.sequence_bias, &base.history.sequence_bias),
                stop_token_sequences: or(&own.history.stop_token_sequences, &base.history.stop_token_sequences),
                token_ban_ranges: or(&own.history.token_ban_ranges, &base.history.token_ban_ranges),
                no_repeat_ngram: own.history.no_repeat_ngram.clone().or(base.history.no_repeat_ngram.clone()),
                thinking_budget: own.history.thinking_budget.clone().or(base.history.thinking_budget.clone()),
                ..(*own.history).clone()
            }
            .into(),
            ..own.clone()
        };
        let over = Arc::new(Rules::over(&Arc::new(Rules::new(base, &EOS)), own));
        let together = Arc::new(Rules::new(together, &EOS));
        let [mut over, mut together] = [over, together].map(|rules| Sequence::open(rules, 7, &[3, 4], &[]));
        for token in tokens {
            prop_assert_eq!(next_row(&over), next_row(&together));
            prop_assert_eq!(over.commit(token), together.commit(token));
        }
        prop_assert_eq!(next_row(&over), next_row(&together));
    }

    #[test]
    fn what_a_backend_is_told_is_in_order_and_without_repeats(
        params in any_params(),
        prompt in prop::collection::vec(0u32..20, 0..10),
        tokens in prop::collection::vec(0u32..20, 0..20),
    ) {
        let sequence = Sequence::open(Arc::new(Rules::new(params, &EOS)), 1, &prompt, &tokens);
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        prop_assert!(spec.adjusts.iter().is_sorted_by(|a, b| a.token() < b.token()));
        prop_assert!(spec.banned.is_sorted_by(|a, b| a < b));
        prop_assert!(spec.allowed.is_none_or(|ids| ids.is_sorted_by(|a, b| a < b)));
    }
}

/// A prompt changes no random number, because positions are those of the output. XTC has its own random number.
#[test]
fn the_numbers_of_a_row_are_those_of_its_position_in_the_output() {
    let xtc = |p: &mut SamplingParams| (p.samplers.xtc_probability, p.samplers.xtc_threshold) = (0.5, 0.1);
    let number = |position, purpose| philox::uniform(7, position, purpose);
    let of_xtc = |spec: RowSpec<'_>| spec.chain.expect("XTC is on").xtc;
    for (prompt, output) in [(&[][..], &[][..]), (&[1, 4, 1], &[]), (&[1, 4, 1], &[3, 5]), (&[], &[3, 5])] {
        let sequence = opened(xtc, prompt, output);
        let (action, position) = (sequence.draw(Purpose::Sample), output.len() as u64);
        assert_eq!(action, Action::Draw { uniform: number(position, Purpose::Sample) });
        assert_eq!(sequence.numbers(), Numbers { seed: 7, start: position });
        assert_eq!(of_xtc(sequence.spec(action)), number(position, Purpose::Xtc));
        let mut ahead = sequence.ahead();
        sequence.grow(&mut ahead, 8);
        assert_eq!(of_xtc(sequence.spec_ahead(&ahead, action)), number(position + 1, Purpose::Xtc));
    }
}

#[test]
fn what_samplers_remember_after_a_draft_token_counts_as_its_memory() {
    let with = |state: Option<SamplerState>| {
        let mut sequence = opened(|_| (), &[1], &[]);
        sequence.keep_draft(None, 3, Box::new(Kept::new(Form::List(vec![(3, 1)]), 1)), state);
        sequence.bytes()
    };
    assert_eq!(with(Some(SamplerState::default())), with(None) + size_of::<SamplerState>());
}
