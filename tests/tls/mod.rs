//! TLS on the TCP listener, over real sockets: who is let in, who is not, and certificates that change meanwhile.

pub(crate) mod pki;
mod tokens;

use crate::common::{NEVER, Running, config, start, until};
use croupier::config::Config;
use croupier::proto::decode_request::Request;
use croupier::proto::decode_response::Response;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use croupier::tls::Files;
use pki::{Authority, Mounted, Pair};
use std::process::{Command, Output};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A server with TLS, and the place of its files.
pub(crate) struct Secured {
    pub(crate) authority: Authority,
    pub(crate) clients: Authority,
    pub(crate) mounted: Mounted,
    pub(crate) server: Running,
}

impl Secured {
    /// With `mutual`, clients need a certificate of `clients`.
    async fn start(mutual: bool, change: impl FnOnce(&mut Config)) -> Self {
        let (authority, clients) = (Authority::new(), Authority::new());
        let mounted = mount(&authority.server(), &clients);
        let files = Files {
            cert: Some(mounted.path("tls.crt")),
            key: Some(mounted.path("tls.key")),
            client_ca: mutual.then(|| mounted.path("ca.crt")),
        };
        let mut config = Config { tls: files, ..config() };
        change(&mut config);
        Self { authority, clients, mounted, server: start(config).await }
    }

    /// TLS settings of a client that trusts `authority`.
    fn trusting(authority: &Authority) -> ClientTlsConfig {
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem())).domain_name("localhost")
    }

    async fn channel(&self, tls: ClientTlsConfig) -> Result<Channel, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("https://{}", self.server.tcp())).expect("an address");
        endpoint.tls_config(tls).expect("certificates").connect().await
    }

    /// Whether a call gets an answer.
    async fn answers(&self, tls: ClientTlsConfig) -> bool {
        let Ok(channel) = self.channel(tls).await else { return false };
        SamplerClient::new(channel).get_server_info(GetServerInfoRequest {}).await.is_ok()
    }

    async fn refused(&self, reason: &str) -> f64 {
        self.server.series(&format!("croupier_rejected_total{{reason=\"{reason}\"}}")).await
    }

    async fn reloads(&self, result: &str) -> f64 {
        self.server.series(&format!("croupier_reloads_total{{what=\"tls\",result=\"{result}\"}}")).await
    }

    /// The output of `croupier healthcheck` with these flags.
    fn healthcheck(&self, flags: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
        command.args(["healthcheck", "--timeout=30s", "--addr"]).arg(format!("localhost:{}", self.server.tcp().port()));
        command.args(flags).output().expect("it runs")
    }
}

/// `pair` and the authority of `clients`, mounted as the kubelet would.
fn mount(pair: &Pair, clients: &Authority) -> Mounted {
    Mounted::new(&[("tls.crt", &pair.cert), ("tls.key", &pair.key), ("ca.crt", &clients.pem())])
}

fn showing(tls: ClientTlsConfig, pair: &Pair) -> ClientTlsConfig {
    tls.identity(Identity::from_pem(&pair.cert, &pair.key))
}

/// A configured stream with one sequence.
pub(crate) struct Worker {
    requests: mpsc::Sender<DecodeRequest>,
    replies: Streaming<DecodeResponse>,
    position: u64,
}

impl Worker {
    pub(crate) async fn open(channel: Channel) -> Self {
        Self::open_with(channel, "").await
    }

    /// The same, with a token.
    pub(crate) async fn open_with(channel: Channel, token: &str) -> Self {
        let (requests, receiver) = mpsc::channel(8);
        let config = StreamConfig { vocab_size: 4, logits_dtype: LogitsDtype::F32.into(), ..Default::default() };
        requests.try_send(DecodeRequest { request: Some(Request::Config(config)) }).expect("room");
        let mut request = tonic::Request::new(ReceiverStream::new(receiver));
        if !token.is_empty() {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a header"));
        }
        let opened = SamplerClient::new(channel).decode(request).await;
        let mut worker = Self { requests, replies: opened.expect("a stream").into_inner(), position: 0 };
        assert!(matches!(worker.reply().await, Response::Ready(_)));
        worker
    }

