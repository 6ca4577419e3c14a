//! Counts the open calls of every kind. A server that drains does not wait for clients without a call.

use crate::engine;
use crate::permits::{Counter, Permit};
use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt;
use metrics::Gauge;
use std::sync::Arc;
use std::time::Duration;

/// How many looks must find no call before the wait is over.
const LOOKS: u32 = 10;

/// The open calls, and whether answers of ended calls are still on their way out.
#[derive(Debug, Clone)]
pub struct Calls {
    open: Arc<Counter>,
    unsent: Arc<Counter>,
}

impl Calls {
    pub(in crate::rpc) fn new(engine: &engine::Handle) -> Self {
        Self { open: Counter::new(usize::MAX, Gauge::noop()), unsent: engine.bytes_in_flight() }
    }

    /// Counts one more call until the permit is dropped.
    pub(in crate::rpc) fn enter(&self) -> Permit {
        self.open.take_anyway(1)
    }

    /// How many calls are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.used()
    }

    /// Resolves once no call was open for `quiet` and no answer was still to be sent.
    pub async fn none_for(&self, quiet: Duration) {
        let mut looks = 0;
        while looks < LOOKS {
            tokio::time::sleep(quiet / LOOKS).await;
            looks = if self.open.used() + self.unsent.used() == 0 { looks + 1 } else { 0 };
        }
    }
}

/// The same answer. Its call counts as open until HTTP/2 has dropped the answer.
pub(in crate::rpc) fn open_until_dropped(response: Response, call: Permit) -> Response {
    let kept = move |frame| {
        let _open = &call;
        frame
    };
    response.map(|body| Body::new(body.map_frame(kept)))
}
