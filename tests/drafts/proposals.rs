//! Draft tokens that the sidecar proposes, and its advice on how many are worthwhile.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;

fn proposing(kind: ProposerKind, seed: u64) -> SamplingParams {
    SamplingParams {
        proposer: Some(ProposerParams { kind: kind.into(), ..Default::default() }),
        max_tokens: Some(60),
        ..seeded(seed)
    }
}

/// A repetitive model: after each token mostly the same one, sometimes another.
fn after(text: &[u32]) -> Vec<f32> {
    let last = *text.last().unwrap_or(&0);
    (0..VOCAB).map(|t| if t == (last * 7 + 3) % 11 { 9.0 } else { logits(u64::from(last), 1)[t as usize] }).collect()
}

fn rows(text: &[u32], draft: &[u32]) -> Vec<Vec<f32>> {
    (0..=draft.len()).map(|len| after(&[text, &draft[..len]].concat())).collect()
}

#[tokio::test]
async fn proposals_speed_a_text_up_and_leave_it_as_it_was() {
    let server = TestServer::start().await;
    let stream = StreamConfig { model: "m".to_owned(), ..config() };
    let mut worker = server.worker_with(stream).await;
    for (id, kind) in (1..).zip([ProposerKind::Ngram, ProposerKind::Suffix]) {
        let plain = SamplingParams { proposer: None, ..proposing(kind, 5) };
        worker.step(open_step(vec![open(id * 10, plain)])).await;
        let mut expected = Vec::new();
        for _ in 0..60 {
            let work = only(worker.step(step_of(sample_work(id * 10), &[after(&expected)])).await);
            assert_eq!((work.proposed_token_ids.len(), work.advised_draft_length), (0, None), "nobody asked");
            expected.extend(ids(&work));
        }
        worker.step(open_step(vec![open(id, proposing(kind, 5))])).await;
        let (mut text, mut draft, mut steps) = (Vec::new(), Vec::new(), 0);
        while text.len() < 60 {
            let work = worker.verify(id, chain(&draft, deterministic()), &rows(&text, &draft)).await;
            text.extend(ids(&work));
            // Proposals are a function of the text: a sequence opened with the same text gets the same proposals.
            draft = work.proposed_token_ids;
            assert!(draft.len() <= 8);
            steps += 1;
        }
        assert_eq!(text, expected);
        assert!(steps < 40, "{kind:?}: {steps} steps for 60 tokens");
        let label = kind.as_str_name().trim_start_matches("PROPOSER_KIND_").to_lowercase();
        let count = |name| server.series(&format!("croupier_spec_decode_{name}{{model=\"m\",proposer=\"{label}\"}}"));
        assert!(count("num_accepted_tokens_total") >= f64::from(60 - steps), "all but one token a step");
        assert!(count("num_drafts_total") <= f64::from(steps));
    }
}

/// The tokens that end a text's thinking are drafted in one step, and earlier proposals stop where these tokens begin.
#[tokio::test]
async fn a_spent_thinking_budget_is_drafted_and_changes_not_one_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { model: "m".to_owned(), ..config() }).await;
    let end = vec![9, 8, 4, 12];
    let thinking = ThinkingBudgetParams {
        start_token_ids: vec![11],
        end_token_ids: vec![12],
        budget: 20,
        forced_token_ids: end.clone(),
        other_ends: Vec::new(),
        ..Default::default()
    };
    let params = SamplingParams { thinking_budget: Some(thinking), ..proposing(ProposerKind::Ngram, 5) };
    let text = |id, params| OpenSequence { prompt_token_ids: vec![11], ..open(id, params) };
    worker.step(open_step(vec![text(1, SamplingParams { proposer: None, ..params.clone() }), text(2, params)])).await;
    let mut expected = Vec::new();
    for _ in 0..60 {
        expected.extend(ids(&only(worker.step(step_of(sample_work(1), &[after(&expected)])).await)));
    }
    assert!(expected[20..].starts_with(&end), "{expected:?}");
    let (mut output, mut draft, mut forced) = (Vec::new(), Vec::new(), Vec::new());
    while output.len() < 60 {
        let work = worker.verify(2, chain(&draft, deterministic()), &rows(&output, &draft)).await;
        output.extend(ids(&work));
        draft = work.proposed_token_ids;
        if output.len() < 24 {
            assert!(output.len() >= 20 || output.len() + draft.len() <= 20, "{draft:?} behind {}", output.len());
            forced.extend((output.len() >= 20).then(|| draft.clone()));
        }
    }
    assert_eq!(output, expected);
    assert_eq!(forced.len(), 1, "one draft for what is left of the end: {forced:?}");
    assert!(end.ends_with(&forced[0]) && forced[0].len() >= 3);
    let count = |name| server.series(&format!("croupier_spec_decode_{name}{{model=\"m\",proposer=\"thinking\"}}"));
    assert_eq!((count("num_drafts_total"), count("num_accepted_tokens_total")), (1.0, forced[0].len() as f64));
}

