//! How sequences deal with a stream's defaults: they turn them off, or get an error that names what does not fit.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;

fn row(logits: &[(u32, f32)]) -> Vec<f32> {
    (0..VOCAB).map(|token| logits.iter().find(|x| x.0 == token).map_or(0.0, |x| x.1)).collect()
}

async fn worker(server: &TestServer, defaults: SamplingParams, eos_token_ids: Vec<u32>) -> Worker {
    let config = StreamConfig { default_params: Some(defaults), eos_token_ids, ..config() };
    server.worker_with(config).await
}

/// The field and message of the open result's error, if any.
async fn fault(worker: &mut Worker, params: SamplingParams) -> Option<(String, String)> {
    let result = worker.step(open_step(vec![open(7, params)])).await;
    worker.step(Step { close_sequence_ids: vec![7], ..Default::default() }).await;
    result.open[0].error.clone().map(|error| (error.field, error.message))
}

#[tokio::test]
async fn an_empty_message_turns_a_default_off() {
    let server = TestServer::start().await;
    let thinking = ThinkingBudgetParams { start_token_ids: vec![3], end_token_ids: vec![8], ..Default::default() };
    let advice = DraftLengthParams { draft_cost: 0.0, verify_cost: 0.1, max_draft_tokens: None };
    let defaults = SamplingParams {
        temperature: Some(0.0),
        thinking_budget: Some(thinking),
        proposer: Some(ProposerParams { kind: ProposerKind::Ngram.into(), ..Default::default() }),
        draft_length: Some(advice),
        ..Default::default()
    };
    let mut worker = worker(&server, defaults, vec![]).await;
    let off = SamplingParams {
        thinking_budget: Some(ThinkingBudgetParams::default()),
        proposer: Some(ProposerParams::default()),
        draft_length: Some(DraftLengthParams { max_draft_tokens: Some(0), ..advice }),
        ..Default::default()
    };
    // Each of the texts below ends with a sequence that occurs in the prompt.
    let prompt_token_ids = vec![3, 4, 5, 8, 4, 5, 6, 3];
    let opened = [SamplingParams::default(), off]
        .into_iter()
        .zip(1..)
        .map(|(params, id)| OpenSequence { prompt_token_ids: prompt_token_ids.clone(), ..open(id, params) });
    let result = worker.step(open_step(opened.collect())).await;
    assert!(result.open.iter().all(|open| open.status() == OpenStatus::Ok), "{:?}", result.open);
    // Token 3 begins thinking. By default it ends at once. Then both texts have 4, and the token that followed 4 is proposed.
    let row = row(&[(4, 5.0)]);
    let by_default = [
        only(worker.step(step_of(sample_work(1), std::slice::from_ref(&row))).await),
        only(worker.step(step_of(sample_work(1), std::slice::from_ref(&row))).await),
    ];
    assert_eq!(by_default.each_ref().map(ids), [[8], [4]]);
    assert!(!by_default[1].proposed_token_ids.is_empty() && by_default[1].advised_draft_length.is_some());
    let own = only(worker.step(step_of(sample_work(2), &[row])).await);
    assert_eq!((ids(&own), own.proposed_token_ids, own.advised_draft_length), (vec![4], vec![], None));
}

#[tokio::test]
async fn a_default_that_an_engine_does_not_have_is_named() {
    let server = TestServer::start().await;
    let defaults = SamplingParams { xtc_ignore_token_ids: vec![1], ..Default::default() };
    let mut worker = worker(&server, defaults, vec![]).await;
    let of = |engine: EngineOrder, xtc_probability| SamplingParams {
        engine_order: engine.into(),
        xtc_probability: Some(xtc_probability),
        xtc_threshold: Some(0.1),
        ..Default::default()
    };
    let (field, message) = fault(&mut worker, of(EngineOrder::LlamaCpp, 0.5)).await.unwrap();
    assert_eq!(field, "params.engine_order");
    assert!(message.contains("xtc_ignore_token_ids"), "{message}");
    for taken in [of(EngineOrder::LlamaCpp, 0.0), of(EngineOrder::Exllama, 0.5), of(EngineOrder::Croupier, 0.5)] {
        assert_eq!(fault(&mut worker, taken).await, None);
    }
}

#[tokio::test]
async fn a_length_penalty_needs_an_end() {
    let server = TestServer::start().await;
    let length = |factor| SamplingParams {
        length_penalty: Some(LengthPenaltyParams { start: 1, factor }),
        ..Default::default()
    };
    let mut without = worker(&server, SamplingParams::default(), vec![]).await;
    let (field, message) = fault(&mut without, length(1.1)).await.unwrap();
    assert_eq!(field, "params.length_penalty");
    assert!(message.contains("eos_token_ids"), "{message}");
    assert_eq!(fault(&mut without, length(1.0)).await, None, "off");
    let mut with = worker(&server, length(1.1), vec![9]).await;
    for params in [SamplingParams::default(), SamplingParams { ignore_eos: Some(true), ..Default::default() }] {
        assert_eq!(fault(&mut with, params).await, None);
    }
}

