//! The text is the same, whatever kind of work it comes from.

use crate::history::tools::*;
use crate::support::*;
use crate::work::*;
use croupier::proto::*;

const EOS: u32 = 9;
const PROMPT: [u32; 7] = [1, 2, 3, 1, 2, 5, 5];
const LEN: usize = 40;

/// A model that repeats a few tokens.
fn after(output: &[u32]) -> Vec<f32> {
    let last = u64::from(*output.last().unwrap_or(&0));
    let mut row = logits(last, 1 + output.len() as u64 % 2);
    row.iter_mut().take(6).for_each(|logit| *logit += 3.0);
    row
}

fn stream() -> StreamConfig {
    StreamConfig { eos_token_ids: vec![EOS], ..config() }
}

fn opened(id: u64, params: &SamplingParams, output: &[u32]) -> OpenSequence {
    OpenSequence { prompt_token_ids: PROMPT.to_vec(), output_token_ids: output.to_vec(), ..open(id, params.clone()) }
}

/// The text of a sequence with logprobs, and why it ended, sampled token by token.
async fn plain(worker: &mut Worker, id: u64, params: &SamplingParams) -> (Vec<Token>, FinishReason) {
    worker.step(open_step(vec![opened(id, params, &[])])).await;
    let (mut text, mut tokens) = (Vec::new(), Vec::new());
    loop {
        let work = only(worker.step(step_of(sample_work(id), &[after(&text)])).await);
        text.extend(ids(&work));
        tokens.extend(work.tokens.iter().cloned());
        if work.finish_reason() != FinishReason::Unspecified {
            return (tokens, work.finish_reason());
        }
    }
}

fn token_ids(tokens: &[Token]) -> Vec<u32> {
    tokens.iter().map(|token| token.token_id).collect()
}

/// Parameters of a text that ends, with logprobs for each token.
fn limited(params: SamplingParams, seed: u64) -> SamplingParams {
    let wanted = LogprobsParams { top_n: 3, mode: LogprobsMode::Processed.into(), token_ids: vec![1, 2] };
    SamplingParams { max_tokens: Some(LEN as u32), logprobs: Some(wanted), seed: Some(seed), ..params }
}

fn cases() -> Vec<(String, SamplingParams)> {
    let mut cases: Vec<(String, SamplingParams)> = Vec::new();
    for (name, tool) in tools().into_iter().chain(marks()).chain([("all of them", together())]) {
        for seed in 1..4 {
            cases.push((format!("{name}, seed {seed}"), limited(tool.clone(), seed)));
        }
        if is_for_greedy(&tool) {
            cases.push((format!("{name}, greedy"), limited(SamplingParams { temperature: Some(0.0), ..tool }, 1)));
        }
    }
    cases
}

#[tokio::test]
async fn every_tool_changes_a_text() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(stream()).await;
    for (at, (name, tool)) in (0..).zip(tools().into_iter().chain(marks())) {
        let mut changed = false;
        for seed in 1..4 {
            let id = 1000 * at + 10 * seed;
            let with = plain(&mut worker, id, &limited(tool.clone(), seed)).await;
            changed |= with != plain(&mut worker, id + 1, &limited(Default::default(), seed)).await;
        }
        assert!(changed, "{name}");
    }
}

#[tokio::test]
async fn opened_again_at_any_token_a_text_goes_on() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(stream()).await;
    let mut client = server.client().await;
    for (name, params) in cases() {
        let (expected, reason) = plain(&mut worker, 1, &params).await;
        let text = token_ids(&expected);
        for at in 0..text.len() {
            let mut step = step_of(sample_work(2), &[after(&text[..at])]);
            (step.close_sequence_ids, step.open) = (vec![1, 2], vec![opened(2, &params, &text[..at])]);
            let result = worker.step(step).await;
            assert_eq!(result.work[0].tokens, expected[at..=at], "{name}, token {at}");
            let last = at + 1 == text.len();
            assert_eq!(result.work[0].finish_reason() == reason, last, "{name}, token {at}");
            // The stateless call.
            let Some(step::Logits::Inline(row)) = inline(&[after(&text[..at])]) else { unreachable!() };
            let sampled = SampleRow {
                params: Some(params.clone()),
                prompt_token_ids: PROMPT.to_vec(),
                output_token_ids: text[..at].to_vec(),
                ..Default::default()
            };
            let StreamConfig { vocab_size, logits_dtype, eos_token_ids, .. } = stream();
            let (rows, logits) = (vec![sampled], Some(row));
            let request = SampleRequest { vocab_size, logits_dtype, eos_token_ids, rows, logits, ..Default::default() };
            let answer = client.sample(request).await.unwrap().into_inner();
            assert_eq!(answer.rows[0].token.as_ref(), Some(&expected[at]), "{name}, token {at}");
        }
    }
}

