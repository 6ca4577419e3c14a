//! Samplers that learn from each token, over real sockets: the text is the same, whatever kind of work it comes from, and wherever it is
//! opened again.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;

const LEN: usize = 40;

/// A model: the logits that follow a text.
fn after(text: &[u32]) -> Vec<f32> {
    logits(u64::from(*text.last().unwrap_or(&0)) + 100 * u64::from(text.len() as u32 % 3), 3)
}

fn cases() -> Vec<(String, SamplingParams)> {
    let p = SamplingParams::default;
    let acceptance = |rule: AcceptanceRule| Some(AcceptanceParams { rule: rule.into(), ..Default::default() });
    let llama_cpp = EngineOrder::LlamaCpp.into();
    let samplers = [
        ("mirostat 1", SamplingParams { mirostat: Some(1), mirostat_tau: Some(2.0), ..p() }),
        ("mirostat 2", SamplingParams { mirostat: Some(2), mirostat_tau: Some(2.0), mirostat_eta: Some(0.4), ..p() }),
        (
            "as llama.cpp",
            SamplingParams {
                mirostat: Some(2),
                mirostat_tau: Some(2.0),
                temperature: Some(0.8),
                engine_order: llama_cpp,
                ..p()
            },
        ),
        ("adaptive-p", SamplingParams { adaptive_target: Some(0.2), min_p: Some(0.02), ..p() }),
        (
            "adaptive-p between others",
            SamplingParams {
                adaptive_target: Some(0.1),
                adaptive_decay: Some(0.5),
                smoothing_factor: Some(0.2),
                sampler_order: [SamplerKind::Smoothing, SamplerKind::AdaptiveP, SamplerKind::TopK]
                    .map(i32::from)
                    .into(),
                top_k: Some(30),
                ..p()
            },
        ),
        (
            "both",
            SamplingParams {
                mirostat: Some(2),
                mirostat_tau: Some(3.0),
                adaptive_target: Some(0.1),
                xtc_probability: Some(0.3),
                ..p()
            },
        ),
        (
            "top-p decays",
            SamplingParams {
                top_p: Some(0.95),
                top_p_decay: Some(0.8),
                top_p_min: Some(0.2),
                top_p_reset_token_ids: (0..VOCAB / 8).map(|i| 8 * i).take(64).collect(),
                ..p()
            },
        ),
        ("top-p decays from 1", SamplingParams { top_p_decay: Some(0.9), typical_p: Some(0.95), ..p() }),
    ];
    let mut cases = Vec::new();
    for (name, sampler) in samplers {
        for (seed, rule) in [(1, AcceptanceRule::Rejection), (2, AcceptanceRule::Block)] {
            let wanted = LogprobsParams { top_n: 3, mode: LogprobsMode::Processed.into(), token_ids: vec![1, 2] };
            let params = SamplingParams {
                max_tokens: Some(LEN as u32),
                logprobs: Some(wanted),
                seed: Some(seed),
                acceptance: acceptance(rule),
                repetition_penalty: Some(1.1),
                return_sampler_state: Some(true),
                report: Some(ReportParams {
                    max_surviving_token_ids: 5,
                    entropy: true,
                    why_not_token_ids: vec![1, 2],
                    ..Default::default()
                }),
                ..sampler.clone()
            };
            cases.push((format!("{name}, {rule:?}"), params));
        }
    }
    cases
}

/// A token with the state of the samplers after it.
type Told = (Token, Option<SamplerState>);

/// The text of a sequence, sampled token by token.
async fn plain(worker: &mut Worker, id: u64, params: &SamplingParams) -> Vec<Told> {
    worker.step(open_step(vec![open(id, params.clone())])).await;
    let (mut text, mut told) = (Vec::new(), Vec::new());
    while text.len() < LEN {
        let work = only(worker.step(step_of(sample_work(id), &[after(&text)])).await);
        text.extend(ids(&work));
        told.push((work.tokens[0].clone(), work.sampler_state));
    }
    told
}

fn token_ids(told: &[Told]) -> Vec<u32> {
    told.iter().map(|(token, _)| token.token_id).collect()
}

#[tokio::test]
async fn every_sampler_changes_a_text_and_tells_its_state() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    for (id, (name, params)) in (1..).zip(cases()) {
        let told = plain(&mut worker, 2 * id, &params).await;
        let without = SamplingParams {
            mirostat: None,
            adaptive_target: None,
            top_p_decay: None,
            sampler_order: vec![],
            ..params.clone()
        };
        assert_ne!(token_ids(&plain(&mut worker, 2 * id + 1, &without).await), token_ids(&told), "{name}");
        let state = told[0].1.unwrap_or_default();
        let (mirostat, adaptive) = (params.mirostat.is_some(), params.adaptive_target.is_some());
        assert_eq!((state.mirostat_mu.is_some(), state.adaptive_sum.is_some()), (mirostat, adaptive), "{name}");
        assert_eq!(state.adaptive_weight.is_some(), adaptive, "{name}");
        assert_eq!(told[0].1.is_some(), mirostat || adaptive, "{name}: an empty state is none");
    }
}

