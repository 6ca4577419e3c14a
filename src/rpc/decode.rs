//! The life of one `Decode` stream.
//!
//! The stream of replies drives everything. When HTTP/2 asks for a reply, the stream hands out the one whose turn it
//! is. If none is ready, it reads the next request, provided that one more step may be in flight. So a worker that does
//! not read its replies is not read from either, and dropping the call frees everything it held. Only the watch on a
//! worker that does not read (`unread`) runs beside the call.

use super::blocking::blocking;
use super::caller::Caller;
use super::convert::config::{Config, config};
use super::convert::opening::take_long;
use super::convert::{reply, step};
use super::inbound::receive::Requests;
use super::offers::{offer, ranks};
use super::outbound::outlet::Outgoing;
use super::outbound::unread::Answers;
use super::pace::Pace;
use super::shard_wait_queue::ShardWaitQueue;
use super::traces::{self, MaybeSpan};
use super::{Received, Shared, info};
use crate::engine::step::StepReply;
use crate::engine::{StepOrigin, StreamHandle};
use crate::error::Error;
use crate::grammar::CompileDeadline;
use crate::message::codec::{Looked, RawDecodeRequest};
use crate::message::look::AllDropped;
use crate::permits::Permit;
use crate::proto;
use crate::proto::decode_request::Request;
use crate::proto::decode_response::Response;
use crate::trace::context::Context as TraceContext;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio_stream::Stream;
use tonic::{Code, Status};

/// Replies of one stream, in the order of its requests.
#[derive(Debug)]
pub struct DecodeStream {
    shared: Arc<Shared>,
    caller: Caller,
    /// The stream's place on the server. The stream keeps it to the end of the call, because what HTTP/2 holds of the
    /// call takes memory that long.
    place: Arc<Permit>,
    /// Closed once the worker has ended its side or made a mistake.
    requests: Requests<RawDecodeRequest>,
    phase: Phase,
    /// Where the next replies come from, in order; never more than the steps that may be in flight.
    due: VecDeque<Due>,
    /// Steps that wait for the shards of other ranks, and the steps behind them.
    shard_queue: ShardWaitQueue,
    /// Replies that were handed out, until HTTP/2 has taken them.
    outgoing: Outgoing,
    /// The trace for steps that name none of their own.
    parent: Option<TraceContext>,
    /// Decides when to rest so that replies go out.
    pace: Pace,
    /// When the last due reply was handed out, while the worker has yet to send its next message; `None` while replies
    /// are due.
    turn: Option<Instant>,
    started: Instant,
    /// When the worker is asked to leave, if ever.
    leaves: Option<Instant>,
    ended: Option<Code>,
}

#[derive(Debug)]
enum Phase {
    /// The first message has not come yet, or the stream was given up.
    Unconfigured,
    Configured(Box<Config>, StreamHandle),
}

/// Where a reply comes from.
#[derive(Debug)]
enum Due {
    /// The engine will send the reply.
    Engine(MaybeSpan),
    /// The reply is here.
    Ready(Box<Response>),
    /// The stream ends with this status.
    End(Status),
}

impl DecodeStream {
    pub(super) fn new(
        shared: Arc<Shared>,
        caller: Caller,
        requests: Requests<RawDecodeRequest>,
        permit: Permit,
        parent: Option<TraceContext>,
        started: Instant,
    ) -> Self {
        let (phase, place) = (Phase::Unconfigured, Arc::new(permit));
        let (due, shard_queue) = (VecDeque::new(), ShardWaitQueue::default());
        let (outgoing, pace, leaves) = (Outgoing::default(), Pace::default(), shared.stream_ages.end(started));
        Self {
            shared,
            caller,
            place,
            requests,
            phase,
            due,
            shard_queue,
            outgoing,
            parent,
            pace,
            turn: None,
            started,
            leaves,
            ended: None,
        }
    }

    /// The stream's replies after they are handed out.
    pub(super) fn outgoing(&self) -> Outgoing {
        self.outgoing.clone()
    }

    /// Takes in one request. Its reply, or the end of the stream, is due afterwards.
    fn accept(&mut self, request: RawDecodeRequest) {
        match proto::DecodeRequest::read(request, &self.shared.limits)
            .and_then(|(request, dropped)| self.take_in(request, dropped))
        {
            Ok(due) => self.due.push_back(due),
            Err(error) => {
                let status = self.shared.refuse(&error, &self.caller);
                self.end(status);
            }
        }
    }

    fn take_in(&mut self, request: proto::DecodeRequest, dropped: AllDropped) -> Result<Due, Error> {
        let received = self.shared.received(&request, dropped);
        if let Some(turn) = self.turn.take() {
            self.shared.metrics.worker_turn.record(received.at.saturating_duration_since(turn));
        }
        match request.request {
            None => Err(Error::invalid(
                "request",
                "is not set; set config in the first message, and step in every later one",
            )),
            Some(Request::Config(config)) => self.configure(config),
            Some(Request::Step(step)) => self.submit(step, received),
        }
    }

