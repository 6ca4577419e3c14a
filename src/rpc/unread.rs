//! The watch on replies that a worker does not take.
//!
//! Nobody asks for the replies of a stream while HTTP/2 has no room for what was there before. They and what they hold
//! would stay for as long as the worker likes, so this is looked at from beside the call.

use super::decode::DecodeStream;
use crate::proto;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_stream::Stream;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

/// Looks in each timeout.
const LOOKS: u32 = 4;

/// The replies of a `Decode` stream, which end when the worker does not take them in time.
#[derive(Debug)]
pub struct Replies {
    stream: Arc<Mutex<Watched>>,
    _watch: Option<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    replies: DecodeStream,
    /// When a reply was first seen waiting, since the last time that anybody asked for one.
    waits: Option<Instant>,
}

impl Replies {
    /// Watches, unless `timeout` is zero.
    pub(super) fn new(replies: DecodeStream, timeout: Duration) -> Self {
        let stream = Arc::new(Mutex::new(Watched { replies, waits: None }));
        let watch = (!timeout.is_zero()).then(|| tokio::spawn(watch(Arc::downgrade(&stream), timeout)));
        Self { stream, _watch: watch.map(AbortOnDropHandle::new) }
    }
}

impl Stream for Replies {
    type Item = Result<proto::DecodeResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut watched = lock(&self.stream);
        watched.waits = None;
        Pin::new(&mut watched.replies).poll_next(context)
    }
}

/// Looks until the stream is gone, or has to be.
async fn watch(stream: Weak<Mutex<Watched>>, timeout: Duration) {
    loop {
        sleep((timeout / LOOKS).max(Duration::from_millis(1))).await;
        let Some(stream) = stream.upgrade() else { return };
        let mut watched = lock(&stream);
        if !watched.replies.has_reply() {
            continue;
        }
        let since = *watched.waits.get_or_insert_with(Instant::now);
        if since.elapsed() >= timeout {
            return watched.replies.give_up();
        }
    }
}

/// A panic while it was held ended its call; what is left is only dropped.
fn lock(stream: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}