#[tokio::test]
async fn opened_again_at_any_token_a_text_goes_on() {
    let server = TestServer::start().await;
    let (mut worker, mut client) = (server.worker().await, server.client().await);
    for (name, params) in cases() {
        let expected = plain(&mut worker, 1, &params).await;
        let text = token_ids(&expected);
        for at in 0..LEN {
            let (output_token_ids, row) = (text[..at].to_vec(), after(&text[..at]));
            let sampler_state = at.checked_sub(1).and_then(|before| expected[before].1);
            let mut step = step_of(sample_work(2), std::slice::from_ref(&row));
            let again =
                OpenSequence { output_token_ids: output_token_ids.clone(), sampler_state, ..open(2, params.clone()) };
            (step.close_sequence_ids, step.open) = (vec![1, 2], vec![again]);
            let work = only(worker.step(step).await);
            assert_eq!((&work.tokens[0], work.sampler_state), (&expected[at].0, expected[at].1), "{name}, token {at}");
            // The stateless call.
            let sampled =
                SampleRow { params: Some(params.clone()), output_token_ids, sampler_state, ..Default::default() };
            let Some(step::Logits::Inline(row)) = inline(&[row]) else { unreachable!() };
            let StreamConfig { vocab_size, logits_dtype, .. } = config();
            let (rows, logits) = (vec![sampled], Some(row));
            let answer = client.sample(SampleRequest { vocab_size, logits_dtype, rows, logits, ..Default::default() });
            let row = answer.await.unwrap().into_inner().rows.remove(0);
            assert_eq!(
                (row.token.as_ref(), row.sampler_state),
                (Some(&expected[at].0), expected[at].1),
                "{name}, {at}"
            );
        }
    }
}

#[tokio::test]
async fn what_is_sampled_is_what_is_scored() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    for (id, (name, params)) in (1..).zip(cases()) {
        let expected = plain(&mut worker, 2 * id, &params).await;
        worker.step(open_step(vec![open(2 * id + 1, params.clone())])).await;
        let text = token_ids(&expected);
        let rows: Vec<_> = (0..text.len()).map(|at| after(&text[..at])).collect();
        let score = ScoreWork { token_ids: text, logprobs: params.logprobs };
        let work = only(worker.step(step_of(score_work(Some(2 * id + 1), score), &rows)).await);
        let expected: Vec<Token> = expected.into_iter().map(|(token, _)| token).collect();
        assert_eq!(work.tokens, expected, "{name}");
    }
}

/// Chains and trees that are right at first and wrong later: neither a token nor a state differs from the plain text's.
#[tokio::test]
async fn drafts_change_not_one_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    for (id, (name, params)) in (1..).zip(cases()) {
        let expected = plain(&mut worker, 2 * id, &params).await;
        let right = token_ids(&expected);
        worker.step(open_step(vec![open(2 * id + 1, params.clone())])).await;
        let (mut text, mut accepted) = (Vec::new(), 0);
        for round in 0.. {
            let (len, good) = (round % 6, round % 4);
            let rest = right[text.len()..].iter().copied().chain(std::iter::repeat(9));
            let mut draft: Vec<u32> =
                rest.take(len).enumerate().map(|(i, t)| if i < good { t } else { (t + 1) % VOCAB }).collect();
            let mut parents: Vec<i32> = (-1..).take(len).collect();
            if round % 3 == 2 && len > 0 {
                // A wrong sibling before the first.
                draft.insert(0, (draft[0] + 3) % VOCAB);
                parents = [-1, -1].into_iter().chain(1..).take(len + 1).collect();
            }
            let path = |node: usize| {
                let mut path: Vec<u32> = std::iter::successors(Some(node), |&at| usize::try_from(parents[at]).ok())
                    .map(|at| draft[at])
                    .collect();
                path.reverse();
                after(&[text.as_slice(), &path].concat())
            };
            let rows: Vec<_> = std::iter::once(after(&text)).chain((0..draft.len()).map(path)).collect();
            let verify = VerifyWork { parents: parents.clone(), ..chain(&draft, deterministic()) };
            let work = worker.verify(2 * id + 1, verify, &rows).await;
            accepted += work.verify.as_ref().unwrap().accepted_count;
            let tokens: Vec<Token> = expected[text.len()..].iter().map(|told| told.0.clone()).collect();
            assert_eq!(work.tokens, tokens[..work.tokens.len()], "{name}");
            text.extend(ids(&work));
            assert_eq!(work.sampler_state, expected[text.len() - 1].1, "{name}, after {} tokens", text.len());
            if text.len() == LEN {
                break;
            }
        }
        assert!(accepted > 5, "{name}: the drafts were no good");
    }
}

