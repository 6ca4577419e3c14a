//! The life of one `Attach` call, in which a rank above 0 announces its columns step by step.
//!
//! As in [`decode`](super::decode), the stream of answers drives everything; only the watch on a rank that does not
//! read runs beside the call. Dropping the call removes the rank from its group.

use super::caller::Caller;
use super::convert::shards;
use super::inbound::receive::Requests;
use super::offers::region_offer;
use super::outbound::unread::Answers;
use super::{Shared, status};
use crate::engine::shards::attachment::Attachment;
use crate::error::Error;
use crate::message::codec::{Looked, RawAttachRequest};
use crate::message::look::AllDropped;
use crate::permits::Permit;
use crate::proto;
use crate::proto::attach_request::Request;
use crate::proto::attach_response::Response;
use crate::region::Guest;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio_stream::Stream;
use tonic::{Code, Status};

/// The answers to one rank.
#[derive(Debug)]
pub struct AttachStream {
    shared: Arc<Shared>,
    caller: Caller,
    /// Closed once the rank has ended its side or made a mistake.
    requests: Requests<RawAttachRequest>,
    phase: Phase,
    /// The rank's place on the server, kept until the call is gone.
    place: Arc<Permit>,
    /// Answers that are ready: a greeting, refusals, and the end.
    due: VecDeque<Result<Response, Status>>,
    started: Instant,
    ended: Option<Code>,
}

#[derive(Debug)]
enum Phase {
    /// The first message has not come yet, or the rank has left.
    Unknown,
    /// The rank is in its group, with the right to map regions.
    Attached { rank: Attachment, _guest: Option<Guest> },
}

impl AttachStream {
    pub(super) fn new(
        shared: Arc<Shared>,
        caller: Caller,
        requests: Requests<RawAttachRequest>,
        permit: Permit,
        started: Instant,
    ) -> Self {
        let (phase, place) = (Phase::Unknown, Arc::new(permit));
        Self { shared, caller, requests, phase, place, due: VecDeque::new(), started, ended: None }
    }

    fn accept(&mut self, request: RawAttachRequest) {
        let accepted = proto::AttachRequest::read(request, &self.shared.limits)
            .and_then(|(request, dropped)| self.take_in(request, dropped));
        if let Err(error) = accepted {
            let status = self.shared.refuse(&error, &self.caller);
            self.end(status);
        }
    }

    fn take_in(&mut self, request: proto::AttachRequest, dropped: AllDropped) -> Result<(), Error> {
        let bytes = self.shared.received(&request, dropped).bytes;
        match request.request {
            None => Err(Error::invalid(
                "request",
                "is not set; set rank in the first message, and shard in every later one",
            )),
            Some(Request::Rank(rank)) => self.attach(&rank),
            Some(Request::Shard(shard)) => self.announce(shard, bytes),
        }
    }

    fn attach(&mut self, wire: &proto::AttachRank) -> Result<(), Error> {
        if !matches!(self.phase, Phase::Unknown) {
            return Err(Error::invalid("rank", "is allowed only in the first message; send shards now"));
        }
        let place = Arc::clone(&self.place);
        let attached = self.shared.shards.attach(shards::token(wire), place, |layout| shards::rank(wire, layout));
        let rank = attached.map_err(|e: Error| e.within("rank"))?;
        let (guest, region_offer) = self.invite(&rank).unzip();
        tracing::debug!(rank = rank.rank(), "a rank is attached");
        let (last_step_id, ahead) = (rank.settled(), u32::try_from(rank.most_ahead()).unwrap_or(u32::MAX));
        self.due.push_back(Ok(Response::Ready(proto::RankReady {
            region_offer,
            last_step_id,
            max_shards_ahead: ahead,
        })));
        self.phase = Phase::Attached { rank, _guest: guest };
        Ok(())
    }

    /// Lets the rank map the stream's regions, if there are any.
    fn invite(&self, rank: &Attachment) -> Option<(Guest, proto::RegionOffer)> {
        let (side, regions) = (self.shared.region_side.as_ref()?, rank.regions()?);
        match side.regions.invite_guest(regions) {
            Ok(guest) => {
                let offer = region_offer(side, guest.token());
                Some((guest, offer))
            }
            Err(error) => {
                tracing::error!(%error, "regions cannot be offered to a rank");
                None
            }
        }
    }

