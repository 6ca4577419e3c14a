//! The tuned connection of the load generator. A worker on the same host should connect in the same way.

use super::{Address, BenchError};
use crate::dial::{Access, Token, causes, hint};
use crate::proto::sampler_client::SamplerClient;
use crate::proto::{GetServerInfoRequest, GetServerInfoResponse};
use std::time::Duration;
use tokio::time::timeout;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

/// Replies with many logprobs are larger than tonic's default limit of 4 MiB.
const MAX_REPLY_BYTES: usize = 64 << 20;
/// What the server may send before it must wait for us: several replies. h2 also derives its budget of small frames
/// from the windows.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// A client that presents a token if it needs one.
pub(super) type Client = SamplerClient<InterceptedService<Channel, Token>>;

/// Connects a client on its own connection.
pub(super) async fn connect(addr: &Address, access: &Access) -> Result<Client, BenchError> {
    let unreachable = |reason: String| BenchError::Unreachable { addr: addr.clone(), reason };
    let endpoint = access
        .endpoint(&addr.to_string())
        .map_err(BenchError::Args)?
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .tcp_nodelay(true);
    let token = access.token().map_err(BenchError::Args)?;
    let channel = endpoint.connect().await.map_err(|error| {
        let why = innermost(&error);
        match hint(&why, access) {
            "" => unreachable(why),
            hint => BenchError::Refused { addr: addr.clone(), reason: why + hint },
        }
    })?;
    Ok(SamplerClient::with_interceptor(channel, token).max_decoding_message_size(MAX_REPLY_BYTES))
}

/// How long a server may take to answer `GetServerInfo`.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The information of the server at an address.
pub(super) async fn server_info(addr: &Address, access: &Access) -> Result<GetServerInfoResponse, BenchError> {
    timeout(MAX_WAIT, asked(addr, access)).await.unwrap_or_else(|_| {
        let reason = format!("something is listening there but did not answer within {} s", MAX_WAIT.as_secs());
        Err(BenchError::Unreachable { addr: addr.clone(), reason })
    })
}

async fn asked(addr: &Address, access: &Access) -> Result<GetServerInfoResponse, BenchError> {
    let mut client = connect(addr, access).await?;
    let info = client.get_server_info(GetServerInfoRequest {}).await;
    let refused = |status: tonic::Status| {
        let why = causes(&status);
        let hint = match (hint(&why, access), &access.token_file) {
            ("", None) if status.code() == tonic::Code::Unauthenticated => "; give the token's file with --token-file",
            (hint, _) => hint,
        };
        BenchError::Refused { addr: addr.clone(), reason: why + hint }
    };
    Ok(info.map_err(refused)?.into_inner())
}

/// The innermost cause, which people understand best: "Connection refused" rather than "transport error".
fn innermost(mut error: &dyn std::error::Error) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
