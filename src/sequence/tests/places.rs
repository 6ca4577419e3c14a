//! Where biases, DRY and penalties stand: docs/engines.md, "Engines' rules".

use super::*;
use crate::backend::cuda::ask::{NoKernel, has_kernel};
use crate::sampling::row::Action;
use crate::vocabulary::Vocabulary;

/// A logit of 4 as a row has it, and whether a kernel can do so.
fn adjusted(spec: &RowSpec<'_>, token: u32) -> (f32, Result<(), NoKernel>) {
    let logit = spec.adjusts.get(token).map_or(4.0, |found| found.apply(4.0, &spec.penalties));
    (logit, has_kernel(spec))
}

/// With a repetition penalty of 2, and 1 subtracted by DRY.
#[test]
fn dry_stands_where_the_engine_has_it() {
    use EngineOrder::*;
    let at_first =
        [Croupier, Vllm, Transformers, KoboldCpp, MistralRs].map(|engine| (SamplerOrder::Engine(engine), 1.5));
    let at_last = [LlamaCpp, TextGenerationWebui, Exllama, ExllamaV3].map(|engine| (SamplerOrder::Engine(engine), 1.0));
    for (order, expected) in
        at_first.into_iter().chain(at_last).chain([(SamplerOrder::Custom(vec![], EngineOrder::Croupier), 1.5)])
    {
        let penalised = |p: &mut SamplingParams| {
            (p.repetition_penalty, p.temperature, p.samplers.sampler_order) = (2.0, 0.0, order.clone());
            p.history.dry_multiplier = 1.0;
        };
        // 8 followed 5 6.
        let prompt = [5, 6, 8, 7, 5];
        let mut sequence = opened(penalised, &prompt, &[]);
        let mut ahead = sequence.ahead();
        sequence.grow(&mut ahead, 6);
        let drafted = sequence.spec_ahead(&ahead, Action::Draw { uniform: 0 });
        assert_eq!(adjusted(&drafted, 8), (expected, Ok(())), "a draft");
        let drafted = shown(&drafted);
        sequence.commit(6);
        let spec = sequence.spec(Action::Draw { uniform: 0 });
        assert_eq!((adjusted(&spec, 8), shown(&spec)), ((expected, Ok(())), drafted));
        assert_eq!(adjusted(&spec, 7), (2.0, Ok(())), "no repeat");
        // A token to which the penalty does not apply.
        let ignoring = |p: &mut SamplingParams| {
            penalised(p);
            p.history.prompt_ignore_length = 4;
        };
        let unseen = opened(ignoring, &prompt, &[6]);
        assert_eq!(adjusted(&unseen.spec(unseen.draw(Purpose::Sample)), 8), (3.0, Ok(())));
    }
}

/// Of the text 5 6 8 7 5 6, 8 has followed 5 6. The rows of a table: an order, whether biases are said to come late, and
/// a logit of 4 with a bias of 2, a repetition penalty of 2 and 1 subtracted by DRY.
#[test]
fn biases_stand_where_the_engine_or_the_parameter_has_them() {
    use EngineOrder::*;
    let no_kernel = Err(NoKernel::TwoBiases);
    let cases = [
        (Croupier, None, 2.5, Ok(())),
        (Croupier, Some(true), 3.5, no_kernel),
        (LlamaCpp, None, 2.0, no_kernel),
        (LlamaCpp, Some(true), 3.0, Ok(())),
        (Exllama, None, 3.0, Ok(())),
        (Exllama, Some(false), 2.0, no_kernel),
        (MistralRs, None, 3.5, no_kernel),
        (MistralRs, Some(false), 2.5, Ok(())),
        (Sglang, None, 3.5, no_kernel),
    ];
    for (engine, late, expected, has_kernel) in cases {
        let order = |p: &mut SamplingParams| {
            p.samplers.sampler_order = SamplerOrder::Engine(engine);
            (p.history.bias_after_penalties, p.repetition_penalty, p.history.dry_multiplier) = (late, 2.0, 1.0);
        };
        let of_sequences = |p: &mut SamplingParams| {
            order(p);
            p.history.sequence_bias = vec![SequenceBias { token_ids: vec![6, 8], bias: 2.0 }];
        };
        let of_both = |p: &mut SamplingParams| {
            order(p);
            p.logit_bias = vec![(8, 1.5)];
            p.history.sequence_bias = vec![SequenceBias { token_ids: vec![8], bias: 0.5 }];
        };
        type Change<'a> = &'a dyn Fn(&mut SamplingParams);
        let of_token = |p: &mut SamplingParams| (order(p), p.logit_bias = vec![(8, 2.0)]).1;
        for change in [&of_token as Change<'_>, &of_sequences, &of_both] {
            let sequence = opened(change, &[5, 6, 8, 7, 5], &[6]);
            let spec = sequence.spec(sequence.draw(Purpose::Sample));
            assert_eq!(adjusted(&spec, 8), (expected, has_kernel), "{engine:?} {late:?}");
        }
    }
}

