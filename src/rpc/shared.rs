//! What all calls share, and what is recorded of each call.

use super::blocking;
use super::caller::Caller;
use super::convert::config::Config;
use super::convert::opening::Openings;
use super::convert::params::SeedSource;
use super::info::Offered;
use super::outbound::calls::Calls;
use super::outbound::unread::{Answers, Replies};
use super::stream_age::StreamAges;
use super::{Options, RegionSide, ServerSetup, status};
use crate::backend::BackendInfo;
use crate::blocking_semaphore::BlockingSemaphore;
use crate::complaints::{Complaints, complain_at_times};
use crate::engine;
use crate::engine::shards::Shards;
use crate::error::Error;
use crate::grammar::CompileDeadline;
use crate::limits::Limits;
use crate::message::look::AllDropped;
use crate::metrics::{Metrics, Stage};
use crate::trace::Tracer;
use prost::Message;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// What every call needs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) engine: engine::Handle,
    pub(super) limits: Arc<Limits>,
    pub(super) setup: Arc<ServerSetup>,
    pub(super) info: BackendInfo,
    pub(super) metrics: Metrics,
    /// Limits log lines about calls, steps and messages that are refused.
    refusals: Complaints,
    pub(super) seeds: SeedSource,
    /// Turns at building long sequences, one for each core. Turns are needed because the memory of a sequence is
    /// counted only once it is built.
    pub(super) building: Arc<BlockingSemaphore>,
    /// Turns at taking in stateless calls that take long.
    pub(super) long_calls: Semaphore,
    /// Cancelled when a drain begins. The server takes no new calls from then on.
    pub(super) draining: CancellationToken,
    /// Cancelled at the end of a drain. Streams that are still open end then.
    pub(super) closing: CancellationToken,
    pub(super) calls: Calls,
    pub(super) stream_ages: StreamAges,
    /// How long a client may take to answer a ping. A client that was silent this long when its connection was cut did
    /// not answer.
    pub(super) ping_timeout: Duration,
    /// Where workers find shared memory, if the server offers it.
    pub(super) region_side: Option<RegionSide>,
    pub(super) shards: Arc<Shards>,
    pub(super) tracer: Option<Tracer>,
}

/// What is known of a received message beside its fields.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) at: Instant,
    /// The message's encoded size.
    pub(super) bytes: usize,
    /// Fields in the message's openings and works that this server does not know.
    pub(super) dropped: AllDropped,
}

impl Shared {
    pub(super) fn new(
        engine: engine::Handle,
        limits: Arc<Limits>,
        info: BackendInfo,
        metrics: Metrics,
        options: Options,
    ) -> Self {
        let shards = Shards::new(&limits, metrics.clone());
        if let Some(grammars) = &options.setup.grammars {
            grammars.give_way_in(&engine.state());
        }
        let (seeds, calls) = (SeedSource::default(), Calls::new(&engine));
        let (draining, closing) = (CancellationToken::new(), CancellationToken::new());
        let Options { setup, max_age, ping_timeout, regions: region_side, tracer } = options;
        let (setup, long_calls) = (Arc::new(setup), Semaphore::new(blocking::most_long_calls(&limits)));
        Self {
            engine,
            limits,
            setup,
            info,
            metrics,
            refusals: Complaints::default(),
            seeds,
            building: BlockingSemaphore::one_per_core(),
            long_calls,
            draining,
            closing,
            calls,
            stream_ages: StreamAges::from(max_age),
            ping_timeout,
            region_side,
            shards,
            tracer,
        }
    }

    /// Where streams may lease regions.
    pub(super) fn offered(&self) -> Offered<'_> {
        let side = self.region_side.as_ref();
        Offered { regions: side.is_some(), device: side.and_then(|side| side.regions.device()) }
    }

    /// The means to open the sequences of one message, whose grammars may wait as long as `compile_deadline` says.
    pub(super) fn openings<'m>(&'m self, config: &'m Config, compile_deadline: CompileDeadline) -> Openings<'m> {
        Openings { config, seeds: &self.seeds, building: &self.building, compile_deadline }
    }

    pub(super) fn admit(&self) -> Result<(), Error> {
        if self.draining.is_cancelled() { Err(Error::Draining) } else { Ok(()) }
    }

    /// Whether a stream whose [age](StreamAges) ends then is asked to leave. GOAWAY says nothing to open streams.
    pub(super) fn asks_to_leave(&self, end: Option<Instant>) -> bool {
        end.is_some_and(|end| Instant::now() >= end) || self.draining.is_cancelled()
    }

    /// Counts an error that refuses or ends a call, and returns its status.
    pub(super) fn refuse(&self, error: &Error, caller: &Caller) -> Status {
        self.metrics.refused(error.reason());
        let status = status::from_error(error);
        let (peer, reason) = (&**caller.peer(), error.reason().name());
        complain_at_times!(self.refusals, peer, reason, "refused: {}", status.message());
        status
    }

    /// The same answers under a watch: they end when the client does not take them in time, or when the server no
    /// longer waits for them.
    pub(super) fn watched<S: Answers>(&self, answers: S) -> Replies<S> {
        Replies::new(answers, self.limits.reply_timeout, &self.closing)
    }

    /// Records a message of Decode, Attach or Sample that came in.
    pub(super) fn received(&self, message: &impl Message, dropped: AllDropped) -> Received {
        let bytes = message.encoded_len();
        self.metrics.request_bytes.record(bytes as f64);
        Received { at: Instant::now(), bytes, dropped }
    }

    /// Records a message of Decode, Attach or Sample that goes out.
    pub(super) fn sent(&self, message: &impl Message) {
        self.metrics.response_bytes.record(message.encoded_len() as f64);
    }

    /// Records the stages that end with a step's reply being ready to go out, which is now.
    pub(super) fn replied(&self, received: Instant, finished: Instant) -> Instant {
        let now = Instant::now();
        self.metrics.stage(Stage::Reply, now.saturating_duration_since(finished));
        self.metrics.stage(Stage::Total, now.saturating_duration_since(received));
        now
    }

    /// Counts the end of a call.
    pub(super) fn finished(&self, method: &str, started: Instant, code: tonic::Code) {
        self.metrics.call_finished(method, status::code_name(code), started.elapsed());
    }
}
