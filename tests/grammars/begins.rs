//! Where a grammar begins in a text: after a token, after a sequence of tokens, or at a position.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_grammar_may_begin_behind_a_token_and_be_switched_off() {
    let server = TestServer::start().await;
    let default_params = Some(SamplingParams { temperature: Some(0.0), ..matching(1) });
    let mut worker = server.worker_with(StreamConfig { default_params, ..with_eos() }).await;
    let greedy = SamplingParams { temperature: Some(0.0), ..seeded(1) };
    let begins = GrammarParams { start_token_ids: vec![40], ..matching(1).grammar.unwrap() };
    let late = SamplingParams { grammar: Some(begins), ..greedy.clone() };
    let none = SamplingParams { grammar: Some(GrammarParams::default()), ..greedy };
    let opened = vec![open(1, SamplingParams::default()), open(2, late), open(3, none)];
    let result = worker.step(open_step(opened)).await;
    assert!(result.open.iter().all(|open| open.status() == OpenStatus::Ok), "{:?}", result.open);
    // Decreasing logits, except that 40 is the largest. "b" is the first token that may begin a word of the grammar.
    let mut row: Vec<f32> = (0..VOCAB).map(|token| -0.1 * token as f32).collect();
    row[40] = 1.0;
    let result = worker.step(sample_step(&[(1, row.clone()), (2, row.clone()), (3, row.clone())])).await;
    assert_eq!([0, 1, 2].map(|work: usize| token(&result.work[work])), [1, 40, 40]);
    let result = worker.step(sample_step(&[(1, row.clone()), (2, row.clone()), (3, row)])).await;
    assert_eq!([0, 1, 2].map(|work: usize| token(&result.work[work])), [2, 1, 40]);
}

/// The stream's grammar is compiled once, but what ends a text is the text's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_in_its_streams_grammar_ends_with_its_own_stop_tokens() {
    let server = TestServer::start().await;
    let default_params = Some(SamplingParams { temperature: Some(0.0), grammar: regex("b"), ..seeded(1) });
    let mut worker = server.worker_with(StreamConfig { default_params, ..with_eos() }).await;
    let stopping = SamplingParams { stop_token_ids: vec![5], ..SamplingParams::default() };
    worker.step(open_step(vec![open(1, SamplingParams::default()), open(2, stopping)])).await;
    // "b" is 2, the only token that may come first. 5 is the largest.
    let mut row: Vec<f32> = (0..VOCAB).map(|token| -0.1 * token as f32).collect();
    row[5] = 1.0;
    let step = || sample_step(&[(1, row.clone()), (2, row.clone())]);
    let first = worker.step(step()).await;
    assert_eq!([0, 1].map(|work: usize| token(&first.work[work])), [2, 2]);
    let ended = worker.step(step()).await.work;
    assert_eq!((token(&ended[0]), ended[0].finish_reason()), (EOS, FinishReason::Eos));
    assert_eq!((token(&ended[1]), ended[1].finish_reason()), (5, FinishReason::StopToken));
}

/// gpt-oss ends thinking with such a sequence. Here it is 40 41 40, whose first token comes twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_grammar_may_begin_behind_several_tokens() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let start_sequences = vec![TokenSequence { token_ids: vec![40, 41, 40] }, TokenSequence { token_ids: vec![9, 9] }];
    let begins = Some(GrammarParams { start_sequences, ..matching(1).grammar.unwrap() });
    let late = SamplingParams { temperature: Some(0.0), grammar: begins, ..seeded(1) };
    let written: [&[u32]; 3] = [&[40, 41, 40], &[40, 40, 41, 9, 40], &[9, 40, 41, 3, 9, 9]];
    let opened = [1, 2, 3]
        .map(|id| OpenSequence { output_token_ids: written[id as usize - 1].to_vec(), ..open(id, late.clone()) });
    let result = worker.step(open_step(opened.to_vec())).await;
    assert!(result.open.iter().all(|open| open.status() == OpenStatus::Ok), "{:?}", result.open);
    // The grammar's words begin with "b", which is 1. If the grammar has not begun, 40 is the first token.
    let mut row: Vec<f32> = (0..VOCAB).map(|token| -0.1 * token as f32).collect();
    row[40] = 1.0;
    let result = worker.step(sample_step(&[1, 2, 3].map(|id| (id, row.clone())))).await;
    assert_eq!([0, 1, 2].map(|work: usize| token(&result.work[work])), [1, 40, 1]);
    // A draft that crosses the beginning: the rows after it follow the grammar.
    let mut rows = [row.clone(), row.clone(), row.clone()];
    (rows[0][41], rows[1][40]) = (2.0, 2.0);
    let opened = OpenSequence { output_token_ids: vec![40], ..open(4, late) };
    let mut step = step_of(verify_work(4, chain(&[41, 40], deterministic())), &rows);
    step.open.push(opened);
    let result = worker.step(step).await;
    assert_eq!(result.work[0].tokens.iter().map(|token| token.token_id).collect::<Vec<_>>(), [41, 40, 1]);
}

