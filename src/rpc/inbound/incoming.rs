//! The messages of all calls on their way in: where each begins and ends, how long it takes, and what happens if it
//! does not come.

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

/// Length of a message's prefix, which says whether the message is compressed and how long it is.
const PREFIX: usize = 5;
/// How late a timer must be polled for its expiry to be ignored. Nobody was asking for the message meanwhile, so the
/// expiry says nothing about the worker.
const POLLED_LATE: Duration = Duration::from_secs(1);

/// What a call sends.
pub(super) struct Incoming {
    body: BodyDataStream,
    shared: Arc<Shared>,
    caller: Caller,
    framing: Framing,
    /// When the awaited message has to be whole.
    due: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// When the first bytes of the current message came, if the message did not come at once.
    since: Option<std::time::Instant>,
    kind: Kind,
    /// The room of a stateless call; `None` for other calls.
    stateless: Option<StatelessRoom>,
    /// Whether the length of a message has come.
    begun: bool,
    signals: Signals,
    /// What is wrong with a message that came after good ones, which are answered first.
    fault: Option<Error>,
    ended: bool,
}

/// The room that a stateless call takes while its message is on its way.
struct StatelessRoom {
    _place: Permit,
    /// The room of the message, once its length is known.
    message: Option<Permit>,
}

/// How the reader of the call learns what happened to its messages.
pub(super) struct Signals {
    /// Set when the client has left the call.
    pub(super) left: Flag,
    pub(super) part: PartialMessage,
    pub(super) fault: Fault,
}

/// Where the next byte stands in the call's messages.
#[derive(Debug)]
enum Framing {
    /// This many bytes of a message's prefix have come.
    Prefix([u8; PREFIX], usize),
    /// This many bytes of a message are still to come.
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

    /// Takes note of bytes that have come. An error comes with the number of bytes that belong to the messages before
    /// the faulty one.
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

    /// A message of `len` bytes begins.
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

    /// A message is whole. A call with a single message keeps its time limit, because its end must come in time too.
    fn whole(&mut self) {
        self.framing = BETWEEN;
        if self.kind.is_sampling() {
            // A message that came at once has no start time, which saves a look at the clock.
            let elapsed = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            self.shared.metrics.stage(Stage::Receive, elapsed);
        }
        if !self.kind.is_single() {
            self.due = None;
        }
    }

    /// The error of a message that does not come in time.
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

    /// Whether the call was broken off: nothing more comes although the client has not ended its side. hyper presents a
    /// reset or a GOAWAY without an error as the end of the body. Proxies reset calls like that, and hyper itself cuts
    /// a connection like that when its client answers no pings.
    fn is_broken_off(&self) -> bool {
        !self.body.is_end_stream()
    }

    /// The same for a call that is dropped: nobody may have read from it since it was broken off.
    fn was_broken_off(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match Pin::new(&mut self.body).poll_next(&mut context) {
                // Bytes that had come before are of no interest any more.
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(None) => return self.is_broken_off(),
                Poll::Ready(Some(Err(_))) | Poll::Pending => return false,
            }
        }
    }

    /// Whether every message that has begun is whole.
    fn is_between(&self) -> bool {
        matches!(self.framing, Framing::Prefix(_, 0))
    }

    /// Whether what has come ends inside a message, or is not enough.
    fn is_awaiting(&self) -> bool {
        !self.is_between() || (self.kind.is_single() && !self.begun)
    }

    /// Ends a call that its client has left or whose connection is gone.
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

/// The time limit of something that is awaited from now on.
fn from_now(shared: &Shared) -> Option<Instant> {
    let timeout = shared.limits.receive_timeout;
    (!timeout.is_zero()).then(|| Instant::now() + timeout)
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // All calls of a connection are cut together, and one of them reports it.
        if self.caller.is_silent(self.shared.ping_timeout) && self.was_broken_off() && self.caller.may_report_silence()
        {
            self.shared.metrics.refused(Reason::KeepaliveTimeout);
            tracing::info!(
                peer = &**self.caller.peer(),
                "a client with open calls did not answer a ping within keepalive_timeout; its connection was closed"
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
                // The messages before the faulty one are answered first.
                Err((good, error)) => {
                    this.fault = Some(error);
                    Poll::Ready(Some(Ok(bytes.slice(..good))))
                }
            },
            Poll::Ready(Some(Err(error))) => this.left(error.to_string()),
            Poll::Ready(None) if this.is_broken_off() => this.left("the call was broken off".to_owned()),
            // This is no cancelled call: hyper reports those as an error.
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
