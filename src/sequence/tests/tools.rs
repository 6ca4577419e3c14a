//! Tools that look back at a text or depend on its positions.

use super::*;
use crate::params::ThinkingFilters;
use crate::params::steering::*;
use crate::params::watermark::*;
use crate::sampling::steps::steps;

fn any_mark() -> impl Strategy<Value = Watermark> {
    let kgw = (any::<bool>(), 1u32..4).prop_map(|(own, context_width)| {
        let scheme = if own { SeedingScheme::Selfhash } else { SeedingScheme::Lefthash };
        Watermark::Kgw(KgwParams { context_width, ..KgwParams::with_scheme(scheme) })
    });
    let synthid = (2u32..4, 0u32..6, any::<bool>());
    let synthid = synthid.prop_map(|(ngram_len, context_history_size, skip_first_ngram_calls)| {
        let keys = SynthidParams::new(vec![3, 4]);
        Watermark::Synthid(SynthidParams { ngram_len, context_history_size, skip_first_ngram_calls, ..keys })
    });
    let gumbel = (1u32..4, 0u32..6).prop_map(|(context_width, context_history_size)| {
        Watermark::Gumbel(GumbelParams { key: 5, context_width, context_history_size })
    });
    prop_oneof![kgw, synthid, gumbel]
}

prop_compose! {
    pub(super) fn any_history()(
        dry in (prop_oneof![Just(0.0f32), 0.1f32..2.0], 1.0f32..3.0, 1u32..4, prop_oneof![Just(-1), 0i32..12]),
        breakers in prop::collection::vec(prop::collection::vec(0u32..4, 1..4), 0..3),
        bounds in (prop_oneof![2 => Just(0u32), 1 => 4u32..9], prop_oneof![Just(0u32), 1u32..6], prop_oneof![Just(0u32), 1u32..6]),
        window in (0u32..8, 0u32..6, 0u32..6, prop_oneof![Just(1.0f32), 0.5f32..2.0]),
        places in any::<[Option<bool>; 3]>(),
        ngram in prop::option::of((0u32..4, 0u32..9, prop::collection::vec(0u32..4, 0..2), 0u32..4)),
        length in prop::option::of((0u32..6, 0.5f32..2.0)),
        biases in prop::collection::vec((prop::collection::vec(0u32..4, 1..4), -2.0f32..2.0), 0..4),
        ranges in prop::collection::vec((prop::collection::vec(0u32..20, 0..4), 0u32..6, 1u32..6), 0..3),
        forced in (prop::option::weighted(0.2, 0u32..20), prop::option::weighted(0.2, 0u32..20)),
        detection in prop::option::of((1u32..4, 2u32..4)),
        stops in prop::collection::vec(prop::collection::vec(0u32..4, 1..4), 0..3),
        thinking in prop::option::of((0u32..5, 0u32..4, 0u32..4, prop::collection::vec(0u32..5, 0..5))),
        filters in (prop::option::of(0.5f32..2.0), prop::option::of(0u32..5), prop::option::of(0.0f32..1.0), prop::option::of(0.0f32..0.5)),
        mark in prop::option::weighted(0.4, any_mark()),
    ) -> HistoryParams {
        HistoryParams {
            no_repeat_ngram: ngram.map(|(size, window, whitelist, prompt_size)| {
                Box::new(NoRepeatNgram { size, window, whitelist, prompt_size })
            }),
            length_penalty: length.map(|(start, factor)| LengthPenalty { start, factor }),
            sequence_bias: biases.into_iter().map(|(token_ids, bias)| SequenceBias { token_ids, bias }).collect(),
            token_ban_ranges: ranges
                .into_iter()
                .map(|(token_ids, start, length)| TokenBanRange { token_ids, start, length })
                .collect(),
            forced_first_token: forced.0,
            forced_last_token: forced.1,
            repetition_detection: detection.map(|(max_pattern_size, min_count)| RepetitionDetection {
                max_pattern_size,
                min_pattern_size: 1,
                min_count,
            }),
            stop_token_sequences: stops,
            thinking_budget: thinking.map(|(budget, start, end, forced_token_ids)| {
                let (start_token_ids, end_token_ids) = (vec![start], vec![end]);
                let (temperature, top_k, top_p, min_p) = filters;
                let filters = ThinkingFilters { temperature, top_k, top_p, min_p };
                let filters = if budget > 0 { filters } else { ThinkingFilters::default() };
                let other_ends = Vec::new();
                Box::new(ThinkingBudget { start_token_ids, end_token_ids, budget, forced_token_ids, other_ends, filters })
            }),
            grammar: None,
            penalty_last_n: window.0,
            penalty_decay_n: if window.0 == 0 { 0 } else { window.1 },
            prompt_ignore_length: window.2,
            encoder_repetition_penalty: window.3,
            penalties_count_prompt: places[0],
            subtract_penalties_first: places[1],
            bias_after_penalties: places[2],
            dry_multiplier: dry.0,
            dry_base: dry.1,
            dry_allowed_length: dry.2,
            dry_penalty_last_n: dry.3,
            dry_sequence_breakers: breakers,
            dry_sequence_breaker_texts: Vec::new(),
            dry_max_ngram: bounds.0,
            dry_max_occurrences: bounds.1,
            dry_early_exit_match_len: bounds.2,
            watermark: mark.map(Arc::new),
        }
    }
}