#[tokio::test]
async fn what_is_sampled_is_what_is_scored() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(stream()).await;
    for (id, (name, params)) in (1..).zip(cases()) {
        let (expected, _) = plain(&mut worker, 2 * id, &params).await;
        worker.step(open_step(vec![opened(2 * id + 1, &params, &[])])).await;
        let text = token_ids(&expected);
        let rows: Vec<_> = (0..text.len()).map(|at| after(&text[..at])).collect();
        let score = ScoreWork { token_ids: text, logprobs: params.logprobs };
        let work = only(worker.step(step_of(score_work(Some(2 * id + 1), score), &rows)).await);
        assert_eq!(work.tokens, expected, "{name}");
    }
}

#[tokio::test]
async fn drafts_change_not_one_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(stream()).await;
    for (id, (name, params)) in (1..).zip(cases()) {
        let (expected, reason) = plain(&mut worker, 2 * id, &params).await;
        let right = token_ids(&expected);
        let (mut text, mut tokens, mut accepted) = (Vec::new(), Vec::new(), 0);
        worker.step(open_step(vec![opened(2 * id + 1, &params, &[])])).await;
        for round in 0.. {
            // Drafts of every length, right at first and then wrong.
            let (len, good) = (round % 7, round % 5);
            let rest = right[text.len()..].iter().copied().chain(std::iter::repeat(9));
            let draft: Vec<u32> = rest.take(len).enumerate().map(|(i, t)| if i < good { t } else { t ^ 1 }).collect();
            let rows: Vec<_> = (0..=len).map(|len| after(&[&text, &draft[..len]].concat())).collect();
            let work = worker.verify(2 * id + 1, chain(&draft, deterministic()), &rows).await;
            accepted += work.verify.as_ref().unwrap().accepted_count;
            text.extend(ids(&work));
            tokens.extend(work.tokens.iter().cloned());
            if work.finish_reason() != FinishReason::Unspecified {
                assert_eq!(work.finish_reason(), reason, "{name}");
                break;
            }
        }
        assert_eq!(tokens, expected, "{name}");
        assert!(accepted > 0 || right.len() < 3, "{name}: the drafts were no good");
    }
}

#[tokio::test]
async fn a_greedy_draft_from_the_target_is_the_text() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(stream()).await;
    let greedy = cases().into_iter().filter(|(_, params)| params.temperature == Some(0.0));
    for (id, (name, params)) in (1..).zip(greedy) {
        let (expected, _) = plain(&mut worker, 2 * id, &params).await;
        let right = token_ids(&expected);
        worker.step(open_step(vec![opened(2 * id + 1, &params, &[])])).await;
        let mut text: Vec<u32> = Vec::new();
        while text.len() < right.len() {
            let mut draft = Vec::new();
            for _ in 0..(right.len() - text.len()).min(5) {
                let row = after(&[text.as_slice(), &draft].concat());
                draft.push(worker.draft(2 * id + 1, DraftWork::default(), row).await);
            }
            assert!(right[text.len()..].starts_with(&draft), "{name}: {draft:?} after {text:?} of {right:?}");
            let rows: Vec<_> = (0..=draft.len()).map(|len| after(&[&text, &draft[..len]].concat())).collect();
            let work = worker.verify(2 * id + 1, chain(&draft, kept()), &rows).await;
            assert_eq!(work.verify.as_ref().unwrap().accepted_count as usize, draft.len(), "{name}");
            text.extend(ids(&work));
        }
        assert_eq!(text, right, "{name}");
    }
}