/// Draft tokens that draft work draws from the target's own distributions: all are accepted, and the samplers' state is the same as without
/// drafts.
#[tokio::test]
async fn drafts_from_the_target_are_accepted() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    for (id, (name, params)) in (1..).zip(cases()) {
        let mut text: Vec<u32> = Vec::new();
        worker.step(open_step(vec![open(2 * id, params.clone())])).await;
        let mut state = None;
        while text.len() < LEN {
            let mut draft = Vec::new();
            for _ in 0..(LEN - text.len()).min(5) {
                let row = after(&[text.as_slice(), &draft].concat());
                draft.push(worker.draft(2 * id, DraftWork::default(), row).await);
            }
            let rows: Vec<_> = (0..=draft.len()).map(|len| after(&[&text, &draft[..len]].concat())).collect();
            let work = worker.verify(2 * id, chain(&draft, kept()), &rows).await;
            assert_eq!(work.verify.as_ref().unwrap().accepted_count as usize, draft.len(), "{name}");
            text.extend(ids(&work));
            state = work.sampler_state;
        }
        // The same tokens one by one: if the state after the last but one is the same, the state after the last is too.
        let score = ScoreWork { token_ids: text.clone(), logprobs: params.logprobs.clone() };
        worker.step(open_step(vec![open(2 * id + 1, params.clone())])).await;
        let rows: Vec<_> = (0..LEN).map(|at| after(&text[..at])).collect();
        let scored = only(worker.step(step_of(score_work(Some(2 * id + 1), score), &rows)).await);
        assert!(
            scored.tokens.iter().all(|token| token.logprob() > f32::NEG_INFINITY),
            "{name}: every token could be drawn"
        );
        if let Some(mu) = state.and_then(|state| state.mirostat_mu) {
            let (tau, eta) = (params.mirostat_tau.unwrap_or(5.0), params.mirostat_eta.unwrap_or(0.1));
            let surprise = |token: &Token| -f64::from(token.logprob()) / std::f64::consts::LN_2;
            let learned = scored
                .tokens
                .iter()
                .fold(2.0 * f64::from(tau), |mu, token| mu - f64::from(eta) * (surprise(token) - f64::from(tau)));
            assert!((mu - learned).abs() < 1e-3, "{name}: {mu}, by logprobs {learned}");
        }
    }
}

#[tokio::test]
async fn a_bad_state_fails_its_sequence_alone() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let on = SamplingParams { mirostat: Some(2), adaptive_target: Some(0.5), ..seeded(1) };
    let state =
        |mirostat_mu, adaptive_sum, adaptive_weight| SamplerState { mirostat_mu, adaptive_sum, adaptive_weight };
    let bad = [
        ("sampler_state.mirostat_mu", on.clone(), state(Some(f64::NAN), None, None)),
        ("sampler_state.mirostat_mu", on.clone(), state(Some(2e9), None, None)),
        ("sampler_state.adaptive_sum", on.clone(), state(None, Some(-1.0), Some(1.0))),
        ("sampler_state.adaptive_weight", on.clone(), state(None, Some(1.0), Some(f64::INFINITY))),
        ("sampler_state.adaptive_weight", on.clone(), state(None, Some(1.0), None)),
        ("sampler_state.adaptive_sum", on.clone(), state(None, None, Some(1.0))),
        ("sampler_state.mirostat_mu", seeded(1), state(Some(1.0), None, None)),
        ("sampler_state.adaptive_sum", seeded(1), state(None, Some(1.0), Some(1.0))),
        (
            "sampler_state.mirostat_mu",
            SamplingParams { temperature: Some(0.0), ..on.clone() },
            state(Some(1.0), None, None),
        ),
    ];
    for (field, params, state) in bad {
        let result = worker.step(open_step(vec![OpenSequence { sampler_state: Some(state), ..open(1, params) }])).await;
        assert_eq!(result.open[0].status(), OpenStatus::InvalidArgument, "{field}");
        assert_eq!(result.open[0].error.as_ref().unwrap().field, field);
        server.expect_sequences(0).await;
    }
    for good in [SamplerState::default(), state(Some(-1e9), Some(0.0), Some(0.0)), state(Some(1e9), None, None)] {
        let mut step = step_of(sample_work(1), &[after(&[])]);
        (step.close_sequence_ids, step.open) =
            (vec![1], vec![OpenSequence { sampler_state: Some(good), ..open(1, on.clone()) }]);
        only(worker.step(step).await);
    }
}
