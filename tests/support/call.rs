//! A call whose bytes are sent by hand, in ways that no client library sends them.
#![allow(dead_code, unreachable_pub)] // Every test file uses its own part of this.

use crate::support::TestServer;
use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use h2::client::{Builder, ResponseFuture};
use h2::{RecvStream, SendStream};
use prost::Message;
use std::future::poll_fn;
use std::time::Duration;
use tonic::Status;

/// Longer than anything here takes, even on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// A call whose bytes are sent by hand.
pub struct Call {
    pub bytes: SendStream<Bytes>,
    answer: ResponseFuture,
    /// The part of the answer that has arrived.
    begun: Option<RecvStream>,
}

impl Call {
    /// Opens a call of a method of the sampler, or of `service/method`.
    pub async fn open(server: &TestServer, method: &str) -> Self {
        Self::with(server, method, &Builder::new(), &[]).await
    }

    /// A call whose server may send no more than one byte, and does not hear that there is room again until [`Self::end`].
    pub async fn closed(server: &TestServer, method: &str) -> Self {
        Self::with(server, method, Builder::new().initial_window_size(1), &[]).await
    }

    /// A call that announces how long it waits, and waits longer.
    pub async fn within(server: &TestServer, method: &str, timeout: &str) -> Self {
        Self::with(server, method, &Builder::new(), &[("grpc-timeout", timeout)]).await
    }

    async fn with(server: &TestServer, method: &str, http2: &Builder, headers: &[(&str, &str)]) -> Self {
        let socket = tokio::net::TcpStream::connect(server.tcp_address()).await.unwrap();
        let (mut client, connection) = http2.handshake(socket).await.unwrap();
        tokio::spawn(connection);
        let path = if method.contains('/') { method.to_owned() } else { format!("croupier.v1.Sampler/{method}") };
        let request = Request::post(format!("http://server/{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(()).unwrap();
        let (answer, bytes) = client.send_request(request, false).unwrap();
        Self { bytes, answer, begun: None }
    }

    /// Sends the prefix of a message of `len` bytes, but only the bytes `sent` of it.
    pub fn begin(&mut self, len: usize, sent: &[u8]) {
        let mut prefix = vec![0];
        prefix.extend(u32::try_from(len).unwrap().to_be_bytes());
        prefix.extend(sent);
        self.bytes.send_data(prefix.into(), false).unwrap();
    }

    pub fn send(&mut self, message: &impl Message) {
        let message = message.encode_to_vec();
        self.begin(message.len(), &message);
    }

    /// Sends a message, and that it is the last.
    pub fn send_alone(&mut self, message: &impl Message) {
        self.send(message);
        self.finish();
    }

    /// Begins a message that is never completed, and waits until the server has read more of it than HTTP/2 keeps.
    pub async fn begin_large(&mut self, len: usize, sent: usize) {
        self.begin(len, &[]);
        let mut left = sent;
        let sends = async {
            while left > 0 {
                self.bytes.reserve_capacity(left);
                let room = poll_fn(|context| self.bytes.poll_capacity(context)).await.unwrap().unwrap();
                self.bytes.send_data(vec![0; room.min(left)].into(), false).unwrap();
                left -= room.min(left);
            }
        };
        tokio::time::timeout(LONG, sends).await.expect("it is read");
    }

    /// Waits until the answer has begun.
    pub async fn begun(&mut self) {
        let answer = tokio::time::timeout(LONG, &mut self.answer).await.expect("an answer").unwrap();
        let mut body = answer.into_body();
        let first = tokio::time::timeout(LONG, body.data()).await.expect("a byte").unwrap().unwrap();
        assert_eq!(first.len(), 1, "there is room for no more");
        self.begun = Some(body);
    }

    pub fn finish(&mut self) {
        self.bytes.send_data(Bytes::new(), true).unwrap();
    }

    /// The status with which the call ends, and the number of bytes of its replies.
    pub async fn end(self) -> (Status, usize) {
        let read = async {
            let (headers, mut body) = match self.begun {
                Some(mut body) => {
                    body.flow_control().release_capacity(1).unwrap();
                    (HeaderMap::new(), body)
                }
                None => {
                    let (head, body) = self.answer.await.unwrap().into_parts();
                    (head.headers, body)
                }
            };
            let mut bytes = 0;
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                bytes += data.len();
                body.flow_control().release_capacity(data.len()).unwrap();
            }
            let trailers: Option<HeaderMap> = body.trailers().await.unwrap();
            (Status::from_header_map(&trailers.unwrap_or(headers)).unwrap(), bytes)
        };
        tokio::time::timeout(LONG, read).await.expect("it ends")
    }
}
