//! A call whose messages are spoiled on their way, and conditions on its replies, whatever the messages contained.

use crate::mutations::spoil::Spoiler;
use crate::mutations::told::Told;
use crate::raw::Raw;
use crate::support::violation;
use axum::http::uri::PathAndQuery;
use bytes::Bytes;
use croupier::proto::decode_request::Request;
use croupier::proto::decode_response::Response;
use croupier::proto::*;
use prost::Message;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

pub type Went<T> = Result<T, String>;

/// Far longer than these messages take. A call without an answer by then hangs.
pub const ANSWERED: Duration = Duration::from_secs(30);

/// A streaming call.
pub struct Call {
    /// `None` once no more messages are sent.
    requests: Option<mpsc::Sender<Bytes>>,
    replies: Streaming<Bytes>,
    /// Messages sent and not answered; `None` for one that cannot be decoded.
    unanswered: VecDeque<Option<DecodeRequest>>,
    /// The messages that were sent, to help find a fault.
    pub sent: Vec<Vec<u8>>,
    /// The status with which the call ended.
    pub ended: Option<Status>,
}

impl Call {
    pub async fn open(channel: &Channel, path: &'static str) -> Self {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let (requests, receiver) = mpsc::channel(64);
        let messages = tonic::Request::new(ReceiverStream::new(receiver));
        let call = grpc.streaming(messages, PathAndQuery::from_static(path), Raw);
        let replies = tokio::time::timeout(ANSWERED, call).await.expect("it is answered").unwrap().into_inner();
        Self { requests: Some(requests), replies, unanswered: VecDeque::new(), sent: Vec::new(), ended: None }
    }

    /// Sends what a spoiler makes of a message.
    pub async fn send(&mut self, message: &impl Message, spoiler: &mut Spoiler) {
        for bytes in spoiler.pass(&message.encode_to_vec()) {
            self.unanswered.push_back(DecodeRequest::decode(bytes.as_slice()).ok());
            self.sent.push(bytes.clone());
            // Fails if the call has ended, which the replies will say.
            if let Some(requests) = &self.requests {
                _ = requests.send(bytes.into()).await;
            }
        }
    }

    pub fn half_close(&mut self) {
        self.requests = None;
    }

    /// The next message of the server; `None` once the call has ended.
    pub async fn next(&mut self) -> Went<Option<Bytes>> {
        if self.ended.is_some() {
            return Ok(None);
        }
        match tokio::time::timeout(ANSWERED, self.replies.message()).await {
            Err(_) => Err("no answer".to_owned()),
            Ok(Ok(Some(bytes))) => Ok(Some(bytes)),
            Ok(Ok(None)) => {
                self.ended = Some(Status::ok(""));
                Ok(None)
            }
            Ok(Err(status)) => {
                self.ended = Some(status);
                Ok(None)
            }
        }
    }

    /// Reads the replies to all that was sent, or to the end of the stream, and returns the last.
    pub async fn answers(&mut self, told: &mut Told) -> Went<Option<Response>> {
        let mut last = None;
        while !self.unanswered.is_empty() {
            let Some(bytes) = self.next().await? else { return Ok(None) };
            let request = self.unanswered.pop_front().flatten().ok_or("what cannot be decoded was answered")?;
            let reply = DecodeResponse::decode(bytes).map_err(|error| error.to_string())?;
            let reply = reply.response.ok_or("an empty reply")?;
            answers(&request, &reply, told)?;
            last = Some(reply);
        }
        Ok(last)
    }

    /// Reads to the end, which must be a documented status.
    pub async fn end(&mut self, told: &mut Told) -> Went<()> {
        self.half_close();
        self.answers(told).await?;
        while self.next().await?.is_some() {}
        let status = self.ended.as_ref().expect("it has ended");
        if status.code() == Code::Ok && !self.unanswered.is_empty() {
            return Err(format!("{} messages have no answer", self.unanswered.len()));
        }
        documented(status, told)
    }
}

