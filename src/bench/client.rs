//! The tuned connection of a load generator, as a worker on the same host should make it.

use super::{Address, BenchError};
use crate::proto::sampler_client::SamplerClient;
use crate::proto::{GetServerInfoRequest, GetServerInfoResponse};
use tonic::transport::{Channel, Endpoint};

/// Replies with many logprobs are larger than tonic's 4 MiB.
const MOST_REPLY_BYTES: usize = 64 << 20;
/// What the server may send before it waits for us: several replies. Windows also set h2's budget of small frames.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// A client on a connection of its own.
pub(super) async fn connect(addr: &Address) -> Result<SamplerClient<Channel>, BenchError> {
    let unreachable = |e: &dyn std::error::Error| BenchError::Unreachable { addr: addr.clone(), reason: innermost(e) };
    let uri = match addr {
        Address::Tcp(address) => format!("http://{address}"),
        // tonic reads unix:PATH itself and sends "localhost" as the authority: h2 refuses one with slashes.
        Address::Uds(_) => addr.to_string(),
    };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(|e| unreachable(&e))?
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .tcp_nodelay(true);
    let channel = endpoint.connect().await.map_err(|e| unreachable(&e))?;
    Ok(SamplerClient::new(channel).max_decoding_message_size(MOST_REPLY_BYTES))
}

/// Who answers at an address.
pub(super) async fn server_info(addr: &Address) -> Result<GetServerInfoResponse, BenchError> {
    let mut client = connect(addr).await?;
    let info = client.get_server_info(GetServerInfoRequest {}).await;
    let failed = |status: tonic::Status| BenchError::Unreachable { addr: addr.clone(), reason: status.to_string() };
    Ok(info.map_err(failed)?.into_inner())
}

/// The cause people understand: "Connection refused" rather than "transport error".
fn innermost(mut error: &dyn std::error::Error) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
