//! A bare tonic stream, which shows what the transport alone can do.
//!
//! It receives exactly the messages that Croupier receives, with the same windows and frames, and answers each without
//! looking at its logits. Croupier's throughput is reported as a share of the throughput of this stream.

use super::{Address, BenchError};
use crate::config::Config;
use crate::limits::Limits;
use crate::message::codec::{Looked, RawAttachRequest, RawDecodeRequest, RawGetServerInfoRequest, RawSampleRequest};
use crate::proto::decode_request::Request as Ask;
use crate::proto::decode_response::Response as Answer;
use crate::proto::sampler_server::{Sampler, SamplerServer};
use crate::proto::{self, DecodeRequest, DecodeResponse};
use std::pin::Pin;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming, transport::Server};

/// Arguments of the hidden subcommand `bench-baseline-server`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaselineArgs {
    /// Where to listen.
    pub addr: Address,
}

/// Serves the bare stream until the process is killed.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve_baseline(args: BaselineArgs) -> Result<(), BenchError> {
    // Use the same allocator settings as Croupier, so that the ratio shows the cost of sampling and nothing else.
    crate::memory::keep_large_buffers();
    let http2 = Config::default().http2;
    let frame = match args.addr {
        Address::Tcp(_) => http2.frame_size_tcp,
        Address::Uds(_) => http2.frame_size_uds,
    };
    let service = SamplerServer::new(Bare).max_decoding_message_size(usize::MAX);
    let router = Server::builder()
        .initial_stream_window_size(http2.stream_window)
        .initial_connection_window_size(http2.connection_window)
        .max_frame_size(frame)
        .tcp_nodelay(true)
        .add_service(service);
    match args.addr {
        Address::Tcp(address) => {
            let listener = tokio::net::TcpListener::bind(address).await?;
            router.serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener).map(nodelay)).await?;
        }
        Address::Uds(path) => {
            let listener = tokio::net::UnixListener::bind(path)?;
            router.serve_with_incoming(tokio_stream::wrappers::UnixListenerStream::new(listener)).await?;
        }
    }
    Ok(())
}

/// `Server::tcp_nodelay` has no effect on connections of a listener that was created separately.
fn nodelay(connection: std::io::Result<tokio::net::TcpStream>) -> std::io::Result<tokio::net::TcpStream> {
    connection.and_then(|stream| stream.set_nodelay(true).map(|()| stream))
}

#[derive(Debug)]
struct Bare;

#[tonic::async_trait]
impl Sampler for Bare {
    type DecodeStream = Pin<Box<dyn Stream<Item = Result<DecodeResponse, Status>> + Send>>;
    type AttachStream = Pin<Box<dyn Stream<Item = Result<proto::AttachResponse, Status>> + Send>>;

    async fn decode(
        &self,
        request: Request<Streaming<RawDecodeRequest>>,
    ) -> Result<Response<Self::DecodeStream>, Status> {
        let limits = Limits::default();
        // Inspect and decode each message as Croupier does, so that the two differ only in sampling.
        let read = move |message: RawDecodeRequest| {
            let read = DecodeRequest::read(message, &limits).map_err(|e| Status::internal(e.to_string()));
            read.map(|(request, _)| request)
        };
        Ok(Response::new(Box::pin(request.into_inner().map(move |message| message.and_then(&read).map(answer)))))
    }

    async fn attach(&self, _: Request<Streaming<RawAttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::unimplemented("the baseline only has Decode"))
    }

    async fn sample(&self, _: Request<RawSampleRequest>) -> Result<Response<proto::SampleResponse>, Status> {
        Err(Status::unimplemented("the baseline only has Decode"))
    }

    async fn get_server_info(
        &self,
        _: Request<RawGetServerInfoRequest>,
    ) -> Result<Response<proto::GetServerInfoResponse>, Status> {
        Ok(Response::new(proto::GetServerInfoResponse { backend: "none".to_owned(), ..Default::default() }))
    }
}

/// Answers token 0 for every work, so that the client counts tokens in the same way on both sides.
fn answer(request: DecodeRequest) -> DecodeResponse {
    let response = match request.request {
        Some(Ask::Step(step)) => Answer::Step(proto::StepResult {
            step_id: step.step_id,
            open: step.open.iter().map(opened).collect(),
            work: vec![dealt(); step.work.len()],
            ..Default::default()
        }),
        _ => Answer::Ready(proto::StreamReady::default()),
    };
    DecodeResponse { response: Some(response) }
}

fn opened(open: &proto::OpenSequence) -> proto::OpenResult {
    let status = proto::OpenStatus::Ok.into();
    proto::OpenResult { sequence_id: open.sequence_id, status, ..Default::default() }
}

fn dealt() -> proto::WorkResult {
    let status = proto::RowStatus::Ok.into();
    proto::WorkResult { status, tokens: vec![proto::Token::default()], ..Default::default() }
}
