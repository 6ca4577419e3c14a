//! Grammars that are invalid, that are too complex, or that the server has no texts for: where the error appears, and who goes on.

use super::*;

/// The server's error for a configuration that it does not accept.
async fn refused(server: &TestServer, config: StreamConfig) -> tonic::Status {
    let mut worker = server.stream().await.unwrap();
    worker.send(decode_request::Request::Config(config)).await;
    worker.reply().await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told_where_it_was_asked_for_and_harms_nobody() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let with = |grammar| SamplingParams { grammar, ..seeded(1) };
    let long = "a".repeat(65_537);
    let start = GrammarParams { start_token_ids: vec![VOCAB], ..regex("a").unwrap() };
    let behind = |start_sequences| Some(GrammarParams { start_sequences, ..regex("a").unwrap() });
    let sequence = |token_ids: &[u32]| TokenSequence { token_ids: token_ids.to_vec() };
    let of_none = |start: GrammarParams| with(Some(GrammarParams { kind: None, ..start }));
    let (at, one) = (GrammarParams { start_position: 3, ..regex("a").unwrap() }, vec![sequence(&[3])]);
    let both = GrammarParams { start_sequences: one.clone(), ..at.clone() };
    let cases = [
        (with(regex("(")), "params.grammar.regex", "unclosed group"),
        (with(regex("")), "params.grammar.regex", "is empty"),
        (with(regex(&long)), "params.grammar.regex", "at most 65536"),
        (with(by(Kind::JsonSchema("{".to_owned()))), "params.grammar.json_schema", "is not valid JSON"),
        (with(by(Kind::JsonSchema(r#"{"type": 3}"#.to_owned()))), "params.grammar.json_schema", ""),
        (with(by(Kind::Lark("start: b".to_owned()))), "params.grammar.lark", "b"),
        (with(Some(start.clone())), "params.grammar.start_token_ids[0]", "outside the vocabulary"),
        (
            with(behind(vec![sequence(&[1, VOCAB])])),
            "params.grammar.start_sequences[0].token_ids[1]",
            "outside the vocabulary",
        ),
        (with(behind(vec![sequence(&[1]), sequence(&[])])), "params.grammar.start_sequences[1].token_ids", "is empty"),
        (of_none(start.clone()), "params.grammar.start_token_ids", "none is given with it"),
        (of_none(both.clone()), "params.grammar.start_sequences", "none is given with it"),
        (of_none(at), "params.grammar.start_position", "none is given with it"),
        (with(Some(both)), "params.grammar.start_position", "start_sequences also says where"),
        (with(behind(vec![sequence(&[1]); 9])), "params.grammar.start_sequences", "at most 8"),
        (SamplingParams { ignore_eos: Some(true), ..with(regex("a")) }, "params.grammar", "needs a token that ends"),
    ];
    let opened =
        cases.iter().zip(10..).map(|((params, ..), id)| open(id, params.clone())).chain([open(1, matching(1))]);
    let result = worker.step(open_step(opened.collect())).await;
    for ((_, field, message), found) in cases.iter().zip(&result.open) {
        let told = found.error.as_ref().unwrap();
        assert_eq!((found.status(), told.field.as_str()), (OpenStatus::InvalidArgument, *field), "{}", told.message);
        assert!(told.message.contains(message), "{}", told.message);
    }
    assert!(WORDS.contains(&&*written(&drawn(&mut worker, 1, false).await)));
    let many = (0..65).map(|id| open(100 + id, with(regex(&format!("a{{{}}}", id + 1))))).collect();
    let status = worker.failing_step(open_step(many)).await;
    assert!(status.message().contains("65 different grammars, at most 64"), "{status}");

    let default_params = Some(with(regex("(")));
    let config = StreamConfig { default_params, ..with_eos() };
    let status = refused(&server, config.clone()).await;
    assert!(status.message().starts_with("config.default_params.grammar.regex: "), "{status}");
    let status =
        refused(&server, StreamConfig { eos_token_ids: vec![], default_params: Some(matching(1)), ..config }).await;
    assert!(status.message().starts_with("config.default_params.grammar: needs a token that ends"), "{status}");
}

/// A grammar that needs more with each token finally fails its rows for good. Other sequences of the step go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_grammar_that_is_too_complex_fails_alone() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    // Every part of the text is any number of other parts.
    let ambiguous = by(Kind::Lark("start: s\ns: s s | s s s | \"a\" | \"b\"\n".to_owned()));
    let slow = SamplingParams { grammar: ambiguous, temperature: Some(0.0), ..seeded(1) };
    let result = worker.step(open_step(vec![open(1, slow), open(2, matching(2))])).await;
    assert!(result.open.iter().all(|open| open.status() == OpenStatus::Ok), "{:?}", result.open);
    let row: Vec<f32> = (0..VOCAB).map(|token| if token == 31 { 9.0 } else { 0.0 }).collect();
    let (mut failed, mut fine) = (0, Vec::new());
    while failed < 2 {
        let at = fine.len() as u64;
        let finished = fine.last() == Some(&EOS);
        let rows = [vec![(1, row.clone())], if finished { vec![] } else { vec![(2, logits(2, at))] }].concat();
        let result = worker.step(sample_step(&rows)).await;
        if result.work[0].status() != RowStatus::Ok {
            let WorkResult { message, .. } = &result.work[0];
            assert_eq!(result.work[0].status(), RowStatus::GrammarTooComplex, "{message}");
            assert!(message.starts_with("params.grammar: "), "{message}");
            failed += 1;
        }
        fine.extend(result.work.get(1).map(token));
        assert!(result.step_id < 2000, "it never fails");
    }
    assert_eq!(fine.last(), Some(&EOS), "the other one goes on");
}

/// Without texts there is nothing to compile a grammar with.
#[tokio::test]
async fn a_server_without_texts_refuses_grammars() {
    let server = TestServer::with_setup(
        Transport::Tcp,
        croupier::limits::Limits::default(),
        Box::new(croupier::backend::cpu::CpuBackend::new(1)),
        croupier::rpc::ServerSetup::default(),
    )
    .await;
    let mut worker = server.worker_with(with_eos()).await;
    let result = worker.step(open_step(vec![open(1, matching(1)), open(2, seeded(2))])).await;
    let told = result.open[0].error.as_ref().unwrap();
    assert_eq!(told.field, "params.grammar");
    assert!(told.message.contains("start it with grammars and vocabulary"), "{}", told.message);
    assert_eq!(result.open[1].status(), OpenStatus::Ok);
}
