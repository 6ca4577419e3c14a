//! Answers on their way into HTTP/2, and the room that they take until they have left it.
//!
//! HTTP/2 takes all it is given, however little its client lets through. It asks for more at once, and keeps what it
//! has for as long as the client likes. So it gets answers in pieces. Each piece carries its part of the room in
//! `max_bytes_in_flight`, which comes back when HTTP/2 lets go of the piece. What HTTP/2 has not got yet can still be
//! dropped.

use crate::locks::lock;
use crate::permits::Permit;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::Frame;
use http_body_util::BodyExt;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

/// The bytes that HTTP/2 gets at once. It may hold two such pieces: one that it could not send whole, and the next.
const PIECE: usize = 64 << 10;

/// The part of a call's answers that HTTP/2 has not got yet.
#[derive(Debug, Default)]
pub(in crate::rpc) struct Outlet {
    bytes: Bytes,
    /// Whether HTTP/2 already had some of these bytes. The rest of them is in the same allocation.
    is_begun: bool,
    /// The room of these bytes, or of the messages that will be encoded into them.
    room: Option<Permit>,
    /// Whether HTTP/2 has asked for bytes since this was last checked.
    asked: bool,
}

impl Outlet {
    /// Notes that a message is about to be encoded that takes this room.
    fn expect(&mut self, room: Permit) {
        match &mut self.room {
            Some(all) => all.absorb(room),
            none => *none = Some(room),
        }
    }

    /// Adds the bytes into which the expected messages were encoded.
    pub(super) fn fill(&mut self, bytes: Bytes) {
        self.bytes = if self.bytes.is_empty() { bytes } else { [&*self.bytes, &*bytes].concat().into() };
        self.room.iter_mut().for_each(|room| room.set(self.bytes.len()));
    }

    /// The next piece, if there is one. If the bytes make several pieces, each piece is a copy: otherwise one piece
    /// that stays would keep all of them in memory.
    pub(super) fn piece(&mut self) -> Option<Bytes> {
        self.asked = true;
        let len = self.bytes.len().min(PIECE);
        if len == 0 {
            return None;
        }
        if len == self.bytes.len() && !self.is_begun {
            let (bytes, room) = (mem::take(&mut self.bytes), self.room.take());
            return Some(holding(bytes, room));
        }
        self.is_begun = true;
        let room = self.room.as_ref().map(|room| room.another(len));
        let bytes = Bytes::copy_from_slice(&self.bytes.split_to(len));
        if self.bytes.is_empty() {
            self.clear();
        }
        Some(holding(bytes, room))
    }

    pub(in crate::rpc) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Drops what HTTP/2 has not got yet.
    pub(super) fn clear(&mut self) {
        (self.bytes, self.is_begun, self.room) = (Bytes::new(), false, None);
    }
}

/// The same bytes, which keep `held` alive until HTTP/2 lets go of them.
fn holding<H: Send + 'static>(bytes: Bytes, held: H) -> Bytes {
    Bytes::from_owner(Piece { bytes, _held: held })
}

struct Piece<H> {
    bytes: Bytes,
    _held: H,
}

impl<H> AsRef<[u8]> for Piece<H> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The outlet of a call, shared by those who fill it and those who empty it. It travels in the extensions of the call's
/// answer.
#[derive(Debug, Clone, Default)]
pub(in crate::rpc) struct Outgoing(Arc<Mutex<Outlet>>);

impl Outgoing {
    /// Notes that a message is about to be encoded that takes this room until HTTP/2 lets go of the message.
    pub(in crate::rpc) fn expect(&self, room: Permit) {
        self.outlet().expect(room);
    }

    /// Whether there is something that HTTP/2 has neither got nor asked for since the last call. The check starts anew
    /// with each call.
    pub(in crate::rpc) fn took_nothing(&self) -> bool {
        let mut outlet = self.outlet();
        !mem::take(&mut outlet.asked) && !outlet.is_empty()
    }

    pub(in crate::rpc) fn clear(&self) {
        self.outlet().clear();
    }

    /// Locks the outlet. If somebody panicked while holding it, the call has ended, and what is left is only dropped.
    pub(in crate::rpc) fn outlet(&self) -> MutexGuard<'_, Outlet> {
        lock(&self.0)
    }
}

/// The same answers of a stream, piece by piece.
pub(in crate::rpc) fn in_pieces(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    match parts.extensions.remove::<Outgoing>() {
        Some(outgoing) => Response::from_parts(parts, Body::new(Pieces { body, outgoing })),
        None => Response::from_parts(parts, body),
    }
}

/// The same answers. Their call keeps its place until HTTP/2 has let go of them.
pub(in crate::rpc) fn in_place(response: Response, place: Option<Permit>) -> Response {
    let Some(place) = place.map(Arc::new) else { return response };
    let held = move |frame: Frame<Bytes>| frame.map_data(|bytes| holding(bytes, Arc::clone(&place)));
    response.map(|body| Body::new(body.map_frame(held)))
}

struct Pieces {
    body: Body,
    outgoing: Outgoing,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if let Some(piece) = this.outgoing.outlet().piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            end => return Poll::Ready(end),
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(bytes) => {
                let mut outlet = this.outgoing.outlet();
                outlet.fill(bytes);
                Frame::data(outlet.piece().unwrap_or_default())
            }
            Err(trailers) => trailers,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permits::Counter;
    use metrics::Gauge;

    fn filled(len: usize, room: &Arc<Counter>) -> (Outlet, Vec<u8>) {
        let mut outlet = Outlet::default();
        outlet.expect(room.take(10).expect("room"));
        outlet.expect(room.take(20).expect("room"));
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        outlet.fill(bytes.clone().into());
        (outlet, bytes)
    }

    #[test]
    fn pieces_are_all_there_is_and_take_room_until_they_are_gone() {
        for len in [1, PIECE, PIECE + 1, 3 * PIECE] {
            let room = Counter::new(1 << 20, Gauge::noop());
            let (mut outlet, bytes) = filled(len, &room);
            assert_eq!(room.used(), len);
            let pieces: Vec<Bytes> = std::iter::from_fn(|| outlet.piece()).collect();
            assert_eq!(pieces.concat(), bytes, "{len}");
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE));
            assert_eq!(room.used(), len, "what is left of the outlet takes none");
            drop(pieces);
            assert_eq!(room.used(), 0);
            assert!(outlet.is_empty() && outlet.piece().is_none());
        }
    }

    #[test]
    fn what_is_dropped_leaves_the_room_of_what_went_out() {
        let room = Counter::new(1 << 20, Gauge::noop());
        let (mut outlet, _) = filled(3 * PIECE, &room);
        let first = outlet.piece().expect("a piece");
        assert_eq!(room.used(), 4 * PIECE, "the rest is still in one with the first piece");
        outlet.clear();
        assert_eq!(room.used(), first.len());
        drop(first);
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn it_took_nothing_while_there_is_more_and_nobody_asks() {
        let room = Counter::new(1 << 20, Gauge::noop());
        let outgoing = Outgoing::default();
        assert!(!outgoing.took_nothing());
        *outgoing.outlet() = filled(2 * PIECE, &room).0;
        assert!(outgoing.took_nothing());
        let _first = outgoing.outlet().piece();
        assert!(!outgoing.took_nothing(), "it has asked");
        assert!(outgoing.took_nothing(), "and not again");
        outgoing.clear();
        assert!(!outgoing.took_nothing());
    }
}
