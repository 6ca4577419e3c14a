//! `kill -9` of the server loses nothing: a worker that opens its sequences again with their tokens so far gets the same tokens that it
//! would have got.

use croupier::proto::decode_request::Request as Ask;
use croupier::proto::decode_response::Response as Answer;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::{self, DecodeRequest, step::Logits, work::Kind};
use croupier::sampling::philox::philox4x32_10;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

const VOCAB: u32 = 512;
const SEQUENCES: u64 = 8;
const LENGTH: usize = 48;
/// Steps before the kill: more than half, so that penalties have a history that could be wrong.
const KILLED_AFTER: usize = 29;

/// A server process on a Unix socket.
struct Server {
    process: Child,
    path: PathBuf,
}

impl Server {
    fn start(path: &Path) -> Self {
        let process = Command::new(env!("CARGO_BIN_EXE_croupier"))
            .args(["serve", "--listen", "none", "--admin", "none", "--uds"])
            .arg(path)
            .spawn()
            .expect("the server starts");
        Server { process, path: path.to_owned() }
    }

    /// SIGKILL: no handler runs, no state is saved, the socket file is left over.
    fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }

    async fn connect(&self) -> Worker {
        let address = Endpoint::from_shared(format!("unix:{}", self.path.display())).expect("an address");
        let give_up = Instant::now() + Duration::from_secs(20);
        loop {
            match address.connect().await {
                Ok(channel) => return Worker::open(channel).await,
                Err(error) => assert!(Instant::now() < give_up, "no server: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a model worker keeps: each sequence's tokens, and the state that samplers report. It keeps nothing else of the server's state.
type Texts = Vec<Text>;

#[derive(Debug, Clone, PartialEq, Default)]
struct Text {
    tokens: Vec<u32>,
    state: Option<proto::SamplerState>,
}

/// One stream.
struct Worker {
    requests: mpsc::Sender<DecodeRequest>,
    replies: Streaming<proto::DecodeResponse>,
}

impl Worker {
    async fn open(channel: Channel) -> Self {
        let (requests, outbox) = mpsc::channel(4);
        let config = proto::StreamConfig {
            vocab_size: VOCAB,
            logits_dtype: proto::LogitsDtype::F32.into(),
            ..Default::default()
        };
        requests.send(DecodeRequest { request: Some(Ask::Config(config)) }).await.expect("room");
        let outbox = tokio_stream::wrappers::ReceiverStream::new(outbox);
        let mut replies = SamplerClient::new(channel).decode(outbox).await.expect("a stream").into_inner();
        replies.message().await.expect("ready").expect("a reply");
        Worker { requests, replies }
    }

    /// Samples one token for every sequence. The first step of a stream opens the sequences with their texts so far.
    async fn step(&mut self, texts: &mut Texts, open: bool) -> Result<(), tonic::Status> {
        let request = DecodeRequest { request: Some(Ask::Step(step(texts, open))) };
        let gone = || tonic::Status::unavailable("the stream ended");
        self.requests.send(request).await.map_err(|_| gone())?;
        let reply = self.replies.message().await?.ok_or_else(gone)?;
        let Some(Answer::Step(result)) = reply.response else { panic!("not the answer to a step") };
        for opened in &result.open {
            assert_eq!(opened.status(), proto::OpenStatus::Ok, "{:?}", opened.error);
        }
        for (text, work) in texts.iter_mut().zip(&result.work) {
            assert_eq!(work.status(), proto::RowStatus::Ok, "{}", work.message);
            text.tokens.push(work.tokens[0].token_id);
            text.state = work.sampler_state;
        }
        Ok(())
    }
}

fn step(texts: &Texts, open: bool) -> proto::Step {
    let opening = |id: u64| proto::OpenSequence {
        sequence_id: id,
        params: Some(params(id)),
        prompt_token_ids: prompt(id),
        output_token_ids: texts[id as usize].tokens.clone(),
        sampler_state: texts[id as usize].state,
        predicted_output_token_ids: Vec::new(),
    };
    let sample = |id| proto::Work {
        sequence_id: Some(id),
        first_row: None,
        kind: Some(Kind::Sample(proto::SampleWork {})),
        ..Default::default()
    };
    let rows: Vec<u8> =
        (0..SEQUENCES).flat_map(|id| model(id, &texts[id as usize].tokens)).flat_map(f32::to_le_bytes).collect();
    proto::Step {
        open: if open { (0..SEQUENCES).map(opening).collect() } else { Vec::new() },
        work: (0..SEQUENCES).map(sample).collect(),
        logits: Some(Logits::Inline(proto::InlineLogits { data: rows.into(), row_stride: 0 })),
        ..Default::default()
    }
}

fn prompt(id: u64) -> Vec<u32> {
    (0..5).map(|i| (id as u32 * 37 + i) % VOCAB).collect()
}

/// Parameters for everything that has a history: penalties on output and prompt, bad words, samplers that learn from each token, and a draw
/// at each position.
fn params(id: u64) -> proto::SamplingParams {
    proto::SamplingParams {
        mirostat: Some(if id < 4 { id as u32 % 3 } else { 0 }),
        adaptive_target: (id == 4).then_some(0.05),
        top_p_decay: (id == 5).then_some(0.9),
        top_p_reset_token_ids: (0..VOCAB).filter(|token| id == 5 && token % 8 == 0).take(64).collect(),
        return_sampler_state: Some(true),
        temperature: Some(if id == 0 { 0.0 } else { 1.2 }),
        top_p: Some(0.98),
        repetition_penalty: Some(1.3),
        frequency_penalty: Some(0.4),
        presence_penalty: Some(0.2),
        bad_words: vec![proto::TokenSequence { token_ids: vec![7, 8] }],
        seed: Some(1000 + id),
        ..Default::default()
    }
}

/// A toy model: the logits depend on the whole text, so one wrong token changes all that follow.
fn model(id: u64, text: &[u32]) -> Vec<f32> {
    let state = text.iter().fold(id as u32 + 1, |state, token| state.wrapping_mul(0x9E37_79B1) ^ token);
    let logit = |token| (philox4x32_10([token, state, 0, 0], [1, 2])[0] >> 8) as f32 / (1u32 << 24) as f32 * 8.0 - 4.0;
    (0..VOCAB).map(logit).collect()
}

async fn generate(worker: &mut Worker, texts: &mut Texts, length: usize) -> Result<(), tonic::Status> {
    let mut open = true;
    while texts[0].tokens.len() < length {
        worker.step(texts, open).await?;
        open = false;
    }
    Ok(())
}

#[tokio::test]
async fn a_killed_server_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("croupier.sock");

    let mut server = Server::start(&path);
    let mut undisturbed: Texts = vec![Text::default(); SEQUENCES as usize];
    generate(&mut server.connect().await, &mut undisturbed, LENGTH).await.unwrap();

    let mut texts: Texts = vec![Text::default(); SEQUENCES as usize];
    let mut worker = server.connect().await;
    generate(&mut worker, &mut texts, KILLED_AFTER).await.unwrap();
    server.kill();
    let before = texts.clone();
    let lost = generate(&mut worker, &mut texts, LENGTH).await.expect_err("nobody is there");
    // tonic's client says UNKNOWN if the connection broke inside a message; gRPC's own clients say UNAVAILABLE.
    assert!(matches!(lost.code(), tonic::Code::Unavailable | tonic::Code::Unknown), "{lost}");
    assert_eq!(texts, before);

    // The old socket file is still there: the new server takes its place.
    let server = Server::start(&path);
    generate(&mut server.connect().await, &mut texts, LENGTH).await.unwrap();
    assert_eq!(texts, undisturbed);
    let distinct: std::collections::HashSet<_> = texts.iter().map(|text| &text.tokens).collect();
    assert_eq!(distinct.len(), texts.len(), "the sequences are told apart");
}

/// The state of samplers is needed: without it the text goes on differently.
#[tokio::test]
async fn a_state_that_is_not_sent_back_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("croupier.sock"));
    let mut undisturbed: Texts = vec![Text::default(); SEQUENCES as usize];
    generate(&mut server.connect().await, &mut undisturbed, LENGTH).await.unwrap();
    let mut texts: Texts = vec![Text::default(); SEQUENCES as usize];
    generate(&mut server.connect().await, &mut texts, KILLED_AFTER).await.unwrap();
    let remembering: Vec<bool> = texts.iter().map(|text| text.state.is_some()).collect();
    assert_eq!(remembering, [false, true, true, false, true, false, false, false]);
    texts.iter_mut().for_each(|text| text.state = None);
    generate(&mut server.connect().await, &mut texts, LENGTH).await.unwrap();
    let same: Vec<bool> = texts.iter().zip(&undisturbed).map(|(a, b)| a.tokens == b.tokens).collect();
    assert_eq!(same, remembering.iter().map(|is| !is).collect::<Vec<_>>());
}
