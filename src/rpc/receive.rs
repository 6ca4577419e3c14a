//! Messages of all calls on their way in, before there is a message.
//!
//! A call takes memory from its first byte on, and whoever stops in the middle of a message keeps it. So each message has a time
//! within which it has to come, the first one counted from the beginning of its call. A stream has its place on the server before it is read
//! (`max_streams`, `max_attached_ranks`); a stateless call has none, and takes room for its message once its length is known.
//! The time of a message passes only while somebody asks for it, which nobody does on a stream whose worker takes no replies: that is
//! for the watch on these to end (`unread`), which is told here of messages that are not whole.
//! Other calls have small messages, and the same time for them. Calls of the sampler that end before the service hears of them are counted here.

use super::Shared;
use super::caller::{Caller, MOST_QUESTIONS};
use super::deadline::Deadline;
use super::deliver;
use super::headers;
use super::outlet;
use super::server::split;
use crate::engine::Coming;
use crate::error::Error;
use crate::limits::Limits;
use crate::permits::Permit;
use crate::proto::sampler_server::SERVICE_NAME;
use axum::BoxError;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::health_server;

/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// The longest message of a call that samples nothing: a service's name, or a symbol's.
const SMALL: usize = 4096;
/// A timer that is looked at so much later than it was set for says nothing of the worker: nobody was asking for the message.
const LATE: Duration = Duration::from_secs(1);

/// The same routes, with a watch on what their calls send.
pub(super) fn watched(routes: Routes, shared: Arc<Shared>) -> Routes {
    Routes::from(routes.into_axum_router().layer(from_fn_with_state(shared, watch)))
}

/// What is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A stream of the sampler, which has its place.
    Stream,
    /// A stateless batch, which has none.
    Alone,
    /// Any other call of one small message.
    Small,
    /// Reflection, a stream of small messages.
    Questions,
}

impl Kind {
    fn of(service: &str, method: &str) -> Self {
        match (service, method) {
            (SERVICE_NAME, "Decode" | "Attach") => Self::Stream,
            (SERVICE_NAME, "Sample") => Self::Alone,
            (SERVICE_NAME | health_server::SERVICE_NAME, _) => Self::Small,
            _ => Self::Questions,
        }
    }

    /// Whether the call ends behind its only message.
    fn is_single(self) -> bool {
        matches!(self, Self::Alone | Self::Small)
    }

    /// A place for a stateless batch among all of these, for any other call but a stream one among those of its connection.
    fn admit(self, shared: &Shared, caller: Option<&Caller>) -> Result<(Option<Permit>, Option<Permit>), Error> {
        match (self, caller) {
            (Self::Alone, _) => Ok((Some(shared.engine.admit_alone()?), None)),
            (Self::Small | Self::Questions, Some(caller)) => {
                let place = caller.question().ok_or(Error::TooManyCalls(MOST_QUESTIONS))?;
                Ok((None, Some(place)))
            }
            (Self::Stream, _) | (_, None) => Ok((None, None)),
        }
    }

    fn longest(self, limits: &Limits) -> usize {
        match self {
            Self::Stream | Self::Alone => limits.max_message_bytes,
            Self::Small | Self::Questions => SMALL.min(limits.max_message_bytes),
        }
    }
}

async fn watch(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let (service, method) = split(request.uri().path());
    let kind = Kind::of(service, method);
    let mut call = Unheard::new(&shared, (service == SERVICE_NAME).then_some(method));
    let (place, question) = match kind.admit(&shared, request.extensions().get()) {
        Ok(places) => places,
        Err(error) => {
            let status = shared.refuse(&error);
            call.code = status.code();
            return status.into_http::<Body>().into_response();
        }
    };
    // A stream lasts as long as it lasts: tonic bounds the time until it begins.
    let deadline = if kind == Kind::Alone { Deadline::of(request.headers()) } else { Deadline::default() };
    headers::lighten(request.headers_mut());
    let (heard, left, part) = (call.heard.clone(), call.left.clone(), Part::default());
    request.extensions_mut().insert(heard);
    request.extensions_mut().insert(part.clone());
    request.extensions_mut().insert(deadline);
    let marks = (left, part);
    let request = request.map(|body| {
        let incoming = Incoming::new(body.into_data_stream(), &shared, (kind, place), marks);
        Body::from_stream(incoming)
    });
    let answer = deadline.bound(next.run(request)).await;
    let response = answer.unwrap_or_else(|error| shared.refuse(&error).into_http::<Body>().into_response());
    // To tonic a call that was left is a request without a message, an internal error.
    if !call.left.is_set() {
        call.code = Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code());
    }
    match kind {
        Kind::Alone => deliver::watched(response, &shared),
        Kind::Stream => outlet::in_pieces(response),
        Kind::Small | Kind::Questions => outlet::in_place(response, question),
    }
}

