//! Calls on their way in, before they have a message.
//!
//! A call takes memory from its first byte on, and a client that stops in the middle of a message keeps that memory. So
//! each message has to come within a time (`incoming`); for the first message the time begins with the call.
//!
//! - A stream takes its place on the server before anything of it is read (`max_streams`, `max_attached_ranks`).
//! - A stateless call has no such place. It takes room for its message once the length is known.
//! - Other calls have small messages, and the same time for them.
//!
//! The time passes only while somebody asks for the message. Nobody asks on a stream whose worker does not take its
//! replies. So the watch on replies (`unread`) ends such a stream, and not this time limit. This module tells that
//! watch of messages that nobody has asked for, or that are not whole.
//!
//! Calls of the sampler that end before the service hears of them are counted here.

use super::deadline::Deadline;
use super::headers;
use super::incoming::{Incoming, Signals};
use crate::error::{Error, Reason};
use crate::limits::Limits;
use crate::permits::Permit;
use crate::proto::sampler_server::SERVICE_NAME;
use crate::rpc::Shared;
use crate::rpc::caller::{Caller, MAX_SMALL_CALLS};
use crate::rpc::outbound::calls;
use crate::rpc::outbound::deliver;
use crate::rpc::outbound::outlet;
use crate::rpc::server::split;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::health_server;

/// The longest message of a call that samples nothing: it holds the name of a service or of a symbol.
const SMALL_MESSAGE_BYTES: usize = 4096;

/// The same routes, with a watch on the messages of their calls.
pub(in crate::rpc) fn watched(routes: Routes, shared: Arc<Shared>) -> Routes {
    Routes::from(routes.into_axum_router().layer(from_fn_with_state(shared, watch)))
}

/// The kind of a call, as far as the watch on its messages needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A stream of the sampler, which takes a place on the server.
    Stream,
    /// A stateless batch, which takes none.
    Stateless,
    /// Any other call of one small message.
    Small,
    /// Reflection, a stream of small messages.
    SmallStream,
}

/// The places that a call takes before its message comes. A stream takes its place later.
struct CallPermits {
    /// The place of a stateless call, among all stateless calls.
    stateless: Option<Permit>,
    /// The place of a call that samples nothing, among those of its connection.
    small_call: Option<Permit>,
}

impl Kind {
    fn of(service: &str, method: &str) -> Self {
        match (service, method) {
            (SERVICE_NAME, "Decode" | "Attach") => Self::Stream,
            (SERVICE_NAME, "Sample") => Self::Stateless,
            (SERVICE_NAME | health_server::SERVICE_NAME, _) => Self::Small,
            _ => Self::SmallStream,
        }
    }

    /// Whether the call ends after its only message.
    pub(super) fn is_single(self) -> bool {
        matches!(self, Self::Stateless | Self::Small)
    }

    /// Whether its messages carry rows to sample, or columns of them.
    pub(super) fn is_sampling(self) -> bool {
        matches!(self, Self::Stream | Self::Stateless)
    }

    fn admit(self, shared: &Shared, caller: &Caller) -> Result<CallPermits, Error> {
        match self {
            Self::Stateless => Ok(CallPermits { stateless: Some(shared.engine.admit_stateless()?), small_call: None }),
            Self::Small | Self::SmallStream => {
                let place = caller.small_call_place().ok_or(Error::TooManyCalls(MAX_SMALL_CALLS))?;
                Ok(CallPermits { stateless: None, small_call: Some(place) })
            }
            Self::Stream => Ok(CallPermits { stateless: None, small_call: None }),
        }
    }

    /// The longest message that the call may send.
    pub(super) fn longest(self, limits: &Limits) -> usize {
        match self {
            Self::Stream | Self::Stateless => limits.max_message_bytes,
            Self::Small | Self::SmallStream => SMALL_MESSAGE_BYTES.min(limits.max_message_bytes),
        }
    }
}

/// The answer to a request that is not gRPC, which is counted as refused.
fn unless_grpc(request: &Request, shared: &Shared) -> Option<Response> {
    let answer = headers::no_grpc(request)?;
    shared.metrics.refused(Reason::WrongProtocol);
    let caller = Caller::of(request.extensions());
    tracing::debug!(peer = &**caller.peer(), method = %request.method(), "received a request that is not gRPC");
    Some(answer)
}

/// Watches a call from its headers on: admits it, has its messages watched as they come, and counts it if the service
/// never hears of it.
async fn watch(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    if let Some(answer) = unless_grpc(&request, &shared) {
        return answer;
    }
    let (service, method) = split(request.uri().path());
    let kind = Kind::of(service, method);
    let open = shared.calls.enter();
    let mut call = UnheardCall::new(&shared, (service == SERVICE_NAME).then_some(method));
    let caller = Caller::of(request.extensions());
    let admitted = headers::plain(request.headers()).and_then(|()| kind.admit(&shared, &caller));
    let CallPermits { stateless, small_call } = match admitted {
        Ok(permits) => permits,
        Err(error) => {
            let status = shared.refuse(&error, &caller);
            call.code = status.code();
            return status.into_http::<Body>().into_response();
        }
    };
    // A stream may last as long as it likes: for streams, tonic bounds only the time until they begin.
    let deadline = if kind == Kind::Stateless { Deadline::of(request.headers()) } else { Deadline::default() };
    let (part, fault) = (PartialMessage::default(), Fault::default());
    prepare(&mut request, &call, &part, deadline);
    let signals = Signals { left: call.left.clone(), part, fault: fault.clone() };
    let request = request.map(|body| {
        let incoming = Incoming::new(body.into_data_stream(), &shared, kind, stateless, caller.clone(), signals);
        Body::from_stream(incoming)
    });
    let answer = deadline.bound(next.run(request)).await;
    let response = answer.unwrap_or_else(|error| shared.refuse(&error, &caller).into_http::<Body>().into_response());
    // tonic sees a call that its client left as a request without a message, and answers with an internal error; the
    // call keeps its code.
    if !call.left.is_set() {
        call.code = Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code());
    }
    let response = match kind {
        Kind::Stateless => deliver::watched(response, &shared, caller),
        Kind::Stream => outlet::in_pieces(response),
        Kind::Small => outlet::in_place(response, small_call),
        Kind::SmallStream => outlet::in_place(fault.at_end_of(response), small_call),
    };
    calls::open_until_dropped(response, open)
}