#[test]
fn a_range_of_positions_has_bans_of_its_own() {
    let range = |token_ids: &[u32], start, length| TokenBanRange { token_ids: token_ids.to_vec(), start, length };
    let ranges = vec![range(&[5, 4], 0, 2), range(&[4, 7], 1, 1), range(&[6], 3, 9)];
    let mut sequence = opened(|p| p.history.token_ban_ranges = ranges, &[1], &[]);
    for expected in [&[4, 5][..], &[4, 5, 7], &[], &[6], &[6]] {
        assert_eq!(banned(&sequence), expected);
        sequence.commit(1);
    }
}

#[test]
fn a_forced_token_is_all_that_is_left() {
    let change = |p: &mut SamplingParams| {
        (p.history.forced_first_token, p.history.forced_last_token, p.max_tokens) = (Some(3), Some(2), 3);
        (p.banned_token_ids, p.allowed_token_ids) = (vec![3, 2], vec![5, 6]);
        (p.min_tokens, p.frequency_penalty) = (3, 1.0);
    };
    let mut sequence = opened(change, &[1], &[]);
    let row = |sequence: &Sequence| {
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        (spec.allowed.map(<[u32]>::to_vec), spec.banned.len(), spec.adjusts.is_empty())
    };
    assert_eq!(row(&sequence), (Some(vec![3]), 0, true));
    assert_eq!(sequence.commit(3), None);
    assert_eq!(row(&sequence), (Some(vec![5, 6]), 2, false));
    sequence.commit(5);
    assert_eq!(row(&sequence), (Some(vec![2]), 0, true));
    assert_eq!(sequence.commit(2), Some(FinishReason::Eos));
    let both = |p: &mut SamplingParams| {
        (p.history.forced_first_token, p.history.forced_last_token, p.max_tokens) = (Some(3), Some(4), 1);
    };
    assert_eq!(row(&opened(both, &[], &[])).0, Some(vec![4]), "the last one goes before the first");
}

#[test]
fn a_loop_ends_a_text_that_is_long_enough() {
    let detection = RepetitionDetection { max_pattern_size: 2, min_pattern_size: 1, min_count: 2 };
    let ended = |change: fn(&mut SamplingParams), tokens: &[u32]| {
        let with = |p: &mut SamplingParams| {
            p.history.repetition_detection = Some(detection);
            change(p);
        };
        let mut sequence = opened(with, &[7], &[]);
        let reasons: Vec<_> = tokens.iter().map(|&token| sequence.commit(token)).collect();
        assert_eq!(opened(with, &[7], tokens).finished(), sequence.finished(), "re-opened");
        reasons
    };
    let found = Some(FinishReason::Repetition);
    assert_eq!(ended(|_| (), &[7, 5, 7, 5]), [None, None, None, found], "the prompt is no part of it");
    assert_eq!(ended(|p| p.min_tokens = 4, &[5, 5, 5, 5]), [None, None, None, found]);
    assert_eq!(ended(|p| p.max_tokens = 2, &[5, 5]), [None, found]);
    assert_eq!(ended(|p| p.stop_token_ids = vec![5], &[5])[0], Some(FinishReason::StopToken));
}