#[test]
fn a_bias_of_the_stream_comes_where_the_sequence_has_it() {
    let biases = [8].into_iter().chain(100..2000).map(|token| (token, 2.0)).collect();
    let base = SamplingParams { logit_bias: biases, repetition_penalty: 2.0, ..SamplingParams::default() };
    let base = Arc::new(Rules::new(base, &EOS));
    let copying = SamplingParams { banned_token_ids: vec![1], ..SamplingParams::default() };
    for (late, expected) in [(None, 3.0), (Some(true), 4.0), (Some(false), 3.0)] {
        let history = HistoryParams { bias_after_penalties: late, ..HistoryParams::default() };
        let own = SamplingParams { repetition_penalty: 2.0, history: history.into(), ..SamplingParams::default() };
        for prompt in [&[8][..], &[8, 8]] {
            let sequence = Sequence::open(Arc::new(Rules::over(&base, own.clone())), 7, prompt, &[]);
            let spec = sequence.spec(sequence.draw(Purpose::Sample));
            assert_eq!(adjusted(&spec, 8), (expected, Ok(())), "{late:?}");
        }
        // The stream's lists are not copied for that: many sequences of a message may have biases otherwise.
        assert!(Rules::over(&base, own).bytes() < Rules::over(&base, copying.clone()).bytes(), "{late:?}");
    }
}

/// A logit of 4 with a presence penalty of 1 and a repetition penalty of 2.
#[test]
fn penalties_come_in_the_order_of_the_engine_or_the_parameter() {
    for engine in EngineOrder::ALL {
        let by_engine = matches!(engine, EngineOrder::Sglang | EngineOrder::MistralRs);
        for asked in [None, Some(true), Some(false)] {
            let change = |p: &mut SamplingParams| {
                p.samplers.sampler_order = SamplerOrder::Engine(engine);
                (p.history.subtract_penalties_first, p.repetition_penalty, p.presence_penalty) = (asked, 2.0, 1.0);
            };
            let sequence = opened(change, &[], &[8]);
            let spec = sequence.spec(sequence.draw(Purpose::Sample));
            let expected = if asked.unwrap_or(by_engine) { 1.5 } else { 1.0 };
            assert_eq!(adjusted(&spec, 8).0, expected, "{engine:?} {asked:?}");
        }
    }
    // Where only one kind is on, no order is set, so that nothing is on when all are off.
    let first = |p: &mut SamplingParams| p.history.subtract_penalties_first = Some(true);
    assert!(
        !opened(|p| (first(p), p.presence_penalty = 1.0).1, &[], &[])
            .spec(Action::Draw { uniform: 0 })
            .penalties
            .subtract_first
    );
    assert!(opened(first, &[], &[]).spec(Action::Draw { uniform: 0 }).penalties.is_off());
}

/// A vocabulary in which 3 and 4 end a line, and 5 and 6 do so together.
fn lines() -> Arc<Vocabulary> {
    let texts = ["x", "a", "b", "\n", "b\n\n", "<", "br>"].map(|text| Some(text.as_bytes().to_vec()));
    Arc::new(Vocabulary::new(&texts, b""))
}

/// DRY with these breakers, and nothing else.
fn dry(texts: &[&str]) -> SamplingParams {
    let history = HistoryParams {
        dry_multiplier: 1.0,
        dry_base: 2.0,
        dry_sequence_breaker_texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        ..HistoryParams::default()
    };
    SamplingParams { history: history.into(), ..SamplingParams::default() }
}