/// Leaves a request only the headers that are needed, and with it what the service and its answer need to know.
fn prepare(request: &mut Request, call: &UnheardCall, part: &PartialMessage, deadline: Deadline) {
    headers::lighten(request.headers_mut());
    let extensions = request.extensions_mut();
    extensions.insert(call.heard.clone());
    extensions.insert(part.clone());
    extensions.insert(deadline);
}

/// Whether something has happened to a call. Clones share one flag.
#[derive(Debug, Clone, Default)]
pub(in crate::rpc) struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Notes that the service has heard of the call of this request, and counts the call from now on.
    pub(in crate::rpc) fn set_heard<T>(request: &tonic::Request<T>) {
        if let Some(heard) = request.extensions().get::<Self>() {
            heard.set();
        }
    }

    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether a call has sent only part of a message so far.
#[derive(Debug, Clone, Default)]
pub(super) struct PartialMessage(Arc<AtomicBool>);

impl PartialMessage {
    pub(super) fn set(&self, has_part: bool) {
        self.0.store(has_part, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is wrong with a call's messages. Reflection mistakes it for their end, and ends as if nothing were wrong.
#[derive(Debug, Clone, Default)]
pub(super) struct Fault(Arc<OnceLock<Status>>);

impl Fault {
    pub(super) fn set(&self, status: &Status) {
        // The first fault ended the call, so later ones are ignored.
        let _ = self.0.set(status.clone());
    }

    /// The same answers, with the fault's status at their end.
    fn at_end_of(self, response: Response) -> Response {
        let with_fault = move |frame: Frame<Bytes>| {
            let mut end = HeaderMap::new();
            let is_told = frame.is_trailers() && self.0.get().is_some_and(|status| status.add_header(&mut end).is_ok());
            if is_told { Frame::trailers(end) } else { frame }
        };
        response.map(|body| Body::new(body.map_frame(with_fault)))
    }
}

/// The messages of a stream's worker.
#[derive(Debug)]
pub(in crate::rpc) struct Requests<T> {
    /// `None` after the last message, or once no more are wanted.
    messages: Option<Streaming<T>>,
    /// A message, or the end, that was taken in before anybody asked for it.
    next: Option<Option<Result<T, Status>>>,
    part: PartialMessage,
}

impl<T> Requests<T> {
    pub(in crate::rpc) fn of(request: tonic::Request<Streaming<T>>) -> Self {
        let part = request.extensions().get::<PartialMessage>().cloned().unwrap_or_default();
        Self { messages: Some(request.into_inner()), next: None, part }
    }

    /// Whether there is a message that nobody has asked for, or part of a message whose rest has not come.
    pub(in crate::rpc) fn hold_some(&self) -> bool {
        matches!(self.next, Some(Some(_))) || self.messages.is_some() && self.part.is_set()
    }

    /// Drops the messages: no more are wanted.
    pub(in crate::rpc) fn close(&mut self) {
        (self.messages, self.next) = (None, None);
    }

    /// Takes in the next message, if it is here, and keeps it for whoever asks. Part of a message already counts as
    /// held, and gets no time limit of its own.
    pub(in crate::rpc) fn take_in_next(&mut self, context: &mut Context<'_>) {
        if self.next.is_none()
            && !self.hold_some()
            && let Poll::Ready(next) = self.poll(context)
        {
            self.next = Some(next);
        }
    }

    /// The next message, or what went wrong instead. After an error no message comes.
    pub(in crate::rpc) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, Status>>> {
        if let Some(next) = self.next.take() {
            return Poll::Ready(next);
        }
        let Some(messages) = &mut self.messages else { return Poll::Ready(None) };
        let next = ready!(Pin::new(messages).poll_next(context));
        if !matches!(next, Some(Ok(_))) {
            self.close();
        }
        Poll::Ready(next)
    }
}

/// Counts a call if the service never hears of it.
struct UnheardCall {
    shared: Arc<Shared>,
    /// The method, if the call is one of the sampler; other services' calls are not counted.
    method: Option<String>,
    started: std::time::Instant,
    heard: Flag,
    /// Set if the client left before its message had come.
    left: Flag,
    code: Code,
}

impl UnheardCall {
    fn new(shared: &Arc<Shared>, method: Option<&str>) -> Self {
        let (shared, started) = (Arc::clone(shared), std::time::Instant::now());
        let (heard, left) = (Flag::default(), Flag::default());
        Self { shared, method: method.map(str::to_owned), started, heard, left, code: Code::Cancelled }
    }
}

impl Drop for UnheardCall {
    fn drop(&mut self) {
        if let Some(method) = self.method.as_ref().filter(|_| !self.heard.is_set()) {
            self.shared.finished(method, self.started, self.code);
        }
    }
}