    fn announce(&mut self, wire: proto::VocabShard, bytes: usize) -> Result<(), Error> {
        let Phase::Attached { rank, .. } = &self.phase else {
            return Err(Error::invalid("shard", "must come after rank, the first message"));
        };
        let step_id = wire.step_id;
        let taken = shards::announced(wire, rank).and_then(|block| {
            rank.announce(step_id, block, bytes).map_err(|error| shards::of_announcement(error, step_id))
        });
        match taken.map_err(|e| e.within("shard")) {
            Err(Error::Refused(refusal)) => {
                self.shared.metrics.refused(refusal.reason());
                self.due.push_back(Ok(Response::Shard(shards::refused(step_id, refusal))));
                Ok(())
            }
            taken => taken,
        }
    }

    /// Ends the call with `status`, after the answers that are due.
    fn end(&mut self, status: Status) {
        self.requests.close();
        self.due.push_back(Err(status));
    }

    /// Ends the call and leaves the group at once, because the rank may not hear of the end for long.
    fn finish(&mut self, code: Code) {
        self.ended = Some(code);
        self.requests.close();
        self.leave();
    }

    /// Leaves the group. The rank keeps its place on the server, because HTTP/2 may still hold parts of the call.
    fn leave(&mut self) {
        self.phase = Phase::Unknown;
    }

    /// The status that ends the call, if the rank has not been told it yet.
    fn untold(&self) -> Option<Status> {
        self.due.iter().find_map(|due| due.as_ref().err().cloned())
    }

    /// The next answer; `None` once the group has ended.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Response, Status>>> {
        if let Some(due) = self.due.pop_front() {
            return Poll::Ready(Some(due));
        }
        let Phase::Attached { rank, .. } = &self.phase else { return Poll::Pending };
        let released = ready!(rank.poll_released(context));
        Poll::Ready(released.map(|released| {
            let (step_id, joined) = (released.step_id, released.joined);
            Ok(Response::Shard(proto::ShardResult { step_id, joined, refusal: None }))
        }))
    }

    fn has_room(&self) -> bool {
        match &self.phase {
            Phase::Unknown => true,
            Phase::Attached { rank, .. } => rank.has_room(),
        }
    }
}

impl Stream for AttachStream {
    type Item = Result<proto::AttachResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while this.ended.is_none() {
            match this.poll_answer(context) {
                Poll::Ready(Some(answer)) => {
                    if let Err(status) = &answer {
                        this.finish(status.code());
                    }
                    let message = answer.map(|response| proto::AttachResponse { response: Some(response) });
                    message.iter().for_each(|message| this.shared.sent(message));
                    return Poll::Ready(Some(message));
                }
                // During a shutdown the group may end because rank 0's stream is closed in the same moment.
                Poll::Ready(None) if this.shared.closing.is_cancelled() => this.close(),
                Poll::Ready(None) => this.finish(Code::Ok),
                Poll::Pending if !this.has_room() => return Poll::Pending,
                Poll::Pending => match this.requests.poll(context) {
                    Poll::Ready(Some(Ok(request))) => this.accept(request),
                    Poll::Ready(Some(Err(status))) => this.end(status),
                    Poll::Ready(None) => this.finish(Code::Ok),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
        Poll::Ready(None)
    }
}

impl Answers for AttachStream {
    fn looks_stuck(&self) -> bool {
        !self.due.is_empty() || self.requests.hold_some()
    }

    fn take_in_next(&mut self, context: &mut Context<'_>) {
        if self.due.is_empty() {
            self.requests.take_in_next(context);
        }
    }

    fn give_up(&mut self) {
        self.leave();
        tracing::debug!("a rank does not read its answers; its call ends");
        let unread = || self.shared.refuse(&Error::Unread(self.shared.limits.reply_timeout), &self.caller);
        let status = self.untold().unwrap_or_else(unread);
        self.due.clear();
        self.end(status);
    }

    fn close(&mut self) {
        if self.ended.is_some() || self.untold().is_some() {
            return;
        }
        self.leave();
        let status = self.shared.refuse(&Error::DrainTimeout, &self.caller);
        self.end(status);
    }
}

impl Drop for AttachStream {
    fn drop(&mut self) {
        let untold = self.untold().map(|status| status.code());
        let code = self.ended.or(untold).unwrap_or(Code::Cancelled);
        tracing::debug!(code = status::code_name(code), "a rank has left");
        self.shared.finished("Attach", self.started, code);
    }
}
