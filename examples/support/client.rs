//! A stream to the server, as any worker opens it.

use super::Result;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::{DecodeRequest, DecodeResponse, Step, StepResult, StreamConfig, decode_request, decode_response};
use std::path::Path;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

/// Room for all messages in flight. With the default of 64 KiB, the flow would stall within every row.
const WINDOW: u32 = 16 << 20;

/// Connects to the server's socket.
pub(crate) async fn connect(socket: &Path) -> Result<SamplerClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    Ok(SamplerClient::new(endpoint.connect().await?))
}

/// Opens and configures a stream with at most `steps` steps in flight.
pub(crate) async fn open(
    client: &mut SamplerClient<Channel>,
    config: StreamConfig,
    steps: usize,
) -> Result<(mpsc::Sender<DecodeRequest>, Streaming<DecodeResponse>)> {
    let (requests, outbound) = mpsc::channel(steps + 1);
    requests.send(DecodeRequest { request: Some(decode_request::Request::Config(config)) }).await?;
    let mut replies = client.decode(ReceiverStream::new(outbound)).await?.into_inner();
    match replies.message().await?.and_then(|reply| reply.response) {
        Some(decode_response::Response::Ready(_)) => Ok((requests, replies)),
        other => Err(format!("the server answered the configuration with {other:?}").into()),
    }
}

/// Wraps a step in a message.
pub(crate) fn request(step: Step) -> DecodeRequest {
    DecodeRequest { request: Some(decode_request::Request::Step(step)) }
}

/// The step's id and result.
pub(crate) fn step_result(reply: Option<DecodeResponse>) -> Result<(usize, StepResult)> {
    match reply.and_then(|reply| reply.response) {
        Some(decode_response::Response::Step(result)) => Ok((result.step_id as usize, result)),
        Some(other) => Err(format!("expected the answer to a step, got {other:?}").into()),
        None => Err("the server ended the stream".into()),
    }
}
