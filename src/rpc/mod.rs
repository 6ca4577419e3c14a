//! The gRPC service: the only code that sees protobuf and tonic.
//!
//! Reading order: [`connections`] (how a client gets in), [`server`] and [`auth`] (how its calls get in), `inbound`
//! (how their messages get in), [`decode`] (the life of a stream), `attach` (the life of another rank's call), `sample`
//! (a batch without a stream), `offers` (what a stream is offered beside its answers), `outbound` (how replies get out,
//! and what happens to those that nobody reads), `convert` (wire types to domain types and back), `status` (errors),
//! `shared` (what all of these need), `traces`. [`regions`] and `refusals` are the side socket.

mod attach;
pub mod auth;
mod blocking;
pub mod caller;
pub mod connections;
mod convert;
mod decode;
pub mod health;
mod inbound;
mod info;
mod offers;
mod outbound;
mod pace;
mod refusals;
pub mod regions;
mod sample;
pub mod server;
mod shard_wait_queue;
mod shared;
mod status;
mod stream_age;
mod traces;

use crate::backend::BackendInfo;
use crate::engine;
use crate::error::Error;
use crate::grammar::{Flow, Grammars};
use crate::limits::Limits;
use crate::message::codec::{Looked, RawAttachRequest, RawDecodeRequest, RawGetServerInfoRequest, RawSampleRequest};
use crate::metrics::Metrics;
use crate::params::SamplingParams;
use crate::params::presets::Presets;
use crate::proto;
use crate::proto::sampler_server::{Sampler, SamplerServer};
use crate::region::Regions;
use crate::trace::Tracer;
use crate::vocabulary::Vocabulary;
use attach::AttachStream;
pub use blocking::most_threads;
use caller::Caller;
use decode::DecodeStream;
use inbound::receive::{Flag, Requests};
pub use outbound::calls::Calls;
use outbound::unread::Replies;
use shared::{Received, Shared};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// The sampling service.
#[derive(Debug, Clone)]
pub struct Service {
    shared: Arc<Shared>,
}

/// What the server was set up with, for all streams.
#[derive(Debug, Clone, Default)]
pub struct ServerSetup {
    /// Parameters for sequences when neither they nor their stream give any.
    pub defaults: SamplingParams,
    /// The same parameters as text, in the form in which clients are told of them.
    pub defaults_written: String,
    /// Parameters that a sequence or a stream can choose by name.
    pub presets: Presets,
    /// The texts of tokens, for samplers that need them.
    pub vocabulary: Option<Arc<Vocabulary>>,
    /// Grammars over the vocabulary.
    pub grammars: Option<Arc<Grammars>>,
    /// The texts of all calls of `Sample`, which take turns with those of streams as if they were one stream.
    pub sample_flow: Arc<Flow>,
}

impl ServerSetup {
    /// Adds the texts of tokens. With `of_grammars`, which records their compilation, it also adds grammars over these
    /// texts.
    #[must_use]
    pub fn with_vocabulary(self, vocabulary: Arc<Vocabulary>, of_grammars: Option<&Metrics>) -> Self {
        let compiled = |metrics: &Metrics| {
            Arc::new(Grammars::new(Arc::clone(&vocabulary)).recorded(metrics.grammar_compile.clone()))
        };
        Self { grammars: of_grammars.map(compiled), vocabulary: Some(vocabulary), ..self }
    }
}

/// Settings of a service that have a default.
#[derive(Debug)]
pub struct Options {
    /// What the server was set up with, for all streams.
    pub setup: ServerSetup,
    /// Streams that are older than this are asked to leave; zero means never.
    pub max_age: Duration,
    /// How long a client may take to answer a ping. It tells clients whose connections are cut for silence from clients
    /// that leave.
    pub ping_timeout: Duration,
    /// Offers regions to streams that ask for them.
    pub regions: Option<RegionSide>,
    /// Records traces.
    pub tracer: Option<Tracer>,
}

impl Default for Options {
    fn default() -> Self {
        let (max_age, ping_timeout) = (Duration::ZERO, Duration::MAX);
        Self { setup: ServerSetup::default(), max_age, ping_timeout, regions: None, tracer: None }
    }
}

/// The regions and the socket that hands them out.
#[derive(Debug, Clone)]
pub struct RegionSide {
    /// All regions of the server.
    pub regions: Arc<Regions>,
    /// The path of the side socket.
    pub socket: PathBuf,
}

