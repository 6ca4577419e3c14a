//! Placeholder of the sampler service.

use crate::backend::BackendInfo;
use crate::engine::Handle;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::params::SamplingParams;
use crate::proto::sampler_server::Sampler;
use crate::proto::{
    DecodeRequest, DecodeResponse, GetServerInfoRequest, GetServerInfoResponse, SampleRequest, SampleResponse,
};
use std::pin::Pin;
use std::sync::Arc;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

/// The sampler service.
#[derive(Debug)]
pub struct Service {
    _engine: Handle,
}

impl Service {
    /// A service in front of `engine`.
    #[must_use]
    pub fn new(
        engine: Handle,
        _limits: Arc<Limits>,
        _defaults: SamplingParams,
        _info: BackendInfo,
        _metrics: Metrics,
    ) -> Self {
        Self { _engine: engine }
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
