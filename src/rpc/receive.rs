//! Messages of the sampler's calls on their way in, before there is a message.
//!
//! A call takes memory from its first byte on, and whoever stops in the middle of a message keeps it. So each message has a time
//! within which it has to come, the first one counted from the beginning of its call. A stream has its place on the server before it is read
//! (`max_streams`, `max_attached_ranks`); a stateless call has none, and takes room for its message once its length is known.
//! The time of a message passes only while somebody asks for it, which nobody does on a stream whose worker takes no replies: that is
//! for the watch on these to end (`unread`), which is told here of messages that are not whole.
//! Calls that end before the service hears of them are counted here.

use super::Shared;
use super::deadline::Deadline;
use super::server::split;
use crate::error::Error;
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

/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// A timer that is looked at so much later than it was set for says nothing of the worker: nobody was asking for the message.
const LATE: Duration = Duration::from_secs(1);

/// The same routes, with a watch on what the sampler's calls send.
pub(super) fn watched(routes: Routes, shared: Arc<Shared>) -> Routes {
    Routes::from(routes.into_axum_router().layer(from_fn_with_state(shared, watch)))
}

async fn watch(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let (service, method) = split(request.uri().path());
    if service != SERVICE_NAME {
        return next.run(request).await;
    }
    let stateless = method == "Sample";
    let mut call = Unheard::new(&shared, method);
    let place = if stateless { shared.engine.admit_alone() } else { Ok(None) };
    let place = match place {
        Ok(place) => place,
        Err(error) => {
            let status = shared.refuse(&error);
            call.code = status.code();
            return status.into_http::<Body>().into_response();
        }
    };
    // A stream lasts as long as it lasts: tonic bounds the time until it begins.
    let deadline = if stateless { Deadline::of(request.headers()) } else { Deadline::default() };
    let (heard, left, part) = (call.heard.clone(), call.left.clone(), Part::default());
    request.extensions_mut().insert(heard);
    request.extensions_mut().insert(part.clone());
    request.extensions_mut().insert(deadline);
    let marks = (left, part);
    let request = request.map(|body| Body::from_stream(Incoming::new(body.into_data_stream(), &shared, place, marks)));
    let answer = deadline.bound(next.run(request)).await;
    let response = answer.unwrap_or_else(|error| shared.refuse(&error).into_http::<Body>().into_response());
    // To tonic a call that was left is a request without a message, an internal error.
    if !call.left.is_set() {
        call.code = Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code());
    }
    response
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
    method: String,
    started: std::time::Instant,
    heard: Mark,
    /// By its client, before its message was there.
    left: Mark,
    code: Code,
}

impl Unheard {
    fn new(shared: &Arc<Shared>, method: &str) -> Self {
        let (shared, started) = (Arc::clone(shared), std::time::Instant::now());
        let (heard, left) = (Mark::default(), Mark::default());
        Self { shared, method: method.to_owned(), started, heard, left, code: Code::Cancelled }
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        if !self.heard.is_set() {
            self.shared.finished(&self.method, self.started, self.code);
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
    /// The place of a stateless call, and the room of its message.
    alone: Option<(Permit, Option<Permit>)>,
    left: Mark,
    part: Part,
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
    fn new(body: BodyDataStream, shared: &Arc<Shared>, place: Option<Permit>, (left, part): (Mark, Part)) -> Self {
        let (shared, alone) = (Arc::clone(shared), place.map(|place| (place, None)));
        let due = from_now(&shared);
        Self { body, shared, framing: BETWEEN, due, timer: None, alone, left, part, ended: false }
    }

    /// Takes note of bytes that have come.
    fn see(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            match &mut self.framing {
                Framing::Prefix(prefix, have) => {
                    if *have == 0 && self.due.is_none() {
                        self.due = from_now(&self.shared);
                    }
                    let (taken, rest) = bytes.split_at(bytes.len().min(PREFIX - *have));
                    prefix[*have..*have + taken.len()].copy_from_slice(taken);
                    (*have, bytes) = (*have + taken.len(), rest);
                    if *have == PREFIX {
                        let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
                        self.begin(len)?;
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
        self.framing = Framing::Message(len);
        // A longer one is refused by its length, before it takes anything.
        if let Some((_, room)) = self.alone.as_mut().filter(|_| len <= self.shared.limits.max_message_bytes) {
            *room = Some(self.shared.engine.admit_message(len)?);
        }
        if len == 0 {
            self.whole();
        }
        Ok(())
    }

    /// A message is whole. A stateless call has to end behind its only one too.
    fn whole(&mut self) {
        self.framing = BETWEEN;
        if self.alone.is_none() {
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
        !self.is_between() || self.alone.as_ref().is_some_and(|(_, room)| room.is_none())
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
        match Pin::new(&mut this.body).poll_next(context) {
            Poll::Ready(Some(Ok(bytes))) => match this.see(&bytes) {
                Ok(()) => {
                    this.part.0.store(!this.is_between(), Ordering::Relaxed);
                    Poll::Ready(Some(Ok(bytes)))
                }
                Err(error) => this.fail(&error),
            },
            Poll::Ready(Some(Err(error))) => this.left(error.to_string()),
            // So hyper tells of a call that its client has cancelled.
            Poll::Ready(None) if this.is_awaiting() => this.left("the call ended before its message".to_owned()),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match this.poll_late(context) {
                Poll::Ready(error) => this.fail(&error),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}
