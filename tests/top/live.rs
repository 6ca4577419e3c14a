//! `croupier top --once --json` on a live server: its numbers against what was sent.

use crate::common::{NEVER, config, start};
use croupier::proto::{decode_request::Request, sampler_client::SamplerClient, verify_work::DraftDistribution, *};
use serde_json::Value;
use std::net::SocketAddr;
use std::process::{Command, Output};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const VOCAB: usize = 16;
const STEPS: u64 = 25;
/// Rows of each step: some are sampled, one has a NaN, and there is a draft of two tokens.
const ROWS: u64 = 3;

/// A proxy to the admin port. The second look waits until `sent` has a permit, so that what is sent falls between the looks.
async fn gate(admin: SocketAddr, looked: &'static Semaphore, sent: &'static Semaphore) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for look in 0..2 {
            let (mut from, _) = listener.accept().await.unwrap();
            if look == 1 {
                sent.acquire().await.unwrap().forget();
            }
            let mut to = TcpStream::connect(admin).await.unwrap();
            let _ = copy_bidirectional(&mut from, &mut to).await;
            looked.add_permits(1);
        }
    });
    address
}

fn top(admin: SocketAddr, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
    command.args(["top", "--once", "--interval=300ms", "--admin", &admin.to_string()]).args(flags);
    command.env("NO_COLOR", "1").output().unwrap()
}