/// They are accepted in any case.
#[tokio::test]
async fn advice_learns_nothing_from_tokens_that_are_forced() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let thinking = ThinkingBudgetParams {
        start_token_ids: vec![11],
        end_token_ids: vec![12],
        forced_token_ids: vec![5, 6, 7, 8, 12],
        ..Default::default()
    };
    let params = SamplingParams {
        thinking_budget: Some(thinking),
        temperature: Some(0.0),
        draft_length: Some(DraftLengthParams { draft_cost: 0.3, ..Default::default() }),
        ..proposing(ProposerKind::Ngram, 5)
    };
    let text = |id| OpenSequence { prompt_token_ids: vec![11], ..open(id, params.clone()) };
    worker.step(open_step(vec![text(1), text(2)])).await;
    let row = logits(1, 1);
    let (mut drafted, mut sampled) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        sampled.push(only(worker.step(step_of(sample_work(2), std::slice::from_ref(&row))).await));
    }
    drafted.push(only(worker.step(step_of(sample_work(1), std::slice::from_ref(&row))).await));
    assert_eq!(drafted[0].proposed_token_ids, [6, 7, 8, 12], "what is left of them");
    drafted.push(worker.verify(1, chain(&[6, 7, 8, 12], deterministic()), &vec![row; 5]).await);
    assert!(drafted.iter().flat_map(ids).eq(sampled.iter().flat_map(ids)));
    assert_eq!(drafted[1].advised_draft_length, sampled[5].advised_draft_length);
}

#[tokio::test]
async fn a_text_opened_again_is_proposed_the_same() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let prompt: Vec<u32> = vec![1, 2, 3, 4, 5, 9, 1, 2];
    let text = |output: &[u32]| OpenSequence {
        prompt_token_ids: prompt.clone(),
        output_token_ids: output.to_vec(),
        ..open(output.len() as u64, proposing(ProposerKind::Ngram, 1))
    };
    let sure = |token| (0..VOCAB).map(|t| if t == token { 40.0 } else { 0.0 }).collect::<Vec<f32>>();
    worker.step(open_step(vec![text(&[])])).await;
    let first = only(worker.step(step_of(sample_work(0), &[sure(3)])).await);
    // At the end of the text, the proposal goes on with its own tokens.
    assert_eq!(first.proposed_token_ids, [4, 5, 9, 1, 2, 3, 4, 5]);
    let second = only(worker.step(step_of(sample_work(0), &[sure(4)])).await);
    worker.step(open_step(vec![text(&[3])])).await;
    let again = only(worker.step(step_of(sample_work(1), &[sure(4)])).await);
    assert_eq!(again.proposed_token_ids, second.proposed_token_ids);
    // Tokens for which the text has no room are not proposed: its last token needs no draft token.
    let short = SamplingParams { max_tokens: Some(4), ..proposing(ProposerKind::Ngram, 1) };
    worker.step(open_step(vec![OpenSequence { prompt_token_ids: prompt.clone(), ..open(9, short) }])).await;
    let first = only(worker.step(step_of(sample_work(9), &[sure(3)])).await);
    assert_eq!(first.proposed_token_ids, [4, 5]);
    // A worker may take only a part of a proposal, or none of it.
    let work = worker.verify(0, chain(&again.proposed_token_ids[..1], deterministic()), &[sure(5), sure(9)]).await;
    assert_eq!(ids(&work), [5, 9]);
    assert_eq!(work.proposed_token_ids[..3], [1, 2, 3]);
}