    fn configure(&mut self, wire: proto::StreamConfig) -> Result<Due, Error> {
        if !matches!(self.phase, Phase::Unconfigured) {
            return Err(Error::invalid(
                "config",
                "is allowed only in the first message; send steps now, or open another stream",
            ));
        }
        let limits = &self.shared.limits;
        let state = self.shared.engine.state();
        let wants_regions = wire.wants_regions;
        let config = config(wire, &self.shared.setup, limits, state, &CompileDeadline::default());
        let mut config = config.map_err(|e| e.within("config"))?;
        let origin =
            StepOrigin { model: self.shared.metrics.model(&config.model), peer: Arc::clone(self.caller.peer()) };
        let place = Arc::clone(&self.place);
        let stream = self.shared.engine.open_stream(place, origin, limits.max_steps_in_flight_per_stream)?;
        tracing::debug!(peer = &**self.caller.peer(), model = config.model, "a stream is configured");
        config.has_regions = self.shared.region_side.is_some();
        let side = self.shared.region_side.as_ref().filter(|_| wants_regions);
        let region_offer = side.and_then(|side| offer(side, &mut config));
        let shard_offer = ranks(&self.shared, &mut config)?;
        self.phase = Phase::Configured(Box::new(config), stream);
        Ok(Due::Ready(Box::new(Response::Ready(proto::StreamReady {
            server_version: info::VERSION.to_owned(),
            backend: self.shared.info.name.to_owned(),
            limits: Some(info::wire_limits(limits, self.shared.offered())),
            region_offer,
            shard_offer,
        }))))
    }

    fn submit(&mut self, wire: proto::Step, mut received: Received) -> Result<Due, Error> {
        let Phase::Configured(config, stream) = &self.phase else {
            return Err(Error::invalid("config", "must be the first message of the stream"));
        };
        let (shared, step_id) = (&self.shared, wire.step_id);
        let mut span = shared.step_span(&wire.traceparent, self.parent, &received);
        traces::tell(&mut span, |facts| traces::named(facts, &config.model, step_id));
        let sharded = matches!(wire.logits, Some(proto::step::Logits::Sharded(_)));
        let taken = self.shard_queue.place(received.bytes, sharded, stream).and_then(|place| {
            let mut dropped = std::mem::take(&mut received.dropped);
            let (step, open) = step::step(wire, config, received, &mut dropped).map_err(|e| e.within("step"))?;
            let (rows, path) = (step.rows(), step.logits.data_path());
            tracing::debug!(step_id, rows, "received a step");
            traces::tell(&mut span, |facts| traces::asked(facts, &step));
            let (take_long, openings) = (take_long(&open, config), shared.openings(config, CompileDeadline::default()));
            let open = open.into_iter().enumerate();
            let open = open.map(|(at, wire)| openings.open(wire, dropped.of_opening(at)));
            // The iterator is lazy: `admit` builds the sequences.
            blocking(take_long, || self.shard_queue.admit(place, step, open, stream))?;
            Ok(path)
        });
        match taken {
            Ok(path) => {
                shared.metrics.step(path);
                Ok(Due::Engine(span))
            }
            Err(Error::Refused(refusal)) => {
                shared.end_refused(span, &Error::Refused(refusal), false);
                shared.metrics.refused(refusal.reason());
                Ok(Due::Ready(Box::new(Response::Step(reply::refused(step_id, refusal)))))
            }
            Err(error) => {
                shared.end_refused(span, &error, true);
                Err(error)
            }
        }
    }

    /// Ends the stream with `status`, after the replies that are due.
    fn end(&mut self, status: Status) {
        self.requests.close();
        self.due.push_back(Due::End(status));
    }

    /// Ends the call. The worker may not hear of the end for long, so everything that the call holds is freed at once.
    fn finish(&mut self, code: Code) {
        self.ended = Some(code);
        self.requests.close();
        self.free();
    }

    /// Frees everything that the engine has of the stream.
    fn free(&mut self) {
        self.shard_queue = ShardWaitQueue::default();
        self.phase = Phase::Unconfigured;
    }

    /// Drops the replies that are due. Returns the status that was to end the stream after them, if there was one.
    fn drop_due(&mut self) -> Option<Status> {
        let mut end = None;
        for due in self.due.drain(..) {
            match due {
                Due::Engine(span) => self.shared.end_left(span, Code::Cancelled),
                Due::Ready(_) => {}
                Due::End(status) => end = Some(status),
            }
        }
        end
    }