#[test]
fn no_repeat_reaches_across_a_text_and_no_token_with_one_is_penalised() {
    let (again, line) = (&[1, 2, 3, 1, 7, 1, 2, 3][..], &[3, 1, 2, 4, 7, 3, 1, 2][..]);
    for (texts, text, token, expected) in [
        // 1 2 3 was followed by 1.
        (&["never"][..], again, 1, 2.0),
        (&["\n"], again, 1, 4.0),
        (&["b\n"], again, 1, 4.0),
        (&["<br>"], again, 1, 2.0),
        // 3 1 2 was followed by 4, two tokens after a line's end.
        (&["<br>"], line, 4, 2.0),
        (&["a\n"], line, 4, 2.0),
        (&["\n\n"], line, 4, 4.0),
        (&["a"], line, 4, 4.0),
    ] {
        let rules = Rules::new(dry(texts), &EOS).with_vocabulary(Some(lines()));
        assert_eq!(rules.validate(), Ok(()));
        let sequence = Sequence::open(Arc::new(rules), 7, text, &[]);
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        assert_eq!(adjusted(&spec, token).0, expected, "{texts:?} {text:?}");
    }
}

#[test]
fn texts_break_the_same_however_a_text_came() {
    let text = [1, 2, 3, 1, 2, 1, 7, 1, 2, 3, 1, 5, 6, 1, 2, 3, 1, 2, 5, 6, 1, 2, 3];
    for texts in [&["\n"][..], &["b\n", "<br>"], &["a<br>a"], &["\n", "<b"]] {
        let base = Arc::new(Rules::new(dry(texts), &EOS).with_vocabulary(Some(lines())));
        let rules = [Arc::clone(&base), Arc::new(Rules::over(&base, dry(&[])))];
        let known = |spec: &RowSpec<'_>| format!("{:?}", spec.adjusts.iter().collect::<Vec<_>>());
        let of = |rules: &Arc<Rules>, len: usize| {
            let opened = Sequence::open(Arc::clone(rules), 7, &text[..len / 2], &text[len / 2..len]);
            known(&opened.spec(Action::Draw { uniform: 0 }))
        };
        let expected: Vec<String> = (0..=text.len()).map(|len| of(&base, len)).collect();
        assert!(expected.iter().any(|known| known.contains("token")), "something is penalised");
        for rules in &rules {
            for from in 0..text.len() {
                let mut sequence = Sequence::open(Arc::clone(rules), 7, &text[..from / 3], &text[from / 3..from]);
                let mut ahead = sequence.ahead();
                for (at, &token) in text.iter().enumerate().skip(from) {
                    sequence.grow(&mut ahead, token);
                    let drafted = sequence.spec_ahead(&ahead, Action::Draw { uniform: 0 });
                    assert_eq!(known(&drafted), expected[at + 1], "{texts:?} from {from} to {at}");
                }
                sequence.commit(text[from]);
                assert_eq!(known(&sequence.spec(Action::Draw { uniform: 0 })), expected[from + 1], "{texts:?} {from}");
            }
        }
    }
}

#[test]
fn breakers_that_are_texts_need_the_texts_of_tokens() {
    let off = |mut params: SamplingParams| {
        params.history.dry_multiplier = 0.0;
        params
    };
    let refused = |rules: Rules| rules.validate().err().map(|error| error.field);
    let told = |rules: Rules| rules.validate().expect_err("no texts").message;
    assert_eq!(refused(Rules::new(dry(&["\n"]), &EOS)).as_deref(), Some("dry_sequence_breaker_texts"));
    let base = Arc::new(Rules::new(dry(&["\n"]), &EOS));
    assert_eq!(refused(Rules::over(&base, dry(&[]))).as_deref(), Some("dry_sequence_breaker_texts"));
    assert!(told(Rules::over(&base, dry(&[]))).contains("the texts come from default_params or the server"));
    assert!(!told(Rules::over(&base, dry(&["\n"]))).contains("default_params"));
    assert_eq!(refused(Rules::new(dry(&["\n"]), &EOS).with_vocabulary(Some(lines()))), None);
    assert_eq!(refused(Rules::new(off(dry(&["\n"])), &EOS)), None);
}