#[tokio::test]
async fn ban_ranges_have_so_many_tokens_together() {
    let server = TestServer::start().await;
    let mut worker = worker(&server, SamplingParams::default(), vec![]).await;
    let ranges = |count| SamplingParams {
        token_ban_ranges: vec![TokenBanRange { token_ids: vec![1; 4096], start: 0, length: 1 }; count],
        ..Default::default()
    };
    assert_eq!(fault(&mut worker, ranges(8)).await, None);
    let (field, message) = fault(&mut worker, ranges(9)).await.unwrap();
    assert_eq!((field.as_str(), message.contains("36864")), ("params.token_ban_ranges", true), "{message}");
}

/// A stream whose thoughts are drawn at temperature `thoughts`, and its answers at `answers`.
fn thinks_at(thoughts: f32, answers: f32) -> SamplingParams {
    let thinking = ThinkingBudgetParams {
        start_token_ids: vec![3],
        end_token_ids: vec![8],
        budget: u32::MAX,
        temperature: Some(thoughts),
        top_k: Some(0),
        ..Default::default()
    };
    SamplingParams { temperature: Some(answers), thinking_budget: Some(thinking), ..Default::default() }
}

/// Of 40 texts that think and of 40 that have stopped thinking: how many got the most likely token.
async fn likeliest(worker: &mut Worker, params: &SamplingParams) -> [usize; 2] {
    let text = |id, prompt: &[u32]| OpenSequence {
        prompt_token_ids: prompt.to_vec(),
        ..open(id, SamplingParams { seed: Some(id), ..params.clone() })
    };
    let texts = (0..40).flat_map(|id| [text(2 * id, &[3]), text(2 * id + 1, &[3, 8])]);
    let opened = worker.step(open_step(texts.collect())).await;
    assert!(opened.open.iter().all(|open| open.status() == OpenStatus::Ok), "{:?}", opened.open[0].error);
    let row = row(&[(4, 5.0)]);
    let work = worker.step(sample_step(&(0..80).map(|id| (id, row.clone())).collect::<Vec<_>>())).await.work;
    worker.step(Step { close_sequence_ids: (0..80).collect(), ..Default::default() }).await;
    [0, 1].map(|phase| work.iter().skip(phase).step_by(2).filter(|work| ids(work) == [4]).count())
}

/// The filters of a stream's thinking hold for its texts, but filters that a text or its preset gives itself take precedence.
#[tokio::test]
async fn thinking_by_the_streams_filters_gives_way_to_own_ones() {
    let server = TestServer::start().await;
    let p = SamplingParams::default;
    let own = |temperature| SamplingParams { temperature: Some(temperature), ..p() };
    // At 1e5 all 50 tokens are equally likely: more than 10 of 40 are the most likely one with probability 10^-9.
    let is_like = |found: [usize; 2], greedy: [bool; 2]| {
        let fits = |(count, greedy): (usize, bool)| if greedy { count == 40 } else { count <= 10 };
        assert!(found.into_iter().zip(greedy).all(fits), "{found:?} of 40, and not {greedy:?}");
    };
    let mut worker = worker(&server, thinks_at(1e5, 0.0), vec![]).await;
    is_like(likeliest(&mut worker, &p()).await, [false, true]);
    is_like(likeliest(&mut worker, &SamplingParams { top_p: Some(0.99), ..p() }).await, [false, true]);
    is_like(likeliest(&mut worker, &own(0.0)).await, [true, true]);
    let preset = |params| SamplingParams { preset: "classification".to_owned(), ..params };
    is_like(likeliest(&mut worker, &preset(p())).await, [true, true]);
    is_like(likeliest(&mut worker, &preset(own(1e5))).await, [false, false]);
    is_like(likeliest(&mut worker, &preset(thinks_at(1e5, 0.0))).await, [false, true]);
}

#[tokio::test]
async fn what_does_not_go_with_the_streams_thinking_is_told() {
    let server = TestServer::start().await;
    let mut worker = worker(&server, thinks_at(0.0, 1.0), vec![]).await;
    let line = SamplingParams { temperature_tokens: Some(3), ..Default::default() };
    let (field, message) = fault(&mut worker, line.clone()).await.expect("a mistake");
    assert_eq!(field, "params.thinking_budget.temperature");
    assert!(
        message.contains("comes from default_params or the server; an empty thinking_budget turns it off"),
        "{message}"
    );
    // The same if the text's own parameters take precedence over another filter.
    let cut = SamplingParams { top_k: Some(3), ..line.clone() };
    assert_eq!(fault(&mut worker, cut).await.expect("a mistake").0, "params.thinking_budget.temperature");
    let learns = SamplingParams { mirostat: Some(2), ..Default::default() };
    assert_eq!(fault(&mut worker, learns).await.expect("a mistake").0, "params.thinking_budget.temperature");
    let off = SamplingParams { thinking_budget: Some(ThinkingBudgetParams::default()), ..line.clone() };
    assert_eq!(fault(&mut worker, off).await, None);
    // The text's own temperature also replaces that of its thoughts.
    assert_eq!(fault(&mut worker, SamplingParams { temperature: Some(0.5), ..line }).await, None);
}