/// A verification that could exceed the longest text is refused, so no such draft is proposed.
#[tokio::test]
async fn what_the_history_has_no_room_for_is_not_proposed() {
    let server = TestServer::with_limits(|limits| limits.max_history_tokens = 12).await;
    let mut worker = server.worker().await;
    let prompt: Vec<u32> = vec![1, 2, 3, 4, 5, 9, 1, 2];
    let text = OpenSequence { prompt_token_ids: prompt, ..open(1, proposing(ProposerKind::Ngram, 1)) };
    worker.step(open_step(vec![text])).await;
    let sure = |token| (0..VOCAB).map(|t| if t == token { 40.0 } else { 0.0 }).collect::<Vec<f32>>();
    let first = only(worker.step(step_of(sample_work(1), &[sure(3)])).await);
    assert_eq!(first.proposed_token_ids, [4, 5], "nine tokens of twelve, and one more comes behind the draft");
    let work = worker.verify(1, chain(&first.proposed_token_ids, deterministic()), &[4, 5, 9].map(sure)).await;
    assert_eq!((work.status(), ids(&work)), (RowStatus::Ok, vec![4, 5, 9]), "{}", work.message);
    assert_eq!(work.proposed_token_ids, [0; 0], "there is no room for a token");
}

#[tokio::test]
async fn advice_follows_acceptance() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let length = |max| Some(DraftLengthParams { draft_cost: 0.1, verify_cost: 0.02, max_draft_tokens: max });
    let params = |max| SamplingParams { draft_length: length(max), temperature: Some(0.0), ..seeded(1) };
    worker.step(open_step(vec![open(1, params(None)), open(2, params(Some(5)))])).await;
    let sure = |token| (0..VOCAB).map(|t| if t == token { 40.0 } else { 0.0 }).collect::<Vec<f32>>();
    let mut advised = Vec::new();
    for id in [1, 2] {
        for right in [true, false] {
            let mut last = None;
            for _ in 0..150 {
                let draft = if right { [7; 8] } else { [6; 8] };
                last = worker.verify(id, chain(&draft, deterministic()), &vec![sure(7); 9]).await.advised_draft_length;
            }
            advised.push(last.unwrap());
        }
    }
    assert!(advised[0] > 6 && advised[1] == 0, "{advised:?}");
    assert_eq!(advised[2..], [5, 0], "never more than was asked for");
}

#[tokio::test]
async fn parameters_of_proposers_are_checked() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let ngram = || ProposerParams { kind: ProposerKind::Ngram.into(), ..Default::default() };
    let length = |draft_cost, verify_cost, max| DraftLengthParams { draft_cost, verify_cost, max_draft_tokens: max };
    let proposer = |proposer| SamplingParams { proposer: Some(proposer), ..seeded(1) };
    let advice = |length| SamplingParams { draft_length: Some(length), ..seeded(1) };
    let cases = [
        ("params.proposer.kind", proposer(ProposerParams { max_match: Some(3), ..Default::default() })),
        ("params.proposer.kind", proposer(ProposerParams { kind: 9, ..ngram() })),
        ("params.proposer.max_draft_tokens", proposer(ProposerParams { max_draft_tokens: Some(0), ..ngram() })),
        ("params.proposer.max_draft_tokens", proposer(ProposerParams { max_draft_tokens: Some(65), ..ngram() })),
        ("params.proposer.min_match", proposer(ProposerParams { min_match: Some(9), ..ngram() })),
        ("params.proposer.max_match", proposer(ProposerParams { max_match: Some(u32::MAX), ..ngram() })),
        ("params.proposer.min_token_prob", proposer(ProposerParams { min_token_prob: Some(2.0), ..ngram() })),
        ("params.draft_length.draft_cost", advice(length(-1.0, 0.0, None))),
        ("params.draft_length.verify_cost", advice(length(0.0, f32::NAN, None))),
        ("params.draft_length.max_draft_tokens", advice(length(0.0, 0.0, Some(65)))),
    ];
    for (field, params) in cases {
        let result = worker.step(open_step(vec![open(1, params)])).await;
        assert_eq!(result.open[0].status(), OpenStatus::InvalidArgument);
        assert_eq!(result.open[0].error.as_ref().unwrap().field, field);
    }
}

