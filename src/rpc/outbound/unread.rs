//! The watch on answers that a worker does not take, and on the end of the server.
//!
//! A stream does something only when HTTP/2 asks it for an answer, and HTTP/2 does not ask while it has no room for the one before. So
//! nothing of a stream whose worker does not read happens by itself: a message that stopped in the middle does not run out of time, nor
//! does a step that waits for its shards, and messages that wait to be read take the connection's window from its other calls. All of it
//! would stay for as long as the worker likes. That is why a task beside the call looks at it.
//!
//! The same task waits for the end of a drain: a stream that looked for that whenever it is asked would pay for it with every token.

use crate::locks::lock;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::sleep;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Looks in each timeout.
const LOOKS: u32 = 4;
/// How soon a stream is looked at again that was being asked when it was to end.
const AGAIN: Duration = Duration::from_millis(1);

/// The answers of a call, and what the server holds for it.
pub trait Answers: Stream + Unpin + Send + 'static {
    /// Whether it holds something that goes on only when it is asked: an answer that is due, or a message or part of one.
    fn looks_stuck(&self) -> bool;

    /// Takes in what has come of a message that is to be read next, so that it is held from now on.
    fn take_in_next(&mut self, context: &mut Context<'_>);

    /// Ends it without the answers that are due, and frees everything that it holds but its place.
    fn give_up(&mut self);

    /// Ends it because the server ends. What HTTP/2 is about to get still comes before the status.
    fn close(&mut self);
}

/// The answers of a `Decode` stream, an `Attach` or a `Sample` call, which end when the worker does not take them in time.
#[derive(Debug)]
pub struct Replies<S> {
    stream: Arc<Mutex<Watched<S>>>,
    _watch: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Watched<S> {
    answers: S,
    /// Looks that found it holding something, since the last time that anybody asked for an answer. Looks and not time, so
    /// that a server that stood still for a while takes nobody's silence for its worker's.
    unasked: u32,
    /// Whether anybody has since the last look.
    asked: bool,
    /// Has it asked again. A stream whose answers are taken always does.
    waker: Option<Waker>,
}

impl<S: Answers> Replies<S> {
    /// Watches until `closing`; a `timeout` of zero is none.
    pub(in crate::rpc) fn new(answers: S, timeout: Duration, closing: &CancellationToken) -> Self {
        let stream = Arc::new(Mutex::new(Watched { answers, unasked: 0, asked: true, waker: None }));
        let watch = tokio::spawn(watch(Arc::downgrade(&stream), timeout, closing.clone()));
        Self { stream, _watch: AbortOnDropHandle::new(watch) }
    }
}

impl<S: Answers> Watched<S> {
    /// Whether it holds something. What nobody has asked for since the last look, when it was woken, may be a message.
    fn is_stuck(&mut self) -> bool {
        let asked = mem::take(&mut self.asked);
        if let Some(waker) = self.waker.as_ref().filter(|_| !asked) {
            self.answers.take_in_next(&mut Context::from_waker(waker));
        }
        self.answers.looks_stuck()
    }
}

impl<S: Answers> Stream for Replies<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let mut watched = lock(&self.stream);
        (watched.unasked, watched.asked) = (0, true);
        match &mut watched.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Pin::new(&mut watched.answers).poll_next(context)
    }
}

/// Looks until the stream is gone, or has to be.
async fn watch<S: Answers>(stream: Weak<Mutex<Watched<S>>>, timeout: Duration, closing: CancellationToken) {
    let given_up = async {
        if timeout.is_zero() {
            std::future::pending::<()>().await;
        }
        give_up_unread(&stream, timeout).await;
    };
    let is_closing = tokio::select! {
        () = given_up => false,
        () = closing.cancelled() => true,
    };
    if is_closing {
        close(&stream).await;
    }
}

async fn close<S: Answers>(stream: &Weak<Mutex<Watched<S>>>) {
    while let Some(stream) = stream.upgrade() {
        if let Some(mut watched) = idle(&stream) {
            watched.answers.close();
            let waker = watched.waker.take();
            drop(watched);
            return waker.into_iter().for_each(Waker::wake);
        }
        drop(stream);
        sleep(AGAIN).await;
    }
}

async fn give_up_unread<S: Answers>(stream: &Weak<Mutex<Watched<S>>>, timeout: Duration) {
    loop {
        sleep((timeout / LOOKS).max(Duration::from_millis(1))).await;
        let Some(stream) = stream.upgrade() else { return };
        // It is being asked, which may take long where sequences are opened; to wait for that would keep a thread from others.
        let Some(mut watched) = idle(&stream) else { continue };
        if !watched.is_stuck() {
            watched.unasked = 0;
        } else {
            watched.unasked += 1;
            if watched.unasked > LOOKS {
                return watched.answers.give_up();
            }
        }
        let waker = watched.waker.clone();
        drop(watched);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// None while somebody asks it.
fn idle<S>(stream: &Mutex<Watched<S>>) -> Option<MutexGuard<'_, Watched<S>>> {
    match stream.try_lock() {
        Ok(watched) => Some(watched),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;

    /// A call that does nothing but hold something.
    struct Stuck;

    impl Stream for Stuck {
        type Item = ();

        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<()>> {
            Poll::Pending
        }
    }

    impl Answers for Stuck {
        fn looks_stuck(&self) -> bool {
            true
        }

        fn take_in_next(&mut self, _: &mut Context<'_>) {}

        fn give_up(&mut self) {}

        fn close(&mut self) {}
    }

    /// No test can wait for ever. In a runtime without timers whoever would wait for a time panics instead.
    #[test]
    fn a_timeout_of_zero_never_comes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let _inside = runtime.enter();
        let stream = Arc::new(Mutex::new(Watched { answers: Stuck, unasked: 0, asked: true, waker: None }));
        let begun = |timeout| {
            let watch = watch(Arc::downgrade(&stream), timeout, CancellationToken::new());
            let poll = || pin!(watch).poll(&mut Context::from_waker(Waker::noop()));
            catch_unwind(AssertUnwindSafe(poll)).map_err(drop)
        };
        assert_eq!(begun(Duration::ZERO), Ok(Poll::Pending));
        assert_eq!(begun(Duration::from_secs(60)), Err(()), "this would not show");
    }
}
