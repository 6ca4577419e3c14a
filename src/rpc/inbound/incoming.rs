//! Messages of all calls on their way in: where they begin and end, how long they take, and those that do not come.

use super::receive::{Fault, Flag, Kind, PartialMessage};
use crate::error::{Error, Reason};
use crate::metrics::Stage;
use crate::permits::Permit;
use crate::rpc::Shared;
use crate::rpc::caller::Caller;
use axum::BoxError;
use axum::body::{BodyDataStream, Bytes, HttpBody};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::Stream;
use tonic::Status;

/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// A timer that is polled so much later than it was set for says nothing of the worker: nobody was asking for the message meanwhile.
const POLLED_LATE: Duration = Duration::from_secs(1);

/// What a call sends.
pub(super) struct Incoming {
    body: BodyDataStream,
    shared: Arc<Shared>,
    caller: Caller,
    framing: Framing,
    /// When the message that is awaited has to be there.
    due: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// When the first bytes came of a message that did not come at once.
    since: Option<std::time::Instant>,
    kind: Kind,
    /// Of a stateless call.
    stateless: Option<StatelessRoom>,
    /// Whether the length of a message is known.
    begun: bool,
    signals: Signals,
    /// What is wrong with a message that came behind others.
    fault: Option<Error>,
    ended: bool,
}

/// The room that a stateless call takes while its message is on its way.
struct StatelessRoom {
    _place: Permit,
    /// Of the message, once its length is known.
    message: Option<Permit>,
}

/// How whoever reads the call learns what became of its messages.
pub(super) struct Signals {
    /// Set when the client has left the call.
    pub(super) left: Flag,
    pub(super) part: PartialMessage,
    pub(super) fault: Fault,
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
    pub(super) fn new(
        body: BodyDataStream,
        shared: &Arc<Shared>,
        kind: Kind,
        place: Option<Permit>,
        caller: Caller,
        signals: Signals,
    ) -> Self {
        let (shared, stateless) =
            (Arc::clone(shared), place.map(|place| StatelessRoom { _place: place, message: None }));
        let (due, begun, fault, since) = (from_now(&shared), false, None, None);
        let (framing, timer, ended) = (BETWEEN, None, false);
        Self { body, shared, caller, framing, due, timer, since, kind, stateless, begun, signals, fault, ended }
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
        if self.since.is_none() && !self.is_between() {
            self.since = Some(std::time::Instant::now());
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
        if let Some(room) = &mut self.stateless {
            room.message = Some(self.shared.engine.admit_message(len)?);
        }
        if len == 0 {
            self.whole();
        }
        Ok(())
    }

    /// A message is whole. A call of one message has to end behind it too.
    fn whole(&mut self) {
        self.framing = BETWEEN;
        if self.kind.is_sampling() {
            // One that came at once has no beginning, and costs no look at the clock.
            let elapsed = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            self.shared.metrics.stage(Stage::Receive, elapsed);
        }
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
            if due.elapsed() < POLLED_LATE {
                return Poll::Ready(Error::NotReceived(self.shared.limits.receive_timeout));
            }
            self.due = from_now(&self.shared);
            let Some(due) = self.due else { return Poll::Pending };
            timer.as_mut().reset(due);
        }
        Poll::Pending
    }

    /// Whether nothing more comes although the client has not ended its side: hyper hides a reset or a GOAWAY without an error behind
    /// the end of a body. Proxies reset calls like that; and hyper itself cuts a connection so whose client answers no pings.
    fn is_broken_off(&self) -> bool {
        !self.body.is_end_stream()
    }

    /// The same for a call that is dropped, of which nobody may have asked since it was broken off.
    fn was_broken_off(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match Pin::new(&mut self.body).poll_next(&mut context) {
                // What has come before is not asked for any more.
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(None) => return self.is_broken_off(),
                Poll::Ready(Some(Err(_))) | Poll::Pending => return false,
            }
        }
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
        (self.ended, self.stateless) = (true, None);
        self.signals.left.set();
        Poll::Ready(Some(Err(Status::cancelled(why).into())))
    }

    fn fail(&mut self, error: &Error) -> Poll<Option<Result<Bytes, BoxError>>> {
        (self.ended, self.stateless) = (true, None);
        let status = self.shared.refuse(error, &self.caller);
        self.signals.fault.set(&status);
        Poll::Ready(Some(Err(status.into())))
    }
}

/// When what is awaited from now on has to be there.
fn from_now(shared: &Shared) -> Option<Instant> {
    let timeout = shared.limits.receive_timeout;
    (!timeout.is_zero()).then(|| Instant::now() + timeout)
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // All calls of a connection are cut together; one of them reports it.
        if self.caller.is_silent(self.shared.ping_timeout) && self.was_broken_off() && self.caller.may_report_silence()
        {
            self.shared.metrics.refused(Reason::KeepaliveTimeout);
            tracing::info!(
                peer = &**self.caller.peer(),
                "a client with open calls answered no ping within keepalive_timeout; its connection was cut"
            );
        }
    }
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
                    this.signals.part.set(!this.is_between());
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
            Poll::Ready(None) if this.is_broken_off() => this.left("the call was broken off".to_owned()),
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
