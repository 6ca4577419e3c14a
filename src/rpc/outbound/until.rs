//! Ends streams that would go on for ever when the server stops.

use std::pin::Pin;
use std::task::{Context, Poll};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The items of a stream until the server stops. Items that are ready by then still come.
pub(in crate::rpc) struct Until<S> {
    items: S,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> Until<S> {
    pub(in crate::rpc) fn stopped(items: S, stop: &CancellationToken) -> Self {
        Self { items, stop: Box::pin(stop.clone().cancelled_owned()) }
    }
}

impl<S: Stream + Unpin> Stream for Until<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        match Pin::new(&mut self.items).poll_next(context) {
            Poll::Pending => self.stop.as_mut().poll(context).map(|()| None),
            ready => ready,
        }
    }
}