/// If only the engine can tell where thinking ended, it opens the text again with its output and its length.
#[tokio::test(flavor = "multi_thread")]
async fn a_grammar_may_begin_at_a_position() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let at = |start_position| {
        let grammar = Some(GrammarParams { start_position, ..matching(1).grammar.unwrap() });
        SamplingParams { temperature: Some(0.0), grammar, ..seeded(1) }
    };
    // The text after the position must match the grammar: its words begin with "b", which is 1, and go on with 2.
    let written: [(&[u32], u32, OpenStatus); 6] = [
        (&[40, 9, 40], 3, OpenStatus::Ok),
        (&[40, 9, 40], 4, OpenStatus::Ok),
        (&[40, 9, 1], 2, OpenStatus::Ok),
        (&[40, 9, 40], 2, OpenStatus::InvalidArgument),
        (&[], 1, OpenStatus::Ok),
        // An EOS ends a text only as its last token.
        (&[40, EOS, 40], 3, OpenStatus::Ok),
    ];
    let opened = (1..).zip(written).map(|(id, (output, position, _))| OpenSequence {
        output_token_ids: output.to_vec(),
        ..open(id, at(position))
    });
    let result = worker.step(open_step(opened.collect())).await;
    for ((.., status), found) in written.iter().zip(&result.open) {
        assert_eq!(found.status(), *status, "{:?}", found.error);
    }
    assert_eq!(result.open[3].error.as_ref().unwrap().field, "output_token_ids[2]");
    let mut row: Vec<f32> = (0..VOCAB).map(|token| -0.1 * token as f32).collect();
    row[40] = 1.0;
    let texts = [1, 2, 3, 5, 6];
    let result = worker.step(sample_step(&texts.map(|id| (id, row.clone())))).await;
    assert_eq!([0, 1, 2, 3, 4].map(|work: usize| token(&result.work[work])), [1, 40, 2, 40, 1]);
    let result = worker.step(sample_step(&texts.map(|id| (id, row.clone())))).await;
    assert_eq!([1, 3].map(|work: usize| token(&result.work[work])), [1, 1]);
    // A draft that crosses the position: the rows after it follow the grammar.
    let mut rows = [row.clone(), row.clone(), row.clone()];
    (rows[0][41], rows[1][40]) = (2.0, 2.0);
    let mut step = step_of(verify_work(7, chain(&[41, 40], deterministic())), &rows);
    step.open.push(OpenSequence { output_token_ids: vec![40], ..open(7, at(3)) });
    let result = worker.step(step).await;
    assert_eq!(result.work[0].tokens.iter().map(|token| token.token_id).collect::<Vec<_>>(), [41, 40, 1]);
}

/// Thinking has no end that a budget could see, so the budget takes the position as its end, in drafts too.
#[tokio::test(flavor = "multi_thread")]
async fn a_budget_for_thinking_is_over_where_a_grammar_begins_at_a_position() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let at = |start_position| {
        let thinking_budget = Some(ThinkingBudgetParams {
            start_token_ids: vec![40],
            end_token_ids: vec![9],
            budget: 3,
            ..Default::default()
        });
        let grammar = (start_position > 0).then(|| GrammarParams { start_position, ..matching(1).grammar.unwrap() });
        SamplingParams { temperature: Some(0.0), grammar, thinking_budget, ..seeded(1) }
    };
    let output_token_ids = vec![40, 8, 7];
    let opened = [(1, 0), (2, 3), (3, 4), (4, 5)]
        .map(|(id, position)| OpenSequence { output_token_ids: output_token_ids.clone(), ..open(id, at(position)) });
    let result = worker.step(open_step(opened.to_vec())).await;
    assert!(result.open.iter().all(|open| open.status() == OpenStatus::Ok), "{:?}", result.open);
    // Decreasing logits, except that 41 is the largest, which the grammar does not allow: its words begin with 1 and go on with 2. After
    // 41, 9 is forced.
    let mut row: Vec<f32> = (0..VOCAB).map(|token| -0.1 * token as f32).collect();
    row[41] = 1.0;
    for expected in [[41, 1, 41, 41], [9, 2, 1, 9], [41, 1, 2, 1]] {
        let result = worker.step(sample_step(&[1, 2, 3, 4].map(|id| (id, row.clone())))).await;
        assert_eq!([0, 1, 2, 3].map(|work: usize| token(&result.work[work])), expected);
    }
    // A draft that crosses the position.
    let mut step =
        step_of(verify_work(5, chain(&[41, 1, 2], deterministic())), &[row.clone(), row.clone(), row.clone(), row]);
    step.open.push(OpenSequence { output_token_ids, ..open(5, at(4)) });
    let result = worker.step(step).await;
    assert_eq!(result.work[0].tokens.iter().map(|token| token.token_id).collect::<Vec<_>>(), [41, 1, 2, 1]);
}
