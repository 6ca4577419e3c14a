//! The watch on answers that a worker does not take, and on the end of the server.
//!
//! A stream acts only when HTTP/2 asks it for an answer, and HTTP/2 does not ask while it has no room for the answer
//! before. So nothing happens by itself on a stream whose worker does not read. A message that stopped in the middle
//! does not run out of time, nor does a step that waits for its shards; and messages that wait to be read take the
//! connection's window from its other calls. All of this would stay for as long as the worker likes. That is why a task
//! beside the call watches the stream.
//!
//! The same task waits for the end of a drain. If the stream itself checked for that, it would pay for the check with
//! every token.

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

/// How often the watch looks in each timeout.
const LOOKS: u32 = 4;
/// How soon the watch looks again if a stream was busy when it was to end.
const AGAIN: Duration = Duration::from_millis(1);

/// The answers of a call, and what the server holds for it.
pub trait Answers: Stream + Unpin + Send + 'static {
    /// Whether the call holds something that moves on only when the call is asked: an answer that is due, or a message
    /// or part of one.
    fn looks_stuck(&self) -> bool;

    /// Takes in what has come of the message that is to be read next, so that the call holds it from now on.
    fn take_in_next(&mut self, context: &mut Context<'_>);

    /// Ends the call without the answers that are due, and frees everything it holds but its place.
    fn give_up(&mut self);

    /// Ends the call because the server ends. What HTTP/2 is about to get still comes before the status.
    fn close(&mut self);
}

/// The answers of a `Decode` stream, an `Attach` or a `Sample` call. They end when the worker does not take them in
/// time.
#[derive(Debug)]
pub struct Replies<S> {
    stream: Arc<Mutex<Watched<S>>>,
    _watch: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Watched<S> {
    answers: S,
    /// How many looks found the call holding something, since anybody last asked for an answer. Counting looks instead
    /// of time matters after the server itself stood still: that silence is not the worker's.
    unasked: u32,
    /// Whether anybody has asked for an answer since the last look.
    asked: bool,
    /// Wakes the task that asks for answers. A stream whose answers are taken is always asked again then.
    waker: Option<Waker>,
}

impl<S: Answers> Replies<S> {
    /// Watches until `closing` is cancelled. A `timeout` of zero means no time limit.
    pub(in crate::rpc) fn new(answers: S, timeout: Duration, closing: &CancellationToken) -> Self {
        let stream = Arc::new(Mutex::new(Watched { answers, unasked: 0, asked: true, waker: None }));
        let watch = tokio::spawn(watch(Arc::downgrade(&stream), timeout, closing.clone()));
        Self { stream, _watch: AbortOnDropHandle::new(watch) }
    }
}

impl<S: Answers> Watched<S> {
    /// Whether the call holds something. If nobody has asked for an answer since the last look, which woke the task, a
    /// message may be waiting, so this takes it in first.
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

/// Looks until the stream is gone or has to end.
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
        // Somebody is asking the stream, which may take long while sequences are opened. Waiting for that would keep a
        // thread from other work.
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

/// The stream, or `None` while somebody is asking it.
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
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;

    /// A call that does nothing but hold something, at the looks of which `is_stuck` says so.
    struct Stuck {
        looks: Cell<u32>,
        is_stuck: fn(u32) -> bool,
        given_up: bool,
    }

    impl Stuck {
        fn watched(is_stuck: fn(u32) -> bool) -> Arc<Mutex<Watched<Self>>> {
            let answers = Self { looks: Cell::new(0), is_stuck, given_up: false };
            Arc::new(Mutex::new(Watched { answers, unasked: 0, asked: true, waker: None }))
        }
    }

    impl Stream for Stuck {
        type Item = ();

        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<()>> {
            Poll::Pending
        }
    }

    impl Answers for Stuck {
        fn looks_stuck(&self) -> bool {
            self.looks.update(|looks| looks + 1);
            (self.is_stuck)(self.looks.get())
        }

        fn take_in_next(&mut self, _: &mut Context<'_>) {}

        fn give_up(&mut self) {
            self.given_up = true;
        }

        fn close(&mut self) {}
    }

    /// No test can wait forever. But in a runtime without timers, a watch with a time limit panics.
    #[test]
    fn a_timeout_of_zero_never_comes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let _inside = runtime.enter();
        let stream = Stuck::watched(|_| true);
        let begun = |timeout| {
            let watch = watch(Arc::downgrade(&stream), timeout, CancellationToken::new());
            let poll = || pin!(watch).poll(&mut Context::from_waker(Waker::noop()));
            catch_unwind(AssertUnwindSafe(poll)).map_err(drop)
        };
        assert_eq!(begun(Duration::ZERO), Ok(Poll::Pending));
        assert_eq!(begun(Duration::from_secs(60)), Err(()), "this would not show");
    }

    /// Answers that are taken piece by piece may take longer than the timeout.
    #[test]
    fn who_moves_on_now_and_then_is_not_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let looks = |is_stuck, until: u32| {
            let stream = Stuck::watched(is_stuck);
            let looked = async {
                while lock(&stream).answers.looks.get() < until {
                    sleep(AGAIN).await;
                }
            };
            let weak = Arc::downgrade(&stream);
            runtime.block_on(async {
                tokio::select! {
                    () = give_up_unread(&weak, LOOKS * AGAIN) => {}
                    () = looked => {}
                }
            });
            let watched = lock(&stream);
            (watched.answers.given_up, watched.answers.looks.get())
        };
        assert_eq!(looks(|_| true, u32::MAX), (true, LOOKS + 1), "one look begins its time");
        assert!(!looks(|look| !look.is_multiple_of(LOOKS + 1), 8 * LOOKS).0);
        assert!(looks(|look| !look.is_multiple_of(LOOKS + 2), u32::MAX).0);
    }
}