/// One stream with [`STEPS`] steps, and one call that is refused.
async fn work(tcp: SocketAddr) {
    let mut client = SamplerClient::connect(format!("http://{tcp}")).await.unwrap();
    let config = StreamConfig {
        vocab_size: VOCAB as u32,
        logits_dtype: LogitsDtype::F32.into(),
        model: "m".to_owned(),
        ..Default::default()
    };
    let mut requests = vec![DecodeRequest { request: Some(Request::Config(config)) }];
    requests.extend((0..STEPS).map(|i| DecodeRequest { request: Some(Request::Step(step(i))) }));
    let mut replies = client.decode(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let mut answered = 0;
    while let Some(reply) = replies.message().await.unwrap() {
        answered += u64::from(matches!(reply.response, Some(decode_response::Response::Step(_))));
    }
    assert_eq!(answered, STEPS);
    client.sample(SampleRequest::default()).await.unwrap_err();
}

fn step(i: u64) -> Step {
    let sample =
        |id| Work { sequence_id: Some(id), kind: Some(work::Kind::Sample(SampleWork {})), ..Default::default() };
    let from = DraftDistribution::Deterministic(DeterministicDraft {});
    let verify =
        VerifyWork { draft_token_ids: vec![1, 2], draft_distribution: Some(from), measure: true, ..Default::default() };
    let verify = Work { sequence_id: Some(9), kind: Some(work::Kind::Verify(verify)), ..Default::default() };
    let open = |id| OpenSequence { sequence_id: id, ..Default::default() };
    let rows = (ROWS + 1 + 3) as usize;
    let mut logits = vec![0f32; rows * VOCAB];
    logits[ROWS as usize * VOCAB] = f32::NAN;
    let data: Vec<u8> = logits.iter().flat_map(|l| l.to_le_bytes()).collect();
    Step {
        step_id: i,
        open: if i == 0 { (0..=ROWS).chain([9]).map(open).collect() } else { Vec::new() },
        work: (0..=ROWS).map(sample).chain([verify]).collect(),
        logits: Some(step::Logits::Inline(InlineLogits { data: data.into(), row_stride: 0 })),
        ..Default::default()
    }
}

fn find<'a>(list: &'a Value, key: &str, is: &str) -> &'a Value {
    let found = list.as_array().and_then(|all| all.iter().find(|entry| entry[key] == is));
    found.unwrap_or_else(|| panic!("no {key} {is} in {list}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_are_those_of_what_was_sent() {
    static LOOKED: Semaphore = Semaphore::const_new(0);
    static SENT: Semaphore = Semaphore::const_new(0);
    let server = start(config()).await;
    let admin = gate(server.addresses.admin.unwrap(), &LOOKED, &SENT).await;
    let output = tokio::task::spawn_blocking(move || top(admin, &["--json"]));
    tokio::time::timeout(NEVER, LOOKED.acquire()).await.unwrap().unwrap().forget();
    work(server.tcp()).await;
    SENT.add_permits(1);
    let output = tokio::time::timeout(NEVER, output).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();

    let emitted =
        find(&seen["speculation"]["proposers"], "proposer", "deterministic")["emitted_tokens"]["new"].as_u64();
    let tokens = ROWS * STEPS + emitted.unwrap();
    assert_eq!(seen["tokens"]["new"], tokens, "{seen}");
    let seconds = seen["seconds"].as_f64().unwrap();
    assert!(seconds >= 0.3, "{seen}");
    assert!((seen["tokens"]["per_second"].as_f64().unwrap() * seconds - tokens as f64).abs() < 1e-6, "{seen}");
    assert_eq!((&seen["restarted"], &seen["ready"]), (&Value::Bool(false), &Value::Bool(true)));
    let model = find(&seen["models"], "model", "m");
    assert_eq!(model["rows"]["sample"]["new"], ROWS * STEPS, "{seen}");
    assert_eq!(model["rows_invalid"]["new"], STEPS, "{seen}");
    let total = find(&seen["latency"], "stage", "total");
    assert_eq!(total["steps"]["new"], STEPS, "{seen}");
    assert!(total["p50"].as_f64() <= total["p99"].as_f64() && total["p50"].as_f64() > Some(0.0), "{seen}");
    let load = &seen["load"];
    assert!(load["busy"].as_f64() > Some(0.0) && load["cores_used"].as_f64() >= Some(0.0), "{seen}");
    assert!(load["rows_per_batch"].as_f64() >= Some((ROWS + 1) as f64), "{seen}");
    assert!(load["steps_per_batch"].as_f64() >= Some(1.0) && load["sampling_threads"].as_u64() >= Some(1), "{seen}");
    assert_eq!(load["grammar_compile"]["count"]["total"], 0, "{seen}");
    assert_eq!(find(&seen["errors"], "reason", "nan_logits")["count"]["new"], STEPS, "{seen}");
    assert_eq!(find(&seen["errors"], "reason", "invalid_field")["count"]["new"], 1, "{seen}");
    assert_eq!(find(&seen["errors"], "reason", "Sample INVALID_ARGUMENT")["count"]["new"], 1, "{seen}");

    let draft = find(&seen["speculation"]["proposers"], "proposer", "deterministic");
    assert_eq!(draft["drafts"]["new"], STEPS, "{seen}");
    assert_eq!(draft["draft_tokens"]["new"], 2 * STEPS, "{seen}");
    assert_eq!(draft["positions"][0]["tested"], STEPS, "{seen}");
    // Rows are flat, so a draft token has probability 1 / VOCAB at temperature 1.
    let expected = draft["positions"][0]["measured"]["expected"].as_f64().unwrap();
    assert!((expected - 1.0 / VOCAB as f64).abs() < 1e-3, "{seen}");
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_is_plain_text_of_80_columns() {
    let server = start(config()).await;
    work(server.tcp()).await;
    let admin = server.addresses.admin.unwrap();
    let output = tokio::task::spawn_blocking(move || top(admin, &[])).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains('\x1b') && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for word in ["ready", "0 tokens/s", "nan_logits", "invalid_field", "no drafts meanwhile", "p99"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_is_full_is_named() {
    let server = start(config()).await;
    let admin = server.addresses.admin.unwrap().to_string();
    let run = move || {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
        command.args(["top", "--once", "--interval=300ms", "--admin", &admin]).stdout(full).output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.starts_with("croupier: cannot write to standard output: "), "{told}");
}