#[test]
fn a_stop_sequence_ends_a_text_that_is_long_enough() {
    let ended = |change: fn(&mut SamplingParams), prompt: &[u32], tokens: &[u32]| {
        let with = |p: &mut SamplingParams| {
            p.history.stop_token_sequences = vec![vec![5, 6], vec![8], vec![7, 5, 5]];
            change(p);
        };
        let mut sequence = opened(with, prompt, &[]);
        let reasons: Vec<_> = tokens.iter().map(|&token| sequence.commit(token)).collect();
        assert_eq!(opened(with, prompt, tokens).finished(), sequence.finished(), "re-opened");
        reasons
    };
    let found = Some(FinishReason::StopSequence);
    assert_eq!(ended(|_| (), &[5], &[6, 6, 5, 6]), [None, None, None, found], "the prompt is no part of it");
    assert_eq!(ended(|_| (), &[7, 5], &[5, 8]), [None, found]);
    assert_eq!(ended(|p| p.min_tokens = 3, &[], &[5, 6, 5, 5, 6]), [None, None, None, None, found]);
    assert_eq!(ended(|p| p.max_tokens = 2, &[], &[5, 6]), [None, found], "it goes before the length");
    assert_eq!(ended(|p| p.stop_token_ids = vec![6], &[], &[5, 6])[1], Some(FinishReason::StopToken));
    let looping = |p: &mut SamplingParams| {
        p.history.repetition_detection =
            Some(RepetitionDetection { max_pattern_size: 1, min_pattern_size: 1, min_count: 2 })
    };
    assert_eq!(ended(looping, &[], &[7, 5, 5]), [None, None, found], "and before a loop");
}

#[test]
fn length_makes_eos_likelier_unless_it_is_ignored() {
    let change = |p: &mut SamplingParams| {
        p.history.length_penalty = Some(LengthPenalty { start: 1, factor: 2.0 });
        p.banned_token_ids = vec![9];
    };
    let eos = |change: &dyn Fn(&mut SamplingParams), output: &[u32]| {
        let sequence = opened(change, &[], output);
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        EOS.map(|token| spec.adjusts.iter().find(|a| a.token() == token).map(|a| a.apply(2.0, &spec.penalties)))
    };
    let banned = Some(f32::NEG_INFINITY);
    assert_eq!(eos(&change, &[]), [Some(2.0), banned]);
    assert_eq!(eos(&change, &[5]), [Some(2.0), banned]);
    assert_eq!(eos(&change, &[5, 5, 5]), [Some(8.0), banned]);
    let ignoring = |p: &mut SamplingParams| {
        change(p);
        p.ignore_eos = true;
    };
    assert_eq!(eos(&ignoring, &[5, 5, 5]), [Some(2.0), banned]);
}

/// The window has the last token of the breaker only, and after it one token over and over.
#[test]
fn a_breaker_that_ends_where_the_window_begins_is_seen() {
    let dry = |p: &mut SamplingParams| {
        (p.history.dry_multiplier, p.history.dry_base, p.history.dry_allowed_length) = (1.0, 2.0, 1);
        (p.history.dry_penalty_last_n, p.history.dry_sequence_breakers) = (6, vec![vec![0, 2, 2]]);
    };
    let bias = |prompt: &[u32]| {
        let sequence = opened(dry, prompt, &[]);
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        spec.adjusts.get(2)?.with_one_bias(&spec.penalties).map(|adjust| adjust.bias)
    };
    // Five tokens repeat, of which four come after the breaker: 2^(5 - 1), and 2^(4 - 1).
    assert_eq!(bias(&[9, 9, 9, 2, 2, 2, 2, 2, 2]), Some(-16.0));
    assert_eq!(bias(&[9, 9, 0, 2, 2, 2, 2, 2, 2]), Some(-8.0));
}