/// Something that happened to a call, or not yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Mark(Arc<AtomicBool>);

impl Mark {
    /// The service has heard of the call of this request, and counts it from now on.
    pub(super) fn heard<T>(request: &tonic::Request<T>) {
        if let Some(heard) = request.extensions().get::<Self>() {
            heard.set();
        }
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether a call has sent part of a message so far.
#[derive(Debug, Clone, Default)]
struct Part(Arc<AtomicBool>);

/// The messages of a stream's worker.
#[derive(Debug)]
pub(super) struct Requests<T> {
    messages: Streaming<T>,
    part: Part,
}

impl<T> Requests<T> {
    pub(super) fn of(request: tonic::Request<Streaming<T>>) -> Self {
        let part = request.extensions().get::<Part>().cloned().unwrap_or_default();
        Self { messages: request.into_inner(), part }
    }

    /// Whether they hold part of a message, of which the rest has not come.
    pub(super) fn hold_part(&self) -> bool {
        self.part.0.load(Ordering::Relaxed)
    }

    /// The next one.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, Status>>> {
        Pin::new(&mut self.messages).poll_next(context)
    }
}

/// A call that is counted if the service never hears of it.
struct Unheard {
    shared: Arc<Shared>,
    /// Of the sampler; other services' calls are not counted.
    method: Option<String>,
    started: std::time::Instant,
    heard: Mark,
    /// By its client, before its message was there.
    left: Mark,
    code: Code,
}

impl Unheard {
    fn new(shared: &Arc<Shared>, method: Option<&str>) -> Self {
        let (shared, started) = (Arc::clone(shared), std::time::Instant::now());
        let (heard, left) = (Mark::default(), Mark::default());
        Self { shared, method: method.map(str::to_owned), started, heard, left, code: Code::Cancelled }
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        if let Some(method) = self.method.as_ref().filter(|_| !self.heard.is_set()) {
            self.shared.finished(method, self.started, self.code);
        }
    }
}

/// What a call sends.
struct Incoming {
    body: BodyDataStream,
    shared: Arc<Shared>,
    framing: Framing,
    /// When the message that is awaited has to be there.
    due: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    kind: Kind,
    /// The place of a stateless batch, and the room of its message.
    alone: Option<(Permit, Option<Coming>)>,
    /// Whether the length of a message is known.
    begun: bool,
    left: Mark,
    part: Part,
    /// What is wrong with a message that came behind others.
    fault: Option<Error>,
    ended: bool,
}

/// Where in a call's messages its bytes stand.
#[derive(Debug)]
enum Framing {
    /// So much of a message's prefix has come.
    Prefix([u8; PREFIX], usize),
    /// So many bytes of a message are to come.
    Message(usize),
}

const BETWEEN: Framing = Framing::Prefix([0; PREFIX], 0);

impl Incoming {
    fn new(
        body: BodyDataStream,
        shared: &Arc<Shared>,
        (kind, place): (Kind, Option<Permit>),
        (left, part): (Mark, Part),
    ) -> Self {
        let (shared, alone) = (Arc::clone(shared), place.map(|place| (place, None)));
        let (due, begun, fault) = (from_now(&shared), false, None);
        Self { body, shared, framing: BETWEEN, due, timer: None, kind, alone, begun, left, part, fault, ended: false }
    }