/// Whether a status is one that messages can cause.
pub fn documented(status: &Status, told: &mut Told) -> Went<()> {
    if status.code() == Code::Ok {
        return Ok(());
    }
    let (field, reason) = violation(status);
    let codes: &[Code] = match reason.as_str() {
        "INVALID_FIELD" if field.is_empty() => return Err(format!("no field: {status}")),
        "UNIMPLEMENTED_FIELD" if field.is_empty() => return Err(format!("no field: {status}")),
        "INVALID_FIELD" | "MALFORMED_MESSAGE" | "TOO_MANY_ITEMS" => &[Code::InvalidArgument],
        "UNIMPLEMENTED_FIELD" => &[Code::Unimplemented],
        "UNKNOWN_REGION" => &[Code::NotFound],
        "STALE_REGION" => &[Code::FailedPrecondition],
        "UNKNOWN_SHARD_TOKEN" => &[Code::PermissionDenied],
        "RANK_TAKEN" => &[Code::AlreadyExists],
        "STATE_BYTES" | "ROWS_IN_FLIGHT" | "BYTES_IN_FLIGHT" | "TOO_MANY_SEQUENCES" => &[Code::ResourceExhausted],
        _ => return Err(format!("a message cannot give {status}")),
    };
    if !codes.contains(&status.code()) || status.message().is_empty() {
        return Err(format!("{reason}: {status}"));
    }
    told.status(&reason, &field);
    Ok(())
}

/// Whether a reply answers its request.
fn answers(request: &DecodeRequest, reply: &Response, told: &mut Told) -> Went<()> {
    match (&request.request, reply) {
        (Some(Request::Config(config)), Response::Ready(_)) => told.vocabulary(config.vocab_size),
        (Some(Request::Step(step)), Response::Step(result)) => answers_step(step, result, told)?,
        (request, reply) => return Err(format!("{reply:?} does not answer {request:?}")),
    }
    Ok(())
}

fn answers_step(step: &Step, result: &StepResult, told: &mut Told) -> Went<()> {
    if result.step_id != step.step_id {
        return Err(format!("step {} was answered as {}", step.step_id, result.step_id));
    }
    if let Some(refusal) = &result.refusal {
        told.status(&refusal.reason, "");
        return Ok(());
    }
    let works = if result.in_slots { 0 } else { step.work.len() };
    if (result.open.len(), result.work.len()) != (step.open.len(), works) {
        return Err(format!("{} openings and {} works: {result:?}", step.open.len(), step.work.len()));
    }
    for open in &result.open {
        opened(open, told).map_err(|what| format!("{what}: {open:?}"))?;
    }
    for work in &result.work {
        worked(work, told).map_err(|what| format!("{what}: {work:?}"))?;
    }
    Ok(())
}

fn opened(open: &OpenResult, told: &mut Told) -> Went<()> {
    let error = open.error.clone().unwrap_or_default();
    let named = !error.field.is_empty() && !error.message.is_empty();
    told.open(open.status(), &error.field);
    match open.status() {
        OpenStatus::Unspecified => Err("no status".to_owned()),
        OpenStatus::Ok if open.error.is_some() => Err("an error of what is open".to_owned()),
        OpenStatus::InvalidArgument | OpenStatus::Unimplemented if !named => Err("no field".to_owned()),
        _ => Ok(()),
    }
}

fn worked(work: &WorkResult, told: &mut Told) -> Went<()> {
    told.work(work.status());
    if work.status() == RowStatus::Internal {
        return Err("a fault in the server".to_owned());
    }
    if work.status() != RowStatus::Ok {
        let silent = work.message.is_empty() || work.status() == RowStatus::Unspecified;
        return if silent || !work.tokens.is_empty() { Err("a failure of no kind".to_owned()) } else { Ok(()) };
    }
    let strange = |token: &Token| token.token_id >= told.vocab || token.logprob.is_some_and(|x| x.is_nan() || x > 1e-3);
    if work.tokens.is_empty() || work.tokens.iter().any(strange) {
        return Err("no token, or one that cannot be".to_owned());
    }
    Ok(())
}