#[test]
fn a_tool_that_looks_back_takes_room_for_what_it_needs() {
    let tokens: Vec<u32> = (0..5000).map(|i| i * 7919 % 97).collect();
    let mut taken = Vec::new();
    for last_n in [-1, 20] {
        let dry = |p: &mut SamplingParams| (p.history.dry_multiplier, p.history.dry_penalty_last_n) = (0.8, last_n);
        let mut sequence = opened(dry, &tokens, &[]);
        let opened = sequence.bytes();
        for &token in &tokens {
            let most = sequence.bytes_after(1);
            sequence.commit(token);
            assert!(sequence.bytes() <= most);
        }
        taken.push((opened, sequence.bytes()));
    }
    let [(opened, whole), (few, window)] = taken[..] else { panic!("two cases") };
    assert!(opened > 5000 * 12 && whole > 10_000 * 12 && whole < 10_000 * 40, "{opened} {whole}");
    assert!(few < 2000 && window < 10_000, "a window bounds it: {few} {window}");
}

#[test]
fn a_text_that_says_one_thing_is_opened_in_no_time() {
    // With quadratic work these would be 10^11 steps.
    let prompt = vec![7; 1 << 19];
    let sequence = opened(|p| p.history.dry_multiplier = 1.0, &prompt, &[]);
    let spec = sequence.spec(sequence.draw(Purpose::Sample));
    let adjusts: Vec<_> = spec.adjusts.iter().map(|a| a.known).collect();
    assert_eq!(adjusts, [TokenAdjust { token: 7, bias: -1e30, ..TokenAdjust::default() }]);
}

/// A function that makes a text of a given length.
type Written = fn(u32) -> Vec<u32>;