    /// Polls the reply whose turn it is.
    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<Result<Response, Status>> {
        match self.due.front() {
            None => return Poll::Pending,
            Some(Due::Engine(_)) => {
                let Phase::Configured(_, stream) = &mut self.phase else { return Poll::Pending };
                let reply = ready!(stream.poll_reply(context));
                let Some(Due::Engine(span)) = self.due.pop_front() else { return Poll::Pending };
                return Poll::Ready(self.deliver(reply, span));
            }
            Some(Due::Ready(_) | Due::End(_)) => {}
        }
        match self.due.pop_front() {
            Some(Due::Ready(response)) => Poll::Ready(Ok(*response)),
            Some(Due::End(status)) => Poll::Ready(Err(status)),
            Some(Due::Engine(_)) | None => Poll::Pending,
        }
    }

    fn deliver(&mut self, reply: Option<StepReply>, mut span: MaybeSpan) -> Result<Response, Status> {
        let Some(reply) = reply else {
            self.shared.end_refused(span, &Error::EngineStopped, true);
            return Err(self.shared.refuse(&Error::EngineStopped, &self.caller));
        };
        let (received, finished) = (reply.received, reply.finished);
        traces::tell(&mut span, |facts| traces::answered(facts, &reply));
        let (result, room) = reply::step_result(reply);
        self.outgoing.expect(room);
        let response = Response::Step(result);
        let now = self.shared.replied(received, finished);
        self.pace.replied(received, now);
        self.shared.end_answered(span, now, None);
        Ok(response)
    }

    fn message(&self, mut response: Response) -> proto::DecodeResponse {
        if let Response::Step(result) = &mut response {
            result.go_away = self.shared.asks_to_leave(self.leaves);
        }
        proto::DecodeResponse { response: Some(response) }
    }

    fn hand_out(&mut self, due: Result<Response, Status>) -> Result<proto::DecodeResponse, Status> {
        if let Err(status) = &due {
            self.finish(status.code());
        }
        let message = due.map(|response| self.message(response));
        message.iter().for_each(|message| self.shared.sent(message));
        self.turn = self.due.is_empty().then(Instant::now);
        message
    }

    /// Polls the next reply, and reads requests until there is one.
    fn poll_reply(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<proto::DecodeResponse, Status>>> {
        while self.ended.is_none() {
            if let Poll::Ready(due) = self.poll_due(context) {
                return Poll::Ready(Some(self.hand_out(due)));
            }
            if self.pace.rests() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            // Hands over one step at a time: its reply may be ready at once, and then goes out first.
            if let Phase::Configured(_, stream) = &self.phase
                && self.shard_queue.poll(stream, context)
            {
                continue;
            }
            if self.due.len() >= self.shared.limits.max_steps_in_flight_per_stream.max(1) {
                return Poll::Pending;
            }
            match self.requests.poll(context) {
                Poll::Ready(Some(Ok(request))) => self.accept(request),
                Poll::Ready(Some(Err(status))) => self.end(status),
                Poll::Ready(None) if self.due.is_empty() => self.finish(Code::Ok),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(None)
    }
}

impl Stream for DecodeStream {
    type Item = Result<proto::DecodeResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.poll_reply(context);
        if next.is_pending() {
            self.pace.sent();
        }
        next
    }
}

impl Answers for DecodeStream {
    fn looks_stuck(&self) -> bool {
        let holds_back = !self.due.is_empty() || self.requests.hold_some();
        // Between the pieces of a long reply nobody asks for another reply, so an outlet that is not empty is no sign
        // of a stuck stream.
        self.outgoing.took_nothing() || (holds_back && self.outgoing.outlet().is_empty())
    }

    fn take_in_next(&mut self, context: &mut Context<'_>) {
        if self.due.is_empty() {
            self.requests.take_in_next(context);
        }
    }

    fn give_up(&mut self) {
        self.free();
        self.outgoing.clear();
        tracing::debug!("a worker does not read its replies; its stream ends");
        // A stream that had already ended for another reason keeps that reason.
        let end = self.drop_due();
        let unread = || self.shared.refuse(&Error::Unread(self.shared.limits.reply_timeout), &self.caller);
        let status = end.unwrap_or_else(unread);
        self.end(status);
    }

    fn close(&mut self) {
        if self.ended.is_some() {
            return;
        }
        self.free();
        let status = self.drop_due().unwrap_or_else(|| self.shared.refuse(&Error::DrainTimeout, &self.caller));
        self.end(status);
    }
}

impl Drop for DecodeStream {
    fn drop(&mut self) {
        // If a call is dropped before its end, its worker left it.
        let untold = self.drop_due().map(|status| status.code());
        self.shared.finished("Decode", self.started, self.ended.or(untold).unwrap_or(Code::Cancelled));
    }
}
