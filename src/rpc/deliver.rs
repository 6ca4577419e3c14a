//! The answer of a stateless call on its way out.
//!
//! HTTP/2 takes what it is given whole, however little its client lets through. So it gets an answer piece by piece, as it
//! sends them, and what is left keeps its room of `max_bytes_in_flight`, until it is taken or the client has taken too long.

use super::Shared;
use super::unread::{Answers, Replies};
use crate::error::Error;
use crate::permits::Permit;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderMap;
use axum::response::Response;
use http_body::Frame;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_stream::Stream;

/// What HTTP/2 gets at once.
const PIECE: usize = 64 << 10;

/// What an answer takes of the bytes in flight; it travels in the answer's extensions.
#[derive(Debug, Clone)]
pub(super) struct Room(#[allow(dead_code)] Arc<Permit>);

impl Room {
    pub(super) fn new(room: Permit) -> Self {
        Self(Arc::new(room))
    }
}

/// The same answer, watched, if there is more to it than its status.
pub(super) fn watched(response: Response, shared: &Arc<Shared>) -> Response {
    let (mut parts, body) = response.into_parts();
    if body.is_end_stream() {
        return Response::from_parts(parts, body);
    }
    let room = parts.extensions.remove();
    let answer = Answer { body: Some(body), rest: Bytes::new(), end: None, room, shared: Arc::clone(shared) };
    let replies = Replies::new(answer, shared.limits.reply_timeout);
    Response::from_parts(parts, Body::new(Watched { replies, _place: shared.engine.answer_alone() }))
}

struct Answer {
    /// Until its end has come.
    body: Option<Body>,
    /// What HTTP/2 has not got yet of the message.
    rest: Bytes,
    /// What comes behind the message: its status, or that of an answer that was not taken in time.
    end: Option<Result<HeaderMap, axum::Error>>,
    room: Option<Room>,
    shared: Arc<Shared>,
}

impl Answer {
    /// Takes the message and its status, which is ready with it: what HTTP/2 then has whole is not held here any more.
    fn take_in(&mut self, context: &mut Context<'_>) {
        while let Some(body) = &mut self.body {
            let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else { return };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) if self.rest.is_empty() => self.rest = data,
                Some(Ok(Ok(data))) => self.rest = [&*self.rest, &*data].concat().into(),
                Some(Ok(Err(trailers))) => (self.body, self.end) = (None, trailers.into_trailers().ok().map(Ok)),
                Some(Err(error)) => (self.body, self.end) = (None, Some(Err(error))),
                None => self.body = None,
            }
        }
    }

    /// The next piece, as a copy: what HTTP/2 keeps of it would else keep the whole message in memory.
    fn piece(&mut self) -> Frame<Bytes> {
        let piece = Bytes::copy_from_slice(&self.rest.split_to(self.rest.len().min(PIECE)));
        if !self.is_holding() {
            (self.rest, self.room) = (Bytes::new(), None);
        }
        Frame::data(piece)
    }
}

impl Stream for Answer {
    type Item = Result<Frame<Bytes>, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.take_in(context);
        if !this.rest.is_empty() {
            return Poll::Ready(Some(Ok(this.piece())));
        }
        if this.body.is_some() {
            return Poll::Pending;
        }
        Poll::Ready(this.end.take().map(|end| end.map(Frame::trailers)))
    }
}

impl Answers for Answer {
    fn is_holding(&self) -> bool {
        self.body.is_some() || !self.rest.is_empty()
    }

    fn give_up(&mut self) {
        let status = self.shared.refuse(&Error::Unread(self.shared.limits.reply_timeout));
        tracing::debug!("a client does not read its answer; it is dropped");
        (self.body, self.rest, self.room) = (None, Bytes::new(), None);
        let mut late = HeaderMap::new();
        self.end = status.add_header(&mut late).is_ok().then_some(Ok(late));
    }
}

/// The frames as a body, which has a place until HTTP/2 lets go of it: it may hold a piece or two for as long as its client likes.
struct Watched {
    replies: Replies<Answer>,
    _place: Permit,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.replies).poll_next(context)
    }
}