/// Texts of a given length: first an ordinary one, then texts that repeat themselves in various ways.
fn texts() -> [(&'static str, Written); 4] {
    fn ordinary(at: u32) -> u32 {
        let chance = (at.wrapping_mul(0x9E37_79B9) ^ at << 7).wrapping_mul(0x85EB_CA6B);
        // The rank of a token is log-uniform.
        f64::from(50_000).powf(f64::from(chance >> 8) / f64::from(1 << 24)) as u32
    }
    [
        ("ordinary", |len| (0..len).map(ordinary).collect()),
        ("one token", |len| vec![1; len as usize]),
        ("a loop", |len| (0..len).map(|i| i % 7).collect()),
        ("two tokens", |len| (0..len).map(|i| ordinary(i) & 1).collect()),
    ]
}

/// Opening a text that is twice as long takes twice the steps. A token takes few steps; only with DRY, on a random text of two tokens, it
/// takes as many as there are places.
#[test]
fn work_is_linear_in_the_text_once_and_small_for_a_token() {
    let with = |change: fn(&mut HistoryParams)| {
        let mut params = SamplingParams::default();
        change(&mut params.history);
        Arc::new(Rules::new(params, &[]))
    };
    let dry =
        with(|p| (p.dry_multiplier, p.dry_sequence_breakers) = (1.0, vec![[vec![9], vec![1; 63]].concat(); 1024]));
    let bounded = with(|p| {
        p.dry_multiplier = 1.0;
        (p.dry_max_ngram, p.dry_max_occurrences, p.dry_early_exit_match_len) = (12, 8, 8);
    });
    let ngram = with(|p| {
        p.no_repeat_ngram = Some(Box::new(NoRepeatNgram { size: 3, whitelist: vec![0; 4096], ..Default::default() }));
    });
    for (tool, rules, is_dry) in [("DRY", dry, true), ("DRY with bounds", bounded, true), ("n-grams", ngram, false)] {
        for (name, text) in texts() {
            let [half, whole] = [1u32 << 13, 1 << 14].map(|len| {
                let text = text(len);
                let opening = steps(|| Sequence::open(Arc::clone(&rules), 1, &text, &[]));
                let mut sequence = Sequence::open(Arc::clone(&rules), 1, &text, &[]);
                let tokens = steps(|| text[..100].iter().for_each(|&token| _ = sequence.commit(token)));
                let score = steps(|| {
                    let mut ahead = sequence.ahead();
                    text[..100].iter().for_each(|&token| _ = sequence.grow(&mut ahead, token));
                });
                (opening, tokens.max(score) / 100)
            });
            let most = 8 << 14;
            assert!(whole.0 <= most && 2 * half.0 <= most, "{tool}, {name}: {half:?} {whole:?} steps");
            let most = if !is_dry {
                120
            } else if name == "two tokens" {
                3 << 14
            } else {
                600
            };
            assert!(whole.1 <= most, "{tool}, {name}: {half:?} {whole:?} steps");
        }
    }
}

#[test]
fn what_is_forgotten_is_not_missed() {
    // A long text of few tokens, so that tokens beyond every window are dropped again and again.
    let change = |p: &mut SamplingParams| {
        (p.repetition_penalty, p.frequency_penalty) = (1.3, 0.2);
        (p.history.penalty_last_n, p.history.penalty_decay_n, p.history.prompt_ignore_length) = (9, 11, 3);
        (p.history.dry_multiplier, p.history.dry_allowed_length, p.history.dry_penalty_last_n) = (0.5, 1, 25);
        (p.history.dry_max_ngram, p.history.dry_max_occurrences, p.history.dry_early_exit_match_len) = (6, 5, 4);
        p.history.dry_sequence_breakers = vec![vec![3], vec![0, 1, 2]];
        let ngram = NoRepeatNgram { size: 3, window: 30, whitelist: vec![2], prompt_size: 4 };
        p.history.no_repeat_ngram = Some(Box::new(ngram));
        p.history.sequence_bias = vec![SequenceBias { token_ids: vec![1, 2, 0], bias: 1.0 }];
        p.history.repetition_detection =
            Some(RepetitionDetection { max_pattern_size: 3, min_pattern_size: 1, min_count: 3 });
        let (start_token_ids, end_token_ids) = (vec![2, 2], vec![0, 0]);
        let (budget, forced_token_ids) = (9, vec![1, 0, 1, 2]);
        let other_ends = vec![vec![2, 1]];
        let filters = ThinkingFilters { temperature: Some(0.5), top_p: Some(0.9), ..Default::default() };
        let thinking = ThinkingBudget { start_token_ids, end_token_ids, budget, forced_token_ids, other_ends, filters };
        p.history.thinking_budget = Some(Box::new(thinking));
    };
    let mut state = 1u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    let tokens: Vec<u32> = (0..2000).map(|_| random() % 4).collect();
    let mut sequence = opened(change, &[1, 2, 0, 1, 2], &[]);
    let (mut nudged, mut banned, mut forced) = (0, 0, 0);
    for at in 0..tokens.len() {
        if at % 3 == 0 {
            let reopened = opened(change, &[1, 2, 0, 1, 2], &tokens[..at]);
            assert_eq!((next_row(&sequence), sequence.finished()), (next_row(&reopened), reopened.finished()), "{at}");
        }
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        nudged += usize::from(
            spec.adjusts.iter().any(|adjust| adjust.with_one_bias(&spec.penalties).is_none_or(|one| one.bias != 0.0)),
        );
        (banned, forced) = (banned + spec.banned.len(), forced + usize::from(spec.allowed.is_some()));
        let most = sequence.bytes_after(1);
        sequence.commit(tokens[at]);
        assert!(sequence.bytes() <= most && sequence.bytes() < 20_000);
    }
    assert!(nudged > 500 && banned > 500 && forced > 5, "{nudged} {banned} {forced}");
}