    /// One token at temperature 0: the given id.
    pub(crate) async fn step(&mut self, id: u32) -> u32 {
        let params = Some(SamplingParams { temperature: Some(0.0), ..Default::default() });
        let open = OpenSequence { sequence_id: 1, params, ..Default::default() };
        let data: Vec<u8> = (0..4).flat_map(|at| f32::to_le_bytes(if at == id { 1.0 } else { 0.0 })).collect();
        self.position += 1;
        let step = Step {
            step_id: self.position,
            open: if self.position == 1 { vec![open] } else { Vec::new() },
            work: vec![Work {
                sequence_id: Some(1),
                first_row: None,
                kind: Some(work::Kind::Sample(SampleWork {})),
                ..Default::default()
            }],
            logits: Some(step::Logits::Inline(InlineLogits { data: data.into(), row_stride: 0 })),
            ..Default::default()
        };
        self.requests.send(DecodeRequest { request: Some(Request::Step(step)) }).await.expect("the stream is open");
        let Response::Step(result) = self.reply().await else { panic!("expected the result of a step") };
        assert_eq!(result.work[0].status(), RowStatus::Ok);
        result.work[0].tokens[0].token_id
    }

    async fn reply(&mut self) -> Response {
        let reply = tokio::time::timeout(NEVER, self.replies.message()).await.expect("an answer");
        reply.expect("no error").expect("the stream goes on").response.expect("a response")
    }
}

#[tokio::test]
async fn a_client_that_trusts_the_authority_is_served() {
    let secured = Secured::start(false, |_| ()).await;
    let channel = secured.channel(Secured::trusting(&secured.authority)).await.expect("a handshake");
    let mut worker = Worker::open(channel.clone()).await;
    assert_eq!((worker.step(2).await, worker.step(3).await), (2, 3));
    let health = HealthClient::new(channel).check(HealthCheckRequest::default()).await.expect("health over TLS");
    assert_eq!(health.into_inner().status(), tonic_health::pb::health_check_response::ServingStatus::Serving);
    assert_eq!(secured.server.series("croupier_connections{transport=\"tcp\"}").await, 1.0);
}

#[tokio::test]
async fn a_client_that_does_not_trust_it_or_speaks_plain_text_gets_nothing() {
    let secured = Secured::start(false, |_| ()).await;
    assert!(!secured.answers(Secured::trusting(&Authority::new())).await);
    until("refused by the client", async || secured.refused("tls_refused").await == 1.0).await;
    assert!(!secured.answers(Secured::trusting(&secured.authority).domain_name("other.example")).await);
    until("refused by the client", async || secured.refused("tls_refused").await == 2.0).await;
    let plain = Endpoint::from_shared(format!("http://{}", secured.server.tcp())).expect("an address");
    let mut plain = SamplerClient::new(plain.connect_lazy());
    assert!(plain.get_server_info(GetServerInfoRequest {}).await.is_err());
    until("counted", async || secured.refused("tls_failed").await >= 1.0).await;
    assert!(secured.answers(Secured::trusting(&secured.authority)).await, "others are served");
}

