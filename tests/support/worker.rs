//! The worker's end of a stream.

use croupier::proto::decode_request::Request;
use croupier::proto::decode_response::Response;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::*;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// The worker's end of a stream.
pub struct Worker {
    requests: Option<mpsc::Sender<DecodeRequest>>,
    replies: Streaming<DecodeResponse>,
    steps: u64,
}

impl Worker {
    /// A stream on which nothing was sent yet.
    pub async fn over(channel: Channel) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(256);
        let replies = SamplerClient::new(channel).decode(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { requests: Some(requests), replies, steps: 0 })
    }

    /// Configures the stream, and asks for regions.
    pub async fn with_regions(mut self, config: StreamConfig) -> (Self, RegionOffer) {
        self.send(Request::Config(StreamConfig { wants_regions: true, ..config })).await;
        let offer = self.ready().await.region_offer.expect("regions are offered");
        (self, offer)
    }

    pub async fn send(&mut self, request: Request) {
        self.send_raw(DecodeRequest { request: Some(request) }).await;
    }

    /// Sends if the stream is still open. If it has ended, the reply says why.
    pub async fn try_send(&mut self, request: Request) {
        _ = self.requests.as_ref().unwrap().send(DecodeRequest { request: Some(request) }).await;
    }

    pub async fn send_raw(&mut self, request: DecodeRequest) {
        self.requests.as_ref().unwrap().send(request).await.unwrap();
    }

    pub async fn send_step(&mut self, mut step: Step) -> u64 {
        self.steps += 1;
        step.step_id = self.steps;
        self.send(Request::Step(step)).await;
        self.steps
    }

    /// The next message; `None` at the end of the stream.
    pub async fn reply(&mut self) -> Result<Option<Response>, Status> {
        let reply = tokio::time::timeout(Duration::from_secs(60), self.replies.message()).await;
        Ok(reply.expect("an answer in time")?.map(|reply| reply.response.expect("a response")))
    }

    /// The answer to a configuration.
    pub async fn ready(&mut self) -> StreamReady {
        match self.reply().await.unwrap() {
            Some(Response::Ready(ready)) => {
                assert!(ready.limits.is_some());
                ready
            }
            other => panic!("expected ready, got {other:?}"),
        }
    }

    pub async fn step_reply(&mut self) -> Result<StepResult, Status> {
        match self.reply().await? {
            Some(Response::Step(result)) => Ok(result),
            other => panic!("expected the result of a step, got {other:?}"),
        }
    }

    /// Sends a step and waits for its answer.
    pub async fn step(&mut self, step: Step) -> StepResult {
        let id = self.send_step(step).await;
        let result = self.step_reply().await.unwrap();
        assert_eq!(result.step_id, id);
        result
    }

    /// Sends a step that must end the stream, and returns the status.
    pub async fn failing_step(&mut self, step: Step) -> Status {
        self.send_step(step).await;
        self.step_reply().await.unwrap_err()
    }

    /// Ends the requests.
    pub fn half_close(&mut self) {
        self.requests = None;
    }
}
