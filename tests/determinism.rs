//! The first promise: a token is a function of logits, parameters, history, seed and position, and of nothing else.

use crate::support::*;
use croupier::proto::*;

const LENGTH: u64 = 12;
const TEXTS: u64 = 9;

/// Parameters that use every kind of state that a sequence has.
fn params(text: u64) -> SamplingParams {
    SamplingParams {
        temperature: Some(0.7 + text as f32 / 10.0),
        top_k: Some(30),
        top_p: Some(0.95),
        min_p: Some(0.01),
        repetition_penalty: Some(1.1),
        frequency_penalty: Some(0.3),
        presence_penalty: Some(0.1),
        logit_bias: vec![LogitBias { token_id: 3, bias: 0.5 }],
        bad_words: vec![TokenSequence { token_ids: vec![1, 2] }, TokenSequence { token_ids: vec![4] }],
        min_tokens: Some(3),
        stop_token_ids: vec![49],
        logprobs: Some(LogprobsParams { top_n: 2, mode: LogprobsMode::Processed.into(), token_ids: vec![] }),
        ..seeded(text * 1000)
    }
}

fn opening(text: u64, output: &[u32]) -> OpenSequence {
    let output_token_ids = output.to_vec();
    OpenSequence { prompt_token_ids: vec![7, 8, text as u32], output_token_ids, ..open(text, params(text)) }
}

/// The tokens of a text that is alone on a stream. Fewer than `LENGTH` if the text ends early.
async fn alone(server: &TestServer, text: u64) -> Vec<Token> {
    let mut worker = server.worker().await;
    worker.step(open_step(vec![opening(text, &[])])).await;
    let mut tokens = Vec::new();
    for position in 0..LENGTH {
        let result = worker.step(sample_step(&[(text, logits(text, position))])).await;
        tokens.extend(result.work[0].tokens.clone());
        if result.work[0].finish_reason() != FinishReason::Unspecified {
            break;
        }
    }
    tokens
}

async fn all_alone(server: &TestServer) -> Vec<Vec<Token>> {
    let mut texts = Vec::new();
    for text in 0..TEXTS {
        texts.push(alone(server, text).await);
    }
    texts
}

fn ids(tokens: &[Token]) -> Vec<u32> {
    tokens.iter().map(|token| token.token_id).collect()
}

#[tokio::test]
async fn alone_on_any_server_over_any_transport() {
    let first = all_alone(&TestServer::start().await).await;
    let gate = Gate::default();
    gate.open();
    let unix = TestServer::with(Transport::Unix, Default::default(), Box::new(gate)).await;
    assert_eq!(all_alone(&unix).await, first);
    assert!(first.iter().map(Vec::len).sum::<usize>() > 60, "the texts are long enough to mean something");
    assert!(first.windows(2).all(|pair| ids(&pair[0]) != ids(&pair[1])));
}

#[tokio::test]
async fn in_any_batch_and_any_slot() {
    let server = TestServer::start().await;
    let expected = all_alone(&server).await;
    let mut worker = server.worker().await;
    worker.step(open_step((0..TEXTS).rev().map(|text| opening(text, &[])).collect())).await;
    let mut tokens = vec![Vec::new(); TEXTS as usize];
    for position in 0..LENGTH {
        // The order of rows is different at every position.
        let mut order: Vec<u64> = (0..TEXTS).filter(|text| position < expected[*text as usize].len() as u64).collect();
        let turn = position as usize % order.len().max(1);
        order.rotate_left(turn);
        let rows: Vec<_> = order.iter().map(|&text| (text, logits(text, position))).collect();
        let result = worker.step(sample_step(&rows)).await;
        for (text, done) in order.iter().zip(result.work) {
            tokens[*text as usize].extend(done.tokens);
        }
    }
    assert_eq!(tokens, expected);
}

#[tokio::test]
async fn split_over_messages_and_mixed_with_other_streams() {
    let server = TestServer::start().await;
    let expected = all_alone(&server).await;
    let mut others = Vec::new();
    let mut worker = server.worker().await;
    worker.step(open_step((0..TEXTS).map(|text| opening(text, &[])).collect())).await;
    for seed in 0..4 {
        let mut other = server.worker().await;
        other.step(open_step(vec![open(0, seeded(seed))])).await;
        others.push(other);
    }
    // All messages are sent before any reply is read, so batches form in any way.
    let mut asked = Vec::new();
    for position in 0..LENGTH {
        for text in 0..TEXTS {
            if position < expected[text as usize].len() as u64 {
                worker.send_step(sample_step(&[(text, logits(text, position))])).await;
                asked.push(text);
            }
        }
        for other in &mut others {
            other.send_step(sample_step(&[(0, logits(position, 0))])).await;
        }
    }
    let mut tokens = vec![Vec::new(); TEXTS as usize];
    for text in asked {
        tokens[text as usize].extend(worker.step_reply().await.unwrap().work.remove(0).tokens);
    }
    assert_eq!(tokens, expected);
}

#[tokio::test]
async fn after_a_crash_at_any_position() {
    let expected = all_alone(&TestServer::start().await).await;
    for text in [0, 4, 8] {
        let whole = &expected[text as usize];
        for lost_at in 0..whole.len() {
            // A new server knows nothing. It is given the tokens so far.
            let server = TestServer::start().await;
            let mut worker = server.worker().await;
            let result = worker.step(open_step(vec![opening(text, &ids(&whole[..lost_at]))])).await;
            assert_eq!(result.open[0].position, lost_at as u64);
            for (position, token) in whole.iter().enumerate().skip(lost_at) {
                let result = worker.step(sample_step(&[(text, logits(text, position as u64))])).await;
                assert_eq!(result.work[0].tokens[0], *token, "text {text} lost at {lost_at}, now at {position}");
            }
        }
    }
}

#[tokio::test]
async fn after_rows_that_failed() {
    let server = TestServer::start().await;
    let expected = alone(&server, 2).await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![opening(2, &[])])).await;
    for (position, token) in (0..).zip(expected) {
        let mut bad = logits(2, position);
        bad[0] = f32::NAN;
        assert_eq!(worker.step(sample_step(&[(2, bad)])).await.work[0].status(), RowStatus::NanLogits);
        assert_eq!(worker.step(sample_step(&[(2, logits(2, position))])).await.work[0].tokens[0], token);
    }
}
