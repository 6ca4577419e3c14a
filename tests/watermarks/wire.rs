//! Text over a socket, and `croupier detect` on that text.

use crate::support::*;
use crate::work::{chain, deterministic};
use croupier::proto::watermark_params::Scheme;
use croupier::proto::*;
use std::io::Write;
use std::process::{Command, Stdio};

/// A text of 300 tokens, drawn step by step.
async fn text(worker: &mut Worker, id: u64, params: SamplingParams) -> Vec<u32> {
    worker.step(open_step(vec![OpenSequence { prompt_token_ids: vec![1, 2, 3, 4], ..open(id, params) }])).await;
    let mut text = Vec::new();
    for position in 0..300 {
        let result = worker.step(sample_step(&[(id, logits(id, position))])).await;
        text.push(token(&result.work[0]));
    }
    text
}

/// The exit code, standard output and standard error of `croupier detect`.
fn detect(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let program = Command::new(env!("CARGO_BIN_EXE_croupier"))
        .arg("detect")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut program = program.unwrap();
    program.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = program.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn mark(scheme: Scheme) -> SamplingParams {
    SamplingParams { watermark: Some(WatermarkParams { scheme: Some(scheme) }), ..seeded(5) }
}

#[tokio::test]
async fn what_was_marked_over_the_wire_is_found() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let keys = vec![3, 1, 4, 15, 9, 26, 5, 35, 8, 97, 93, 23, 84];
    let cases: [(Scheme, &[&str]); 3] = [
        (
            Scheme::Kgw(KgwParams { hashing_key: Some(99), ..Default::default() }),
            &["--scheme", "kgw", "--hashing-key", "99"],
        ),
        (
            Scheme::Synthid(SynthidParams { keys, ..Default::default() }),
            &["--scheme", "synthid", "--keys", "3,1,4,15,9,26,5,35,8,97,93,23,84"],
        ),
        (Scheme::Gumbel(GumbelParams { key: Some(99), ..Default::default() }), &["--scheme", "gumbel", "--key", "99"]),
    ];
    let plain = text(&mut worker, 1, seeded(5)).await;
    for (id, (scheme, arguments)) in (2..).zip(cases) {
        let marked = text(&mut worker, id, mark(scheme)).await;
        let (code, told, errors) = detect(&[arguments, &["--json"]].concat(), &format!("{marked:?}\n{plain:?}\n"));
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        let told: Vec<serde_json::Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        println!("{arguments:?}: {told:?}");
        assert_eq!((told.len(), &told[0]["marked"], &told[1]["marked"]), (2, &true.into(), &false.into()));
        assert!(told[0]["p_value"].as_f64().unwrap() < 1e-6);
        let (_, table, _) = detect(arguments, &format!("{marked:?}\n{plain:?}\n"));
        assert!(table.ends_with("2 texts, 1 marked (p-value below 0.001)\n"), "{table}");
    }
}

#[tokio::test]
async fn a_stream_has_a_mark_for_all_and_a_sequence_may_have_none() {
    let server = TestServer::start().await;
    let scheme = || Scheme::Kgw(KgwParams { hashing_key: Some(99), bias: Some(4.0), ..Default::default() });
    let default_params = Some(SamplingParams { seed: None, ..mark(scheme()) });
    let mut worker = server.worker_with(StreamConfig { default_params, ..config() }).await;
    let texts = [
        text(&mut worker, 1, seeded(1)).await,
        text(&mut worker, 2, SamplingParams { watermark: Some(WatermarkParams::default()), ..seeded(1) }).await,
    ];
    let input = format!("{:?}\n{:?}\n", texts[0], texts[1]);
    let (_, told, _) = detect(&["--scheme", "kgw", "--hashing-key", "99", "--json"], &input);
    let marked: Vec<bool> = told.lines().map(|line| line.contains("\"marked\":true")).collect();
    assert_eq!(marked, [true, false], "{told}");
    // If a default cannot be applied, that is an error, not a text without its watermark.
    let scheme = Scheme::Gumbel(GumbelParams { key: Some(1), ..Default::default() });
    let default_params = Some(SamplingParams { seed: None, ..mark(scheme) });
    let mut worker = server.worker_with(StreamConfig { default_params, ..config() }).await;
    let greedy = SamplingParams { temperature: Some(0.0), ..seeded(1) };
    let result = worker.step(open_step(vec![open(1, greedy)])).await;
    assert_eq!(result.open[0].error.as_ref().unwrap().field, "params.watermark.gumbel");
}

/// A Gumbel race draws no random numbers, so there is no expectation that tests could be compared with.
#[tokio::test]
async fn drafts_of_a_race_are_not_measured() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let scheme = Scheme::Gumbel(GumbelParams { key: Some(7), ..Default::default() });
    for (id, (params, is_measured)) in (1..).zip([(mark(scheme), false), (seeded(5), true)]) {
        let opened = OpenSequence { prompt_token_ids: vec![1, 2, 3, 4], ..open(id, params) };
        worker.step(open_step(vec![opened])).await;
        let draft = VerifyWork { measure: true, ..chain(&[3, 4], deterministic()) };
        let work = worker.verify(id, draft, &[logits(id, 0), logits(id, 1), logits(id, 2)]).await;
        assert_eq!(!work.verify.unwrap().tests.is_empty(), is_measured);
    }
}

#[test]
fn mistakes_have_a_line_and_an_exit_code() {
    let kgw = ["--scheme", "kgw"];
    let (code, out, errors) = detect(&kgw, "[1, 2]\n[1, x]\n[3]\n");
    assert_eq!((code, out.lines().count()), (Some(1), 2), "{out}");
    assert_eq!(errors, "croupier detect: standard input: line 2: expected value, at column 5\n");
    let (code, out, errors) = detect(&[&kgw[..], &["--max-line-bytes", "10"]].concat(), "[1, 2, 3, 4, 5]\n");
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(errors.contains("line 1: has more than 10 bytes"), "{errors}");
    let (code, _, errors) = detect(&["--scheme", "gumbel"], "");
    assert_eq!(code, Some(2));
    assert!(errors.contains("key: is required"), "{errors}");
    let (code, _, errors) = detect(&[&kgw[..], &["/no/such/file"]].concat(), "");
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("croupier detect: /no/such/file: "), "{errors}");
    let (code, help, _) = detect(&["--help"], "");
    assert_eq!(code, Some(0));
    assert!(help.contains("The p-value is the probability") && help.contains("Exit code 0"), "{help}");
}