/// The number of verifications until the text has 60 tokens, and the text.
async fn speculated(worker: &mut Worker, id: u64, predicted: &[u32]) -> (usize, Vec<u32>) {
    let opening = OpenSequence {
        prompt_token_ids: vec![2, 3],
        predicted_output_token_ids: predicted.to_vec(),
        ..open(id, proposing(ProposerKind::Ngram, 5))
    };
    let opened = worker.step(open_step(vec![opening])).await;
    assert_eq!(opened.open[0].status(), OpenStatus::Ok, "{opened:?}");
    let (mut text, mut draft, mut steps) = (Vec::new(), Vec::new(), 0);
    while text.len() < 60 {
        // Irregular: without what is predicted nothing comes again.
        let rows: Vec<_> = (0..=draft.len()).map(|ahead| logits(77, (text.len() + ahead) as u64)).collect();
        let work = worker.verify(id, chain(&draft, deterministic()), &rows).await;
        text.extend(ids(&work));
        (draft, steps) = (work.proposed_token_ids, steps + 1);
    }
    (steps, text)
}

#[tokio::test]
async fn what_is_predicted_is_drafted_and_changes_not_one_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let (alone, text) = speculated(&mut worker, 1, &[]).await;
    let (all, same) = speculated(&mut worker, 2, &text).await;
    assert_eq!(same, text);
    // The first token comes alone, and then eight and one more at a time.
    assert_eq!(all, 1 + 59_usize.div_ceil(9), "{alone} without");
    // Metrics tell these drafts from those found in the text: all but one token of each verification.
    let accepted = |proposer| {
        format!("croupier_spec_decode_num_accepted_tokens_total{{model=\"default\",proposer=\"{proposer}\"}}")
    };
    assert_eq!(server.series(&accepted("prediction")), (59 - (all - 1)) as f64);
    // A version with changes.
    let mut changed = [&text[..20], &[1, 1, 1], &text[25..]].concat();
    changed[30] = (changed[30] + 1) % VOCAB;
    let (some, same) = speculated(&mut worker, 3, &changed).await;
    assert_eq!(same, text);
    assert!(all < some && some < alone / 2, "{all} {some} {alone}");
    let (_, same) = speculated(&mut worker, 4, &(0..VOCAB).rev().collect::<Vec<_>>()).await;
    assert_eq!(same, text, "a wrong one only costs time");
}

#[tokio::test]
async fn what_is_predicted_in_vain_or_in_excess_is_refused() {
    let server = TestServer::with_limits(|limits| limits.max_history_tokens = 100).await;
    let mut worker = server.worker().await;
    let with = |kind, predicted: Vec<u32>| OpenSequence {
        predicted_output_token_ids: predicted,
        ..open(1, SamplingParams { proposer: kind, ..seeded(1) })
    };
    let of = |kind: ProposerKind| Some(ProposerParams { kind: kind.into(), ..Default::default() });
    for (field, message, opening) in [
        ("predicted_output_token_ids", "set params.proposer to NGRAM or SUFFIX", with(None, vec![1])),
        ("predicted_output_token_ids", "set params.proposer to", with(of(ProposerKind::Grammar), vec![1])),
        (
            "predicted_output_token_ids",
            "has 101 tokens, above max_history_tokens 100",
            with(of(ProposerKind::Ngram), vec![1; 101]),
        ),
        ("predicted_output_token_ids[1]", "token id 50 is outside", with(of(ProposerKind::Suffix), vec![1, 50])),
    ] {
        let result = worker.step(open_step(vec![opening])).await;
        let is_long = message.contains("max_history_tokens");
        let expected = if is_long { OpenStatus::ResourceExhausted } else { OpenStatus::InvalidArgument };
        assert_eq!(result.open[0].status(), expected, "{message}");
        let error = result.open[0].error.as_ref().unwrap();
        assert_eq!(error.field, field);
        assert!(error.message.contains(message), "{}", error.message);
    }
    // What is predicted is no part of the text.
    let longest = OpenSequence { prompt_token_ids: vec![1; 9], ..with(of(ProposerKind::Suffix), vec![1; 100]) };
    let opened = worker.step(open_step(vec![longest])).await;
    assert_eq!(opened.open[0].status(), OpenStatus::Ok);
    drop(worker);
    server.expect_series("croupier_state_bytes", 0.0).await;
}