    /// Takes note of bytes that have come. An error tells which of them are not of the message at fault.
    fn see(&mut self, chunk: &[u8]) -> Result<(), (usize, Error)> {
        let (mut bytes, mut good) = (chunk, 0);
        while !bytes.is_empty() {
            match &mut self.framing {
                Framing::Prefix(prefix, have) => {
                    if *have == 0 {
                        good = chunk.len() - bytes.len();
                    }
                    if *have == 0 && self.due.is_none() {
                        self.due = from_now(&self.shared);
                    }
                    let (taken, rest) = bytes.split_at(bytes.len().min(PREFIX - *have));
                    prefix[*have..*have + taken.len()].copy_from_slice(taken);
                    (*have, bytes) = (*have + taken.len(), rest);
                    if *have == PREFIX {
                        let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
                        self.begin(len).map_err(|error| (good, error))?;
                    }
                }
                Framing::Message(left) => {
                    let taken = bytes.len().min(*left);
                    (*left, bytes) = (*left - taken, &bytes[taken..]);
                    if *left == 0 {
                        self.whole();
                    }
                }
            }
        }
        Ok(())
    }

    /// A message of so many bytes begins.
    fn begin(&mut self, len: usize) -> Result<(), Error> {
        (self.framing, self.begun) = (Framing::Message(len), true);
        let longest = self.kind.longest(&self.shared.limits);
        if len > longest {
            return Err(Error::TooLong { len, longest });
        }
        if let Some((_, room)) = &mut self.alone {
            *room = Some(self.shared.engine.admit_message(len)?);
        }
        if len == 0 {
            self.whole();
        }
        Ok(())
    }

    /// A message is whole. A call of one message has to end behind it too.
    fn whole(&mut self) {
        self.framing = BETWEEN;
        if !self.kind.is_single() {
            self.due = None;
        }
    }

    /// The error of a message that does not come.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        let Some(due) = self.due else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        while timer.as_mut().poll(context).is_ready() {
            if due.elapsed() < LATE {
                return Poll::Ready(Error::NotReceived(self.shared.limits.receive_timeout));
            }
            self.due = from_now(&self.shared);
            let Some(due) = self.due else { return Poll::Pending };
            timer.as_mut().reset(due);
        }
        Poll::Pending
    }

    /// Whether all messages that have begun are whole.
    fn is_between(&self) -> bool {
        matches!(self.framing, Framing::Prefix(_, 0))
    }

    /// Whether what has come ends in the middle, or is not enough.
    fn is_awaiting(&self) -> bool {
        !self.is_between() || (self.kind.is_single() && !self.begun)
    }

    /// The client has left the call, or the connection is gone.
    fn left(&mut self, why: String) -> Poll<Option<Result<Bytes, BoxError>>> {
        (self.ended, self.alone) = (true, None);
        self.left.set();
        Poll::Ready(Some(Err(Status::cancelled(why).into())))
    }

    fn fail(&mut self, error: &Error) -> Poll<Option<Result<Bytes, BoxError>>> {
        (self.ended, self.alone) = (true, None);
        Poll::Ready(Some(Err(self.shared.refuse(error).into())))
    }
}

/// When what is awaited from now on has to be there.
fn from_now(shared: &Shared) -> Option<Instant> {
    let timeout = shared.limits.receive_timeout;
    (!timeout.is_zero()).then(|| Instant::now() + timeout)
}

impl Stream for Incoming {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if let Some(fault) = this.fault.take() {
            return this.fail(&fault);
        }
        match Pin::new(&mut this.body).poll_next(context) {
            Poll::Ready(Some(Ok(bytes))) => match this.see(&bytes) {
                Ok(()) => {
                    this.part.0.store(!this.is_between(), Ordering::Relaxed);
                    Poll::Ready(Some(Ok(bytes)))
                }
                Err((0, error)) => this.fail(&error),
                // The messages before it have their answers first.
                Err((good, error)) => {
                    this.fault = Some(error);
                    Poll::Ready(Some(Ok(bytes.slice(..good))))
                }
            },
            Poll::Ready(Some(Err(error))) => this.left(error.to_string()),
            // Of a call that its client has cancelled hyper tells by an error.
            Poll::Ready(None) if this.is_awaiting() => {
                let at = if this.is_between() { "before its message" } else { "inside a message" };
                this.fail(&Error::Malformed(format!("the call ended {at}")))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match this.poll_late(context) {
                Poll::Ready(error) => this.fail(&error),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}
