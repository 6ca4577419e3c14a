//! Placeholder of the sampler service.

use crate::backend::BackendInfo;
use crate::engine::Handle;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::params::SamplingParams;
use crate::proto::sampler_server::{Sampler, SamplerServer};
use crate::proto::{
    DecodeRequest, DecodeResponse, GetServerInfoRequest, GetServerInfoResponse, SampleRequest, SampleResponse,
};
use std::pin::Pin;
use std::sync::Arc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// The sampler service.
#[derive(Debug)]
pub struct Service {
    _engine: Handle,
    max_message_bytes: usize,
    draining: CancellationToken,
}

impl Service {
    /// A service in front of `engine`.
    #[must_use]
    pub fn new(
        engine: Handle,
        limits: Arc<Limits>,
        _defaults: SamplingParams,
        _info: BackendInfo,
        _metrics: Metrics,
    ) -> Self {
        Self { _engine: engine, max_message_bytes: limits.max_message_bytes, draining: CancellationToken::new() }
    }

    /// The tonic server of this service, with the message limit in force.
    #[must_use]
    pub fn into_server(self) -> SamplerServer<Self> {
        let max_message_bytes = self.max_message_bytes;
        SamplerServer::new(self).max_decoding_message_size(max_message_bytes)
    }

    /// Cancel it to drain: new calls get UNAVAILABLE, open streams go on.
    #[must_use]
    pub fn drain_token(&self) -> CancellationToken {
        self.draining.clone()
    }
}

#[tonic::async_trait]
impl Sampler for Service {
    type DecodeStream = Pin<Box<dyn Stream<Item = Result<DecodeResponse, Status>> + Send>>;

    async fn decode(&self, _: Request<Streaming<DecodeRequest>>) -> Result<Response<Self::DecodeStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::pending())))
    }

    async fn sample(&self, _: Request<SampleRequest>) -> Result<Response<SampleResponse>, Status> {
        Err(Status::unimplemented("placeholder"))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        Ok(Response::new(GetServerInfoResponse::default()))
    }
}