#[tokio::test]
async fn with_an_authority_of_clients_only_its_clients_get_in() {
    let secured = Secured::start(true, |_| ()).await;
    let trusting = || Secured::trusting(&secured.authority);
    assert!(secured.answers(showing(trusting(), &secured.clients.client())).await);
    assert!(!secured.answers(trusting()).await);
    until("no certificate", async || secured.refused("tls_no_certificate").await >= 1.0).await;
    let ended = secured.clients.sign(&["worker.example"], |params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
    for (wrong, why) in [
        (Authority::new().client(), "of another authority"),
        (secured.authority.client(), "of the server's own authority"),
        (ended, "ended long ago"),
    ] {
        let before = secured.refused("tls_bad_certificate").await;
        assert!(!secured.answers(showing(trusting(), &wrong)).await, "{why}");
        until(why, async || secured.refused("tls_bad_certificate").await > before).await;
    }
    assert!(secured.answers(showing(trusting(), &secured.clients.client())).await);
}

#[tokio::test]
async fn silence_in_the_handshake_holds_up_nobody_and_ends() {
    let limit = |config: &mut Config| {
        config.tls_handshake_timeout = Duration::from_secs(2);
        config.limits.max_connections = 3;
    };
    let secured = Secured::start(false, limit).await;
    let mut silent = Vec::new();
    for said in [&b""[..], &[0x16, 3, 1]] {
        let mut stream = TcpStream::connect(secured.server.tcp()).await.expect("a connection");
        stream.write_all(said).await.expect("it is read");
        silent.push(stream);
    }
    until("they hold places", async || secured.server.series("croupier_connections{transport=\"tcp\"}").await == 2.0)
        .await;
    assert!(secured.answers(Secured::trusting(&secured.authority)).await, "the third place is free");
    for mut stream in silent {
        let mut seen = Vec::new();
        let _ = tokio::time::timeout(NEVER, stream.read_to_end(&mut seen)).await.expect("the server closes it");
    }
    until("counted", async || secured.refused("tls_timeout").await == 2.0).await;
    until("places are free", async || secured.server.series("croupier_connections{transport=\"tcp\"}").await == 0.0)
        .await;
}

#[tokio::test]
async fn a_new_certificate_is_taken_while_a_stream_goes_on() {
    let secured = Secured::start(true, |_| ()).await;
    let (old, client) = (&secured.authority, secured.clients.client());
    let expiry = "croupier_tls_certificate_expiry_timestamp_seconds";
    let before = secured.server.series(expiry).await;
    let channel = secured.channel(showing(Secured::trusting(old), &client)).await.expect("a handshake");
    let mut worker = Worker::open(channel).await;
    assert_eq!(worker.step(1).await, 1);

    let (new, new_clients) = (Authority::new(), Authority::new());
    let pair = new.sign(&["localhost"], |params| params.not_after = rcgen::date_time_ymd(2050, 1, 1));
    let files = |pair: &Pair, key: &str, clients: &Authority| {
        secured.mounted.replace(&[("tls.crt", &pair.cert), ("tls.key", key), ("ca.crt", &clients.pem())]);
    };
    files(&pair, &pair.key, &new_clients);
    until("reloaded", async || secured.reloads("ok").await == 1.0).await;
    assert!(before != 2_524_608_000.0 && secured.server.series(expiry).await == 2_524_608_000.0);
    assert!(!secured.answers(showing(Secured::trusting(old), &client)).await, "the old certificate is gone");
    assert!(!secured.answers(showing(Secured::trusting(&new), &client)).await, "so is the old authority of clients");
    assert!(secured.answers(showing(Secured::trusting(&new), &new_clients.client())).await);
    assert_eq!(worker.step(2).await, 2, "what was open goes on");

    files(&pair, &new.server().key, &new_clients);
    until("refused", async || secured.reloads("failed").await == 1.0).await;
    assert!(
        secured.answers(showing(Secured::trusting(&new), &new_clients.client())).await,
        "the last good pair is kept"
    );
    assert_eq!((worker.step(3).await, secured.reloads("ok").await), (3, 1.0));
}

// The test waits for the program while the server answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthcheck_speaks_tls() {
    let secured = Secured::start(true, |_| ()).await;
    let client = secured.clients.client();
    let (dir, other) = (mount(&client, &secured.authority), mount(&client, &Authority::new()));
    let path = |mounted: &Mounted, name: &str| mounted.path(name).display().to_string();
    let (cert, key, ca) = (path(&dir, "tls.crt"), path(&dir, "tls.key"), path(&dir, "ca.crt"));
    let full = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    // The admin port, at which the server was ready, may know it before the health service.
    until("serving", async || secured.healthcheck(&full).status.success()).await;
    let some = secured.healthcheck(&full);
    assert_eq!((some.status.code(), some.stdout.as_slice()), (Some(0), b"serving\n".as_slice()), "{some:?}");
    let named = secured.healthcheck(&[&full[..], &["--tls-name", "other.example"]].concat());
    assert_eq!(named.status.code(), Some(1), "{named:?}");
    let untrusted = secured.healthcheck(&["--tls-ca", &path(&other, "ca.crt")]);
    assert_eq!(untrusted.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&untrusted.stderr).contains("certificate is not signed by --tls-ca"),
        "{untrusted:?}"
    );
    for (flags, fix) in [(&["--tls-ca", &ca][..], "give --tls-cert and --tls-key"), (&[], "give --tls-ca")] {
        let failed = secured.healthcheck(flags);
        assert_eq!(failed.status.code(), Some(1), "{flags:?}");
        assert!(String::from_utf8_lossy(&failed.stderr).contains(fix), "{failed:?}");
    }
    assert_eq!(secured.healthcheck(&["--tls-cert", &cert]).status.code(), Some(2));
}

/// The log may be all that tells an operator why nobody is let in.
#[test]
fn the_log_names_a_certificate_that_has_ended() {
    let authority = Authority::new();
    let ended = authority.sign(&["localhost"], |params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
    let mounted = mount(&ended, &authority);
    let mut command = Command::new(env!("CARGO_BIN_EXE_croupier"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--uds", "none", "--admin", "none", "--log-level", "warn"]);
    command.arg("--tls-cert").arg(mounted.path("tls.crt")).arg("--tls-key").arg(mounted.path("tls.key"));
    let mut server = command.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    let log = std::io::BufReader::new(server.stderr.take().expect("a log"));
    let (sender, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let found = std::io::BufRead::lines(log).map_while(Result::ok).find(|line| line.contains("expired"));
        let _ = found.map(|line| sender.send(line));
    });
    let line = told.recv_timeout(NEVER).ok();
    let _ = server.kill();
    let _ = server.wait();
    assert!(line.as_ref().is_some_and(|line| line.contains("tls.crt")), "{line:?}");
}
