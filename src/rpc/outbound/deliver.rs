//! The answer of a stateless call on its way out.
//!
//! HTTP/2 gets the answer piece by piece, as it sends them ([`Outlet`](super::outlet::Outlet)). What is left keeps its
//! room in `max_bytes_in_flight` until it is taken, or until the client has taken too long.

use super::outlet::Outgoing;
use super::unread::{Answers, Replies};
use crate::error::Error;
use crate::rpc::Shared;
use crate::rpc::caller::Caller;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderMap;
use axum::response::Response;
use http_body::Frame;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_stream::Stream;

/// The same answer under a watch, if it consists of more than its status.
pub(in crate::rpc) fn watched(response: Response, shared: &Arc<Shared>, caller: Caller) -> Response {
    let (mut parts, body) = response.into_parts();
    if body.is_end_stream() {
        return Response::from_parts(parts, body);
    }
    let outgoing = parts.extensions.remove().unwrap_or_default();
    let answer = Answer { body: Some(body), outgoing, end: None, shared: Arc::clone(shared), caller };
    Response::from_parts(parts, Body::new(Watched(shared.watched(answer))))
}

struct Answer {
    /// The answer's body, until its end has come.
    body: Option<Body>,
    /// The part of the message that HTTP/2 has not got yet.
    outgoing: Outgoing,
    /// What comes after the message: its own status, or the status of an answer that was not taken in time.
    end: Option<Result<HeaderMap, axum::Error>>,
    shared: Arc<Shared>,
    caller: Caller,
}

impl Answer {
    /// Takes the message and its status, which are ready together. Once HTTP/2 has the whole message, nothing of it is
    /// held here.
    fn take_in(&mut self, context: &mut Context<'_>) {
        while let Some(body) = &mut self.body {
            let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else { return };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.outgoing.outlet().fill(data),
                Some(Ok(Err(trailers))) => (self.body, self.end) = (None, trailers.into_trailers().ok().map(Ok)),
                Some(Err(error)) => (self.body, self.end) = (None, Some(Err(error))),
                None => self.body = None,
            }
        }
    }
}

impl Stream for Answer {
    type Item = Result<Frame<Bytes>, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.take_in(context);
        if let Some(piece) = this.outgoing.outlet().piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if this.body.is_some() {
            return Poll::Pending;
        }
        Poll::Ready(this.end.take().map(|end| end.map(Frame::trailers)))
    }
}

impl Answers for Answer {
    fn looks_stuck(&self) -> bool {
        self.body.is_some() || !self.outgoing.outlet().is_empty()
    }

    /// A stateless call has only one message, and it has come.
    fn take_in_next(&mut self, _: &mut Context<'_>) {}

    fn give_up(&mut self) {
        let status = self.shared.refuse(&Error::Unread(self.shared.limits.reply_timeout), &self.caller);
        tracing::debug!("a client does not read its answer; the answer is dropped");
        self.body = None;
        self.outgoing.clear();
        let mut late = HeaderMap::new();
        self.end = status.add_header(&mut late).is_ok().then_some(Ok(late));
    }

    /// The call has its answer, which is on its way.
    fn close(&mut self) {}
}

/// The frames of the watched answer as a body.
struct Watched(Replies<Answer>);

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.0).poll_next(context)
    }
}