impl Service {
    /// A service over `engine`.
    #[must_use]
    pub fn new(
        engine: engine::Handle,
        limits: Arc<Limits>,
        info: BackendInfo,
        metrics: Metrics,
        options: Options,
    ) -> Self {
        Self { shared: Arc::new(Shared::new(engine, limits, info, metrics, options)) }
    }

    /// The open calls, of all that pass through [`Self::add_to`].
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.shared.calls.clone()
    }

    /// Cancel this token to drain: new calls get UNAVAILABLE, open streams are asked to leave but go on.
    #[must_use]
    pub fn drain_token(&self) -> CancellationToken {
        self.shared.draining.clone()
    }

    /// Cancel this token at the end of a drain: streams that are still open end, and their clients are told why.
    #[must_use]
    pub fn closing_token(&self) -> CancellationToken {
        self.shared.closing.clone()
    }

    /// Adds this service to `routes`, with the message limit in force, and puts the watch on incoming calls around all
    /// of them.
    #[must_use]
    pub fn add_to(self, routes: Routes) -> Routes {
        let shared = Arc::clone(&self.shared);
        let server = SamplerServer::new(self).max_decoding_message_size(shared.limits.max_message_bytes);
        inbound::receive::watched(routes.add_service(server), shared)
    }
}

#[tonic::async_trait]
impl Sampler for Service {
    type DecodeStream = Replies<DecodeStream>;
    type AttachStream = Replies<AttachStream>;

    async fn decode(
        &self,
        request: Request<Streaming<RawDecodeRequest>>,
    ) -> Result<Response<Self::DecodeStream>, Status> {
        Flag::set_heard(&request);
        let (started, caller) = (Instant::now(), Caller::of(request.extensions()));
        let admitted = self.shared.admit().and_then(|()| self.shared.engine.admit_stream());
        match admitted {
            Ok(permit) => {
                let parent = self.shared.context(request.metadata());
                let requests = Requests::of(request);
                let stream = DecodeStream::new(Arc::clone(&self.shared), caller, requests, permit, parent, started);
                let outgoing = stream.outgoing();
                let mut response = Response::new(self.shared.watched(stream));
                response.extensions_mut().insert(outgoing);
                Ok(response)
            }
            Err(error) => {
                let status = self.shared.refuse(&error, &caller);
                self.shared.finished("Decode", started, status.code());
                Err(status)
            }
        }
    }

    async fn attach(
        &self,
        request: Request<Streaming<RawAttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        Flag::set_heard(&request);
        let (started, caller) = (Instant::now(), Caller::of(request.extensions()));
        let admitted = self.shared.admit().and_then(|()| self.shared.shards.admit().map_err(Error::Refused));
        match admitted {
            Ok(permit) => {
                let stream =
                    AttachStream::new(Arc::clone(&self.shared), caller, Requests::of(request), permit, started);
                Ok(Response::new(self.shared.watched(stream)))
            }
            Err(error) => {
                let status = self.shared.refuse(&error, &caller);
                self.shared.finished("Attach", started, status.code());
                Err(status)
            }
        }
    }

    async fn sample(&self, request: Request<RawSampleRequest>) -> Result<Response<proto::SampleResponse>, Status> {
        Flag::set_heard(&request);
        let deadline = request.extensions().get().copied().unwrap_or_default();
        let (shared, caller) = (Arc::clone(&self.shared), Caller::of(request.extensions()));
        let mut call = sample::Call::start(shared, caller, self.shared.context(request.metadata()), deadline);
        let result = sample::run(&mut call, request.into_inner()).await;
        call.finish(result)
    }

    async fn get_server_info(
        &self,
        request: Request<RawGetServerInfoRequest>,
    ) -> Result<Response<proto::GetServerInfoResponse>, Status> {
        Flag::set_heard(&request);
        let (started, shared, caller) = (Instant::now(), &self.shared, Caller::of(request.extensions()));
        let read = proto::GetServerInfoRequest::read(request.into_inner(), &shared.limits);
        let info = read.map(|(proto::GetServerInfoRequest {}, _)| {
            info::server_info(&shared.info, &shared.limits, &shared.setup, shared.offered())
        });
        let info = info.map_err(|error| shared.refuse(&error, &caller));
        shared.finished("GetServerInfo", started, info.as_ref().err().map_or(tonic::Code::Ok, Status::code));
        info.map(Response::new)
    }
}
